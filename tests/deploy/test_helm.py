"""The Helm chart, rendered and linted by Helm's own engine and held to the Kubernetes schemas."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from controlplane.settings import ControlPlaneSettings
from dataplane.settings import DataPlaneSettings
from deploy.dev.reference import helm_name
from obleth import __version__
from obleth.service import _GOODBYE_SECS, _SIDE_GRACE_SECS
from obleth.settings import EmbeddedSettings
from shared.settings import load, variable_name
from tests.architecture.tree import ROOT

CHART = ROOT / "deploy" / "helm" / "obleth"
LEAST: dict[str, Any] = {"secrets": {"adminToken": "admin"}, "postgresql": {"password": "secret"}}
"""What must be given to install it."""
EXTERNAL: dict[str, Any] = {
    "secrets": {"adminToken": "admin", "internalToken": "internal"},
    "postgresql": {"enabled": False, "externalUrl": "postgresql+asyncpg://u:p@db/obleth"},
    "redis": {"enabled": False, "externalUrl": "rediss://:p@cache:6380/0"},
}
EVERYTHING: dict[str, Any] = {
    **EXTERNAL,
    "secrets": {"adminToken": "admin", "viewerToken": "viewer"},
    "image": {"repository": "registry.example/obleth", "tag": "1"},
    "imagePullSecrets": [{"name": "pull"}],
    "dataplane": {"autoscaling": {"enabled": True}, "nodeSelector": {"pool": "cpu"}},
    "ingress": {"enabled": True, "host": "llm.example", "className": "nginx", "tlsSecret": "tls"},
    "discovery": {"namespaces": ["models"]},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {}}],
        "operators": [{"podSelector": {}}],
        "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "grafanaDashboard": {"enabled": True},
    },
}
EXISTING: dict[str, Any] = {"secrets": {"existingSecret": "mine"}}
VALUES = {"least": LEAST, "external": EXTERNAL, "everything": EVERYTHING, "existing": EXISTING}
OF_THE_OPERATOR = "monitoring.coreos.com/v1"
"""Kinds that Kubernetes itself has no schema of."""

Object = dict[str, Any]


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def _render(chart: helm.Chart, values: dict[str, Any]) -> list[Object]:
    texts = chart.render(values, name="rel", namespace="ns")
    return [
        one
        for name, text in texts.items()
        if name.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one is not None
    ]


def _of(objects: list[Object], kind: str) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def _pod(objects: list[Object], name: str) -> Object:
    spec: Object = _of(objects, "Deployment")[f"rel-obleth-{name}"]["spec"]["template"]["spec"]
    return spec


def _container(objects: list[Object], name: str) -> Object:
    container: Object = _pod(objects, name)["containers"][0]
    return container


def _environment(objects: list[Object], name: str) -> dict[str, str]:
    """What a plane's process is given, in the order in which Kubernetes puts it together."""
    settings = _of(objects, "ConfigMap")["rel-obleth"]["data"]
    secret = _of(objects, "Secret")["rel-obleth"]["stringData"]
    own = {one["name"]: one.get("value", "10.1.2.3") for one in _container(objects, name)["env"]}
    own = {name: value.replace("$(POD_IP)", own.get("POD_IP", "")) for name, value in own.items()}
    return {**settings, **secret, **own}


