"""The ready backends of a Service, out of what the API says of its EndpointSlices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dataplane.discovery.endpoint_slices import (
    ApiError,
    EndpointSliceList,
    Slices,
    VersionGone,
    WatchEvent,
)


def endpoint(address: str = "10.0.0.1", uid: str | None = None, **conditions: Any) -> Any:
    made: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if uid is not None:
        made["targetRef"] = {"kind": "Pod", "name": uid, "uid": uid}
    return made


def slice_(name: str = "a", *endpoints: Any, version: str = "1") -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "resourceVersion": version},
        "addressType": "IPv4",
        "endpoints": list(endpoints) or None,
        "ports": None,
    }


def page(*slices: Any, version: str = "10") -> EndpointSliceList:
    raw = {"metadata": {"resourceVersion": version}, "items": list(slices)}
    return msgspec.convert(raw, EndpointSliceList)


def listed(*slices: Any) -> Slices:
    found = Slices()
    found.listed([page(*slices)])
    return found


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": True}, True),
        ({}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": False}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),
    ],
)
def test_who_is_ready_serving_and_not_terminating_counts(
    conditions: dict[str, Any], counts: bool
) -> None:
    assert listed(slice_("a", endpoint(**conditions))).ready == int(counts)


def test_a_backend_in_several_slices_counts_once() -> None:
    one, two = endpoint("10.0.0.1"), endpoint("10.0.0.2")
    pod, pods_other_family = endpoint("10.0.0.1", "p1"), endpoint("fd::1", "p1")
    assert listed(slice_("a", pod), slice_("b", pod)).ready == 1
    assert listed(slice_("v4", pod), slice_("v6", pods_other_family)).ready == 1
    assert listed(slice_("a", one, two), slice_("b", two)).ready == 2


def test_a_service_without_slices_or_endpoints_has_no_backend() -> None:
    assert listed().ready == 0
    assert listed(slice_("a")).ready == 0
    found = Slices()
    found.listed([msgspec.convert({"metadata": {}, "items": None}, EndpointSliceList)])
    assert found.ready == 0


def test_pages_make_one_list_which_replaces_what_was_known() -> None:
    found = listed(slice_("old", endpoint("10.0.0.9")))
    found.listed(
        [
            page(slice_("a", endpoint("10.0.0.1")), version="20"),
            page(slice_("b", endpoint("10.0.0.2")), version="21"),
        ]
    )
    assert (found.ready, found.version) == (2, "21")


def event(kind: str, object_: Any) -> WatchEvent:
    return WatchEvent(kind, object_)


def test_events_add_change_and_remove_slices() -> None:
    found = listed(slice_("a", endpoint("10.0.0.1")))
    found.watched(event("ADDED", slice_("b", endpoint("10.0.0.2"), version="11")))
    assert (found.ready, found.version) == (2, "11")
    found.watched(event("MODIFIED", slice_("a", endpoint("10.0.0.1", ready=False), version="12")))
    assert (found.ready, found.version) == (1, "12")
    found.watched(event("DELETED", slice_("b", version="13")))
    assert (found.ready, found.version) == (0, "13")
    found.watched(event("DELETED", slice_("unheard of", version="14")))
    assert (found.ready, found.version) == (0, "14")


def test_a_bookmark_moves_the_version_alone() -> None:
    found = listed(slice_("a", endpoint()))
    found.watched(event("BOOKMARK", {"metadata": {"resourceVersion": "99"}}))
    assert (found.ready, found.version) == (1, "99")


def test_an_error_that_says_gone_is_told_from_others() -> None:
    found = listed(slice_("a", endpoint()))
    with pytest.raises(VersionGone, match="too old"):
        found.watched(event("ERROR", {"code": 410, "message": "too old resource version"}))
    with pytest.raises(ApiError, match="etcd"):
        found.watched(event("ERROR", {"code": 500, "message": "etcd is away"}))
    with pytest.raises(ApiError):
        found.watched(event("ERROR", {}))
    assert (found.ready, found.version) == (1, "10")


def test_an_event_that_makes_no_sense_changes_nothing() -> None:
    found = listed(slice_("a", endpoint()))
    with pytest.raises(ValueError):
        found.watched(event("MODIFIED", {"metadata": {"name": 5}}))
    assert (found.ready, found.version) == (1, "10")
