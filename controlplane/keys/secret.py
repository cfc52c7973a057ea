"""Making an API key's secret."""

from __future__ import annotations

import secrets
from typing import Final

_HEX_DIGITS: Final = 48
_PREFIX_LENGTH: Final = len("sk-") + 8
"""What is kept in clear; 160 random bits stay unknown."""


def new_secret() -> str:
    """A fresh key: `sk-` and 48 hex digits, 192 random bits."""
    return "sk-" + secrets.token_hex(_HEX_DIGITS // 2)


def prefix(secret: str) -> str:
    """How a key begins, for people to recognise it by."""
    return secret[:_PREFIX_LENGTH]