# --- form -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_has_nothing_to_say_but_that_there_is_no_icon(values: dict[str, Any]) -> None:
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert {one["error"] for one in report["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("version", ["1.25.0", "1.29.0", "1.33.0", "1.37.0"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_object_keeps_the_schema_of_its_kind(
    chart: helm.Chart, values: dict[str, Any], version: str
) -> None:
    objects = _render(chart, values)
    assert objects
    for one in objects:
        if one["apiVersion"] == OF_THE_OPERATOR:
            assert one["spec"]
            assert one["metadata"]["name"]
        else:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_names_that_look_like_numbers_stay_text(chart: helm.Chart, values: dict[str, Any]) -> None:
    odd = {"fullnameOverride": "12", "nameOverride": "1e3", "serviceAccount": {"name": "0"}}
    odd["ingress"] = {"enabled": True, "host": "1", "className": "2", "tlsSecret": "3"}
    odd["secrets"] = {**values["secrets"], "existingSecret": "0x1"}
    texts = chart.render({**values, **odd}, name="1234", namespace="true")
    manifests = [text for name, text in texts.items() if name.endswith(".yaml")]
    objects = [one for text in manifests for one in yaml.safe_load_all(text) if one is not None]
    assert {one["metadata"]["name"] for one in objects} >= {"12", "0"}
    for one in objects:
        if one["apiVersion"] != OF_THE_OPERATOR:
            kubernetes_validate.validate(one, "1.33.0", strict=True)


def test_a_fleet_that_scales_itself_has_no_more_at_least_than_at_most(chart: helm.Chart) -> None:
    scaling = {"enabled": True, "minReplicas": 5, "maxReplicas": 2}
    with pytest.raises(helm.HelmError, match="minReplicas"):
        _render(chart, {**LEAST, "dataplane": {"autoscaling": scaling}})


def test_the_chart_has_the_projects_version(chart: helm.Chart) -> None:
    assert chart.metadata["version"] == chart.metadata["appVersion"] == __version__
    image = _container(_render(chart, LEAST), "dataplane")["image"]
    assert image == f"obleth:{__version__}"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"obleth": {"fairshareSharedSlot": False}}, "fairshareSharedSlot"),
        ({"obleth": {"fairshareSessionAffinity": {"maxHeldPercent": 101}}}, "maxHeldPercent"),
        ({"obleth": {"fairshareSessionAffinity": {"holdMs": 60001}}}, "holdMs"),
        ({"obleth": {"fairshareAlgorithm": "random"}}, "fairshareAlgorithm"),
        ({"obleth": {"admissionTimeoutSecs": 0}}, "admissionTimeoutSecs"),
        ({"dataplane": {"replicas": 0}}, "replicas"),
        ({"postgresql": {"password": "p@ss"}}, "password"),
        ({"redis": {"externalUrl": "http://cache"}}, "externalUrl"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(
    chart: helm.Chart, wrong: dict[str, Any], named: str
) -> None:
    with pytest.raises(helm.HelmError, match=named):
        chart.validate_schema(wrong)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"postgresql": {"password": "p"}}, "secrets.adminToken"),
        ({"secrets": {"adminToken": "t"}}, "postgresql.password"),
        ({"secrets": {"adminToken": "t"}, "postgresql": {"enabled": False}}, "externalUrl"),
        ({**LEAST, "redis": {"enabled": False}}, "redis.externalUrl"),
    ],
)
def test_what_is_missing_is_told(chart: helm.Chart, values: dict[str, Any], told: str) -> None:
    with pytest.raises(helm.HelmError, match=told):
        _render(chart, values)


# --- settings -------------------------------------------------------------------------------------


def _every_setting_at_its_default() -> dict[str, Any]:
    """The chart's `obleth` values with each setting spelled out."""
    values: dict[str, Any] = {}
    for name, info in EmbeddedSettings.model_fields.items():
        helm_path = helm_name(name)
        default = info.get_default()
        if helm_path is None or default is None:
            continue
        outer, _, inner = helm_path.partition(".")
        if inner:
            values.setdefault(outer, {})[inner] = default
        else:
            values[outer] = list(default) if isinstance(default, tuple) else default
    return values


