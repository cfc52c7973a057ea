"""Forms: text in a browser, JSON for the API, and what the API finds wrong with it.

Nothing is judged here. What is not a number where one belongs goes to the API as the text it is, so
that every form says of a field what the API says of it. A field's name is its path in the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from math import isfinite
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from controlplane.dashboard.api import Json, Refused

LONGEST_FORM: Final = 1024 * 1024
"""Bytes."""
MOST_FIELDS: Final = 2000
FORM_TYPE: Final = "application/x-www-form-urlencoded"


class Takes(Enum):
    """What a field is in JSON. Blank stands for null, the default, except in TEXT."""

    TEXT = auto()
    OPTIONAL_TEXT = auto()
    WHOLE = auto()
    NUMBER = auto()
    FLAG = auto()
    """A checkbox: false when it is not there."""
    LINES = auto()
    """A list of names, one a line; blank: an empty list."""
    OPTIONAL_LINES = auto()
    MOMENT = auto()
    """A time in UTC, as `<input type=datetime-local>` writes it."""


Fields = Mapping[str, Takes]


@dataclass(frozen=True, slots=True)
class Form:
    """What is shown in a form's fields, and what is wrong with it."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    """By field; those of fields that are not shown are part of `problem`."""
    problem: str | None = None

    def refused(self, refused: Refused, fields: Fields) -> Form:
        """This form as it is shown again after the API has refused it."""
        errors: dict[str, str] = {}
        others: list[str] = []
        for path, detail in refused.fields.items():
            name = path if path in fields else path.rpartition(".")[0]
            if name in fields:
                errors.setdefault(name, detail)
            else:
                others.append(f"{path} {detail}")
        problem = "; ".join(others) if errors or others else refused.detail
        return Form(self.values, errors, problem or None)


async def read(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; of several with one name the last.

    Raises HTTPException.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise HTTPException(415, "a form of this page is expected")
    pieces = bytearray()
    async for piece in request.stream():
        pieces += piece
        if len(pieces) > LONGEST_FORM:
            raise HTTPException(413, "the form is too large")
    try:
        return dict(parse_qsl(pieces.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None


def to_json(
    fields: Fields, values: Mapping[str, str], thing: Mapping[str, Any] | None = None
) -> Json:
    """A form's values as the API takes them; names with a dot go into an object.

    A field that still says what it says of `thing` keeps what is there: a form does not show all of
    it, as fractions of a second, or whether a list is empty or none.
    """
    found: Json = {}
    for name, takes in fields.items():
        outer, _, inner = name.rpartition(".")
        place = found.setdefault(outer, {}) if outer else found
        text = values.get(name, "").replace("\r\n", "\n")
        stored = None if thing is None else _value(thing, name)
        is_kept = thing is not None and _reads(takes, text) == _reads(
            takes, _to_text(takes, stored)
        )
        place[inner] = stored if is_kept else _to_json(takes, text)
    return found


def to_text(fields: Fields, thing: Mapping[str, Any]) -> dict[str, str]:
    """The values that a form shows for a thing of the API."""
    return {name: _to_text(takes, _value(thing, name)) for name, takes in fields.items()}


def _value(thing: Mapping[str, Any], name: str) -> Any:
    outer, _, inner = name.rpartition(".")
    place = (thing.get(outer) or {}) if outer else thing
    return place.get(inner)


def _reads(takes: Takes, text: str) -> str:
    """The same for texts that say the same: browsers leave out seconds that are zero."""
    if takes is not Takes.MOMENT:
        return text
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        return text


def _to_json(takes: Takes, text: str) -> Any:
    match takes:
        case Takes.TEXT:
            return text
        case Takes.FLAG:
            return bool(text)
        case Takes.LINES | Takes.OPTIONAL_LINES:
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return lines or ([] if takes is Takes.LINES else None)
        case _ if not text.strip():
            return None
        case Takes.OPTIONAL_TEXT:
            return text
        case Takes.WHOLE:
            return _number(text, int)
        case Takes.NUMBER:
            return _number(text, float)
        case Takes.MOMENT:
            return f"{text.strip()}Z"


def _number(text: str, kind: type[int] | type[float]) -> int | float | str:
    try:
        number = kind(text)
    except ValueError:
        return text
    return number if isfinite(number) else text


def _to_text(takes: Takes, value: Any) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return "true"
        case list():
            return "\n".join(value)
        case str() if takes is Takes.MOMENT:
            return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value)
