"""The features of the table: what each client does, and what has to come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tests.clients.upstream import ARGUMENTS, CALLED, SAID
from tests.embedded.conftest import Product

PROMPT = "abcd" * 30
"""30 tokens, and 4 for the message."""
TOKENS = 7
TEXT = "A shared model answers one s"
"""What the simulated backend says in so many tokens."""
ABSENT = "absent"
"""A model that nobody has registered."""
FEATURES = ("plain", "stream", "tools", "usage", "error", "retry", "models")
TOOL: dict[str, Any] = {
    "name": CALLED,
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@dataclass(frozen=True)
class Shop:
    """The product, and a key to it."""

    product: Product
    key: str

    @property
    def root(self) -> str:
        """As Anthropic's SDK takes it."""
        return str(self.product.client.base_url).rstrip("/")

    @property
    def url(self) -> str:
        """As OpenAI's takes it."""
        return f"{self.root}/v1"


class Client(Protocol):
    """One client. Each method does one thing by it and tells what it was told, as plain data."""

    async def plain(self) -> str:
        """The text of a whole answer of `TOKENS` tokens to `PROMPT` from the model `sim`."""

    async def stream(self) -> str:
        """The same, out of a stream."""

    async def tools(self) -> list[Any]:
        """Name and arguments of the tool that the model `tools` calls: whole, then streamed."""

    async def usage(self) -> list[int]:
        """Tokens in and out: of a whole answer, then of a stream."""

    async def error(self) -> list[Any]:
        """Status, type and code or message of what is said of the model `ABSENT`."""

    async def retry(self) -> str:
        """What the model `flaky` says at last."""

    async def models(self) -> list[str]:
        """The names of the models there are."""


def check(feature: str, result: Any) -> None:
    """Whether a client was told what is so."""
    match feature:
        case "plain" | "stream":
            assert result == TEXT
        case "tools":
            assert result == [CALLED, ARGUMENTS, CALLED, ARGUMENTS]
        case "usage":
            given, made, *streamed = result
            assert made == TOKENS
            assert given >= len(PROMPT) // 4
            assert streamed == [given, made]
        case "error":
            status, kind, said = result
            assert status == 404
            assert kind in ("invalid_request_error", "not_found_error")
            assert ABSENT in said or said == "model_not_found"
        case "retry":
            assert result == SAID
        case "models":
            assert set(result) >= {"sim", "tools", "flaky"}
        case _:
            raise AssertionError(feature)
