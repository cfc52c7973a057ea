"""What is released works without the project beside it."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from deploy.dev import clean_room
from tests.architecture.tree import ROOT


@pytest.mark.timeout(600)
def test_wheel_and_source_archive_run_the_demo_from_an_empty_folder() -> None:
    done = subprocess.run(
        ["make", "-s", "clean-room"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("`obleth demo` served from an empty folder") == 2


@pytest.mark.parametrize(
    "left_out", ["dataplane/admission/slots/lua/claim.lua", "migrations/env.py"]
)
def test_an_archive_without_one_of_the_files_is_told_of(left_out: str, tmp_path: Path) -> None:
    archive = tmp_path / "obleth.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        for package in clean_room.PACKAGES:
            for path in (ROOT / package).rglob("*"):
                name = str(path.relative_to(ROOT))
                if path.is_file() and name != left_out:
                    wheel.writestr(name, b"")
    with pytest.raises(clean_room.Wrong, match=left_out):
        clean_room.check_contents(archive)