def test_every_setting_has_a_value_that_reaches_it(
    chart: helm.Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _every_setting_at_its_default()
    given |= {"allowedPrivateCidrs": ["10.0.0.0/8", "fd00::/8"], "maxBodyBytes": 2**31}
    settings = _of(_render(chart, {**LEAST, "obleth": given}), "ConfigMap")["rel-obleth"]["data"]
    named = {
        variable_name(name)
        for name, info in EmbeddedSettings.model_fields.items()
        if helm_name(name) is not None and info.get_default() is not None
    }
    assert settings.keys() == named
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    loaded = load(EmbeddedSettings, admin_token="admin")
    assert loaded.max_body_bytes == 2**31
    assert [str(one) for one in loaded.allowed_private_cidrs] == ["10.0.0.0/8", "fd00::/8"]
    assert loaded.affinity() == EmbeddedSettings(admin_token="admin").affinity()


def test_the_values_file_tells_the_programs_own_defaults(chart: helm.Chart) -> None:
    told = chart.values["obleth"]
    defaults = _every_setting_at_its_default()
    assert told == {name: defaults[name] for name in told}


def test_session_affinity_is_turned_on_by_its_value(chart: helm.Chart) -> None:
    affinity = {"enabled": True, "holdMs": 5000}
    objects = _render(chart, {**LEAST, "obleth": {"fairshareSessionAffinity": affinity}})
    settings = _of(objects, "ConfigMap")["rel-obleth"]["data"]
    assert settings["OBLETH_FAIRSHARE_SESSION_AFFINITY"] == "true"
    assert settings["OBLETH_FAIRSHARE_SESSION_AFFINITY_HOLD_MS"] == "5000"
    assert settings["OBLETH_FAIRSHARE_SESSION_AFFINITY_WARM_SECS"] == "120"


@pytest.mark.parametrize("values", [LEAST, EXTERNAL], ids=["bundled", "external"])
@pytest.mark.parametrize(
    ("plane", "settings"),
    [("controlplane", ControlPlaneSettings), ("dataplane", DataPlaneSettings)],
)
def test_each_plane_takes_the_environment_it_is_given(
    chart: helm.Chart,
    values: dict[str, Any],
    plane: str,
    settings: type[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = _render(chart, values)
    for name, value in _environment(objects, plane).items():
        monkeypatch.setenv(name, value)
    loaded = load(settings)
    hosts = (loaded.database_url, loaded.redis_url)
    if values is LEAST:
        services = _of(objects, "Service")
        assert hosts == (
            "postgresql+asyncpg://obleth:secret@rel-obleth-postgresql:5432/obleth",
            "redis://rel-obleth-redis:6379/0",
        )
        assert {"rel-obleth-postgresql", "rel-obleth-redis"} <= services.keys()
    else:
        assert hosts == (
            values["postgresql"]["externalUrl"],
            values["redis"]["externalUrl"],
        )
        assert _of(objects, "StatefulSet") == {}
        assert _of(objects, "Deployment").keys() == {
            "rel-obleth-controlplane",
            "rel-obleth-dataplane",
        }


def test_secrets_are_in_no_config_map_and_no_command(chart: helm.Chart) -> None:
    objects = _render(chart, EXTERNAL)
    outside = [one for one in objects if one["kind"] != "Secret"]
    for secret in ("u:p@db", ":p@cache", "internal"):
        assert secret not in yaml.safe_dump(outside)


def test_an_existing_secret_is_read_and_none_is_made(chart: helm.Chart) -> None:
    objects = _render(chart, EXISTING)
    assert _of(objects, "Secret") == {}
    for plane in ("controlplane", "dataplane"):
        assert {"secretRef": {"name": "mine"}} in _container(objects, plane)["envFrom"]


# --- replicas -------------------------------------------------------------------------------------


def test_replicas_know_how_many_they_are_and_where_each_is_found(chart: helm.Chart) -> None:
    objects = _render(chart, {**LEAST, "dataplane": {"replicas": 3}})
    environment = _environment(objects, "dataplane")
    assert _of(objects, "Deployment")["rel-obleth-dataplane"]["spec"]["replicas"] == 3
    assert environment["OBLETH_FAIRSHARE_EXPECTED_REPLICAS"] == "3"
    assert environment["OBLETH_ADVERTISE_URL"] == "http://10.1.2.3:9091"
    sources = {one["name"]: one.get("valueFrom") for one in _container(objects, "dataplane")["env"]}
    assert sources["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_a_fleet_that_scales_itself_counts_on_its_most(chart: helm.Chart) -> None:
    scaling = {"enabled": True, "minReplicas": 2, "maxReplicas": 7, "targetQueueDepth": 15}
    objects = _render(chart, {**LEAST, "dataplane": {"autoscaling": scaling}})
    assert _environment(objects, "dataplane")["OBLETH_FAIRSHARE_EXPECTED_REPLICAS"] == "7"
    assert "replicas" not in _of(objects, "Deployment")["rel-obleth-dataplane"]["spec"]
    scaler = _of(objects, "HorizontalPodAutoscaler")["rel-obleth-dataplane"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "rel-obleth-dataplane"
    cpu, queue = scaler["metrics"]
    assert cpu["resource"]["name"] == "cpu"
    assert queue["pods"]["metric"]["name"] == "obleth_queue_depth"
    assert queue["pods"]["target"] == {"type": "AverageValue", "averageValue": "15"}


def test_liveness_asks_nothing_that_depends_on_redis_or_the_database(chart: helm.Chart) -> None:
    objects = _render(chart, LEAST)
    probes = {
        plane: {
            kind: _container(objects, plane)[f"{kind}Probe"]["httpGet"]["path"]
            for kind in ("startup", "liveness", "readiness")
        }
        for plane in ("dataplane", "controlplane")
    }
    assert probes["dataplane"] == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert probes["controlplane"] == {
        "startup": "/api/v1/version",
        "liveness": "/api/v1/version",
        "readiness": "/api/v1/health",
    }


@pytest.mark.parametrize("grace", [0, 0.5, 300, 3600])
def test_a_pod_is_given_longer_to_stop_than_it_drains(chart: helm.Chart, grace: float) -> None:
    values = {"obleth": {"shutdownGraceSecs": grace}, "dataplane": {"preStopSecs": 25}}
    objects = _render(chart, LEAST | values)
    given = _pod(objects, "dataplane")["terminationGracePeriodSeconds"]
    assert isinstance(given, int)
    assert given > 25 + math.ceil(grace) + _GOODBYE_SECS + _SIDE_GRACE_SECS
    hook = _container(objects, "dataplane")["lifecycle"]["preStop"]
    assert hook == {"exec": {"command": ["sleep", "25"]}}


def test_obleths_containers_may_write_nothing_and_gain_nothing(chart: helm.Chart) -> None:
    objects = _render(chart, LEAST)
    for plane in ("dataplane", "controlplane"):
        own = _container(objects, plane)["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert _pod(objects, plane)["securityContext"]["runAsNonRoot"] is True


# --- what belongs together ------------------------------------------------------------------------


def _pods(objects: list[Object]) -> list[dict[str, str]]:
    return [
        one["spec"]["template"]["metadata"]["labels"]
        for one in objects
        if one["kind"] in ("Deployment", "StatefulSet")
    ]


def _selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_selector_finds_the_pods_of_one_component(
    chart: helm.Chart, values: dict[str, Any]
) -> None:
    objects = _render(chart, values)
    for one in objects:
        spec = one.get("spec", {})
        match one["kind"]:
            case "Service":
                selector = spec["selector"]
            case "PodDisruptionBudget" | "Deployment" | "StatefulSet":
                selector = spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
            case _:
                continue
        found = [labels for labels in _pods(objects) if _selects(selector, labels)]
        assert len(found) == 1, one["metadata"]["name"]


def test_only_the_planes_reach_the_bundled_stores(chart: helm.Chart) -> None:
    objects = _render(chart, LEAST)
    for store in ("postgresql", "redis"):
        policy = _of(objects, "NetworkPolicy")[f"rel-obleth-{store}"]["spec"]
        guarded = policy["podSelector"]["matchLabels"]
        assert guarded["app.kubernetes.io/component"] == store
        peers = [peer for rule in policy["ingress"] for peer in rule["from"]]
        allowed = [peer["podSelector"]["matchLabels"] for peer in peers]
        parts = {one["app.kubernetes.io/component"] for one in allowed}
        assert parts == {"controlplane", "dataplane"}
        assert all("app.kubernetes.io/instance" in one for one in allowed)


def test_discovery_may_read_endpoint_slices_where_it_is_told_and_nothing_else(
    chart: helm.Chart,
) -> None:
    roles = [one for one in _render(chart, EVERYTHING) if one["kind"] == "Role"]
    assert {one["metadata"]["namespace"] for one in roles} == {"ns", "models"}
    for role in roles:
        assert role["rules"] == [
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["get", "list", "watch"],
            }
        ]
    without = _render(chart, {**LEAST, "discovery": {"enabled": False}})
    assert _of(without, "Role") == {}
    assert _pod(without, "dataplane")["automountServiceAccountToken"] is False


def test_prometheus_scrapes_each_replica_and_the_control_plane(chart: helm.Chart) -> None:
    objects = _render(chart, EVERYTHING)
    scraped = {}
    for name, monitor in _of(objects, "ServiceMonitor").items():
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        selector = monitor["spec"]["selector"]["matchLabels"]
        services = [
            one
            for one in _of(objects, "Service").values()
            if _selects(selector, one["metadata"]["labels"])
        ]
        assert len(services) == 1
        assert services[0]["spec"]["ports"][0]["name"] == monitor["spec"]["endpoints"][0]["port"]
        scraped[name] = monitor["spec"]["endpoints"][0].get("authorization")
    assert scraped["rel-obleth-dataplane"] is None
    token = scraped["rel-obleth-controlplane"]["credentials"]
    assert token["key"] in _of(objects, "Secret")[token["name"]]["stringData"]


def test_without_a_viewers_token_the_control_plane_is_not_scraped(chart: helm.Chart) -> None:
    monitoring = {"serviceMonitor": {"enabled": True}}
    objects = _render(chart, {**LEAST, "monitoring": monitoring})
    assert _of(objects, "ServiceMonitor").keys() == {"rel-obleth-dataplane"}


def test_alerts_and_dashboard_are_those_of_the_project(chart: helm.Chart) -> None:
    objects = _render(chart, EVERYTHING)
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "obleth.rules.yml").read_text())
    assert _of(objects, "PrometheusRule")["rel-obleth"]["spec"] == rules
    found = _of(objects, "ConfigMap")["rel-obleth-dashboard"]
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "obleth.json").read_text())
    assert json.loads(found["data"]["obleth.json"]) == dashboard
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_an_ingress_buffers_nothing(chart: helm.Chart) -> None:
    ingress = _of(_render(chart, EVERYTHING), "Ingress")["rel-obleth"]
    annotations = ingress["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert annotations["nginx.ingress.kubernetes.io/proxy-request-buffering"] == "off"


def test_the_chart_packs_into_an_archive_that_renders_alike(
    chart: helm.Chart, tmp_path: Path
) -> None:
    archive = helm.package(CHART, destination=tmp_path)
    with helm.Chart.load(archive) as packed:
        assert _render(packed, EVERYTHING) == _render(chart, EVERYTHING)
