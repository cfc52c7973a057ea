"""One load for everyone who wants the same thing."""

from __future__ import annotations

import asyncio

import pytest

from dataplane.single_flight import SingleFlight


class Load:
    """Something slow that counts how often it is done."""

    def __init__(self) -> None:
        self.done = 0
        self.go = asyncio.Event()
        self.failure: Exception | None = None

    async def __call__(self) -> int:
        self.done += 1
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        return self.done


async def test_those_who_ask_at_once_share_one_load() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    load = Load()
    waiting = [asyncio.create_task(flights.run("a", load)) for _ in range(10)]
    await asyncio.sleep(0)
    load.go.set()
    assert await asyncio.gather(*waiting) == [1] * 10
    assert await flights.run("a", load) == 2
    assert len(flights) == 0


async def test_different_things_are_loaded_apart() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    first, second = Load(), Load()
    first.go.set()
    second.go.set()
    assert await asyncio.gather(flights.run("a", first), flights.run("b", second)) == [1, 1]


async def test_a_failure_reaches_everyone_and_is_not_kept() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    load = Load()
    load.failure = LookupError("gone")
    load.go.set()
    outcomes = await asyncio.gather(
        *(flights.run("a", load) for _ in range(3)), return_exceptions=True
    )
    assert [type(one) for one in outcomes] == [LookupError] * 3
    load.failure = None
    assert await flights.run("a", load) == 2


async def test_the_load_goes_on_when_everyone_has_left() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    load = Load()
    leaving = asyncio.create_task(flights.run("a", load))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    joined = asyncio.create_task(flights.run("a", load))
    load.go.set()
    assert await joined == 1


async def test_a_failure_nobody_waits_for_disturbs_nobody() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    load = Load()
    load.failure = LookupError("gone")
    load.go.set()
    task = flights.start("a", load)
    await asyncio.wait([task])
    assert len(flights) == 0


async def test_stopping_ends_what_is_under_way_even_before_it_began() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    begun, not_begun = Load(), Load()
    waiting = asyncio.create_task(flights.run("a", begun))
    for _ in range(2):  # the waiting task, then the load it starts
        await asyncio.sleep(0)
    flights.start("b", not_begun)
    await flights.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (begun.done, not_begun.done, len(flights)) == (1, 0, 0)
