"""Who is served by a fleet of real replicas, by where requests come in and by whether one order
holds: `python -m tests.bench.fleet_order`. Eight slots, tenants of weight 4 and 1, both backlogged.

Slots are idle from one answer's last byte to the next request's first, as the backend sees it: one
replica alone, which asks nobody, shows how much of that is the way there and back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.controlplane.conftest import on_postgres_now, postgres_url, unused_name
from tests.faults.fleet import CONFIGURED_BY_DEFAULT, fleet
from tests.faults.ingress import serve

INGRESS: Mapping[str, Mapping[int, Mapping[str, Sequence[int]]]] = {
    "a at one, b at the others": {2: {"a": [0], "b": [1]}, 3: {"a": [0], "b": [1, 2]}},
    "b at one, a at the others": {2: {"a": [1], "b": [0]}, 3: {"a": [1, 2], "b": [0]}},
    "both at all": {2: {"a": [0, 1], "b": [0, 1]}, 3: {"a": [0, 1, 2], "b": [0, 1, 2]}},
}
ALONE: Mapping[str, Sequence[int]] = {"a": [0], "b": [0]}
SETTLE_SECS = 10.0
"""What was served while the fleet came together evens out by then."""


async def row(
    replicas: int, ingress: str, *, order: bool, secs: float, algorithm: str, fault: str = ""
) -> None:
    name = unused_name()
    await on_postgres_now(f'CREATE DATABASE "{name}"')
    given = {
        "OBLETH_FAIRSHARE_FLEET_ORDER": "true" if order else "false",
        "OBLETH_FAIRSHARE_ALGORITHM": algorithm,
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with fleet(
                Path(folder), postgres_url(name), CONFIGURED_BY_DEFAULT, each=[given] * replicas
            ) as own:
                served = await serve(
                    own,
                    ALONE if replicas == 1 else INGRESS[ingress][replicas],
                    secs=secs,
                    settle=SETTLE_SECS,
                    killed=fault == "killed",
                    blocked=fault == "blocked",
                )
    finally:
        await on_postgres_now(f'DROP DATABASE "{name}" WITH (FORCE)')
    what = f"{replicas} replicas, {ingress}{', last ' + fault if fault else ''}"
    rule = "alone" if replicas == 1 else "one order" if order else "first come"
    sys.stdout.write(f"{rule:<10} {served.row('' if replicas == 1 else what)}\n")
    sys.stdout.flush()


async def table(secs: float, algorithm: str) -> None:
    await row(1, "", order=True, secs=secs, algorithm=algorithm)
    for replicas in (2, 3):
        for ingress in INGRESS:
            for order in (False, True):
                await row(replicas, ingress, order=order, secs=secs, algorithm=algorithm)
    for fault in ("killed", "blocked"):
        for order in (False, True):
            ingress = "a at one, b at the others"
            await row(3, ingress, order=order, secs=secs, algorithm=algorithm, fault=fault)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=20.0)
    parser.add_argument("--algorithm", default="weighted")
    options = parser.parse_args()
    asyncio.run(table(options.secs, options.algorithm))


if __name__ == "__main__":
    main()
