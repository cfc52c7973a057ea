"""The ready backends of a Kubernetes Service, out of its EndpointSlices. Pure.

An address counts when it is ready, serving and not terminating. What is not said is taken as the
API documents it: an unknown `ready` is ready, an unknown `serving` is what `ready` is, an unknown
`terminating` is not. A backend is in several slices while it moves from one to another, and where a
Service has addresses of both families: it is told by its pod, and counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec


class Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    @property
    def counts(self) -> bool:
        is_ready = self.ready is not False
        return (
            is_ready
            and (is_ready if self.serving is None else self.serving)
            and not self.terminating
        )


class Reference(msgspec.Struct, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Endpoint(msgspec.Struct, frozen=True):
    addresses: Sequence[str] = ()
    conditions: Conditions = Conditions()
    targetRef: Reference | None = None


class Metadata(msgspec.Struct, frozen=True):
    """Of a slice, or of a list of them."""

    name: str = ""
    resourceVersion: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class EndpointSlice(msgspec.Struct, frozen=True):
    metadata: Metadata
    endpoints: Sequence[Endpoint] | None = None


class EndpointSliceList(msgspec.Struct, frozen=True):
    metadata: Metadata
    items: Sequence[EndpointSlice] | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: Mapping[str, Any] = msgspec.field(default_factory=dict)


GONE: Final = 410
"""What an `ERROR` says, or the API answers, when a resource version is too old to go on from."""


class VersionGone(Exception):
    """The slices have to be listed anew."""


class ApiError(Exception):
    """The API ended a watch with an error of its own."""


class Slices:
    """The slices of one Service, as far as the API has told."""

    def __init__(self) -> None:
        self._slices: dict[str, EndpointSlice] = {}
        self.version = ""
        """The resource version up to which everything is in here."""

    def listed(self, pages: Sequence[EndpointSliceList]) -> None:
        """A whole list has come, in one page or several: it replaces everything."""
        self._slices = {each.metadata.name: each for page in pages for each in page.items or ()}
        self.version = pages[-1].metadata.resourceVersion

    def watched(self, event: WatchEvent) -> None:
        """One event of a watch. Raises `VersionGone` and `ApiError`; ValueError for nonsense."""
        if event.type == "ERROR":
            text = str(event.object.get("message") or event.object.get("reason") or "error")
            raise VersionGone(text) if event.object.get("code") == GONE else ApiError(text)
        changed = msgspec.convert(event.object, EndpointSlice)
        match event.type:
            case "ADDED" | "MODIFIED":
                self._slices[changed.metadata.name] = changed
            case "DELETED":
                self._slices.pop(changed.metadata.name, None)
            case _:
                pass  # a bookmark has nothing but a newer version
        self.version = changed.metadata.resourceVersion or self.version

    @property
    def ready(self) -> int:
        """How many backends are ready."""
        return len(set(self._identities()))

    def _identities(self) -> Iterator[str]:
        for each in self._slices.values():
            for endpoint in each.endpoints or ():
                if endpoint.conditions.counts and endpoint.addresses:
                    target = endpoint.targetRef
                    yield (target.uid if target else "") or endpoint.addresses[0]
