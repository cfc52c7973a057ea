"""A small Kubernetes API server: it replays recorded answers about EndpointSlices, one a call."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.listeners import application

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


def authority(folder: Path) -> tuple[bytes, ssl.SSLContext]:
    """A new authority's certificate, and what a server on this machine has from it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, secrets.token_hex(8))])
    now = datetime.now(UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    both = folder / "server.pem"
    both.write_bytes(private + text)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(both)
    return text, context


@asynccontextmanager
async def api_server(
    folder: Path, *answers: Page | Watch, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Api]:
    """The server, and the files of a service account of the namespace `ai`."""
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "namespace").write_text("ai")
    api = Api("", folder, list(answers))
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    async with application(app, tls) as port:
        api.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield api
