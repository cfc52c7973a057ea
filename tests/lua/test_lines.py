"""Lines on a real server that hold what no replica wrote, or one of another version."""

from __future__ import annotations

import json
import time

import pytest
from redis.asyncio import Redis

from dataplane.admission.slots.port import Answer, Claim
from dataplane.scheduler.standing import Charges, Rank, Standing, Turn
from tests.contract.slot_worlds import answers
from tests.lua.parts import KEYS, claim, held, two

LINE, _, _ = KEYS.lines("m", "t", "k")
STANDS = ["m", 0, "g", 0, 1, "t", 0, 1, -1, "k", 0, -1]
CUTS = [1, 2, 100, [1, 2], [1, 2]]


def in_order(id: str, pool: str = "m") -> Claim:
    standing = Standing(Rank("g", 0.0, 1), Rank("t", 0.0, 1), Rank("k", 0.0), 0.0)
    return claim(id, pool=pool, turn=Turn(standing, Charges(1.0, 1.0, 1.0)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "something else"),
        ("n", str(2**63 - 1)),
        ("t:m", "something else"),
        ("p:m", "something else"),
        ("p:n", "something else"),
        ("p:n", '{"size": 2}'),
        ("p:n", json.dumps(["2", KEYS.all, LINE, "served"])),
        ("p:n", json.dumps([2, KEYS.roster, "a line", "served"])),
    ],
)
async def test_what_is_wrong_at_the_ceiling_keeps_nobody_from_slots(
    redis: Redis, field: str, value: str
) -> None:
    one, other = await two(redis)
    await redis.hset(KEYS.line_all, field, value)
    for number in range(3):
        assert await answers(one, [], [in_order(f"a{number}")]) == [Answer.GRANTED]
        assert await answers(other, [held(f"a{number}")], []) == []
        assert await redis.zcard(KEYS.all) == 0


@pytest.mark.parametrize(
    "text",
    [
        "something else",
        "7",
        "[7]",
        "[[]]",
        json.dumps([STANDS[:9]]),
        json.dumps([[*STANDS, {"first": 1}]]),
        json.dumps([[*STANDS, 1, 2, 100, [], []]]),
    ],
)
async def test_a_place_that_says_nothing_sensible_is_no_place(redis: Redis, text: str) -> None:
    one, _ = await two(redis)
    await redis.hset(LINE, "r:another", f"{time.time() * 1000 - 10:.0f} 0 0 {text}")
    assert await answers(one, [], [in_order("a")]) == [Answer.GRANTED]
    assert not await redis.hexists(LINE, "r:another")
    assert await answers(one, [held("a")], []) == []
    assert await redis.zcard(KEYS.all) == 0


@pytest.mark.parametrize("more", [[], CUTS, [*CUTS, "of a later version"]])
async def test_a_place_that_another_version_wrote_is_one(redis: Redis, more: list[object]) -> None:
    one, _ = await two(redis)
    place = json.dumps([[*STANDS[:1], 5000, *STANDS[2:], *more]])
    await redis.hset(LINE, "r:another", f"{time.time() * 1000 - 10:.0f} 0 0 {place}")
    assert await answers(one, [], [in_order("a")]) == [Answer.NOT_YOUR_TURN]


@pytest.mark.parametrize("score", ["something else", "nan", "inf", "1e300"])
async def test_a_score_that_is_none_holds_nobody_back(redis: Redis, score: str) -> None:
    one, _ = await two(redis)
    nodes = dict.fromkeys(("g:g", "t:t", "k:k"), f"{score} 0")
    await redis.hset(KEYS.served("m"), mapping=nodes)
    (reply,) = (await one.exchange([], [in_order("a")])).claims
    assert reply.told is not None
    assert reply.told.scores == (1.0, 1.0, 1.0)
