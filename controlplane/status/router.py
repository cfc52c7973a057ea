"""/health, /version and /settings; the first two are anyone's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field

from controlplane.dependencies import provided
from controlplane.problems import Problem
from controlplane.routes import ApiRoute
from migrations import schema
from shared.database import Database

DISTRIBUTION: Final = "obleth"

router = APIRouter(tags=["status"], route_class=ApiRoute)


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """Every setting in force, by variable, with secrets masked."""

    values: Mapping[str, Any]


class Health(BaseModel):
    status: str
    database_schema: str = Field(description="The last migration that was applied.")


class Version(BaseModel):
    version: str


class SettingsView(BaseModel):
    settings: dict[str, Any] = Field(description="By variable; secrets are masked.")


@router.get("/health")
async def health(database: Annotated[Database, provided(Database)]) -> Health:
    """Whether policy can be read and changed; 503 when it cannot."""
    found = await schema.inspect(database)
    if found.problem is not None:
        raise Problem(503, "schema-differs", found.problem)
    return Health(status="ok", database_schema=found.expected)


@router.get("/version")
async def get_version() -> Version:
    return Version(version=version(DISTRIBUTION))


@router.get("/settings")
async def get_settings(
    effective: Annotated[EffectiveSettings, provided(EffectiveSettings)],
) -> SettingsView:
    """What is in force, defaults included."""
    return SettingsView(settings=dict(effective.values))
