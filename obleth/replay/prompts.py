"""Text for prompts that are known by their length alone.

Four characters are taken for a token, as the simulated backend and the gateway's estimate do; with
a real tokenizer the lengths are only near. Blocks of one name have one text wherever they come up,
so that prompts share in the backend's cache what they shared when the trace was recorded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from obleth.replay.trace import BLOCK_TOKENS, Step

TOKEN_CHARS: Final = 4
_BLOCKS_KEPT: Final = 4096

Message = dict[str, str]


class Conversation:
    """A session's prompt, growing from step to step by what is asked and what is answered."""

    def __init__(self, token_scale: float) -> None:
        self._scale = token_scale
        self.messages: list[Message] = []

    def ask(self, step: Step) -> list[Message]:
        """The messages of a step's request."""
        self.messages.append({"role": "user", "content": step_text(step, self._scale)})
        return list(self.messages)

    def answer(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def scaled(tokens: int, scale: float) -> int:
    """A number of tokens at another scale, at least 1."""
    return max(1, round(tokens * scale))


def step_text(step: Step, scale: float) -> str:
    """What a step adds to its prompt: its blocks' text, cut or filled up to its length."""
    length = scaled(step.prompt_tokens, scale) * TOKEN_CHARS
    block_length = scaled(BLOCK_TOKENS, scale) * TOKEN_CHARS
    wanted = step.blocks[: -(-length // block_length)]
    text = "".join(_named(f"b{block:x}", block_length) for block in wanted)[:length]
    return text + _repeated(f"r{step.row:x}", length - len(text))


@lru_cache(_BLOCKS_KEPT)
def _named(name: str, length: int) -> str:
    return _repeated(name, length)


def _repeated(name: str, length: int) -> str:
    word = f"{name} "
    return (word * (length // len(word) + 1))[:length]
