"""Settings both planes read, and how a wrong value is told to whoever set it.

Every setting is a field here or in a plane's own `settings.py`; its variable is `OBLETH_` and the
field's name in capitals, from the environment or from `.env` in the working directory (the
environment wins; a blank value counts as not set). The blocks are mixed into each plane's class, so
that one variable has one default and one range. No other module reads the environment.
"""

from __future__ import annotations

import base64
import difflib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared import policy

PREFIX: Final = "OBLETH_"
ENV_FILE: Final = ".env"
MASK: Final = "**********"
TAKES: Final = "x-takes"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a listener binds. Port 0 takes any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`host:port`, an IPv6 host in brackets. Raises ValueError."""
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError("not host:port")
        return cls(host, int(port))

    def moved(self, by: int) -> Self:
        """The address `by` ports further on; port 0 stays 0."""
        return type(self)(self.host, self.port + by if self.port else 0)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _parse_listen(value: object) -> object:
    return ListenAddress.parse(value) if isinstance(value, str) else value


def _parse_networks(value: object) -> object:
    if isinstance(value, str):
        return tuple(ip_network(part.strip()) for part in value.split(",") if part.strip())
    return value


def _http_base(value: str) -> str:
    parts = urlsplit(value)
    is_base = parts.port != 0 and not {"?", "#"} & {*value}  # paths are put behind it
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_base:
        raise ValueError("not an http(s) URL")
    return value.rstrip("/")


def _token(value: SecretStr) -> SecretStr:
    if not re.fullmatch("[!-~]{1,4096}", value.get_secret_value()):
        raise ValueError("nothing to send as a bearer token")
    return value


def _fernet_keys(value: SecretStr) -> SecretStr:
    for part in value.get_secret_value().split(","):
        if len(base64.b64decode(part.strip(), altchars=b"-_", validate=True)) != 32:
            raise ValueError("not a Fernet key")
    return value


def _stated(text: str) -> WithJsonSchema:
    """What a type without a numeric range takes, for messages and for the reference."""
    return WithJsonSchema({"type": "string", TAKES: text})


Listen = Annotated[
    ListenAddress,
    BeforeValidator(_parse_listen),
    _stated("host:port, for example 127.0.0.1:8080, with a port from 0 to 65535"),
]
HttpBase = Annotated[str, AfterValidator(_http_base), _stated("an http:// or https:// base URL")]
Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...],
    BeforeValidator(_parse_networks),
    _stated("networks such as 10.0.0.0/8, separated by commas"),
]
DatabaseUrl = Annotated[
    str,
    Field(pattern=r"^(sqlite\+aiosqlite:///|postgresql\+asyncpg://)"),
    _stated("sqlite+aiosqlite:///path/to/file or postgresql+asyncpg://user:password@host/name"),
]
FernetKeys = Annotated[
    SecretStr,
    AfterValidator(_fernet_keys),
    _stated("Fernet keys (32 bytes in URL-safe base64) separated by commas"),
]
RedisUrl = Annotated[
    str,
    Field(pattern="^(redis|rediss|unix)://"),
    _stated("redis://[:password@]host:port/number, or rediss://"),
]
Token = Annotated[SecretStr, AfterValidator(_token), _stated("1 to 4,096 visible ASCII characters")]


class Settings(BaseSettings):
    """What every block has in common. Immutable; values of secrets never appear in its repr."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_ignore_empty=True,
        enable_decoding=False,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )


class LogSettings(Settings):
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="`auto`: for people on a terminal, JSON elsewhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is said at all."
    )


class StorageSettings(Settings):
    """Where policy is kept, and the secrets that protect what is kept there."""

    database_url: DatabaseUrl = Field(
        "sqlite+aiosqlite:///./obleth.db",
        repr=False,
        description="Where policy and usage are kept.",
    )
    api_key_pepper: SecretStr = Field(
        SecretStr(""),
        description="Goes into every stored key digest; changing it invalidates all keys.",
    )
    encryption_key: FernetKeys | None = Field(
        None, description="The first encrypts endpoints' API keys at rest, the others decrypt."
    )

    def encryption_keys(self) -> tuple[str, ...]:
        """The Fernet keys, the encrypting one first; empty: API keys are kept as given."""
        if self.encryption_key is None:
            return ()
        return tuple(part.strip() for part in self.encryption_key.get_secret_value().split(","))


class RedisSettings(Settings):
    redis_url: RedisUrl | None = Field(
        None, repr=False, description="Unset: one process alone, slots and budgets in memory."
    )
    redis_response_timeout_ms: int = Field(
        250, ge=10, le=60_000, description="Past it, a replica goes on without Redis."
    )


class InternalSettings(Settings):
    internal_token: Token | None = Field(
        None,
        description="Bearer token between the planes; unset, replicas' live routes are off.",
    )


class PoolSettings(Settings):
    """Sizes and order of pools: enforced by the data plane, shown by the control plane."""

    default_model_max_in_flight: int = Field(
        32, ge=1, le=policy.MAX_IN_FLIGHT_MAX, description="Slots of a model that sets none."
    )
    global_max_in_flight: int = Field(
        4096, ge=1, le=1_000_000, description="Ceiling over the sum of all pools."
    )
    fairshare_algorithm: Literal["hierarchical", "weighted"] = Field(
        "hierarchical", description="Groups, then tenants; or `weighted`: tenants alone."
    )


