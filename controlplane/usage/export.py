"""Usage as a CSV file, however much there is of it: page by page, as it is read."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import StreamingResponse

from controlplane.paging import LIMIT_MAX, Page

_BEGINS_FORMULA: Final = ("=", "+", "-", "@", "\t")
"""By these spreadsheets take a cell for something to run; names come from anybody."""

ReadPage = Callable[[int, str | None], Awaitable[Page[Any]]]
"""Given a limit and a cursor, a page of a list."""


async def csv_file(name: str, row: type[BaseModel], read: ReadPage) -> StreamingResponse:
    """The answer: a line of names, then one a `row`.

    What stands in the way of the first page is raised before there is an answer; later it breaks
    the file off, and never ends it as if it were whole.
    """
    first = await read(LIMIT_MAX, None)
    return StreamingResponse(
        _lines(list(row.model_fields), first, read),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


async def _lines(names: list[str], page: Page[Any], read: ReadPage) -> AsyncIterator[str]:
    yield _text([names])
    while True:
        shown = [each.model_dump(mode="json") for each in page.items]
        yield _text([_cell(each[name]) for name in names] for each in shown)
        if page.next_cursor is None:
            return
        page = await read(LIMIT_MAX, page.next_cursor)


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_BEGINS_FORMULA):
        return f"'{value}"
    return value


def _text(rows: Iterable[Iterable[object]]) -> str:
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue()
