"""What an endpoint looks like in the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from controlplane.endpoints.health import Health
from controlplane.fields import Flag, Input, MaxInFlight, Weight, kept, takes, takes_whole
from shared import policy, tables


def _fits_a_header(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not 1 <= len(text) <= 4096 or not all("!" <= char <= "~" for char in text):
        raise ValueError("not a bearer token")
    return value


Url = Annotated[
    str,
    Field(min_length=1, max_length=tables.URL_MAX),
    takes("an http:// or https:// URL of up to 2,048 characters"),
]
UpstreamKey = Annotated[
    SecretStr,
    AfterValidator(_fits_a_header),
    takes("1 to 4,096 visible ASCII characters, without spaces"),
]
Priority = Annotated[int, Field(strict=True, ge=0, le=1000), takes_whole(0, 1000)]


class EndpointFields(Input):
    api_key: UpstreamKey | None = Field(
        None, description="Sent upstream as bearer token. It can be set, never read."
    )
    weight: Weight = policy.DEFAULT_WEIGHT
    priority: Priority = Field(0, description="Lower is tried first.")
    enabled: Flag = True
    max_in_flight: MaxInFlight | None = None

    def columns(self, names: set[str]) -> dict[str, Any]:
        """The values of the fields in `names` that are stored as they are."""
        return {name: getattr(self, name) for name in names - {"api_key", "url"}}


class EndpointCreate(EndpointFields):
    url: Url


class EndpointPatch(EndpointFields):
    url: Url = Field(default_factory=kept)


class StoredEndpoint(BaseModel):
    """An endpoint as it is stored, and as the audit log keeps it."""

    id: str
    model_id: str
    url: str
    has_api_key: bool
    weight: int
    priority: int
    enabled: bool
    max_in_flight: int | None
    created_at: datetime
    updated_at: datetime
    revision: int

    @classmethod
    def of(cls, row: tables.EndpointRow, **more: Any) -> Self:
        return cls(
            id=row.id,
            model_id=row.model_id,
            url=row.url,
            has_api_key=row.sealed_api_key is not None,
            weight=row.weight,
            priority=row.priority,
            enabled=row.enabled,
            max_in_flight=row.max_in_flight,
            created_at=row.created_at,
            updated_at=row.updated_at,
            revision=row.revision,
            **more,
        )


class ChangedEndpoint(StoredEndpoint):
    """The same after a change."""

    api_key_replaced: bool


class EndpointView(StoredEndpoint):
    """An endpoint, and how the replicas find it."""

    health: Health = Field(
        description="`degraded`: to some replicas. `unknown`: not enabled, or not checked yet."
    )
