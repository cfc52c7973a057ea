"""What routes are given: services, sessions, and changes that commit at the edge."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request

from controlplane.policy_store import Change, PolicyStore
from controlplane.preconditions import Precondition

T = TypeVar("T")
Begin = Callable[[], AbstractAsyncContextManager[Change]]


class Provided:
    """The objects that `main` built, by their class."""

    def __init__(self, *objects: object) -> None:
        self._objects = {type(one): one for one in objects}

    def get(self, cls: type[T]) -> T:
        found = self._objects[cls]
        assert isinstance(found, cls)
        return found


def provided(cls: type[Any]) -> Any:
    """A dependency on the one object of `cls`."""

    def get(request: Request) -> Any:
        objects: Provided = request.app.state.provided
        return objects.get(cls)

    return Depends(get)


Store = Annotated[PolicyStore, provided(PolicyStore)]


def _changing(
    request: Request,
    store: Store,
    if_match: Annotated[
        str | None,
        Header(description="Change it only while its ETag is this one; otherwise answer 412."),
    ] = None,
) -> Begin:
    # A function and not the change itself: it must not begin before the body has been checked,
    # and must be committed before the answer is on its way.
    return lambda: store.change(request.state.caller, Precondition(if_match))


Changing = Annotated[Begin, Depends(_changing)]
