"""A slot as a block of code: what a request sees, and what becomes of it when it is cancelled."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from dataplane.admission import Admission, Ask, Limits, Permit
from dataplane.errors import AdmissionTimedOut, InvalidApiKey, ModelNotFound, ShuttingDown
from obleth.server import run
from shared.policy import KeyPolicy, ModelPolicy
from tests.simulation.world import a_key

MODEL = ModelPolicy("id-m", "m", max_in_flight=1)
KEY = a_key("t")


class Door:
    """A request that stays in its slot until it is told to go."""

    def __init__(self, admission: Admission, ask: Ask | None = None) -> None:
        self.permit = admission.admit(ask or Ask(KEY, MODEL, 100))
        self.entered = False
        self._go = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> Permit:
        async with self.permit as permit:
            self.entered = True
            await self._go.wait()
        return permit

    async def end(self) -> None:
        self._go.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_a_free_slot_is_entered_without_a_task_switch() -> None:
    admission = Admission(Limits())
    entering = admission.admit(Ask(KEY, MODEL, 100)).__aenter__()
    with pytest.raises(StopIteration) as done:
        entering.send(None)
    permit = done.value.value
    assert (permit.admission, permit.queue_ms, permit.slot) == ("fast", 0.0, "new")


async def test_a_slot_is_free_again_when_its_block_is_left_whichever_way() -> None:
    admission = Admission(Limits())
    with pytest.raises(ZeroDivisionError):
        async with admission.admit(Ask(KEY, MODEL, 100)):
            assert admission.core.in_flight == 1
            raise ZeroDivisionError
    assert admission.core.in_flight == 0
    door = Door(admission)
    await turns(1)
    await door.cancel()
    assert admission.core.in_flight == 0


async def test_a_request_waits_until_the_one_before_it_ends() -> None:
    admission = Admission(Limits())
    first, second = Door(admission), Door(admission)
    await turns(3)
    assert (first.entered, second.entered) == (True, False)
    await first.end()
    await turns(2)
    assert second.entered
    assert second.permit.admission == "queued"
    await second.end()


@pytest.mark.parametrize("offset", range(5))
async def test_a_grant_that_meets_a_leaving_client_goes_to_the_next_exactly_once(
    offset: int,
) -> None:
    admission = Admission(Limits())
    for _ in range(200):
        first, leaver, third, fourth = (Door(admission) for _ in range(4))
        await turns(2)
        await first.end()
        await turns(offset)
        await leaver.cancel()
        await turns(2)
        assert (third.entered, fourth.entered) == (True, False)
        assert admission.core.in_flight == 1
        await third.end()
        await fourth.end()
        assert (admission.core.in_flight, admission.core.queued) == (0, 0)


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_release_and_cancel_in_one_turn_lose_no_slot(cancel_first: bool) -> None:
    admission = Admission(Limits())
    first, leaver, third = (Door(admission) for _ in range(3))
    await turns(2)
    steps = [leaver.task.cancel, first._go.set]
    for step in steps if cancel_first else reversed(steps):
        step()
    await asyncio.gather(first.task, leaver.task, return_exceptions=True)
    await turns(2)
    assert third.entered
    await third.end()
    assert admission.core.in_flight == 0


async def test_a_thousand_clients_that_leave_the_queue_cost_the_next_one_nothing() -> None:
    admission = Admission(Limits())
    first = Door(admission)
    crowd = [Door(admission) for _ in range(1000)]
    await turns(2)
    assert admission.core.queued == 1000
    for door in crowd:
        door.task.cancel()
    await asyncio.gather(*(door.task for door in crowd), return_exceptions=True)
    last = Door(admission)
    await turns(2)
    assert admission.core.queued == 1
    await first.end()
    await turns(2)
    assert last.entered
    await last.end()


async def test_nothing_of_a_request_that_left_is_kept() -> None:
    admission = Admission(Limits())
    first = Door(admission)
    doors = [Door(admission) for _ in range(100)]
    await turns(2)
    for door in doors:
        door.task.cancel()
    await asyncio.wait([door.task for door in doors])
    doors.clear()
    del door
    gc.collect()
    permits = [each for each in gc.get_objects() if isinstance(each, Permit)]
    assert permits == [first.permit]
    await first.end()


async def test_nothing_is_kept_of_models_that_were_deleted_after_their_pools_were_dropped() -> None:
    admission = Admission(Limits(pool_idle=0))
    names = [f"junk {number}" for number in range(100)]
    for name in [*names, "last"]:
        await Door(admission, Ask(KEY, ModelPolicy(name, name), 1)).end()
    assert [pool.policy.model for pool in admission.core.pools] == ["last"]
    admission.models_changed([])
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, ModelPolicy)]
    assert [each.name for each in kept if each.name in names] == []


async def test_a_request_that_waits_too_long_is_refused() -> None:
    admission = Admission(Limits(timeout=0.02))
    first, late = Door(admission), Door(admission)
    with pytest.raises(AdmissionTimedOut) as refused:
        await late.task
    assert (refused.value.status, refused.value.retry_after_secs) == (503, 5)
    await first.end()
    assert admission.core.in_flight == 0


def test_waits_that_are_over_at_once_are_refused_on_the_loop_that_replicas_run_on() -> None:
    async def wait_in_line() -> None:
        admission = Admission(Limits(timeout=0.0002))
        first = Door(admission)
        await turns(1)
        others = [Door(admission) for _ in range(3)]
        for other in others:
            with pytest.raises(AdmissionTimedOut):
                await other.task
        await first.end()

    run(wait_in_line())


async def test_a_client_that_leaves_after_its_time_was_up_and_before_it_was_told_just_leaves() -> (
    None
):
    admission = Admission(Limits(timeout=0))
    running, late = Door(admission), Door(admission)
    await turns(1)
    await late.cancel()
    await running.end()
    assert (admission.core.in_flight, admission.core.queued) == (0, 0)


async def test_closing_when_the_time_of_those_who_wait_is_up_refuses_each_once() -> None:
    admission = Admission(Limits(timeout=0))
    running, *late = (Door(admission) for _ in range(4))
    await turns(1)
    admission.close()
    for door in late:
        with pytest.raises((AdmissionTimedOut, ShuttingDown)):
            await door.task
    await running.end()
    assert (admission.core.in_flight, admission.core.queued) == (0, 0)


async def test_undoing_a_permit_takes_back_its_charge_with_its_slot() -> None:
    admission = Admission(Limits(algorithm="weighted"))
    holder = Door(admission, Ask(a_key("x"), MODEL, 100))
    await turns(1)
    waiting = [Door(admission, Ask(a_key(t), MODEL, 100)) for t in ("a", "b", "a")]
    await turns(1)
    waiting[0].permit.undo()
    await holder.end()
    await waiting[0].end()
    await turns(1)
    (pool,) = admission.core.pools
    assert pool.tenants["a"].served_tokens == 0
    for door in waiting[1:]:
        await door.end()


async def test_closing_refuses_what_waits_and_what_comes_and_lets_run_what_runs() -> None:
    admission = Admission(Limits())
    running, waiting = Door(admission), Door(admission)
    await turns(2)
    admission.close()
    with pytest.raises(ShuttingDown) as refused:
        await waiting.task
    assert refused.value.retry_after_secs == 1
    with pytest.raises(ShuttingDown):
        await Door(admission).task
    assert await admission.drain(0.01) == 1
    draining = asyncio.create_task(admission.drain(10))
    await running.end()
    assert await draining == 0


async def test_what_waits_for_a_model_that_goes_is_refused_by_its_name() -> None:
    admission = Admission(Limits())
    running, waiting = Door(admission), Door(admission)
    await turns(2)
    admission.models_changed([])
    with pytest.raises(ModelNotFound, match="m"):
        await waiting.task
    await running.end()


async def test_the_shared_pool_of_unregistered_names_stays_when_models_change() -> None:
    admission = Admission(Limits(default_size=1))
    running, waiting = (Door(admission, Ask(KEY, None, 100)) for _ in range(2))
    await turns(2)
    admission.models_changed([])
    await running.end()
    await waiting.end()


async def test_a_model_that_grows_admits_what_waits() -> None:
    admission = Admission(Limits(default_size=3))
    doors = [Door(admission) for _ in range(3)]
    await turns(2)
    admission.models_changed([ModelPolicy("id-m", "m")])
    await turns(2)
    assert all(door.entered for door in doors)
    for door in doors:
        await door.end()


async def test_what_waits_under_a_revoked_key_is_refused() -> None:
    admission = Admission(Limits())
    running, waiting = Door(admission), Door(admission)
    await turns(2)
    assert admission.waiting_keys == [KEY]
    admission.key_gone(KEY)
    with pytest.raises(InvalidApiKey):
        await waiting.task
    await running.end()


async def test_of_a_key_whose_secret_was_replaced_only_what_came_with_the_old_one_is_refused() -> (
    None
):
    admission = Admission(Limits())
    old, new = replace(KEY, digest="old"), replace(KEY, digest="new")
    running, *waiting = (Door(admission, Ask(key, MODEL, 100)) for key in (old, old, new, old, new))
    await turns(2)
    assert admission.waiting_keys == [old, new]
    admission.key_gone(old)
    await turns(2)
    assert [door.task.done() for door in waiting] == [True, False, True, False]
    for door in waiting[::2]:
        with pytest.raises(InvalidApiKey):
            await door.task
    for door in (running, *waiting[1::2]):
        await door.end()
        assert door.entered


async def test_a_key_that_changes_while_its_requests_wait_is_followed_at_once() -> None:
    admission = Admission(Limits())
    capped = KeyPolicy(KEY.id, KEY.name, KEY.tenant, max_in_flight=1)
    roomy = ModelPolicy("id-r", "r", max_in_flight=8)
    doors = [Door(admission, Ask(capped, roomy, 100)) for _ in range(3)]
    await turns(2)
    assert [door.entered for door in doors] == [True, False, False]
    admission.key_changed(KEY)
    await turns(2)
    assert [door.entered for door in doors] == [True, True, True]
    for door in doors:
        await door.end()
