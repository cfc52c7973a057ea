"""What a request is charged before its usage is known. Pure.

A text is a quarter of its characters in tokens, rounded down, and at least one if it is not empty;
a message adds four. To that comes what may be generated: what the client allows at most, or else as
much as the prompt, within `OUTPUT_GUESS_MIN` and `OUTPUT_MAX`; never more than `OUTPUT_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dataplane.openai_api.body import JsonBody
from dataplane.openai_api.prompt import Block, Prompt, Texts, texts_of

CHARS_PER_TOKEN: Final = 4
TOKENS_PER_MESSAGE: Final = 4
OUTPUT_GUESS_MIN: Final = 512
OUTPUT_MAX: Final = 8192

_OUTPUT_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens a request may use."""

    input_tokens: int
    output_tokens: int

    @property
    def total(self) -> int:
        """What is charged: at least 1."""
        return max(1, self.input_tokens + self.output_tokens)


UPLOAD: Final = Estimate(0, OUTPUT_GUESS_MIN)
"""Of a body that is passed through unread."""


def estimate(body: JsonBody, prompt: Prompt, *, generates_text: bool) -> Estimate:
    """The estimate for a JSON request."""
    tokens = sum(_tokens_in(each) for each in prompt.fields.values())
    tokens += sum(_tokens(text) for text in prompt.unread) + _tokens(prompt.tools)
    if not generates_text:
        return Estimate(tokens, 0)
    return Estimate(tokens, _output_tokens(body, tokens))


def _output_tokens(body: JsonBody, prompt_tokens: int) -> int:
    given = [body.whole_number(name) for name in _OUTPUT_LIMITS]
    # Which of several an upstream goes by differs: the largest is on the safe side.
    allowed = max((each for each in given if each is not None and each >= 0), default=None)
    if allowed is None:
        allowed = max(OUTPUT_GUESS_MIN, prompt_tokens)
    return min(allowed, OUTPUT_MAX)


def _tokens_in(found: Texts) -> int:
    tokens = sum(_tokens(text) for text in texts_of(found))
    if isinstance(found, list):
        for each in found:
            if isinstance(each, Block):
                tokens += TOKENS_PER_MESSAGE if each.is_message else 0
            elif isinstance(each, int):
                tokens += 1
            elif isinstance(each, list):
                tokens += len(each)
    return tokens


def _tokens(text: str) -> int:
    return max(1, len(text) // CHARS_PER_TOKEN) if text else 0
