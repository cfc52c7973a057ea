"""The alert rules and the dashboard, judged by promtool and held to the metrics there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.fairshare.source import NoReplicas
from controlplane.metrics import ControlPlaneMetrics
from dataplane.live.assembly import assemble
from dataplane.metrics import FleetFigures, Metrics, PoolFigures
from shared.live_state import LiveState
from tests.architecture.tree import ROOT
from tests.live.views import pool, replica, tenant

RULES = ROOT / "deploy" / "prometheus" / "obleth.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "obleth.json"
ALERTS = Path(__file__).with_name("alerts.yml")
ENDINGS = re.compile(r"_(?:total|bucket|count|sum)$")


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    """What it says. Fails if it finds anything."""
    command = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".tools" / "bin")
    assert command, "promtool is missing: run deploy/dev/services"
    done = subprocess.run([command, *arguments], input=given, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


class Steady(NoReplicas):
    async def state(self, replica_: str | None) -> LiveState:
        return assemble(replica(pool(8, tenant("a", 2, 5), tenant("b", 6))))


def of_a_replica() -> bytes:
    """What one exposes when everything that can happen has."""
    metrics = Metrics(
        is_registered=lambda name: True,
        pools=lambda: [PoolFigures("m", 8, 1, 0, 0)],
        fleet=lambda: FleetFigures("shared", 3, 1.5),
    )
    metrics.request_finished(
        "m",
        admission="fast",
        status=200,
        queue_secs=0.0,
        first_byte_secs=0.1,
        duration_secs=0.2,
        input_tokens=1,
        output_tokens=2,
    )
    metrics.upstream_attempted("m", "answered")
    metrics.affinity_happened("m", "hold")
    metrics.repaired("reclaimed")
    metrics.slots_called("claim", "answered", 0.001)
    metrics.usage_dropped(1)
    return metrics.exposition("")[0]


async def of_the_control_plane() -> bytes:
    metrics = ControlPlaneMetrics()
    metrics.answered("GET", 200, 0.01)
    return (await metrics.exposition(Steady(), ""))[0]


async def known() -> set[str]:
    """The names of all metrics, as they are asked for without the ending of a histogram's."""
    text = of_a_replica().decode() + (await of_the_control_plane()).decode()
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            # What Grafana fills in, as it might.
            yield target["expr"].replace("$__rate_interval", "5m").replace("$model", ".*")


async def test_what_is_exposed_has_nothing_that_promtool_would_have_otherwise() -> None:
    for exposed in (of_a_replica(), await of_the_control_plane()):
        assert promtool("check", "metrics", given=exposed) == ""


def test_the_rules_are_rules() -> None:
    assert "5 rules found" in promtool("check", "rules", "--lint-fatal", RULES)


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    tested = {
        case["alertname"]
        for test in yaml.safe_load(ALERTS.read_text())["tests"]
        for case in test["alert_rule_test"]
    }
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert tested == {rule["alert"] for rule in rules}
    assert "SUCCESS" in promtool("test", "rules", ALERTS)


def test_every_expression_of_the_dashboard_can_be_evaluated(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(expressions())]
    written = tmp_path / "panels.yml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", written)


@pytest.mark.parametrize("source", ["rules", "dashboard"])
async def test_only_metrics_that_there_are_are_asked_for(source: str) -> None:
    text = RULES.read_text() if source == "rules" else "\n".join(expressions())
    asked = set(re.findall(r"\bobleth_[a-z_]+\b", text))
    assert asked
    assert {_base(name) for name in asked} <= {_base(name) for name in await known()}


async def test_the_dashboard_shows_every_metric_of_a_pool_and_of_the_fleet() -> None:
    shown = {_base(name) for name in re.findall(r"\bobleth_[a-z_]+\b", "\n".join(expressions()))}
    left_out = {"obleth_usage_rows_dropped", "obleth_live_state_known"}
    apis = {"obleth_api_requests", "obleth_api_request_seconds"}
    ours = {_base(name) for name in await known() if name.startswith("obleth_")}
    assert ours - shown == left_out | apis


def test_the_dashboards_panels_stand_side_by_side() -> None:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    assert all(panel["title"] for panel in panels)


def _base(name: str) -> str:
    return ENDINGS.sub("", name)