class AffinitySettings(Settings):
    """Session affinity where a model does not set its own."""

    fairshare_session_affinity: bool = Field(False, description="For models that do not say.")
    fairshare_session_affinity_warm_secs: float = Field(
        120,
        ge=1,
        le=86_400,
        allow_inf_nan=False,
        description="How long after its last step a session is warm.",
    )
    fairshare_session_affinity_hold_ms: int = Field(
        3000,
        ge=0,
        le=60_000,
        description="How long a slot is held for the next step, and how soon that must have come"
        " before; 0 holds none.",
    )
    fairshare_session_affinity_max_jumps: int = Field(
        8, ge=0, le=1000, description="How often a request may be passed by later ones of its key."
    )
    fairshare_session_affinity_max_bypass_secs: int = Field(
        30, ge=1, le=3600, description="A request that has waited so long is passed by nothing."
    )
    fairshare_session_affinity_max_held_percent: int = Field(
        25, ge=0, le=100, description="Most of a pool that is held at once, rounded up; 0: nothing."
    )

    def affinity(self) -> policy.AffinityPolicy:
        """The gateway's own values as the record that travels with a model."""
        return policy.AffinityPolicy(
            enabled=self.fairshare_session_affinity,
            hold_ms=self.fairshare_session_affinity_hold_ms,
            max_held_percent=self.fairshare_session_affinity_max_held_percent,
            max_bypass_secs=self.fairshare_session_affinity_max_bypass_secs,
        )


class DefaultUpstreamSettings(Settings):
    upstream_base_url: HttpBase | None = Field(
        None, description="Where models that are not registered go; unset: they are refused."
    )


class NetworkSettings(Settings):
    """Which addresses an endpoint may have, when it is saved and when it is connected to."""

    block_private_networks: bool = Field(
        False, description="Refuse endpoints with private addresses."
    )
    allowed_private_cidrs: Networks = Field(
        (), description="Exceptions while private networks are blocked."
    )


S = TypeVar("S", bound=Settings)


def load(cls: type[S], **given: Any) -> S:
    """`cls` from the environment; `given` (command-line options) wins over it.

    Wrong values end the process with exit code 2 and one line on standard error for each, naming
    the variable and what it takes. A secret's value is never repeated.
    """
    try:
        return cls(**given)
    except ValidationError as error:
        for line in problems(cls, error):
            print(f"obleth: {line}", file=sys.stderr)
    except UnicodeDecodeError:
        print(f"obleth: {ENV_FILE} is not UTF-8 text", file=sys.stderr)
    raise SystemExit(2)


def problems(cls: type[Settings], error: ValidationError) -> Iterator[str]:
    """One line a wrong variable: its name, its value unless it may hold a secret, what it takes."""
    for name in dict.fromkeys(str(detail["loc"][0]) for detail in error.errors() if detail["loc"]):
        details = [one for one in error.errors() if one["loc"] and one["loc"][0] == name]
        yield _problem(cls, name, details[0])
    for detail in error.errors():
        if not detail["loc"]:  # a rule over several settings says everything itself
            yield detail["msg"].removeprefix("Value error, ")


def _problem(cls: type[Settings], name: str, detail: ErrorDetails) -> str:
    variable = variable_name(name)
    if detail["type"] == "missing":
        return f"{variable} is required and must not be blank"
    hides = is_secret(cls, name) or "@" in str(detail["input"])  # a password in a URL
    shown = variable if hides else f"{variable}={_short(detail['input'])}"
    return f"{shown}: must be {allowed(cls, name)}"


def _short(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def variable_name(field: str) -> str:
    return PREFIX + field.upper()


def is_secret(cls: type[Settings], field: str) -> bool:
    """Whether a value may hold a credential: a secret, or a URL that can carry a password."""
    info = cls.model_fields[field]
    return not info.repr or "SecretStr" in str(info.annotation)


def allowed(cls: type[Settings], field: str) -> str:
    """What a setting takes, in words, from the same constraints that check it."""
    schema: dict[str, Any] = cls.model_json_schema()["properties"][field]
    for option in schema.get("anyOf", ()):
        if option.get("type") != "null":
            schema = option
            break
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    kind = schema.get("type")
    if kind == "boolean":
        return "true or false"
    if kind in ("integer", "number"):
        words = "a whole number" if kind == "integer" else "a number"
        return words + _range(schema)
    return str(schema.get(TAKES, "text"))


def _range(schema: dict[str, Any]) -> str:
    high = schema["maximum"]
    if "exclusiveMinimum" in schema:
        return f" above {schema['exclusiveMinimum']:,} up to {high:,}"
    return f" from {schema['minimum']:,} to {high:,}"


def described(settings: Settings) -> dict[str, object]:
    """Every setting in force as plain values, with secrets and passwords in URLs masked."""
    return {name: _shown(getattr(settings, name)) for name in type(settings).model_fields}


def _shown(value: object) -> object:
    match value:
        case SecretStr():
            return MASK if value.get_secret_value() else ""
        case str():
            return without_password(value)
        case tuple():
            return [str(part) for part in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return str(value)


def without_password(text: str) -> str:
    """A URL with its password masked; any other text as it is."""
    parts = urlsplit(text)
    if not parts.password:
        return text
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{MASK}@{host}"))


def unknown_variables(*classes: type[Settings]) -> dict[str, list[str]]:
    """`OBLETH_` variables that none of `classes` reads, each with the known names it resembles."""
    known = {variable_name(field) for cls in classes for field in cls.model_fields}
    present = {name.upper() for name in (*os.environ, *dotenv_values(ENV_FILE))}
    return {
        name: difflib.get_close_matches(name, known, n=2, cutoff=0.75)
        for name in sorted(present)
        if name.startswith(PREFIX) and name not in known
    }
