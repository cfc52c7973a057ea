"""How a command says that it cannot go on."""

from __future__ import annotations

from typing import Final

WRONG_USE: Final = 2
FAILED: Final = 1


class Failed(Exception):
    """The message, one line, is for whoever called the command; `exit_code` is the process's."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
