from __future__ import annotations

import pytest

from controlplane.settings import ControlPlaneSettings
from shared.settings import load


def _refusal(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        load(ControlPlaneSettings)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def admin_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBLETH_ADMIN_TOKEN", "canary-token")


def test_the_admin_listener_is_this_machine_only_unless_moved() -> None:
    assert str(load(ControlPlaneSettings).admin_listen) == "127.0.0.1:9180"


@pytest.mark.parametrize("blank", ["", None])
def test_without_an_admin_token_nothing_starts(
    blank: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if blank is None:
        monkeypatch.delenv("OBLETH_ADMIN_TOKEN")
    else:
        monkeypatch.setenv("OBLETH_ADMIN_TOKEN", blank)
    assert "OBLETH_ADMIN_TOKEN is required" in _refusal(capsys)


@pytest.mark.parametrize("name", ["OBLETH_ADMIN_TOKEN", "OBLETH_VIEWER_TOKEN"])
@pytest.mark.parametrize("wrong", ["  ", "canary two", "canaryé", "canary\t", "x" * 4097])
def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(
    name: str, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, wrong)
    text = _refusal(capsys)
    assert f"{name}: must be 1 to 4,096 visible ASCII characters" in text
    assert "canary" not in text


def test_one_token_cannot_have_two_roles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OBLETH_VIEWER_TOKEN", "canary-token")
    assert "OBLETH_VIEWER_TOKEN must differ" in _refusal(capsys)


def test_settings_do_not_show_their_secrets() -> None:
    assert "canary" not in repr(load(ControlPlaneSettings))
