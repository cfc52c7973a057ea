"""What can stop a replay before it has begun; each text is one line for who typed the command."""

from __future__ import annotations

from typing import ClassVar


class ReplayError(Exception):
    """The replay cannot be done; `exit_code` is what the command should end with."""

    exit_code: ClassVar[int] = 2


class BadOptions(ReplayError):
    """An option makes no sense."""


class BadTrace(ReplayError):
    """The file is no trace, or one of its rows is not a row."""


class GatewayUnreachable(ReplayError):
    """Nobody answers at the gateway's address, or not as a gateway does."""

    exit_code = 3


class KeyRefused(ReplayError):
    """A tenant's key is not accepted, or may not use the model."""

    exit_code = 4
