"""The backend's own slots."""

from __future__ import annotations

import asyncio

import pytest

from obleth.backend.slots import Slots


async def test_work_beyond_the_slots_waits_in_order_of_arrival() -> None:
    slots = Slots(1)
    first, second, third = slots.ask(), slots.ask(), slots.ask()
    assert (slots.running, slots.waiting, slots.peak, slots.peak_present) == (1, 2, 1, 3)
    first.give_back()
    assert (second.held, third.held) == (True, False)


async def test_a_place_given_back_twice_counts_once() -> None:
    slots = Slots(2)
    place = slots.ask()
    slots.ask()
    place.give_back()
    place.give_back()
    assert slots.running == 1


async def test_one_that_leaves_the_queue_is_passed_over() -> None:
    slots = Slots(1)
    running, leaver, patient = slots.ask(), slots.ask(), slots.ask()
    leaver.give_back()
    assert slots.waiting == 1
    running.give_back()
    assert (patient.held, slots.running, slots.waiting) == (True, 1, 0)


async def test_one_that_leaves_the_queue_is_told_at_once() -> None:
    slots = Slots(1)
    slots.ask()
    leaver = slots.ask()
    waiting = asyncio.ensure_future(leaver.ready())
    leaver.give_back()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_one_that_leaves_just_after_its_turn_came_hands_the_place_on() -> None:
    slots = Slots(1)
    running, leaver, patient = slots.ask(), slots.ask(), slots.ask()
    running.give_back()
    leaver.give_back()
    assert (patient.held, slots.running) == (True, 1)


async def test_without_a_size_everything_runs() -> None:
    slots = Slots(None)
    for _ in range(100):
        slots.ask()
    assert (slots.running, slots.waiting, slots.peak) == (100, 0, 100)
