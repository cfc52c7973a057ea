"""What went wrong, as RFC 9457 `application/problem+json`.

`type` is a URN whose last part is a stable code; `errors` names each field at fault by its dotted
path and, for a number, the least and greatest value it takes. Services raise `Problem`s; all else
that a request can run into is turned into one here. Of what a caller sent only names are repeated.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import IntegrityError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from shared.database import DatabaseUnavailable

log = structlog.stdlib.get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AFTER: Final = {"Retry-After": "5"}
_WORDS: Final = {
    "missing": "is required",
    "extra_forbidden": "is not a field here",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
    "string_unicode": "must not have a name with a lone surrogate",
    "string_type": "must be text",
}
"""The library's kinds of error in our words; our own fields bring their own."""
_CODES: Final = {
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
}

Place = Literal["body", "query", "path", "header"]


@dataclasses.dataclass(frozen=True, slots=True)
class FieldError:
    """One field at fault."""

    field: str
    """Its path in the body, as in `models.0.weight`, or a parameter's name; empty: the whole."""
    detail: str
    place: Place = "body"
    bounds: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """`minimum` and `maximum` of a number."""

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "in": self.place, "detail": self.detail, **self.bounds}


class Problem(Exception):
    """An answer other than success."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors
        self.headers = headers


class NotFound(Problem):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(404, "not-found", f"there is no {kind} {name!r}")


class NameTaken(Problem):
    def __init__(self, field: str, detail: str) -> None:
        super().__init__(409, "name-taken", detail, [FieldError(field, "is taken")])


class InUse(Problem):
    def __init__(self, detail: str) -> None:
        super().__init__(409, "in-use", detail)


class Invalid(Problem):
    """The request is well-formed but cannot be carried out as it stands."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__(422, "invalid", _summary(errors), errors)


class PreconditionFailed(Problem):
    def __init__(self) -> None:
        super().__init__(
            412, "precondition-failed", "it has changed since; read it again and decide anew"
        )


class Unauthorized(Problem):
    def __init__(self) -> None:
        super().__init__(
            401,
            "unauthorized",
            "send `Authorization: Bearer` with the admin or the viewer token",
            headers={"WWW-Authenticate": "Bearer"},
        )


class Forbidden(Problem):
    def __init__(self) -> None:
        super().__init__(403, "forbidden", "the viewer token may only read")


SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri", "examples": ["urn:obleth:problem:invalid"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "in", "detail"],
                "properties": {
                    "field": {"type": "string", "examples": ["models.0.weight"]},
                    "in": {"enum": ["body", "query", "path", "header"]},
                    "detail": {"type": "string"},
                    "minimum": {"type": "number"},
                    "maximum": {"type": "number"},
                },
            },
        },
    },
}
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": meaning, "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
    for status, meaning in {
        400: "The body is not JSON.",
        401: "No token, or a wrong one.",
        403: "The viewer token may only read.",
        404: "It is not there.",
        409: "A name is taken, or a group is in use.",
        412: "`If-Match` names another version.",
        413: "The body is too large.",
        422: "A field is unknown, out of its range, or names what is not there.",
        503: "The database is away; nothing was changed.",
    }.items()
}
"""What any route of the API may answer instead of success, for its description."""


def answer(problem: Problem) -> Response:
    """`problem` as a response."""
    content: dict[str, Any] = {
        "type": f"urn:obleth:problem:{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.errors:
        content["errors"] = [error.to_json() for error in problem.errors]
    # ASCII, so that no text can make the answer itself fail to encode.
    return Response(
        json.dumps(content), problem.status, dict(problem.headers or {}), media_type=MEDIA_TYPE
    )


def install(app: FastAPI) -> None:
    """Have `app` answer every error in this form."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, error: Problem) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        return answer(_from_validation(error))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "bad-request")
        headers = {"Allow": _taken(request)} if error.status_code == 405 else error.headers
        return answer(Problem(error.status_code, code, error.detail, headers=headers))

    @app.exception_handler(DatabaseUnavailable)
    async def _away(_: Request, error: DatabaseUnavailable) -> Response:
        cause = getattr(error.__cause__, "orig", error.__cause__)
        log.warning("database away", error=type(cause).__name__, reason=str(cause))
        detail = "the database is away; nothing was changed"
        return answer(Problem(503, "database-away", detail, headers=_RETRY_AFTER))

    @app.exception_handler(IntegrityError)
    async def _conflict(_: Request, error: IntegrityError) -> Response:
        detail = "it contradicts what is stored; nothing was changed"
        return answer(Problem(409, "conflict", detail))

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> Response:
        return answer(Problem(500, "internal", "an error of ours; it has been logged"))


def _taken(request: Request) -> str:
    """The methods that a path takes. The framework names those of the first of its routes."""

    def is_taken(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)

    methods = filter(is_taken, ("GET", "POST", "PUT", "PATCH", "DELETE"))
    return ", ".join("GET, HEAD" if method == "GET" else method for method in methods)


def _from_validation(error: RequestValidationError) -> Problem:
    details = error.errors()
    for detail in details:
        if detail["type"] == "json_invalid":
            return Problem(400, "invalid-json", f"the body is not JSON: {detail['ctx']['error']}")
        if detail["type"] == "missing" and tuple(detail["loc"]) == ("body",):
            return Problem(400, "invalid-json", "the body is not JSON: it is empty")
    return Invalid(*map(_field_error, details))


def _field_error(detail: Mapping[str, Any]) -> FieldError:
    place, *path = detail["loc"]
    context = detail.get("ctx") or {}
    if "subfield" in context:
        path.append(context["subfield"])
    return FieldError(
        ".".join(map(str, path)),
        _WORDS.get(detail["type"], detail["msg"]),
        place,
        {name: context[name] for name in ("minimum", "maximum") if name in context},
    )


def _summary(errors: Sequence[FieldError]) -> str:
    first = errors[0]
    text = f"{first.field or 'the body'} {first.detail}"
    return text if len(errors) == 1 else f"{text}, and {len(errors) - 1} more"
