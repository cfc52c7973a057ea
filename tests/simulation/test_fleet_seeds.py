"""Lives of a fleet, each from its seed; and mistakes put into the product, each of which
the first few seeds must notice."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT
from tests.simulation.fleet import CHUNK, live
from tests.simulation.fleet_ledger import Violation
from tests.simulation.fleet_mistakes import MISTAKES, Mistake
from tests.simulation.fleet_report import Report
from tests.simulation.fleet_time import Time, new_loop

SEEDS = 1000
AFFINITY_SEEDS = range(25, 75, CHUNK)
MISTAKE_SEEDS = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_fleet_keeps_its_limits_while_broken_and_loses_nothing_once_healed(first: int) -> None:
    report = Report()
    for seed in range(first, first + CHUNK):
        report.add(live(seed))
    sys.stdout.write(f"{report}\n")
    assert report.seeds == CHUNK
    assert report.grants > CHUNK
    assert report.ends["served"] > CHUNK


@pytest.mark.parametrize("first", AFFINITY_SEEDS)
def test_a_fleet_that_holds_slots_for_sessions_keeps_its_limits_and_loses_nothing(
    first: int,
) -> None:
    held = redeemed = 0
    for seed in range(first, first + CHUNK):
        report = live(seed, affinity=True)
        held, redeemed = (
            held + report.faults["slots held"],
            redeemed + report.faults["held slots taken"],
        )
    assert held > redeemed > CHUNK / 2


@pytest.mark.parametrize(
    ("mistake", "kind"), [pytest.param(*each, id=each[0].__name__) for each in MISTAKES]
)
def test_the_simulation_notices_when(
    mistake: Mistake, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(Violation) as caught:
        for seed in range(MISTAKE_SEEDS):
            live(seed, kind=kind)
    assert any("make simulate SEED=" in note for note in caught.value.__notes__)


def test_a_seed_is_the_same_life_every_time_in_whatever_process() -> None:
    program = (
        "from tests.simulation.fleet import live;"
        "print([live(seed).digest for seed in (0, 3, 7, 12)])"
    )
    here = str([live(seed).digest for seed in (0, 3, 7, 12)])
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        there = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here


def test_time_passes_in_an_instant_and_a_frozen_loop_wakes_up_late() -> None:
    time = Time(random.Random(1))
    errors: list[object] = []
    loop = new_loop(time, 7.0, errors.append)
    seen: list[float] = []

    async def tick() -> None:
        for _ in range(3):
            await asyncio.sleep(10)
            seen.append(asyncio.get_running_loop().time())

    task = loop.create_task(tick())
    time.run(15)
    loop.freeze()
    time.run(30)
    assert seen == [17]
    loop.thaw(timers_first=True)
    time.run(5)
    assert seen == [17, 52]
    assert not task.done()
    loop.kill()
    assert task.cancelled()
    assert errors == []
