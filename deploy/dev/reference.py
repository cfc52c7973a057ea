"""Writes what is said of obleth from obleth itself, so that it cannot become untrue.

    .venv/bin/python -m deploy.dev.reference

writes docs/configuration.md, docs/api-reference.md, docs/redis.md and the settings in the chart's
values.schema.json. A test fails while one of them is not as this would write it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr
from pydantic.fields import FieldInfo

import controlplane.settings
import dataplane.settings
import shared.settings
from controlplane import main as controlplane_main
from controlplane.settings import ControlPlaneSettings
from dataplane.settings import DataPlaneSettings
from obleth.settings import EmbeddedSettings
from shared import redis_keys
from shared.settings import Settings, allowed, is_secret, variable_name

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEMA: Final = ROOT / "deploy" / "helm" / "obleth" / "values.schema.json"
AFFINITY: Final = "fairshare_session_affinity"
SET_BY_THE_CHART: Final = {
    "proxy_listen",
    "metrics_listen",
    "admin_listen",
    "advertise_url",
    "fairshare_expected_replicas",
}
"""Beside secrets and URLs that may hold one, which the chart keeps in a Secret."""
_GENERATED: Final = "<!-- Written by deploy/dev/reference.py: change what it is written from. -->\n"


# --- settings -------------------------------------------------------------------------------------


def configuration() -> str:
    """docs/configuration.md."""
    return _GENERATED + CONFIGURATION_HEAD + "\n".join(_section(block) for block in _blocks())


CONFIGURATION_HEAD: Final = """# Configuration

Every setting is an environment variable, or a line of a `.env` file in the working directory (the
environment wins; a blank value counts as not set). A wrong value stops the start with one line that
names the variable and what it takes; a name that does not exist is warned of, with the names it
resembles. `GET /api/v1/settings` shows what is in force, secrets masked.

*Read by*: the control plane (c), the data plane (d); `obleth serve` and `obleth demo` read all.
*Helm* is the name below `obleth` in the chart's values; what has none there is set by the chart or
kept in its Secret.

"""


def _blocks() -> list[type[Settings]]:
    """The classes that define settings, in the order in which they are written down."""
    found: dict[str, type[Settings]] = {}
    for module in (dataplane.settings, controlplane.settings, shared.settings):
        for name, cls in vars(module).items():
            own = isinstance(cls, type) and issubclass(cls, Settings)
            if own and cls.__module__ == module.__name__ and _fields(cls):
                found[name] = cls
    return list(found.values())


def _fields(cls: type[Settings]) -> dict[str, FieldInfo]:
    own = inspect.get_annotations(cls)
    return {name: info for name, info in cls.model_fields.items() if name in own}


def _section(block: type[Settings]) -> str:
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", block.__name__.removesuffix("Settings"))
    lines = [f"## {title.capitalize()}", ""]
    lines += ["| variable | default | takes | read by | Helm | |", "|---|---|---|---|---|---|"]
    lines += [_row(block, name, info) for name, info in _fields(block).items()]
    return "\n".join([*lines, ""])


def _row(block: type[Settings], name: str, info: FieldInfo) -> str:
    cells = [
        f"`{variable_name(name)}`",
        _default(info),
        allowed(block, name),
        _readers(name),
        f"`{helm}`" if (helm := helm_name(name)) else "",
        info.description or "",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.default
    if value is None or value in ("", ()) or repr(value) == "SecretStr('')":
        return "none"
    return f"`{json.dumps(value) if isinstance(value, bool | int | float) else value}`"


def _readers(name: str) -> str:
    readers = {"c": ControlPlaneSettings, "d": DataPlaneSettings}
    return " ".join(sign for sign, cls in readers.items() if name in cls.model_fields)


def helm_name(name: str) -> str | None:
    """Where a setting is in the chart's values, below `obleth`; None: nowhere."""
    if name in SET_BY_THE_CHART or is_secret(EmbeddedSettings, name):
        return None
    if name == AFFINITY:
        return f"{_camel(AFFINITY)}.enabled"
    if name.startswith(AFFINITY):
        return f"{_camel(AFFINITY)}.{_camel(name.removeprefix(AFFINITY + '_'))}"
    return _camel(name)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


# --- the chart ------------------------------------------------------------------------------------


