"""Structured logs to standard error, ours and the libraries', with every secret taken out.

One event a line: JSON for machines, aligned text for people. Redaction is the last step before
rendering, so that it sees tracebacks and what libraries log too. It knows secrets by the name they
are logged under, by their shape (bearer tokens, `sk-` keys, passwords in URLs) and, for the
configured ones, by their value.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, Mapping
from typing import Final, TextIO

import structlog
from pydantic import SecretStr
from structlog.types import EventDict, Processor, WrappedLogger

from shared.settings import MASK, LogSettings, Settings

_SECRET_NAMES: Final = re.compile(
    r"authorization|api[-_]?key|cookie|credential|encryption_key|passw|pepper|secret|token$", re.I
)
_SECRET_SHAPES: Final = re.compile(
    r"(?P<bearer>\bbearer\s+)[^\s\"',}]+|\bsk-[\w-]{8,}|(?P<url>://[^\s:/@]*:)[^\s/@]+(?=@)", re.I
)
_SHORTEST_SECRET: Final = 6
"""A configured secret shorter than this is not searched for by value: it would blank out words."""
_DEEPEST: Final = 6
"""Values nested deeper than this are not logged."""


class Redactor:
    """A structlog processor that masks secrets in an event, also nested ones."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        longest_first = sorted({one for one in secrets if len(one) >= _SHORTEST_SECRET}, key=len)
        self._values = (
            re.compile("|".join(re.escape(one) for one in reversed(longest_first)))
            if longest_first
            else None
        )

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {name: self._masked(name, value, _DEEPEST) for name, value in event.items()}

    def text(self, text: str) -> str:
        """`text` with everything that looks like or is a known secret masked."""
        if self._values is not None:
            text = self._values.sub(MASK, text)
        return _SECRET_SHAPES.sub(_mask_shape, text)

    def _masked(self, name: str, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if _SECRET_NAMES.search(name):
            return MASK
        if isinstance(value, str):
            return self.text(value)
        if depth == 0:
            return "..."
        if isinstance(value, Mapping):
            return {str(k): self._masked(str(k), v, depth - 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._masked(name, one, depth - 1) for one in value]
        return self.text(str(value))


def _mask_shape(match: re.Match[str]) -> str:
    return (match["bearer"] or match["url"] or "") + MASK


def configure(
    settings: LogSettings, *, secrets: Collection[str] = (), stream: TextIO | None = None
) -> None:
    """Send structlog's and the standard library's records to `stream` (standard error) alike.

    `secrets` are values that must never be written, whatever text they turn up in.
    """
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not stream.isatty()
    )
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        Redactor(secrets),
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=stream.isatty()),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=common, processors=rendering)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("uvicorn.error", "alembic", "asyncio", "aiosqlite", "httpx"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *common,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def configured_secrets(settings: Settings) -> tuple[str, ...]:
    """The values of every secret among a settings object's fields, for `configure`."""
    values = (getattr(settings, name) for name in type(settings).model_fields)
    return tuple(v.get_secret_value() for v in values if isinstance(v, SecretStr))
