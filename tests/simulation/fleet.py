"""Fleets lived through from seeds. `live(seed)` is one life.

`python -m tests.simulation.fleet SEED` tells the life of a seed line by line; with `--seeds N` it
lives N of them from there on, on all processors, and says what that came to.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from tests.simulation.fleet_ledger import Violation
from tests.simulation.fleet_life import Life
from tests.simulation.fleet_report import Report

CHUNK: Final = 25
"""Seeds that a process lives at a time."""


def live(
    seed: int, *, kind: str | None = None, trace: bool = False, affinity: bool = False
) -> Report:
    """The life of a seed, or the same with sessions that slots are held for. Raises `Violation`,
    which says how to see it again."""
    life = Life(seed, kind=kind, trace=trace, affinity=affinity)
    try:
        return life.run()
    except Violation as violation:
        violation.add_note(
            f"at {life.world.time.now:.4f} s of seed {seed} ({life.kind});"
            f" see it with: make simulate SEED={seed}"
        )
        raise
    finally:
        if life.world.story is not None:
            sys.stdout.write("\n".join(life.world.story) + "\n")
        life.world.end()


def live_all(seeds: Sequence[int]) -> tuple[Report, list[str]]:
    """Live these; what they came to, and a line or two for each that failed."""
    report, failures = Report(), []
    for seed in seeds:
        try:
            report.add(live(seed))
        except Violation as violation:
            failures.append(f"FAILED: {violation}\n  {' '.join(violation.__notes__)}")
    return report, failures


def tell(seed: int) -> int:
    """Live one seed and tell it line by line; the exit status."""
    try:
        sys.stdout.write(f"{live(seed, trace=True)}\n")
    except Violation as violation:
        if violation.__cause__ is not None:
            traceback.print_exception(violation.__cause__)
        sys.stdout.write(f"FAILED: {violation}\n  {' '.join(violation.__notes__)}\n")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--seeds", type=int, help="live this many, from the seed given on")
    options = parser.parse_args()
    if options.seeds is None:
        return tell(options.seed)
    began, report, failed = time.perf_counter(), Report(), 0
    end_at = options.seed + options.seeds
    chunks = [range(at, min(at + CHUNK, end_at)) for at in range(options.seed, end_at, CHUNK)]
    with ProcessPoolExecutor() as processes:
        for chunk, failures in processes.map(live_all, chunks):
            report.add(chunk)
            failed += len(failures)
            for failure in failures:
                sys.stdout.write(f"{failure}\n")
    took = time.perf_counter() - began
    sys.stdout.write(
        f"{report}\n{failed} of {options.seeds} failed; {took:.0f} s,"
        f" {options.seeds / took:.1f} seeds a second\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
