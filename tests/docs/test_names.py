"""Names in the documentation are those of the code."""

import re

from controlplane.fairshare.source import NoReplicas
from controlplane.metrics import ControlPlaneMetrics
from dataplane.metrics import FleetFigures, Metrics, PoolFigures
from obleth.settings import EmbeddedSettings
from shared.settings import variable_name
from tests.architecture.tree import ROOT
from tests.docs.pages import pages

NOT_SETTINGS = {"OBLETH_VERSION", "OBLETH_GATEWAY_BIND"}
"""Variables of the compose file and of HAProxy's."""


def test_every_variable_named_is_a_setting() -> None:
    known = {variable_name(field) for field in EmbeddedSettings.model_fields} | NOT_SETTINGS
    beginnings = {f"OBLETH_{prefix}" for prefix in ("FAIRSHARE_SESSION_AFFINITY",)}
    wrong = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages()
        for name in re.findall(r"\bOBLETH_[A-Z_]*[A-Z]\b", page.read_text())
        if name not in known | beginnings
    ]
    assert wrong == []


async def test_every_metric_is_described_and_every_described_one_exists() -> None:
    pool = PoolFigures("demo-model", size=8, in_flight=0, queued=0, held=0)
    fleet = FleetFigures("shared", replicas=2, heartbeat_age_secs=1.0)
    metrics = Metrics(is_registered=bool, pools=lambda: [pool], fleet=lambda: fleet)
    text = metrics.exposition("")[0].decode()
    text += (await ControlPlaneMetrics().exposition(NoReplicas(), ""))[0].decode()
    kinds = dict(re.findall(r"^# TYPE (obleth_\w+) (\w+)$", text, re.MULTILINE))
    page = (ROOT / "docs" / "metrics.md").read_text()
    described = dict(re.findall(r"^\| `(obleth_\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert described == kinds


def test_every_metric_named_anywhere_is_described() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    described = set(re.findall(r"^\| `(obleth_\w+)` \|", page, re.MULTILINE))
    wrong = [
        f"{one.relative_to(ROOT)}: {name}"
        for one in pages()
        for name in re.findall(r"\bobleth_[a-z_]*[a-z]\b", one.read_text())
        if not any(name in (full, f"{full}_bucket") for full in described)
    ]
    assert [line for line in wrong if "obleth_test" not in line] == []
