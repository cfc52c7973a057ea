"""What session affinity over a fleet costs in script calls: nothing but the claims for a hold
alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dataplane.admission.fleet import Fleet
from dataplane.admission.owner import Admission, Limits
from dataplane.admission.permit import Ask
from dataplane.admission.replica import Mode, Stance
from dataplane.admission.slots.redis import RedisSlots
from dataplane.scripts import ScriptCall
from shared.policy import AffinityOverride, AffinityPolicy, ModelPolicy
from tests.simulation.redis_model import ModelScripts, RedisModel
from tests.simulation.world import a_key

MODEL = ModelPolicy("m", "m", max_in_flight=4)
KEY = a_key("t")


class Counted(ModelScripts):
    """The books, and how often each script was called."""

    def __init__(self) -> None:
        self.model = RedisModel()
        super().__init__(self.model, lambda: 1_700_000_000_000)
        self.calls: Counter[str] = Counter()

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        self.calls.update(call.script for call in calls)
        return await super().run(calls)


async def joined(scripts: Counted, *, affinity: bool) -> tuple[Admission, Fleet]:
    """One replica of two, in mode shared."""
    slots, other = (RedisSlots(scripts, replica=name, ttl=60) for name in ("one", "two"))
    for each in (slots, other, slots):
        await each.heartbeat([])
    scripts.calls.clear()
    admission = Admission(
        Limits(affinity=AffinityPolicy(affinity, max_held_percent=50)), has_fleet=True
    )
    fleet = Fleet(
        slots,
        "one",
        post=admission.answered,
        unavailable=lambda: None,
        lapsed=lambda: None,
    )
    admission.join(fleet)
    admission.stand(Stance(Mode.SHARED, 2, 1, claims=True, paused=False))
    return admission, fleet


async def a_loop(*, affinity: bool) -> tuple[Counter[str], list[str]]:
    """Two sessions of ten steps, one after the other; script calls, and which slot each had."""
    scripts = Counted()
    admission, fleet = await joined(scripts, affinity=affinity)
    taken = []
    for number in range(20):
        async with admission.admit(Ask(KEY, MODEL, 100, f"s{number % 2}")) as permit:
            await asyncio.sleep(0)
            taken.append(permit.slot)
        await fleet.settled()
    return scripts.calls, taken


async def test_affinity_makes_no_script_call_more_over_the_same_requests() -> None:
    without, plain = await a_loop(affinity=False)
    calls, taken = await a_loop(affinity=True)
    assert calls == without == Counter(claim=20, release=20)
    assert plain == ["new"] * 20
    # A session's first step follows none; the second is followed, but not held for.
    assert taken == ["new"] * 4 + ["held"] * 16


async def test_affinity_turned_off_has_the_fleet_free_what_it_holds_at_once() -> None:
    scripts = Counted()
    admission, fleet = await joined(scripts, affinity=True)
    for _ in range(2):
        async with admission.admit(Ask(KEY, MODEL, 100, "s")):
            await asyncio.sleep(0)
        await fleet.settled()
    assert [name for name in scripts.model.keys if name.endswith(":holds")]
    off = replace(MODEL, affinity=AffinityOverride(enabled=False))
    admission.models_changed([off])
    await fleet.settled()
    assert [name for name in scripts.model.keys if ":holds" in name or ":pool:" in name] == []
    assert scripts.calls == Counter(claim=2, release=3)
