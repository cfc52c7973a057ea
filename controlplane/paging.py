"""Long lists in pages: `?limit=&cursor=` → `{items, next_cursor}`.

A cursor holds the sort key of the last item given out, so that pages neither skip nor repeat what
stays, however much is added or removed meanwhile.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Select, literal, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from controlplane.fields import is_plain, one_line, takes, takes_whole
from controlplane.problems import FieldError, Invalid

LIMIT_MAX: Final = 500

T = TypeVar("T")
R = TypeVar("R")


SortKey = InstrumentedAttribute[Any] | ColumnElement[Any]


class Page(BaseModel, Generic[T]):
    """Part of a list."""

    items: list[T]
    next_cursor: str | None = Field(description="For the next page; null on the last one.")


class PageQuery(BaseModel):
    """What a list takes in its query. Unknown parameters are refused, lest a filter be misspelt."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX), takes_whole(1, LIMIT_MAX)] = 100
    cursor: Annotated[str, Field(max_length=2000)] | None = None


class SearchQuery(PageQuery):
    """A list of things with names."""

    search: (
        Annotated[
            str,
            Field(max_length=200),
            AfterValidator(one_line),
            takes("text of up to 200 characters, without control characters"),
        ]
        | None
    ) = Field(None, description="Part of the name, in any case.")


async def fetch(
    session: AsyncSession,
    statement: Select[R],
    keys: Sequence[InstrumentedAttribute[Any]],
    query: PageQuery,
    *,
    newest_first: bool = False,
) -> tuple[Sequence[R], str | None]:
    """A page of rows of an ORM class, ordered by `keys` (together unique), and the next cursor."""
    order = [key.desc() if newest_first else key.asc() for key in keys]
    values = last(query, [key.type.python_type for key in keys])
    if values is not None:
        here = tuple_(*keys)
        there = tuple_(*(literal(one, key.type) for one, key in zip(values, keys, strict=True)))
        statement = statement.where(here < there if newest_first else here > there)
    rows = (await session.scalars(statement.order_by(*order).limit(query.limit + 1))).all()
    if len(rows) <= query.limit:
        return rows, None
    rows = rows[: query.limit]
    return rows, encode([getattr(rows[-1], key.key) for key in keys])


def part(
    items: Sequence[T], name: Callable[[T], str], query: PageQuery
) -> tuple[Sequence[T], str | None]:
    """A page of what is at hand as a whole, ordered by `name` (unique), and the next cursor."""
    values = last(query, [str])
    ordered = sorted(items, key=name)
    if values is not None:
        ordered = [each for each in ordered if name(each) > values[0]]
    page = ordered[: query.limit]
    return page, encode([name(page[-1])]) if len(page) < len(ordered) else None


def encode(values: Sequence[str | int | datetime]) -> str:
    """A cursor for the sort key `values`."""
    plain = [one.isoformat() if isinstance(one, datetime) else one for one in values]
    text = json.dumps(plain, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def last(query: PageQuery, types: Sequence[type]) -> list[Any] | None:
    """The sort key, of values of `types`, that the page goes on after; None: the first page.
    Raises Invalid.
    """
    if query.cursor is None:
        return None
    cursor = query.cursor
    try:
        values = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", True))
        if not isinstance(values, list) or len(values) != len(types):
            raise ValueError("another list's")  # noqa: TRY301 - one answer to all of them
        return [_value(one, wanted) for one, wanted in zip(values, types, strict=True)]
    except (ValueError, OverflowError, RecursionError):
        error = FieldError("cursor", "must be the next_cursor of an earlier page", "query")
        raise Invalid(error) from None


def _value(value: object, wanted: type) -> object:
    match value:
        case str() if wanted is datetime:
            return datetime.fromisoformat(value).astimezone(UTC)
        case str() if wanted is str and is_plain(value):
            return value
        case int() if wanted is int and abs(value) < 2**63:
            return value
        case _:
            raise ValueError("not a value of the key")
