"""What a token is here: four characters, so that every count can be worked out by hand.

A text of n code points is ceil(n / 4) tokens, and each message costs four more for its role. Both
rules agree with the gateway's own estimate for texts whose length is a multiple of four, so a test
can ask for an exact number. A reply of n tokens is 4n characters long: sent back as the next
prompt's assistant message it is n tokens again, and extends the same cached prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CHARS: Final = 4
"""Code points of one token."""

_ASCII: Final = (
    "A shared model answers one slot at a time; who waits is decided, and why is shown to all.   "
)
_UNICODE: Final = "公平分配每一個位子🙂等待的人都知道為什麼🚦先到先得不再是唯一的規則✨ß∂é‰ "


def count(text: str) -> int:
    """Tokens of a text; 0 for an empty one."""
    return -(-len(text) // CHARS)


def whole(text: str) -> str:
    """The text, filled up with spaces to whole tokens."""
    return text + " " * (-len(text) % CHARS)


def message(role: str, text: str) -> str:
    """One message as it stands in a prompt: its role in four tokens, then its text."""
    return f"<|{role[:12]:<12}|>{whole(text)}"


def prompt(messages: Iterable[tuple[str, str]]) -> str:
    """A conversation of (role, text) as one text; a conversation that goes on extends it."""
    return "".join(message(role, text) for role, text in messages)


def reply(tokens: int, *, unicode: bool = False) -> str:
    """The text of a reply of that many tokens; the same one every time."""
    text = _UNICODE if unicode else _ASCII
    length = tokens * CHARS
    return (text * (length // len(text) + 1))[:length]


def pieces(text: str) -> list[str]:
    """A text cut into its tokens."""
    return [text[at : at + CHARS] for at in range(0, len(text), CHARS)]
