from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.paging import LIMIT_MAX
from shared import tables
from tests.controlplane.api import Api, fields

pytestmark = pytest.mark.asyncio(loop_scope="module")

START = datetime(2030, 1, 1, tzinfo=UTC)


def _request(minute: int, **fields: Any) -> tables.UsageRow:
    values: dict[str, Any] = {
        "id": tables.new_id(),
        "request_id": f"req-{minute}",
        "started_at": START + timedelta(minutes=minute),
        "group_name": "default",
        "tenant_id": "t1",
        "tenant": "acme",
        "key_id": "k1",
        "key": "laptop",
        "model": "llama",
        "admission": "fast",
        "status": 200,
        "partial": False,
        "queue_ms": 0,
        "ttfb_ms": 12.5,
        "duration_ms": 250,
        "input_tokens": 10,
        "output_tokens": 5,
        "cached_tokens": 2,
        "estimated": False,
        "session": None,
    }
    return tables.UsageRow(**{**values, **fields})


async def _store(api: Api, *rows: tables.UsageRow) -> None:
    async with api.plane.database.transaction() as session:
        session.add_all(rows)


async def test_requests_are_listed_newest_first_with_all_that_is_known(api: Api) -> None:
    await _store(api, _request(1), _request(2, session="abc"), _request(0, ttfb_ms=None))
    listed = await api.items("/usage/requests")
    assert [one["request_id"] for one in listed] == ["req-2", "req-1", "req-0"]
    assert {name: listed[0][name] for name in ("session", "group", "key", "started_at")} == {
        "session": "abc",
        "group": "default",
        "key": "laptop",
        "started_at": "2030-01-01T00:02:00Z",
    }
    assert listed[2]["ttfb_ms"] is None


async def test_requests_can_be_narrowed_down(api: Api) -> None:
    await _store(
        api,
        _request(0),
        _request(1, tenant_id="t2", group_name="research"),
        _request(2, key_id="k2"),
        _request(3, model="qwen"),
    )

    async def minutes(**params: str) -> list[str]:
        return [one["request_id"] for one in await api.items("/usage/requests", **params)]

    assert await minutes(tenant_id="t2") == ["req-1"]
    assert await minutes(group="research") == ["req-1"]
    assert await minutes(key_id="k2") == ["req-2"]
    assert await minutes(model="qwen", tenant_id="t1") == ["req-3"]
    assert await minutes(since="2030-01-01T00:01:00Z", until="2030-01-01T00:03:00Z") == [
        "req-2",
        "req-1",
    ]


async def test_pages_of_requests_go_on_where_they_ended_also_within_one_moment(api: Api) -> None:
    await _store(api, *(_request(0, request_id=str(i)) for i in range(5)))
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        params: dict[str, str | int] = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = await api.get("/usage/requests", params=params)
        seen += [one["request_id"] for one in page["items"]]
        cursor = page["next_cursor"]
    assert (seen, cursor) == (["4", "3", "2", "1", "0"], None)


async def test_usage_is_summed_by_tenant_under_its_latest_name(api: Api) -> None:
    await _store(
        api,
        _request(0, tenant="before", estimated=True),
        _request(1, tenant="after", admission="queued", queue_ms=30),
        _request(2, tenant_id="t2", tenant="other", input_tokens=None, output_tokens=None),
        _request(-1, tenant="older", admission="rejected", status=503, cached_tokens=None),
    )
    first, second = await api.items("/usage")
    assert first == {
        "id": "t1",
        "name": "after",
        "requests": 3,
        "queued": 1,
        "rejected": 1,
        "input_tokens": 30,
        "output_tokens": 15,
        "cached_tokens": 4,
        "estimated": 1,
        "queue_ms_mean": 10,
        "queue_ms_max": 30,
        "first_at": "2029-12-31T23:59:00Z",
        "last_at": "2030-01-01T00:01:00Z",
    }
    assert (second["id"], second["requests"], second["input_tokens"]) == ("t2", 1, 0)


@pytest.mark.parametrize(
    ("by", "ids"),
    [
        ("tenant", ["t1"]),
        ("key", ["k1", "k2"]),
        ("model", ["llama", "qwen"]),
        ("group", ["default", "research"]),
        ("day", ["2030-01-01"]),
    ],
)
async def test_usage_can_be_summed_by(api: Api, by: str, ids: list[str]) -> None:
    await _store(api, _request(0), _request(1, key_id="k2", model="qwen", group_name="research"))
    assert [one["id"] for one in await api.items("/usage", by=by)] == ids


