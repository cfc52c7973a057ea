"""Session affinity as requests see it: what is in force, which slot they get, what ends a hold."""

from __future__ import annotations

import pytest

from dataplane.admission import Admission, Ask, Limits, Permit
from dataplane.admission.affinity import in_force
from shared.policy import AffinityOverride, AffinityPolicy, EndpointPolicy, KeyPolicy, ModelPolicy
from tests.simulation.world import a_key

ON = AffinityPolicy(enabled=True, max_held_percent=100)
OFF = AffinityPolicy()
KEY = a_key("t")


def a_model(**fields: object) -> ModelPolicy:
    return ModelPolicy("id-m", "m", max_in_flight=1, **fields)  # type: ignore[arg-type]


MODEL = a_model()


class Gate(Admission):
    """Admits with affinity on, and says what affinity did."""

    def __init__(self) -> None:
        self.did: list[tuple[str, str]] = []
        super().__init__(Limits(affinity=ON), on_affinity=self._happened)

    def _happened(self, model: str, event: str) -> None:
        self.did.append((model, event))

    async def step(
        self, model: ModelPolicy = MODEL, key: KeyPolicy = KEY, *, fails: bool = False
    ) -> Permit:
        async with self.admit(Ask(key, model, 100, "s")) as permit:
            if fails:
                permit.fail()
        return permit

    @property
    def held(self) -> int:
        return sum(pool.held for pool in self.core.pools)


async def test_the_third_step_of_a_loop_runs_in_the_slot_that_was_held_for_it() -> None:
    gate = Gate()
    slots = [(await gate.step()).slot for _ in range(3)]
    assert slots == ["new", "new", "held"]
    assert (await gate.step()).admission == "fast"
    assert gate.did[:2] == [("m", "hold"), ("m", "redeem")]


async def test_a_step_that_fails_or_breaks_off_holds_nothing() -> None:
    gate = Gate()
    await gate.step()
    await gate.step(fails=True)
    assert gate.held == 0
    with pytest.raises(ZeroDivisionError):
        async with gate.admit(Ask(KEY, MODEL, 100, "s")):
            raise ZeroDivisionError
    assert gate.held == 0


async def test_a_key_that_slots_are_held_for_is_followed_and_frees_them_when_it_goes() -> None:
    gate = Gate()
    await gate.step()
    await gate.step()
    assert (gate.held, gate.waiting_keys) == (1, [KEY])
    gate.key_gone(KEY)
    assert (gate.held, gate.waiting_keys) == (0, [])


async def test_a_model_whose_affinity_is_turned_off_or_that_gets_endpoints_frees_its_slots() -> (
    None
):
    off = a_model(affinity=AffinityOverride(enabled=False))
    spread = a_model(endpoints=(EndpointPolicy("1", "http://a"), EndpointPolicy("2", "http://b")))
    for changed in (off, spread):
        gate = Gate()
        await gate.step()
        await gate.step()
        assert gate.held == 1
        gate.models_changed([changed])
        assert gate.held == 0
        assert [(await gate.step(changed)).slot for _ in range(3)] == ["new"] * 3


async def test_closing_frees_what_is_held_so_that_draining_ends() -> None:
    gate = Gate()
    await gate.step()
    await gate.step()
    gate.close()
    assert gate.held == 0
    assert await gate.drain(10) == 0


async def test_a_hold_that_nobody_takes_is_freed_by_the_timer() -> None:
    gate = Gate()
    model = a_model(affinity=AffinityOverride(hold_ms=1000))
    await gate.step(model)
    await gate.step(model)
    assert gate.held == 1
    async with gate.admit(Ask(a_key("u"), model, 100)) as permit:
        assert permit.admission == "queued"
    assert gate.did == [("m", "hold"), ("m", "expire")]


def test_a_model_follows_the_gateway_in_what_it_leaves_out_even_while_the_gateway_is_off() -> None:
    gateway = AffinityPolicy(enabled=False, hold_ms=1, max_held_percent=2, max_bypass_secs=3)
    assert in_force(a_model(), gateway) is None
    found = in_force(a_model(affinity=AffinityOverride(enabled=True, hold_ms=5000)), gateway)
    assert found == AffinityPolicy(True, 5000, 2, 3)
    assert in_force(a_model(affinity=AffinityOverride(enabled=False)), ON) is None


def test_affinity_is_not_in_force_over_several_endpoints_unless_all_but_one_are_off() -> None:
    one, two = EndpointPolicy("1", "http://a"), EndpointPolicy("2", "http://b")
    off = EndpointPolicy("3", "http://c", enabled=False)
    assert in_force(a_model(endpoints=(one, two)), ON) is None
    assert in_force(a_model(endpoints=(one, off)), ON) == ON
