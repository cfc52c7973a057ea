"""What is written from the code says what the code says."""

from pathlib import Path

import pytest

from deploy.dev import reference
from obleth.settings import EmbeddedSettings
from shared.settings import variable_name
from tests.architecture.tree import ROOT, name

WRITTEN = {name(path): text for path, text in reference.generated().items()}


@pytest.mark.parametrize("path", WRITTEN)
def test_it_is_as_it_would_be_written_now(path: str) -> None:
    assert (ROOT / path).read_text() == WRITTEN[path], "make docs writes it anew"


def test_every_setting_is_listed_once_and_described() -> None:
    listed = [line for line in reference.configuration().splitlines() if line.startswith("| `")]
    assert sorted(line.split("`")[1] for line in listed) == sorted(
        variable_name(field) for field in EmbeddedSettings.model_fields
    )
    assert [line for line in listed if line.endswith("|  |")] == []


def test_it_comes_from_no_file_of_the_developers(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OBLETH_ADMISSION_TIMEOUT_SECS=7\n")
    assert reference.configuration() == WRITTEN["docs/configuration.md"]
