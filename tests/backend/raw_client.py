"""A client that shows the bytes and how the connection ended, and mends nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"


@dataclass
class Raw:
    """All that came back on one connection."""

    head: bytes = b""
    body: bytes = b""
    reset: bool = False
    arrivals: list[bytes] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header_lines(self, name: str) -> list[str]:
        wanted = name.lower()
        lines = [line.partition(": ") for line in self.head.decode().split("\r\n")[1:]]
        return [value for key, _, value in lines if key.lower() == wanted]

    @property
    def dechunked(self) -> bytes:
        """The body out of its chunks; ends where the chunks do, complete or not."""
        left, whole = self.body, b""
        while left:
            size, _, rest = left.partition(b"\r\n")
            if not int(size, 16):
                break
            whole += rest[: int(size, 16)]
            left = rest[int(size, 16) + 2 :]
        return whole

    @property
    def ended_properly(self) -> bool:
        return self.body.endswith(b"0\r\n\r\n")


def question(model: str = "m", text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def request_bytes(path: str, body: dict[str, Any], headers: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    lines = {"host": "x", "content-type": "application/json", "content-length": len(data)}
    lines |= {"connection": "close"} | headers
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode() + data


@asynccontextmanager
async def sent(
    url: str, body: dict[str, Any], path: str = CHAT, **headers: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which a request has just been sent. Header names are written with _ for -."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        writer.write(request_bytes(path, body, named))
        yield reader, writer
    finally:
        writer.close()


async def ask(url: str, body: dict[str, Any], path: str = CHAT, **headers: Any) -> Raw:
    """Send a request and read until the other side ends the connection."""
    raw = Raw()
    async with sent(url, body, path, **headers) as (reader, _):
        try:
            while data := await reader.read(1 << 20):
                raw.arrivals.append(data)
        except ConnectionResetError:
            raw.reset = True
    raw.head, _, raw.body = b"".join(raw.arrivals).partition(b"\r\n\r\n")
    return raw
