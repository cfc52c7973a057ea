"""The types that fields of requests have, each with its range in words.

Numbers are numbers: text, true and false are refused, and so are NaN and infinities. `Input` is
what every body derives from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from shared import policy, tables
from shared.policy import BudgetPeriod

_BUDGET_MAX: Final = 10**15
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 2999


def takes(words: str, **bounds: float) -> WrapValidator:
    """Say what a type takes, whichever of its checks fails."""

    def validate(value: object, check: Callable[[object], object]) -> object:
        try:
            return check(value)
        except ValueError:
            raise PydanticCustomError("takes", f"must be {words}", bounds or None) from None

    return WrapValidator(validate)


def takes_whole(minimum: int, maximum: int) -> WrapValidator:
    words = f"a whole number from {minimum:,} to {maximum:,}"
    return takes(words, minimum=minimum, maximum=maximum)


def is_plain(text: str) -> bool:
    """Whether text can be stored, logged and shown on one line: no control characters."""
    return not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text)


def one_line(value: str) -> str:
    """`value`, unless it has control characters: then raises ValueError."""
    if not is_plain(value):
        raise ValueError("not plain text")
    return value


def plain(value: str) -> str:
    """`value`, unless it is blank or has control characters: then raises ValueError."""
    if not value.strip():
        raise ValueError("blank")
    return one_line(value)


def _moment(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("not text")  # noqa: TRY004 - pydantic reports ValueErrors
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None or not _FIRST_YEAR < moment.year <= _LAST_YEAR:
        raise ValueError("out of range")
    return moment.astimezone(UTC)


Name = Annotated[
    str,
    Field(min_length=1, max_length=tables.NAME_MAX),
    AfterValidator(plain),
    takes("text of 1 to 200 characters, not blank, without control characters"),
]
Id = Annotated[
    str, Field(min_length=1, max_length=36), AfterValidator(plain), takes("an id of 36 characters")
]
Weight = Annotated[
    int, Field(strict=True, ge=1, le=policy.WEIGHT_MAX), takes_whole(1, policy.WEIGHT_MAX)
]
MaxInFlight = Annotated[
    int,
    Field(strict=True, ge=1, le=policy.MAX_IN_FLIGHT_MAX),
    takes_whole(1, policy.MAX_IN_FLIGHT_MAX),
]
Tokens = Annotated[int, Field(strict=True, ge=1, le=_BUDGET_MAX), takes_whole(1, _BUDGET_MAX)]
Flag = Annotated[bool, Field(strict=True), takes("true or false")]
Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    takes("a time with its zone, such as 2030-01-31T12:00:00Z, between the years 1970 and 3000"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Period = Annotated[BudgetPeriod, takes("one of " + ", ".join(BudgetPeriod))]


def kept() -> Any:
    """The default factory of a field that a patch may leave out, but that null cannot reset.

    What it returns is never read: `changes` and `columns` go by the fields that were set.
    """
    return None


class Input(BaseModel):
    """The body of a request: unknown fields are refused, and null stands for a field's default.

    A field in a patch that is left out stays as it is (`changes`); one that holds a list is one
    value, replaced as a whole, and so is one that holds an object unless its type says otherwise.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {
            name: cls._default(name) if value is None else value for name, value in data.items()
        }

    @classmethod
    def _default(cls, name: object) -> object:
        info = cls.model_fields.get(name) if isinstance(name, str) else None
        if info is None or info.is_required() or info.default_factory is kept:
            return None
        return info.get_default(call_default_factory=True)

    def changes(self) -> dict[str, Any]:
        """What the caller set, by field."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Empty(Input):
    """The body of a request that has nothing to say: so that nothing said in vain is passed over.

    It may be left out altogether.
    """