def values_schema() -> str:
    """values.schema.json with its `obleth` part made anew."""
    schema: dict[str, Any] = json.loads(SCHEMA.read_text())
    properties: dict[str, Any] = {}
    for name in EmbeddedSettings.model_fields:
        helm = helm_name(name)
        if helm is None:
            continue
        outer, _, inner = helm.partition(".")
        if inner:
            group = properties.setdefault(outer, _object({}))
            group["properties"][inner] = _value(name)
        else:
            properties[outer] = _value(name)
    schema["properties"]["obleth"] = _object(properties)
    return json.dumps(schema, indent=2) + "\n"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(name: str) -> dict[str, Any]:
    """What a value may be, by the setting's own constraints."""
    found: dict[str, Any] = EmbeddedSettings.model_json_schema()["properties"][name]
    options = [one for one in found.get("anyOf", [found]) if one.get("type") != "null"]
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum")
    value = {key: options[0][key] for key in kept if key in options[0]}
    info = EmbeddedSettings.model_fields[name]
    if isinstance(info.get_default(), tuple):
        value = {"type": "array", "items": {"type": "string"}}
    return {**value, "description": info.description}


# --- the Management API ---------------------------------------------------------------------------


API_HEAD: Final = """# Management API: every route

Below `/api/v1`, with `Authorization: Bearer` and the admin token (the viewer's for reading).
`GET /api/v1/openapi.json` is the same for machines; [api.md](api.md) shows how it is used. A field
with a star must be given. Errors are `application/problem+json`; lists take `limit` and `cursor`
and answer `{"items": [...], "next_cursor": ...}`.

"""


def api_reference() -> str:
    """docs/api-reference.md."""
    described = _openapi()
    by_tag: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["other"])[0]
            by_tag.setdefault(tag, []).extend(_route(described, method, path, operation))
    body = "\n".join(
        f"## {tag.capitalize()}\n\n" + "\n".join(lines) for tag, lines in by_tag.items()
    )
    return _GENERATED + API_HEAD + body


def _openapi() -> dict[str, Any]:
    settings = ControlPlaneSettings(
        admin_token=SecretStr("nobody-calls-it"), database_url="sqlite+aiosqlite:///unused.db"
    )
    return dict(controlplane_main.build(settings).app.openapi())


def _route(described: dict[str, Any], method: str, path: str, operation: Any) -> Iterator[str]:
    yield f"### `{method.upper()} {path.removeprefix('/api/v1')}`"
    yield ""
    if text := operation.get("description"):
        yield " ".join(text.split())
        yield ""
    for parameter in operation.get("parameters", ()):
        star = "*" if parameter.get("required") else ""
        yield f"- `{parameter['name']}`{star} ({parameter['in']}): {_takes(parameter['schema'])}"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = body.get("schema", {}).get("$ref")
    if reference:
        schema = described["components"]["schemas"][reference.rpartition("/")[2]]
        for name, field in schema.get("properties", {}).items():
            star = "*" if name in schema.get("required", ()) else ""
            yield f"- `{name}`{star}: {_takes(field)}"
    yield ""


def _takes(schema: dict[str, Any]) -> str:
    options = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    words = " or ".join(_kind(one) for one in options)
    if len(options) < len(schema.get("anyOf", [schema])):
        words += " or null"
    if "default" in schema and schema["default"] is not None:
        words += f", `{json.dumps(schema['default'])}` if left out"
    if text := schema.get("description"):
        words += f". {' '.join(text.split())}"
    return words


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"a list of {_kind(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    range_ = f" {low:,.15g}…{high:,.15g}" if low is not None and high is not None else ""
    return str(schema.get("type", "anything")) + range_


# --- Redis ----------------------------------------------------------------------------------------


def redis_layout() -> str:
    """docs/redis.md, from the module that names every key."""
    assert redis_keys.__doc__ is not None
    return f"{_GENERATED}# Redis layout\n\n{redis_keys.__doc__.strip()}\n"


# --- all of it ------------------------------------------------------------------------------------


def generated() -> dict[Path, str]:
    """Every file and what it should be."""
    return {
        ROOT / "docs" / "configuration.md": configuration(),
        ROOT / "docs" / "api-reference.md": api_reference(),
        ROOT / "docs" / "redis.md": redis_layout(),
        SCHEMA: values_schema(),
    }


if __name__ == "__main__":
    for path_, text_ in generated().items():
        path_.write_text(text_)
