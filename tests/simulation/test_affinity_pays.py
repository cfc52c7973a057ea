"""What session affinity is for, in virtual time: agents finish sooner, and nobody else starves.

A backend keeps the prompts of four sessions; twelve agents at three keys each send eight steps over
one growing prompt, beside a key with plain batch work.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

from dataplane.scheduler.events import AffinityRules, PoolPolicy
from obleth.backend.prefix_cache import PrefixCache
from obleth.backend.tokens import CHARS
from tests.simulation.world import World, a_key

SLOTS, SESSIONS, STEPS, AGENT_KEYS = 4, 12, 8, 3
FIRST_PROMPT, EACH_STEP, BATCH_PROMPT, REPLY = 12_000, 500, 200, 60
"""Tokens."""
TOKENS_A_SECOND, TOKEN_SECS, THINKS_SECS = 4_000, 0.005, 0.2
RULES = AffinityRules()


@dataclass
class Backend:
    """How long a request takes once it runs, by what is cached then."""

    cache: PrefixCache
    given: int = 0
    cached: int = 0
    longest: float = 0.0

    def secs(self, prompt: str) -> float:
        chain = self.cache.chain(prompt)
        tokens, known = len(prompt) // CHARS, self.cache.cached_tokens(chain)
        self.cache.store(chain)
        self.given += tokens
        self.cached += known
        took = (tokens - known) / TOKENS_A_SECOND + REPLY * TOKEN_SECS
        self.longest = max(self.longest, took)
        return took


@dataclass
class Played:
    backend: Backend
    agent_secs: list[float] = field(default_factory=list)
    batch_waits: list[float] = field(default_factory=list)
    noted: Counter[str] = field(default_factory=Counter)


def play(rules: AffinityRules | None) -> Played:
    one = FIRST_PROMPT + STEPS * EACH_STEP
    backend = Backend(PrefixCache(SLOTS * one, 16))
    pool = PoolPolicy("m", "m", SLOTS, "configured", affinity=rules)
    world, played = World(), Played(backend)

    def step(n: int, count: int, prompt: str, began: float) -> None:
        if count == STEPS:
            played.agent_secs.append(world.now - THINKS_SECS - began)
            return
        more = f"{n}.{count} " * (EACH_STEP * CHARS // 4)
        longer = prompt + more[: EACH_STEP * CHARS]
        key = a_key(f"agents {n % AGENT_KEYS}")

        def thinks() -> None:
            world.at(world.now + THINKS_SECS, lambda: step(n, count + 1, longer, began))

        world.send(key, pool=pool, session=f"s{n}", secs=lambda: backend.secs(longer), then=thinks)

    numbers = itertools.count()

    def batch() -> None:
        text = (f"b{next(numbers)} " * BATCH_PROMPT * CHARS)[: BATCH_PROMPT * CHARS]
        world.send(a_key("batch"), pool=pool, secs=lambda: backend.secs(text), then=batch)

    for n in range(SESSIONS):
        prompt = (f"s{n} " * FIRST_PROMPT * CHARS)[: FIRST_PROMPT * CHARS]
        step(n, 0, prompt, 0.0)
    for _ in range(3):
        batch()
    while len(played.agent_secs) < SESSIONS:
        world.run(1)
    grants = [grant for grant in world.grants if grant.tenant == "batch"]
    played.batch_waits = sorted(grant.waited for grant in grants)
    played.noted = world.noted
    return played


def p99(values: list[float]) -> float:
    return values[math.ceil(0.99 * len(values)) - 1]


def test_total_agent_time_at_least_halves_and_the_batch_waits_no_longer_than_it_may() -> None:
    off, on = play(None), play(RULES)
    assert sum(on.agent_secs) <= sum(off.agent_secs) / 2
    assert max(on.agent_secs) < max(off.agent_secs)
    assert p99(on.batch_waits) <= RULES.max_bypass_secs + on.backend.longest
    assert on.backend.cached / on.backend.given > 0.5 > off.backend.cached / off.backend.given


def test_most_slots_that_are_held_are_taken() -> None:
    noted = play(RULES).noted
    assert noted["redeem"] >= 0.8 * noted["hold"]


def test_five_loops_on_one_slot_pass_a_request_of_their_key_max_jumps_times_and_no_more() -> None:
    rules = AffinityRules(max_held_percent=100)
    pool = PoolPolicy("m", "m", 1, "configured", affinity=rules)
    world, key = World(), a_key("t")

    def loop(name: str) -> None:
        world.send(key, pool=pool, session=name, secs=1, then=lambda: thinks(name))

    def thinks(name: str) -> None:
        world.at(world.now + 0.1, lambda: loop(name))

    for n in range(5):
        loop(f"s{n}")
    world.run(20)
    cold = world.send(key, pool=pool, secs=1)
    world.run(60)
    order = [grant.request for grant in world.grants]
    passers = [request for request in order[: order.index(cold)] if request > cold]
    assert 0 < len(passers) <= rules.max_jumps
    waited = next(grant.waited for grant in world.grants if grant.request == cold)
    assert waited <= rules.max_bypass_secs + 1
