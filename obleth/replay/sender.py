"""Sending one request and taking down what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from obleth.replay.errors import GatewayUnreachable, KeyRefused
from obleth.replay.options import ReplayOptions, TenantKey
from obleth.replay.prompts import Message

SESSION_HEADER: Final = "x-obleth-session-id"
QUEUE_HEADER: Final = "x-obleth-queue-ms"
ADMISSION_HEADER: Final = "x-obleth-admission"
_CONNECT_SECS: Final = 10.0
_REASON_CHARS: Final = 100


@dataclass(slots=True)
class Call:
    """One request. Times are seconds of one monotonic clock."""

    tenant: str
    session: str | None
    sent: float
    first_byte: float | None = None
    """When the first byte of the answer's body came."""
    ended: float = 0.0
    status: int | None = None
    error: str | None = None
    """Why it failed, in few words; None when everything came."""
    queue_ms: float | None = None
    """How long the gateway says it waited; None when it does not say."""
    admission: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False
    """Whether the counts are the backend's own; otherwise they are what was asked and seen."""

    @property
    def waited_secs(self) -> float | None:
        """The wait for a slot: the gateway's own figure, else the time to the first byte."""
        if self.queue_ms is not None:
            return self.queue_ms / 1000
        return None if self.first_byte is None else self.first_byte - self.sent


class Sender:
    """Sends streamed chat completions over one pool of connections. Use as a context manager."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._model = options.model or ""
        self._client: aiohttp.ClientSession | None = None

    @property
    def model(self) -> str:
        return self._model

    async def __aenter__(self) -> Sender:
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECS, sock_read=self._options.timeout_secs
        )
        # Bounded by the replay itself, which counts the requests that are late.
        connector = aiohttp.TCPConnector(limit=0)
        self._client = aiohttp.ClientSession(connector=connector, timeout=limits)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def check(self) -> None:
        """Ask for the models with every key, and settle which one is meant.

        Raises GatewayUnreachable and KeyRefused, before anything of the trace has been sent.
        """
        tenants = self._options.tenants
        found = await asyncio.gather(*(self._models(tenant) for tenant in tenants))
        common = set(found[0]).intersection(*found[1:])
        if not self._model:
            if len(common) != 1:
                listed = ", ".join(sorted(common)) or "none"
                raise KeyRefused(f"name the model; the keys have in common: {listed}")
            self._model = common.pop()

    async def call(
        self,
        tenant: TenantKey,
        messages: Sequence[Message],
        output_tokens: int,
        session: str | None,
    ) -> tuple[Call, str]:
        """Send one request to its end, whatever that is; also the text that came back."""
        assert self._client is not None, "enter the sender first"
        call = Call(tenant.name, session, time.monotonic())
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = _authorization(tenant) | {"Content-Type": "application/json"}
        if session is not None:
            headers[SESSION_HEADER] = session
        url = self._options.base_url + "/chat/completions"
        data = msgspec.json.encode(body)
        text = ""
        try:
            async with self._client.post(url, data=data, headers=headers) as answer:
                text = await _take_down(call, answer)
        except aiohttp.ClientConnectorError as error:
            call.error = f"cannot connect: {error.strerror or error}"
        except TimeoutError:
            call.error = "timeout"
        except aiohttp.ClientError:
            call.error = "connection broken" if call.status is not None else "no answer"
        call.ended = time.monotonic()
        if not call.counted and call.error is None:
            call.prompt_tokens = sum(len(message["content"]) for message in messages) // 4
        return call, text

    async def _models(self, tenant: TenantKey) -> list[str]:
        assert self._client is not None, "enter the sender first"
        url = self._options.base_url + "/models"
        try:
            async with self._client.get(url, headers=_authorization(tenant)) as answer:
                status, data = answer.status, await answer.read()
        except aiohttp.ClientConnectorError as error:
            reason = error.strerror or error
            raise GatewayUnreachable(f"cannot reach {self._options.url}: {reason}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise GatewayUnreachable(f"{url}: no answer ({type(error).__name__})") from error
        if status in (401, 403):
            raise KeyRefused(f"the key of tenant {tenant.name!r} was refused ({status})")
        if status != 200:
            raise GatewayUnreachable(f"{url} answered {status}, as no gateway does")
        names = _model_names(data)
        if names is None:
            raise GatewayUnreachable(f"{url} does not answer with a list of models")
        if self._model and self._model not in names:
            listed = ", ".join(names) or "none"
            raise KeyRefused(
                f"tenant {tenant.name!r} may not use {self._model!r}; its models: {listed}"
            )
        return names


async def _take_down(call: Call, answer: aiohttp.ClientResponse) -> str:
    """Read an answer to its end into the call; returns its text."""
    call.status = answer.status
    call.admission = answer.headers.get(ADMISSION_HEADER)
    call.queue_ms = _milliseconds(answer.headers.get(QUEUE_HEADER))
    if answer.status != 200:
        call.error = _refusal(answer.status, await answer.read())
        return ""
    pieces: list[str] = []
    done = False
    async for data in _event_data(call, answer.content):
        if data == b"[DONE]":
            done = True
            continue
        try:
            event = msgspec.json.decode(data)
        except msgspec.DecodeError:
            event = None
        if not isinstance(event, dict):
            call.error = "an event that is not JSON"
        elif event.get("error"):
            call.error = "error event: " + _message(event["error"])
        else:
            _note_event(call, event, pieces)
    if not done and call.error is None:
        call.error = "the stream ended without [DONE]"
    if not call.counted:
        call.output_tokens = len(pieces)
    return "".join(pieces)


async def _event_data(call: Call, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event, joined over its lines; comments and names are dropped."""
    rest = b""
    data: list[bytes] = []
    async for chunk in content.iter_any():
        if call.first_byte is None:
            call.first_byte = time.monotonic()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data.clear()


def _note_event(call: Call, event: dict[str, Any], pieces: list[str]) -> None:
    for choice in event.get("choices") or ():
        content = (choice.get("delta") or {}).get("content")
        if content:
            pieces.append(content)
    usage = event.get("usage")
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details") or {}
        call.prompt_tokens = _tokens(usage.get("prompt_tokens"))
        call.output_tokens = _tokens(usage.get("completion_tokens"))
        call.cached_tokens = _tokens(details.get("cached_tokens"))
        call.counted = True


def _authorization(tenant: TenantKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {tenant.key}"}


def _tokens(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _milliseconds(value: str | None) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _model_names(data: bytes) -> list[str] | None:
    try:
        listed = msgspec.json.decode(data)["data"]
        return [str(model["id"]) for model in listed]
    except (msgspec.DecodeError, LookupError, TypeError):
        return None


def _refusal(status: int, data: bytes) -> str:
    """A refusal in few words: its status and its code, or what it says."""
    try:
        error = msgspec.json.decode(data)["error"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return str(status)
    code = error.get("code") if isinstance(error, dict) else None
    return f"{status} {code or _message(error)}"


def _message(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())[:_REASON_CHARS]
