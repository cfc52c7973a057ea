"""Templates, and how figures, times and causes are written in them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from controlplane.dashboard import words
from controlplane.dashboard.api import Json, segment

NOTHING: Final = "–"


class Templates:
    """The pages of the package. Whatever is put into them is shown as text."""

    def __init__(self, version: str) -> None:
        self._environment = Environment(
            loader=PackageLoader("controlplane.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals |= {"version": version, "words": words}
        self._environment.filters |= {
            "count": count,
            "short": short,
            "ms": milliseconds,
            "when": when,
            "decimal": decimal,
            "percent": percent,
            "segment": segment,
            "pretty": pretty,
            "sentence": sentence,
            "changed": changed,
        }

    def render(self, template: str, **context: Any) -> str:
        return self._environment.get_template(template).render(context)


def count(value: int | None) -> str:
    """`12,345`."""
    return NOTHING if value is None else f"{value:,}"


def short(value: float | None) -> str:
    """A large number in three digits: `8.6k`, `1.2M`."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}" if value % 1 else f"{value:.0f}"


def decimal(value: float | None) -> str:
    """At most one decimal: `6.3`, `7`."""
    return NOTHING if value is None else f"{value:.1f}".removesuffix(".0")


def percent(value: float | None) -> str:
    """A fraction of 1."""
    return NOTHING if value is None else f"{value * 100:.0f} %"


def milliseconds(value: float | None) -> str:
    """A length of time, in the unit in which it is a small number."""
    if value is None:
        return NOTHING
    if value < 1000:
        return f"{value:.0f} ms"
    secs = value / 1000
    if secs < 60:
        return f"{secs:.1f} s"
    minutes, secs = divmod(round(secs), 60)
    if minutes < 60:
        return f"{minutes} min {secs:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def when(value: str | None) -> str:
    """A time of the API, in UTC and to the second."""
    if value is None:
        return NOTHING
    return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def sentence(text: str) -> str:
    """What the API says, as a sentence among others."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def pretty(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def changed(entry: Json) -> list[str]:
    """The fields that a change in the audit log gave another value; all differ for what is new."""
    before, after = entry["before"], entry["after"]
    if before is None or after is None:
        return []
    stamps = ("updated_at", "revision")
    return [name for name in after if name not in stamps and after[name] != before.get(name)]
