"""What a model looks like in the API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from controlplane.fields import Flag, Input, MaxInFlight, Name, kept, takes, takes_whole
from shared import policy, tables
from shared.policy import LoadBalancing

_REQUEST_SECS_MAX: Final = 86_400
_DNS_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_SOURCE_FIELDS: Final = {
    "endpoints": frozenset[str](),
    "dns": frozenset(("dns_name",)),
    "kubernetes": frozenset(("service", "namespace")),
}
_ALL_SOURCE_FIELDS: Final = frozenset[str]().union(*_SOURCE_FIELDS.values())


def _is_registrable(value: str) -> str:
    if value == policy.UNROUTED:
        raise PydanticCustomError("takes", "must not be the name of the pool for unknown models")
    return value


def _matching(pattern: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError("does not match")
        return value

    return AfterValidator(check)


ModelName = Annotated[Name, AfterValidator(_is_registrable)]
Aliases = Annotated[list[ModelName], Field(max_length=30)]
Balancing = Annotated[LoadBalancing, takes("one of " + ", ".join(LoadBalancing))]
DnsName = Annotated[
    str,
    Field(max_length=253),
    _matching(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\.?"),
    takes("a host name"),
]
KubernetesName = Annotated[
    str,
    Field(max_length=63),
    _matching(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"),
    takes("a Kubernetes name: up to 63 lower-case letters, digits and hyphens"),
]
AdmissionWeight = Annotated[
    int,
    Field(strict=True, ge=1, le=policy.ADMISSION_WEIGHT_MAX),
    takes_whole(1, policy.ADMISSION_WEIGHT_MAX),
]
RequestSecs = Annotated[
    float,
    Field(strict=True, gt=0, le=_REQUEST_SECS_MAX, allow_inf_nan=False),
    takes(f"a number above 0 up to {_REQUEST_SECS_MAX:,}", minimum=0, maximum=_REQUEST_SECS_MAX),
]
Retries = Annotated[int, Field(strict=True, ge=0, le=10), takes_whole(0, 10)]
Headroom = Annotated[
    float,
    Field(strict=True, ge=0.1, le=10, allow_inf_nan=False),
    takes("a number from 0.1 to 10", minimum=0.1, maximum=10),
]


class Capacity(Input):
    """A pool sized by the backends that are ready: their number × slots each × headroom."""

    mode: Annotated[Literal["discovered"], takes("discovered")]
    source: Annotated[
        Literal["endpoints", "dns", "kubernetes"], takes("one of endpoints, dns, kubernetes")
    ]
    per_replica_max_in_flight: MaxInFlight
    headroom: Headroom = 1.0
    dns_name: DnsName | None = Field(None, description="Of the `dns` source.")
    service: KubernetesName | None = Field(None, description="Of the `kubernetes` source.")
    namespace: KubernetesName | None = Field(
        None, description="Of the `kubernetes` source; null: the gateway's own."
    )

    @model_validator(mode="after")
    def _has_what_its_source_needs(self) -> Self:
        theirs = _SOURCE_FIELDS[self.source]
        for name in sorted(_ALL_SOURCE_FIELDS):
            given = getattr(self, name) is not None
            if given and name not in theirs:
                raise PydanticCustomError(
                    "takes", f"is not a field of the {self.source} source", {"subfield": name}
                )
            if not given and name in theirs and name != "namespace":
                raise PydanticCustomError(
                    "takes", f"is required by the {self.source} source", {"subfield": name}
                )
        return self

    def stored(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def patched(cls, stored: Mapping[str, Any] | None, given: Mapping[str, Any]) -> Self:
        """What was stored, with a merge patch laid over it, in which null takes a field away; what
        only the old source has goes with it. Raises `RequestValidationError`.
        """
        kept = dict(stored or {})
        if given.get("source", kept.get("source")) != kept.get("source"):
            kept = {name: kept[name] for name in kept.keys() - _ALL_SOURCE_FIELDS}
        fields = {name: value for name, value in {**kept, **given}.items() if value is not None}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise RequestValidationError(
                [{**each, "loc": ("body", "capacity", *each["loc"])} for each in error.errors()]
            ) from error


class SessionAffinity(Input):
    """What a model sets for itself; what it leaves out follows the gateway."""

    enabled: Flag | None = None
    hold_ms: Annotated[int, Field(strict=True, ge=0, le=60_000), takes_whole(0, 60_000)] | None = (
        None
    )
    max_held_percent: (
        Annotated[int, Field(strict=True, ge=0, le=100), takes_whole(0, 100)] | None
    ) = None
    max_bypass_secs: (
        Annotated[int, Field(strict=True, ge=1, le=3600), takes_whole(1, 3600)] | None
    ) = None

    def stored(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)


class ModelFields(Input):
    aliases: Aliases = Field(default_factory=list)
    upstream_model: Name | None = Field(None, description="Sent upstream; null: `name`.")
    enabled: Flag = True
    max_in_flight: MaxInFlight | None = Field(None, description="null: the gateway's default.")
    admission_weight: AdmissionWeight = 100
    load_balancing: Balancing = LoadBalancing.FAILOVER
    session_affinity: SessionAffinity = SessionAffinity()
    request_timeout_secs: RequestSecs = 600.0
    max_retries: Retries = 1

    def columns(self, names: set[str]) -> dict[str, Any]:
        """The values of the fields in `names` that are columns of the model itself."""
        values = {name: getattr(self, name) for name in names - {"aliases", "endpoints"}}
        if isinstance(values.get("capacity"), Capacity):
            values["capacity"] = values["capacity"].stored()
        if "session_affinity" in values:
            values["session_affinity"] = values["session_affinity"].stored()
        return values


class ModelCreate(ModelFields):
    name: ModelName
    capacity: Capacity | None = Field(None, description="null: sized by `max_in_flight`.")


class ModelPatch(ModelFields):
    name: ModelName = Field(default_factory=kept)
    capacity: dict[str, Any] | None = Field(
        None,
        description="Laid over what is stored; null: sized by `max_in_flight`.",
        examples=[{"headroom": 1.5}],
    )


class ModelView(BaseModel):
    id: str
    name: str
    aliases: list[str]
    upstream_model: str | None
    enabled: bool
    max_in_flight: int | None
    admission_weight: int
    capacity: dict[str, Any] | None
    load_balancing: LoadBalancing
    session_affinity: dict[str, Any]
    session_affinity_effective: policy.AffinityPolicy
    request_timeout_secs: float
    max_retries: int
    created_at: datetime
    updated_at: datetime
    revision: int

    @classmethod
    def of(
        cls, row: tables.ModelRow, aliases: Sequence[str], gateway: policy.AffinityPolicy
    ) -> Self:
        return cls(
            id=row.id,
            name=row.name,
            aliases=list(aliases),
            upstream_model=row.upstream_model,
            enabled=row.enabled,
            max_in_flight=row.max_in_flight,
            admission_weight=row.admission_weight,
            capacity=row.capacity,
            load_balancing=LoadBalancing(row.load_balancing),
            session_affinity=row.session_affinity,
            session_affinity_effective=effective(row, gateway),
            request_timeout_secs=row.request_timeout_secs,
            max_retries=row.max_retries,
            created_at=row.created_at,
            updated_at=row.updated_at,
            revision=row.revision,
        )


class SessionAffinityView(BaseModel):
    session_affinity: dict[str, Any] = Field(description="What the model sets itself.")
    effective: policy.AffinityPolicy


def effective(row: tables.ModelRow, gateway: policy.AffinityPolicy) -> policy.AffinityPolicy:
    """Session affinity in force for a model."""
    return policy.AffinityOverride(**row.session_affinity).resolve(gateway)
