"""Settings come typed from the environment, and a wrong value is told in one clear line."""

import pytest
from pydantic import SecretStr

from dataplane.settings import DataPlaneSettings
from shared import settings
from shared.settings import ListenAddress

BASE_URL = "an http:// or https:// base URL"
TOKEN = "1 to 4,096 visible ASCII characters"


def test_defaults_are_the_documented_ones() -> None:
    loaded = settings.load(DataPlaneSettings)
    assert str(loaded.proxy_listen) == "0.0.0.0:8080"
    assert str(loaded.metrics_listen) == "127.0.0.1:9091"
    assert loaded.admission_timeout_secs == 60
    assert loaded.default_model_max_in_flight == 32
    assert loaded.global_max_in_flight == 4096
    assert loaded.fairshare_algorithm == "hierarchical"
    assert loaded.shutdown_grace_secs == 300
    assert loaded.redis_url is None


def test_the_environment_wins_over_the_file_and_an_option_over_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open(".env", "w") as file:
        file.write("OBLETH_GLOBAL_MAX_IN_FLIGHT=10\nOBLETH_POOL_IDLE_SECS=11\n")
    monkeypatch.setenv("OBLETH_POOL_IDLE_SECS", "12")
    monkeypatch.setenv("OBLETH_ADMISSION_TIMEOUT_SECS", "13")
    loaded = settings.load(DataPlaneSettings, admission_timeout_secs=14)
    assert loaded.global_max_in_flight == 10
    assert loaded.pool_idle_secs == 12
    assert loaded.admission_timeout_secs == 14


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("GLOBAL_MAX_IN_FLIGHT", "0", "='0': must be a whole number from 1 to 1,000,000"),
        ("GLOBAL_MAX_IN_FLIGHT", "1.5", "='1.5': must be a whole number from 1 to 1,000,000"),
        ("ADMISSION_TIMEOUT_SECS", "nan", "='nan': must be a number above 0 up to 86,400"),
        ("ADMISSION_TIMEOUT_SECS", "inf", "='inf': must be a number above 0 up to 86,400"),
        ("FAIRSHARE_ALGORITHM", "fifo", "='fifo': must be one of hierarchical, weighted"),
        ("FAIRSHARE_SHARED_SLOTS", "maybe", "='maybe': must be true or false"),
        (
            "PROXY_LISTEN",
            "8080",
            "='8080': must be host:port, for example 127.0.0.1:8080, with a port from 0 to 65535",
        ),
        ("UPSTREAM_BASE_URL", "ftp://x", f"='ftp://x': must be {BASE_URL}"),
        ("UPSTREAM_BASE_URL", "http://x/v1?a=b", f"='http://x/v1?a=b': must be {BASE_URL}"),
        ("UPSTREAM_BASE_URL", "http://x/v1#a", f"='http://x/v1#a': must be {BASE_URL}"),
        ("UPSTREAM_BASE_URL", "http://x:70000", f"='http://x:70000': must be {BASE_URL}"),
        ("UPSTREAM_BASE_URL", "http://u:secret@x:0/v1", f": must be {BASE_URL}"),
        ("ADVERTISE_URL", "http://x:port", f"='http://x:port': must be {BASE_URL}"),
        ("INTERNAL_TOKEN", "two words", f": must be {TOKEN}"),
        ("INTERNAL_TOKEN", "line\n", f": must be {TOKEN}"),
        ("UPSTREAM_API_KEY", "ключ", f": must be {TOKEN}"),
        (
            "ALLOWED_PRIVATE_CIDRS",
            "10.0.0.0/8,x",
            "='10.0.0.0/8,x': must be networks such as 10.0.0.0/8, separated by commas",
        ),
    ],
)
def test_a_wrong_value_stops_the_start_with_its_name_and_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    line: str,
) -> None:
    monkeypatch.setenv("OBLETH_" + variable, value)
    with pytest.raises(SystemExit) as stopped:
        settings.load(DataPlaneSettings)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"obleth: OBLETH_{variable}{line}\n"


def test_every_wrong_variable_has_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OBLETH_GLOBAL_MAX_IN_FLIGHT", "none")
    monkeypatch.setenv("OBLETH_POOL_IDLE_SECS", "-1")
    with pytest.raises(SystemExit):
        settings.load(DataPlaneSettings)
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.partition("=")[0] for line in lines) == [
        "obleth: OBLETH_GLOBAL_MAX_IN_FLIGHT",
        "obleth: OBLETH_POOL_IDLE_SECS",
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ENCRYPTION_KEY", "canary-not-a-key"),
        ("DATABASE_URL", "mysql://user:canary@host/name"),
        ("REDIS_URL", "http://user:canary@host"),
    ],
)
def test_a_wrong_secret_is_never_repeated(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv("OBLETH_" + variable, value)
    with pytest.raises(SystemExit):
        settings.load(DataPlaneSettings)
    written = capsys.readouterr().err
    assert written.startswith(f"obleth: OBLETH_{variable}: must be ")
    assert "canary" not in written


def test_secrets_are_masked_in_the_repr_and_in_the_description() -> None:
    loaded = DataPlaneSettings(
        database_url="postgresql+asyncpg://user:canary@host:5432/name",
        redis_url="redis://:canary@host:6379/0",
        internal_token=SecretStr("canary"),
    )
    described = settings.described(loaded)
    assert "canary" not in repr(loaded)
    assert "canary" not in str(described)
    assert described["database_url"] == "postgresql+asyncpg://user:**********@host:5432/name"
    assert described["redis_url"] == "redis://:**********@host:6379/0"
    assert described["internal_token"] == "**********"
    assert described["proxy_listen"] == "0.0.0.0:8080"


def test_an_unknown_variable_is_named_with_what_it_resembles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OBLETH_GLOBL_MAX_IN_FLIGHT", "1")
    monkeypatch.setenv("OBLETH_ZZZ", "1")
    monkeypatch.setenv("OBLETH_POOL_IDLE_SECS", "1")
    unknown = settings.unknown_variables(DataPlaneSettings)
    assert unknown["OBLETH_GLOBL_MAX_IN_FLIGHT"][0] == "OBLETH_GLOBAL_MAX_IN_FLIGHT"
    assert unknown["OBLETH_ZZZ"] == []
    assert "OBLETH_POOL_IDLE_SECS" not in unknown


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:80", ListenAddress("0.0.0.0", 80)),
        ("[::1]:8080", ListenAddress("::1", 8080)),
        ("localhost:0", ListenAddress("localhost", 0)),
    ],
)
def test_a_listen_address_is_host_and_port(text: str, address: ListenAddress) -> None:
    assert ListenAddress.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "80", ":80", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_not_a_listen_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        ListenAddress.parse(text)


def test_worker_ports_follow_one_another_but_a_free_port_stays_free() -> None:
    assert ListenAddress("h", 9091).moved(2) == ListenAddress("h", 9093)
    assert ListenAddress("h", 0).moved(2) == ListenAddress("h", 0)


def test_the_replica_ttl_is_at_least_twice_the_heartbeat() -> None:
    loaded = DataPlaneSettings(fairshare_replica_heartbeat_secs=10, fairshare_replica_ttl_secs=15)
    assert loaded.effective_replica_ttl_secs == 20


def test_one_heartbeat_that_comes_a_whole_interval_late_loses_nothing() -> None:
    for given, lease in ((1, 10.25), (10, 10.25), (15, 15)):
        loaded = DataPlaneSettings(
            fairshare_replica_heartbeat_secs=5,
            fairshare_replica_ttl_secs=given,
            redis_response_timeout_ms=250,
        )
        assert loaded.replica_lease_secs == lease
