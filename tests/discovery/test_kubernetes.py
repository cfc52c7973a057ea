"""Following a Service's EndpointSlices on an API server of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dataplane.discovery.kubernetes import KubernetesApi, KubernetesSource
from dataplane.discovery.sources import NoAnswer
from shared.policy import CapacityPolicy, CapacitySource, ModelPolicy
from tests.discovery.api_server import TOKEN, Api, Page, Watch, api_server, authority

SAMPLE = json.loads((Path(__file__).parent / "endpointslices.json").read_text())


def model(service: str = "vllm", namespace: str | None = None) -> ModelPolicy:
    capacity = CapacityPolicy(CapacitySource.KUBERNETES, 8, service=service, namespace=namespace)
    return ModelPolicy("m", "m", capacity=capacity)


MODEL = model()


def event(kind: str, version: str, ready: list[bool], name: str = "vllm-1") -> dict[str, Any]:
    """A slice with a pod for each entry."""
    endpoints = [
        {
            "addresses": [f"10.0.0.{number}"],
            "conditions": {"ready": each, "serving": each, "terminating": False},
            "targetRef": {"kind": "Pod", "uid": f"{name}-{number}"},
        }
        for number, each in enumerate(ready)
    ]
    metadata = {"name": name, "resourceVersion": version}
    return {"type": kind, "object": {"metadata": metadata, "endpoints": endpoints}}


def page(version: str, *ready: bool, more: str = "", name: str = "vllm-1") -> Page:
    item = event("", version, list(ready), name)["object"]
    return Page({"metadata": {"resourceVersion": version, "continue": more}, "items": [item]})


class Followed:
    def __init__(self, source: KubernetesSource) -> None:
        self.source = source
        self.news = asyncio.Event()
        source.subscribe(self.news.set)

    async def until(self, ready: int | None) -> None:
        """Returns when so many backends are ready; None: when nobody can tell."""
        async with asyncio.timeout(10):
            while True:
                self.news.clear()
                try:
                    found: int | None = len(await self.source.ready(MODEL))
                except NoAnswer:
                    found = None
                if found == ready:
                    return
                await self.news.wait()


@asynccontextmanager
async def followed(api: Api, every_secs: float = 30) -> AsyncIterator[Followed]:
    source = KubernetesSource(
        KubernetesApi(api.url, api.account), every_secs=every_secs, retry_secs=0.01
    )
    made = Followed(source)
    await source.keep([MODEL])
    try:
        yield made
    finally:
        await source.keep([])


async def test_slices_as_the_api_sends_them_are_counted_and_followed(tmp_path: Path) -> None:
    async with (
        api_server(tmp_path, Page(SAMPLE["list"]), Watch(SAMPLE["watch"])) as api,
        followed(api) as found,
    ):
        await found.until(SAMPLE["ready after the watch"])
        await api.until(lambda: len(api.asked) == 2)
        listed, watched = api.asked
        assert listed == {
            "labelSelector": "kubernetes.io/service-name=vllm",
            "limit": "500",
        }
        assert watched == {
            "labelSelector": "kubernetes.io/service-name=vllm",
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": SAMPLE["list"]["metadata"]["resourceVersion"],
            "timeoutSeconds": "30",
        }
        assert set(api.tokens) == {f"Bearer {TOKEN}"}


async def test_a_list_in_pages_is_read_to_its_end(tmp_path: Path) -> None:
    pages = [page("5", True, more="next"), page("5", True, True, name="vllm-2")]
    async with api_server(tmp_path, *pages, Watch()) as api, followed(api) as found:
        await found.until(3)
        assert [asked.get("continue") for asked in api.asked[:2]] == [None, "next"]


@pytest.mark.parametrize("then", ["end", "cut"])
async def test_a_watch_that_ends_is_taken_up_where_it_ended(tmp_path: Path, then: str) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    first = Watch([event("MODIFIED", "6", [True, True]), bookmark], then=then)
    second = Watch([event("MODIFIED", "10", [True, False])])
    async with (
        api_server(tmp_path, page("5", True), first, second) as api,
        followed(api) as found,
    ):
        await api.until(lambda: len(api.asked) == 3)
        await found.until(1)
        assert [asked.get("resourceVersion") for asked in api.asked] == [None, "5", "9"]


@pytest.mark.parametrize(
    "gone",
    [
        Watch(status=410),
        Watch([{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}]),
    ],
)
async def test_a_version_too_old_to_go_on_from_has_all_listed_anew(
    tmp_path: Path, gone: Watch
) -> None:
    answers = [page("5", True), gone, page("90", True, True), Watch()]
    async with api_server(tmp_path, *answers) as api, followed(api) as found:
        await found.until(2)
        await api.until(lambda: len(api.asked) == 4)
        assert [asked.get("resourceVersion") for asked in api.asked] == [None, "5", None, "90"]


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_while_the_api_refuses_nobody_can_tell_and_later_it_is_known(
    tmp_path: Path, status: int
) -> None:
    answers = [Page({}, status), Page({}, status), page("5", True), Watch()]
    async with api_server(tmp_path, *answers) as api, followed(api) as found:
        with pytest.raises(NoAnswer, match=str(status)):
            await found.source.ready(MODEL)
        await found.until(1)


async def test_what_was_known_is_told_no_more_while_the_api_is_away(tmp_path: Path) -> None:
    answers = [page("5", True), Watch(then="end"), Watch(status=503), Watch()]
    async with api_server(tmp_path, *answers) as api, followed(api) as found:
        await found.until(None)
        await found.until(1)
        assert [asked.get("resourceVersion") for asked in api.asked] == [None, "5", "5", "5"]


async def test_the_token_is_read_anew_for_each_call(tmp_path: Path) -> None:
    async with (
        api_server(tmp_path, page("5", True), Watch(then="end"), Watch()) as api,
        followed(api) as found,
    ):
        await found.until(1)
        (tmp_path / "token").write_text("renewed")
        await api.until(lambda: len(api.asked) == 3)
        assert api.tokens[0] == f"Bearer {TOKEN}"
        assert api.tokens[-1] == "Bearer renewed"


async def test_the_api_is_who_the_accounts_authority_says_and_that_is_read_anew(
    tmp_path: Path,
) -> None:
    theirs, tls = authority(tmp_path)
    anothers, _ = authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes(anothers)
    async with (
        api_server(tmp_path, page("5", True), Watch(), tls=tls) as api,
        followed(api) as found,
    ):
        with pytest.raises(NoAnswer, match="certificate"):
            await found.source.ready(MODEL)
        assert api.asked == []  # and nobody else was told the token
        (tmp_path / "ca.crt").write_bytes(theirs)
        await found.until(1)


async def test_a_silent_watch_is_given_up_and_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.discovery.kubernetes.ANSWER_SECS", 0.1)
    answers = [page("5", True), Watch([event("MODIFIED", "6", [True, True])]), Watch()]
    async with api_server(tmp_path, *answers) as api, followed(api, every_secs=0.1) as found:
        await api.until(lambda: len(api.asked) == 3)
        await found.until(2)
        assert api.asked[2]["resourceVersion"] == "6"


async def test_lines_that_make_no_sense_do_not_end_the_watching(tmp_path: Path) -> None:
    answers = [
        page("5", True),
        Watch(["nonsense"], then="hold"),
        Watch([event("MODIFIED", "6", [True] * 3)]),
    ]
    async with api_server(tmp_path, *answers) as api, followed(api) as found:
        await found.until(3)


async def test_without_a_service_account_nobody_can_tell(tmp_path: Path) -> None:
    source = KubernetesSource(KubernetesApi("https://127.0.0.1:1", tmp_path), every_secs=1)
    await source.keep([MODEL])
    with pytest.raises(NoAnswer, match=r"token|namespace"):
        await source.ready(MODEL)
    await source.keep([])


async def test_services_that_are_not_asked_about_any_more_are_not_watched(tmp_path: Path) -> None:
    async with api_server(tmp_path, page("5", True), Watch()) as api, followed(api) as found:
        await found.until(1)
        await found.source.keep([MODEL, MODEL])
        assert len(found.source._watches) == 1
        with capture_logs() as lines:
            await found.source.keep([model("other", "ai")])
        assert list(found.source._watches) == [("ai", "other")]
        assert lines == []
