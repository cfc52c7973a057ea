"""The prefix cache: what is shared, and what is forgotten first."""

from __future__ import annotations

import pytest

from obleth.backend import tokens
from obleth.backend.prefix_cache import PrefixCache


def text(blocks: str, block_tokens: int = 2) -> str:
    """One block for each letter."""
    return "".join(letter * block_tokens * tokens.CHARS for letter in blocks)


def cached(cache: PrefixCache, blocks: str) -> int:
    return cache.cached_tokens(cache.chain(text(blocks)))


def stored(capacity_tokens: int, *conversations: str) -> PrefixCache:
    cache = PrefixCache(capacity_tokens, block_tokens=2)
    for blocks in conversations:
        cache.store(cache.chain(text(blocks)))
    return cache


def test_only_the_common_beginning_of_two_prompts_is_shared() -> None:
    cache = stored(100, "abcd")
    assert cached(cache, "abxd") == 4
    assert cached(cache, "xbcd") == 0
    assert cached(cache, "abcde") == 8


def test_a_block_that_is_not_full_is_not_kept() -> None:
    cache = PrefixCache(100, block_tokens=2)
    cache.store(cache.chain(text("ab") + "c"))
    assert cache.used_tokens == 4


def test_the_conversation_used_longest_ago_goes_first() -> None:
    cache = stored(8, "ab", "cd")
    cache.store(cache.chain(text("ab")))
    cache.store(cache.chain(text("ef")))
    assert (cached(cache, "ab"), cached(cache, "cd"), cached(cache, "ef")) == (4, 0, 4)


def test_a_conversation_loses_its_end_before_its_beginning() -> None:
    cache = stored(8, "abcd", "x")
    assert cached(cache, "abcd") == 6


def test_a_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    assert cached(stored(4, "abcdef"), "abcdef") == 4


def test_a_chain_that_goes_on_from_a_known_beginning_is_the_same_chain() -> None:
    cache = PrefixCache(100, block_tokens=2)
    whole = cache.chain(text("abcd"))
    assert cache.chain(text("abcd"), cache.chain(text("ab"))) == whole


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_cache_without_room_keeps_nothing(capacity: int) -> None:
    assert cached(stored(capacity, "ab"), "ab") == 0


def test_a_reply_sent_back_as_a_message_extends_the_prompt_it_answered() -> None:
    asked = [("user", "what?")]
    said = tokens.reply(5)
    following = tokens.prompt([*asked, ("assistant", said), ("user", "and?")])
    assert following.startswith(tokens.prompt(asked) + tokens.message("assistant", said))
    assert tokens.count(said) == 5
