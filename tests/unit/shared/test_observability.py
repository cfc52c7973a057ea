"""No secret is ever written, whatever way it gets into a log event."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from shared import observability
from shared.settings import LogSettings

CANARY = "canary-7f3a9c"


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture(params=["json", "console"])
def log(request: pytest.FixtureRequest, restored_logging: None) -> io.StringIO:
    stream = io.StringIO()
    observability.configure(
        LogSettings(log_format=request.param, log_level="debug"), secrets=[CANARY], stream=stream
    )
    return stream


def test_a_secret_is_masked_wherever_it_turns_up(log: io.StringIO) -> None:
    key = "sk-" + "0123456789abcdef" * 3
    logger = structlog.get_logger("test")
    logger.info(
        "request",
        authorization="Basic abcdefgh",
        api_key="upstream-key-1",
        headers={"X-Api-Key": "header-key-1", "nested": [{"cookie": "session=cookie-1"}]},
        detail=f"refused {key} and Bearer bearer-1",
        database="postgresql+asyncpg://user:password-1@host/name",
        value=f"text with {CANARY} inside",
    )
    logging.getLogger("a.library").warning("%s said %s", "peer", {"auth": f"Bearer {CANARY}"})
    try:
        raise ValueError(f"cannot use {CANARY}")
    except ValueError:
        logger.exception("failed")
    written = log.getvalue()
    for secret in (
        key, CANARY, "abcdefgh", "upstream-key-1", "header-key-1", "cookie-1", "bearer-1",
        "password-1",
    ):  # fmt: skip
        assert secret not in written
    assert "request" in written
    assert "ValueError" in written


def test_json_logs_carry_level_time_logger_and_the_bound_request_id(
    restored_logging: None,
) -> None:
    stream = io.StringIO()
    observability.configure(LogSettings(log_format="auto"), stream=stream)
    structlog.contextvars.bind_contextvars(request_id="r-1")
    structlog.get_logger("gateway").info("done", input_tokens=7)
    event = json.loads(stream.getvalue())
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "done",
        "input_tokens": 7,
        "level": "info",
        "logger": "gateway",
        "request_id": "r-1",
    }


def test_events_below_the_level_are_not_written(restored_logging: None) -> None:
    stream = io.StringIO()
    observability.configure(LogSettings(log_format="json", log_level="warning"), stream=stream)
    structlog.get_logger("x").info("quiet")
    logging.getLogger("y").info("quiet too")
    assert stream.getvalue() == ""


def test_configured_secrets_are_the_values_of_all_secret_fields() -> None:
    from shared.settings import StorageSettings

    settings = StorageSettings(api_key_pepper="pepper-1", _env_file=None)  # type: ignore[arg-type]
    assert observability.configured_secrets(settings) == ("pepper-1",)