async def test_sums_come_in_pages_too(api: Api) -> None:
    await _store(api, *(_request(0, tenant_id=f"t{i}") for i in range(3)))
    first = await api.get("/usage", params={"limit": 2})
    assert [one["id"] for one in first["items"]] == ["t0", "t1"]
    second = await api.get("/usage", params={"limit": 2, "cursor": first["next_cursor"]})
    assert [one["id"] for one in second["items"]] == ["t2"]
    assert second["next_cursor"] is None


async def test_a_day_is_one_of_utc_and_sums_all_that_started_on_it(api: Api) -> None:
    midnight = START + timedelta(days=1)
    await _store(
        api,
        _request(0, queue_ms=4),
        _request(0, started_at=midnight - timedelta(microseconds=1), queue_ms=8),
        _request(0, started_at=midnight, tenant_id="t2"),
    )
    days = await api.items("/usage", by="day")
    assert [(day["id"], day["name"], day["requests"]) for day in days] == [
        ("2030-01-01", "2030-01-01", 2),
        ("2030-01-02", "2030-01-02", 1),
    ]
    assert (days[0]["queue_ms_mean"], days[0]["queue_ms_max"]) == (6, 8)
    first = await api.get("/usage", params={"by": "day", "limit": 1})
    rest = await api.get("/usage", params={"by": "day", "cursor": first["next_cursor"]})
    assert [day["id"] for day in rest["items"]] == ["2030-01-02"]
    assert [day["id"] for day in await api.items("/usage", by="day", tenant_id="t2")] == [
        "2030-01-02"
    ]


async def _csv(api: Api, path: str, **params: str) -> list[dict[str, str]]:
    answer = await api.client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith('attachment; filename="usage-')
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


async def test_requests_can_be_downloaded_however_many_there_are(api: Api) -> None:
    await _store(api, *(_request(minute) for minute in range(LIMIT_MAX + 3)))
    rows = await _csv(api, "/usage/requests.csv")
    assert [row["request_id"] for row in rows] == [f"req-{n}" for n in range(LIMIT_MAX + 2, -1, -1)]
    (shown,) = await api.items("/usage/requests", limit=1)
    assert list(rows[0]) == list(shown)
    assert rows[0]["started_at"] == shown["started_at"]
    assert (rows[0]["input_tokens"], rows[0]["estimated"]) == ("10", "False")
    narrowed = await _csv(api, "/usage/requests.csv", since="2030-01-01T08:22:00Z")
    assert [row["request_id"] for row in narrowed] == ["req-502"]


async def test_sums_can_be_downloaded(api: Api) -> None:
    await _store(api, _request(0), _request(1, tenant_id="t2", tenant="two, or more"))
    rows = await _csv(api, "/usage/sums.csv", by="tenant")
    assert [(row["id"], row["name"], row["requests"]) for row in rows] == [
        ("t1", "acme", "1"),
        ("t2", "two, or more", "1"),
    ]
    assert await _csv(api, "/usage/sums.csv", by="day", until="2029-01-01T00:00:00Z") == []


async def test_no_name_in_a_download_is_taken_for_a_formula(api: Api) -> None:
    await _store(api, _request(0, tenant='=HYPERLINK("http://x")', key="@sum", model="-1+2"))
    (row,) = await _csv(api, "/usage/requests.csv")
    assert (row["tenant"], row["key"], row["model"]) == (
        '\'=HYPERLINK("http://x")',
        "'@sum",
        "'-1+2",
    )


@pytest.mark.parametrize("path", ["/usage/sums.csv", "/usage/requests.csv"])
async def test_a_download_that_makes_no_sense_is_refused(api: Api, path: str) -> None:
    assert fields(await api.get(path, params={"limit": 1}, expect=422)) == {"limit"}
    assert fields(await api.get(path, params={"since": "today"}, expect=422)) == {"since"}


async def test_sums_are_of_the_asked_for_time_only(api: Api) -> None:
    await _store(api, _request(0), _request(10))
    summed = await api.items("/usage", since="2030-01-01T00:05:00Z")
    assert [one["requests"] for one in summed] == [1]
    assert await api.items("/usage", until="2029-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("by", "colour"),
        ("since", "yesterday"),
        ("since", "2030-01-01"),
        ("until", "1e999"),
        ("tenant_id", "\x00"),
        ("model", "a\nb"),
        ("tenant", "acme"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(api: Api, field: str, value: str) -> None:
    assert fields(await api.get("/usage", params={field: value}, expect=422)) == {field}
