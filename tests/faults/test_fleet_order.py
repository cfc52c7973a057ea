"""Real replicas, real Redis: who is served does not depend on where requests come in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.fleet import CONFIGURED_BY_DEFAULT, fleet
from tests.faults.ingress import serve

WEIGHTED = {"OBLETH_FAIRSHARE_ALGORITHM": "weighted"}
PATIENT = replace(CONFIGURED_BY_DEFAULT, answer_ms=3000)
"""No replica takes Redis for away because the machine is busy: apart, each has half the slots."""


@pytest.mark.asyncio(loop_scope="module")
async def test_weights_hold_over_replicas_that_each_see_one_tenant_only(
    tmp_path: Path, database: str
) -> None:
    async with fleet(tmp_path, database, PATIENT, each=[WEIGHTED] * 2) as own:
        served = await serve(own, {"a": [0], "b": [1]}, secs=8)
    # Weights 4 to 1; where whoever claims first goes it is hundreds to 1.
    assert 2.0 <= served.ratio <= 8.0, served
    assert served.calls <= 2.0, served
