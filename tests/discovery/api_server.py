"""A small Kubernetes API server: it replays recorded answers about EndpointSlices, one a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

TOKEN = "token-of-the-account"


@dataclass
class Page:
    """The answer to a list."""

    body: Any
    status: int = 200


@dataclass
class Watch:
    """The answer to a watch: lines, one after another, and what becomes of it then."""

    events: list[Any] = field(default_factory=list)
    status: int = 200
    then: str = "hold"
    """`hold` it open, `end` it as after its time, or `cut` the connection."""


@dataclass
class Api:
    """Answers in the order given, and what was asked."""

    url: str
    account: Path
    answers: list[Page | Watch]
    asked: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/apis/discovery.k8s.io/v1/namespaces/ai/endpointslices"
        self.asked.append(dict(request.query))
        self.tokens.append(request.headers.get("authorization", ""))
        self.changed.set()
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        assert isinstance(answer, Watch) == ("watch" in request.query), "the call was expected"
        if answer.status != 200 or isinstance(answer, Page):
            body = {} if isinstance(answer, Watch) else answer.body
            return web.json_response(body, status=answer.status)
        return await self._stream(request, answer)

    async def _stream(self, request: web.Request, watch: Watch) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        text = "".join(json.dumps(event) + "\n" for event in watch.events).encode()
        for start in range(0, len(text), 100):  # lines come in pieces
            await response.write(text[start : start + 100])
        if watch.then == "hold":
            await asyncio.Event().wait()
        if watch.then == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response


@asynccontextmanager
async def api_server(folder: Path, *answers: Page | Watch) -> AsyncIterator[Api]:
    """The server, and the files of a service account of the namespace `ai`."""
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "namespace").write_text("ai")
    api = Api("", folder, list(answers))
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
