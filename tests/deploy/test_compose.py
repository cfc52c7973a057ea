"""docker-compose.yml, held to the Compose specification and to what obleth needs of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose, parse_duration
from dotenv import dotenv_values
from typer.main import get_command

from controlplane.settings import ControlPlaneSettings
from dataplane.settings import DataPlaneSettings
from deploy.dev import compose
from obleth.cli import app
from obleth.service import _GOODBYE_SECS, _SIDE_GRACE_SECS
from obleth.settings import EmbeddedSettings
from shared.settings import load, variable_name
from tests.architecture.tree import ROOT
from tests.deploy.test_monitoring import promtool

GIVEN = {"OBLETH_ADMIN_TOKEN": "admin", "OBLETH_INTERNAL_TOKEN": "internal"}
ONCE = {"migrate"}
"""Services that end by themselves."""


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose.filled_in(GIVEN)["services"]
    return found


@pytest.fixture
def ours(services: dict[str, Any]) -> dict[str, Any]:
    """The services that run obleth's image."""
    return {name: one for name, one in services.items() if one["image"].startswith("obleth:")}


def test_the_file_keeps_the_compose_specification() -> None:
    whole = compose.filled_in(GIVEN)
    assert PyCompose.from_json(json.dumps(whole)).services.keys() == whole["services"].keys()
    whole["services"]["dataplane"]["healthchek"] = {}
    with pytest.raises(ValueError, match="healthchek"):
        PyCompose.from_json(json.dumps(whole))


@pytest.mark.parametrize("missing", sorted(GIVEN))
def test_a_token_that_is_not_set_is_asked_for_by_name(missing: str) -> None:
    with pytest.raises(compose.MissingVariable, match=missing):
        compose.filled_in(GIVEN | {missing: ""})


def test_every_service_that_stays_is_checked_and_started_again(services: dict[str, Any]) -> None:
    staying = {name: one for name, one in services.items() if name not in ONCE}
    assert [name for name, one in staying.items() if "healthcheck" not in one] == []
    assert [name for name, one in staying.items() if one["restart"] != "unless-stopped"] == []


def test_a_data_plane_is_given_longer_to_stop_than_it_drains(services: dict[str, Any]) -> None:
    plane = services["dataplane"]
    grace = float(plane["environment"]["OBLETH_SHUTDOWN_GRACE_SECS"])
    needs = grace + _GOODBYE_SECS + _SIDE_GRACE_SECS
    for name in ("dataplane", "gateway"):
        assert parse_duration(services[name]["stop_grace_period"]) > needs


def test_liveness_of_a_data_plane_depends_on_nothing_but_itself(services: dict[str, Any]) -> None:
    assert services["dataplane"]["healthcheck"]["test"][-1].endswith("/healthz")
    balancer = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    assert "option httpchk GET /readyz" in balancer


def test_the_balancer_collects_nothing_and_outlasts_a_silent_stream() -> None:
    lines = {
        line.strip() for line in (ROOT / "deploy/haproxy/haproxy.cfg").read_text().splitlines()
    }
    assert {"option http-no-delay", "no option http-buffer-request"} <= lines
    assert {"timeout client 1h", "timeout server 1h"} <= lines
    assert "retry-on conn-failure" in lines, "what has begun is not done twice"


def test_a_data_plane_has_no_port_or_name_of_its_own_so_that_it_scales(
    services: dict[str, Any],
) -> None:
    assert not {"ports", "container_name", "hostname"} & services["dataplane"].keys()
    three = compose.filled_in(GIVEN | {"OBLETH_FAIRSHARE_EXPECTED_REPLICAS": "3"})
    plane = three["services"]["dataplane"]
    assert plane["deploy"]["replicas"] == 3
    assert plane["environment"]["OBLETH_FAIRSHARE_EXPECTED_REPLICAS"] == "3"


def test_obleths_containers_may_write_nothing_and_gain_nothing(ours: dict[str, Any]) -> None:
    for one in ours.values():
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "user", "cap_add"} & one.keys()


def test_every_command_is_one_of_obleths(ours: dict[str, Any]) -> None:
    known = get_command(app)
    for one in ours.values():
        name, *arguments = one["command"]
        known.commands[name].make_context(name, list(arguments))


@pytest.mark.parametrize(
    ("service", "settings"),
    [("controlplane", ControlPlaneSettings), ("dataplane", DataPlaneSettings)],
)
def test_each_plane_takes_the_environment_it_is_given(
    services: dict[str, Any], service: str, settings: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = services[service]["environment"]
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    load(settings)
    known = {variable_name(field) for field in EmbeddedSettings.model_fields}
    assert given.keys() <= known


def test_the_example_environment_has_only_names_that_are_read(services: dict[str, Any]) -> None:
    example = (ROOT / ".env.example").read_text()
    named = {
        line.removeprefix("# ").partition("=")[0]
        for line in example.splitlines()
        if "=" in line
        and line.removeprefix("# ")[0].isupper()
        and " " not in line.split("=")[0][2:]
    }
    known = {variable_name(field) for field in EmbeddedSettings.model_fields}
    filled = (ROOT / "docker-compose.yml").read_text()
    assert named >= {"OBLETH_ADMIN_TOKEN", "OBLETH_INTERNAL_TOKEN"}
    assert [name for name in named if name not in known and f"${{{name}" not in filled] == []
    assert dotenv_values(ROOT / ".env.example")["OBLETH_ADMIN_TOKEN"] == ""


def test_a_secret_is_taken_from_a_line_that_the_example_has() -> None:
    """Compose starts nothing with a secret whose variable is nowhere set, not even to nothing."""
    secrets = compose.filled_in(GIVEN)["secrets"]
    wanted = {one["environment"] for one in secrets.values()}
    assert wanted <= dotenv_values(ROOT / ".env.example").keys()


def test_what_is_mounted_is_there(services: dict[str, Any]) -> None:
    mounted = [
        Path(volume.split(":")[0])
        for one in services.values()
        for volume in one.get("volumes", [])
        if volume.startswith("./")
    ]
    assert mounted
    assert [path for path in mounted if not (ROOT / path).exists()] == []


def test_prometheus_takes_its_configuration_and_finds_every_replica(
    services: dict[str, Any], tmp_path: Path
) -> None:
    token = tmp_path / "viewer_token"
    token.write_text("viewer")
    text = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    inside = f"/run/secrets/{services['prometheus']['secrets'][0]}"
    assert inside in text
    mounted = tmp_path / "prometheus.yml"
    mounted.write_text(text.replace(inside, str(token)))
    shutil.copy(ROOT / "deploy" / "prometheus" / "obleth.rules.yml", tmp_path)
    promtool("check", "config", mounted)
    jobs = {one["job_name"]: one for one in yaml.safe_load(text)["scrape_configs"]}
    discovery = jobs["obleth-dataplane"]["dns_sd_configs"][0]
    assert discovery["names"] == ["dataplane"]
    listen = services["dataplane"]["environment"]["OBLETH_METRICS_LISTEN"]
    assert listen.endswith(f":{discovery['port']}")
    assert jobs["obleth-controlplane"]["static_configs"][0]["targets"] == ["controlplane:9180"]


def test_grafana_is_given_its_source_and_the_dashboard(services: dict[str, Any]) -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    source = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((folder / "dashboards" / "obleth.yml").read_text())["providers"][0]
    volumes = services["grafana"]["volumes"]
    assert f"./deploy/grafana/obleth.json:{provider['options']['path']}/obleth.json:ro" in volumes
