"""Checks every endpoint in turn: does it answer at all?

What is asked is what any OpenAI-compatible server knows, `GET {url}/models`, with the endpoint's
own key; a server without it is asked for `/health` on its root instead. Any answer below 500 that
is no redirect will do: a key that is refused is a matter of policy, and an endpoint that does not
know either path is there. A check goes through the same client as requests do, so that the rules
for addresses hold for it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import structlog

from dataplane.discovery.endpoint_health import EndpointHealth
from dataplane.discovery.health import Health, Sign
from dataplane.proxy.headers import credentials
from dataplane.proxy.upstream import Timeouts, Upstream, UpstreamError
from shared.policy import EndpointPolicy, ModelPolicy

log = structlog.stdlib.get_logger(__name__)

AT_ONCE: Final = 16
"""Checks under way at a time."""
ANSWER_SECS: Final = 5.0
"""How long an endpoint may take to answer a check."""
READ_MAX: Final = 1024 * 1024
"""Bytes of an answer that are read; the connection of a longer one is cut."""
_NO_SUCH_PATH: Final = frozenset(
    {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
)


class Prober:
    """Checks the enabled endpoints of `models()` every `every_secs`, new ones at once."""

    def __init__(
        self,
        upstream: Upstream,
        health: EndpointHealth,
        models: Callable[[], Iterable[ModelPolicy]],
        *,
        every_secs: float,
        answer_secs: float = ANSWER_SECS,
    ) -> None:
        self._upstream: Final = upstream
        self._health: Final = health
        self._models: Final = models
        self._every_secs: Final = every_secs
        self._timeouts: Final = Timeouts(answer_secs, answer_secs, answer_secs)
        self._turns: Final = asyncio.Semaphore(AT_ONCE)
        self._new: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check."""
        self._task = asyncio.create_task(self._run(), name="prober")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def policy_changed(self) -> None:
        """Models or endpoints were changed: check those that nobody has checked yet."""
        self._new.set()

    async def check_all(self, *, only_unknown: bool = False) -> None:
        """Check each endpoint once; returns when all have answered or have not in time."""
        endpoints = {
            endpoint.id: endpoint
            for model in self._models()
            for endpoint in model.endpoints
            if endpoint.enabled
            and not (only_unknown and self._health.of(endpoint) is not Health.UNKNOWN)
        }
        await asyncio.gather(*(self._check(endpoint) for endpoint in endpoints.values()))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._every_secs
            await self.check_all()
            while loop.time() < due:
                try:
                    async with asyncio.timeout_at(due):
                        await self._new.wait()
                except TimeoutError:
                    break
                self._new.clear()
                await self.check_all(only_unknown=True)

    async def _check(self, endpoint: EndpointPolicy) -> None:
        async with self._turns:
            try:
                async with asyncio.timeout(2 * self._timeouts.head_secs):
                    status = await self._asked(endpoint)
            except (UpstreamError, TimeoutError) as error:
                reason = str(error) or "did not end its answer to a check"
                self._health.see(endpoint, Sign.CHECK_FAILED, reason)
                return
            except Exception:
                # A fault of ours says nothing about the endpoint, and must not end the checks.
                log.exception("check_failed", endpoint_id=endpoint.id)
                return
        if 200 <= status < 300 or 400 <= status < 500:
            self._health.see(endpoint, Sign.CHECK_PASSED)
        else:
            self._health.see(endpoint, Sign.CHECK_FAILED, f"answered a check with {status}")

    async def _asked(self, endpoint: EndpointPolicy) -> int:
        status = await self._status(endpoint, f"{endpoint.url}/models")
        if status not in _NO_SUCH_PATH:
            return status
        parts = urlsplit(endpoint.url)
        return await self._status(endpoint, f"{parts.scheme}://{parts.netloc}/health")

    async def _status(self, endpoint: EndpointPolicy, url: str) -> int:
        headers = [("accept", "application/json"), ("user-agent", "obleth-health")]
        headers += credentials(endpoint.api_key, anthropic=False)
        async with self._upstream.request("GET", url, headers, b"", self._timeouts) as response:
            read = 0
            async for chunk in response.chunks():  # read to its end, the connection can be kept
                read += len(chunk)
                if read > READ_MAX:
                    break
            return response.status
