"""A prefix cache as inference engines keep it: blocks of tokens, hashed in a chain, oldest out.

A block's hash depends on every block before it, so two prompts share exactly what they begin with.
Only whole blocks are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from obleth.backend import tokens


class PrefixCache:
    """One model's cache. `capacity_tokens` 0 keeps nothing; sizes are tokens."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._block_chars = block_tokens * tokens.CHARS
        self._capacity = capacity_tokens // block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    @property
    def used_tokens(self) -> int:
        return len(self._blocks) * self._block_tokens

    def chain(self, text: str, known: Sequence[int] = ()) -> list[int]:
        """The hashes of a text's whole blocks; `known` are those of a beginning of it.

        Empty when nothing is kept, so that a cache that is off costs nothing.
        """
        hashes = list(known)
        if not self._capacity:
            return hashes
        last = hashes[-1] if hashes else 0
        end = len(text) - len(text) % self._block_chars
        for at in range(len(hashes) * self._block_chars, end, self._block_chars):
            last = hash((last, text[at : at + self._block_chars]))
            hashes.append(last)
        return hashes

    def cached_tokens(self, chain: Sequence[int]) -> int:
        """How many tokens at the beginning of a chain are kept."""
        for blocks, block in enumerate(chain):
            if block not in self._blocks:
                return blocks * self._block_tokens
        return len(chain) * self._block_tokens

    def store(self, chain: Sequence[int]) -> None:
        """Keep a chain's blocks as the last used, dropping those used longest ago.

        The end of a chain counts as older than its beginning, so that a conversation loses its tail
        first: without their beginning the later blocks would be of no use.
        """
        for block in reversed(chain[: self._capacity]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()
