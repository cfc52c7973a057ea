"""The backend as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
from obleth.backend import BackendOptions, run
run(BackendOptions(), on_ready=lambda backend: print(backend.url, flush=True))
"""


def test_it_says_where_it_listens_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    assert url.startswith("http://127.0.0.1:")
