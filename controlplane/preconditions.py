"""ETag and If-Match: a change is made only to what its caller has seen.

A resource's tag is the number of the change that last wrote it. Numbers are never used twice, so a
tag is not valid again for something that was deleted and made anew.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from fastapi import Response

from controlplane.problems import PreconditionFailed


class Precondition:
    """What a caller's If-Match demands; nothing when it was not sent."""

    def __init__(self, if_match: str | None) -> None:
        self._tags = None if if_match is None else {tag.strip() for tag in if_match.split(",")}

    def check(self, revision: int) -> None:
        """Raises PreconditionFailed unless what is at `revision` is what the caller has seen."""
        if self._tags is not None and self._tags.isdisjoint(("*", tag(revision))):
            raise PreconditionFailed


ANYTHING: Final = Precondition(None)


class Tagged(Protocol):
    @property
    def revision(self) -> int: ...


T = TypeVar("T", bound=Tagged)


def tag(revision: int) -> str:
    return f'"{revision}"'


def tagged(response: Response, view: T) -> T:
    """`view`, its tag set on the response it becomes the body of."""
    response.headers["ETag"] = tag(view.revision)
    return view
