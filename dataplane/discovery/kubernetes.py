"""Ready backends by Kubernetes' EndpointSlices: listed once, then watched.

A watch lasts an interval of discovery and is then taken up again where it ended, so that a
connection that died without a word costs no more than that. A version that is too old to go on from
(410, in the answer or inside the watch) has the slices listed anew. The token and the authority are
read from the service account's files each time the API is called, since both are renewed there.
Needs the right to list and watch `endpointslices` of `discovery.k8s.io` in the Service's namespace.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from math import ceil
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import structlog

from dataplane.discovery.endpoint_slices import (
    GONE,
    ApiError,
    EndpointSliceList,
    Slices,
    VersionGone,
    WatchEvent,
)
from dataplane.discovery.sizing import Ready
from dataplane.discovery.sources import NoAnswer
from shared.policy import ModelPolicy

log = structlog.stdlib.get_logger(__name__)

PAGE: Final = 500
ANSWER_SECS: Final = 5.0
"""How long the API may take to begin an answer, and to go on with a list."""
RETRY_MIN_SECS: Final = 1.0
RETRY_MAX_SECS: Final = 30.0
LINE_MAX: Final = 8 * 1024 * 1024
"""Bytes of one event of a watch: the API's own objects are at most a few megabytes."""


class KubernetesApi:
    """Calls the API as the pod's service account.

    `url` is the API's, `account` the folder with `token`, `ca.crt` and `namespace`.
    """

    def __init__(self, url: str, account: Path) -> None:
        self._url: Final = url.rstrip("/")
        self._account: Final = account

    def namespace(self) -> str:
        """The pod's own. Raises OSError."""
        return (self._account / "namespace").read_text().strip()

    @asynccontextmanager
    async def get(
        self, path: str, query: dict[str, str], *, read_secs: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """An answer's body. Raises VersionGone, ApiError, OSError and aiohttp.ClientError."""
        token, context = await asyncio.to_thread(self._credentials)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECS, sock_read=read_secs)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(
                self._url + path,
                params=query,
                headers={"authorization": f"Bearer {token}", "accept": "application/json"},
                ssl=context,
                allow_redirects=False,
            ) as response,
        ):
            if response.status == GONE:
                raise VersionGone("the API answered with 410")
            if response.status != HTTPStatus.OK:
                hint = _HINTS.get(response.status, "")
                raise ApiError(f"the Kubernetes API answered with {response.status}{hint}")
            yield response.content

    def _credentials(self) -> tuple[str, ssl.SSLContext | bool]:
        token = (self._account / "token").read_text().strip()
        if not self._url.startswith("https:"):
            return token, True
        return token, ssl.create_default_context(cafile=str(self._account / "ca.crt"))


_HINTS: Final = {
    401: ": the service account's token is not accepted",
    403: ": the service account may not list and watch endpointslices.discovery.k8s.io",
}


class ServiceWatch:
    """Follows one Service for as long as it runs. `changed` is called when its answer changes."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str | None,
        service: str,
        *,
        every_secs: float,
        changed: Callable[[], None],
        retry_secs: float = RETRY_MIN_SECS,
    ) -> None:
        self._api: Final = api
        self._namespace: Final = namespace
        self._service: Final = service
        self._every_secs: Final = every_secs
        self._changed: Final = changed
        self._retry_secs: Final = retry_secs
        self._slices: Final = Slices()
        self._problem: str | None = "the Kubernetes API has not answered yet"
        self._said: tuple[bool, int] | None = None
        self._known: Final = asyncio.Event()
        self._is_listed = False
        self._task: Final = asyncio.create_task(self._run(), name=f"watch of {service}")

    async def ready(self) -> int:
        """How many backends are ready. Raises `NoAnswer` while the API does not say."""
        await self._known.wait()
        if self._problem is not None:
            raise NoAnswer(self._problem)
        return self._slices.ready

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = self._retry_secs
        while True:
            try:
                if not self._is_listed:
                    await self._list()
                if await self._watch():
                    pause = self._retry_secs
                    continue
                problem = None
            except VersionGone:
                self._is_listed = False  # what was known stands until the new list has come
                problem = None
            except (ApiError, aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            except Exception as error:
                log.exception("watch_failed", service=self._service)
                problem = type(error).__name__
            if problem is not None:
                self._say(problem)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, max(RETRY_MAX_SECS, self._retry_secs))

    async def _list(self) -> None:
        pages: list[EndpointSliceList] = []
        following = ""
        while not pages or following:
            query = {"labelSelector": self._selector(), "limit": str(PAGE)}
            if following:
                query["continue"] = following
            async with self._api.get(self._path(), query, read_secs=ANSWER_SECS) as body:
                page = msgspec.json.decode(await body.read(), type=EndpointSliceList)
            pages.append(page)
            following = page.metadata.continue_
        self._slices.listed(pages)
        self._is_listed = True
        self._say(None)

    async def _watch(self) -> bool:
        """Follow until the API ends the watch, as it is asked to after an interval.

        False: it ended at once, and there is to be a pause before the next.
        """
        began = asyncio.get_running_loop().time()
        query = {
            "labelSelector": self._selector(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._slices.version,
            "timeoutSeconds": str(max(1, ceil(self._every_secs))),
        }
        silence = self._every_secs + ANSWER_SECS
        async with self._api.get(self._path(), query, read_secs=silence) as body:
            self._say(None)
            async for line in _lines(body):
                self._slices.watched(msgspec.json.decode(line, type=WatchEvent))
                self._say(None)
        return asyncio.get_running_loop().time() - began >= self._retry_secs

    def _say(self, problem: str | None) -> None:
        """What is known now, or why nothing new is; tells whoever wants to know of news."""
        self._problem = problem
        self._known.set()
        said = (problem is None, self._slices.ready)
        if said != self._said:
            self._said = said
            self._changed()

    def _path(self) -> str:
        namespace = self._namespace or self._api.namespace()
        return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"

    def _selector(self) -> str:
        return f"kubernetes.io/service-name={self._service}"


class KubernetesSource:
    """Counts the ready backends of Services; one watch for each Service that is asked about."""

    def __init__(
        self, api: KubernetesApi, *, every_secs: float, retry_secs: float = RETRY_MIN_SECS
    ) -> None:
        self._api: Final = api
        self._every_secs: Final = every_secs
        self._retry_secs: Final = retry_secs
        self._changed: Callable[[], None] = lambda: None
        self._watches: dict[tuple[str | None, str], ServiceWatch] = {}

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when there is anything new to be heard from `ready`."""
        self._changed = changed

    async def ready(self, model: ModelPolicy) -> Ready:
        """See `Source.ready`."""
        return [None] * await self._watches[_service(model)].ready()

    async def keep(self, models: list[ModelPolicy]) -> None:
        """See `Source.keep`."""
        wanted = {_service(model) for model in models}
        for gone in self._watches.keys() - wanted:
            await self._watches.pop(gone).stop()
        for namespace, service in wanted - self._watches.keys():
            self._watches[namespace, service] = ServiceWatch(
                self._api,
                namespace,
                service,
                every_secs=self._every_secs,
                changed=lambda: self._changed(),
                retry_secs=self._retry_secs,
            )


def _service(model: ModelPolicy) -> tuple[str | None, str]:
    assert model.capacity is not None, "who is asked about has a source"
    assert model.capacity.service is not None, "the API sees to it"
    return model.capacity.namespace, model.capacity.service


async def _lines(body: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a watch, whatever pieces they come in. Raises ValueError for an endless one."""
    rest = b""
    async for chunk in body.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > LINE_MAX:
            raise ValueError("an event of the watch does not end")
