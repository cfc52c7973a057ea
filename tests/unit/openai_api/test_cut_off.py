"""Ending a block from outside, whatever else happens in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dataplane.openai_api.cut_off import CutOff


class Reason(Exception):
    pass


class Other(Exception):
    pass


def soon(callback: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(callback)


async def test_a_block_that_waits_is_ended_and_the_reason_raised_in_its_place() -> None:
    block = CutOff()
    cleaned_up = []
    soon(lambda: block.cut(Reason()))
    with pytest.raises(Reason), block:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what is given back may take its time
            cleaned_up.append(True)
    assert cleaned_up == [True]
    await asyncio.sleep(0)  # and the task goes on as if nothing had been


async def test_only_the_first_reason_counts() -> None:
    block = CutOff()
    soon(lambda: block.cut(Reason()))
    soon(lambda: block.cut(Other()))
    with pytest.raises(Reason), block:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)


async def test_what_the_block_waited_for_may_come_in_the_same_moment() -> None:
    """The result is lost and the block ends, every time; it never goes on half cancelled."""
    for turns in range(4):
        block = CutOff()
        granted = asyncio.get_running_loop().create_future()

        def both(block: CutOff = block, granted: asyncio.Future[None] = granted) -> None:
            granted.set_result(None)
            block.cut(Reason())

        soon(both)
        with pytest.raises(Reason), block:
            await granted
            for _ in range(turns):
                await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_an_error_of_the_block_itself_is_raised_as_it_is() -> None:
    block = CutOff()
    soon(lambda: block.cut(Reason()))
    with pytest.raises(Other), block:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Other from None
    await asyncio.sleep(0)


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    block = CutOff()

    async def work() -> None:
        with block:
            await asyncio.Event().wait()

    for cuts_too in (False, True):
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        if cuts_too:
            block.cut(Reason())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        block = CutOff()


@pytest.mark.parametrize("when", ["before", "closed", "after"])
async def test_outside_of_its_time_a_cut_does_nothing(when: str) -> None:
    block = CutOff()
    if when == "before":
        block.cut(Reason())
    with block:
        if when == "closed":
            block.close()
            soon(lambda: block.cut(Reason()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    block.cut(Reason())
    await asyncio.sleep(0)


async def test_closing_does_not_undo_a_cut() -> None:
    block = CutOff()
    soon(lambda: block.cut(Reason()))
    with pytest.raises(Reason), block:
        try:
            await asyncio.Event().wait()
        finally:
            block.close()
