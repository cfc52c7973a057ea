"""What happens to one request, noted as it happens and told once at its end."""

from __future__ import annotations

import re
import time
from typing import Final, Literal

from uuid_utils import uuid7

from dataplane.budgets.port import RateLimitState
from dataplane.errors import RateLimited, Refusal
from dataplane.openai_api import dialects
from dataplane.openai_api.client import Client
from dataplane.openai_api.dialects import HeaderList
from dataplane.openai_api.ports import (
    CLIENT_LEFT_STATUS,
    Figures,
    FinishedRequest,
    Outcome,
    Slot,
)
from dataplane.openai_api.routes import Kind, Route, dialect_of
from dataplane.openai_api.session_id import Session
from dataplane.openai_api.token_estimate import Estimate
from dataplane.proxy import headers as crossing
from dataplane.proxy.headers import Headers
from dataplane.proxy.meter import Meter
from shared.policy import KeyPolicy

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")


class Story:
    """One request's. Nothing in it decides anything."""

    def __init__(self, client: Client) -> None:
        self._client: Final = client
        self._began: Final = time.monotonic()
        self._started_at: Final = time.time()
        self.request_id: Final = request_id(client.header(b"x-request-id"))
        self.dialect: Final = dialect_of(
            client.path,
            says_anthropic_version=client.header(b"anthropic-version") is not None,
        )
        self.route: Route | None = None
        self.key: KeyPolicy | None = None
        self.model: str | None = None
        self.is_stream = False
        self.estimate = Estimate(0, 0)
        self.session = Session()
        self.rate_limit: RateLimitState | None = None
        self.outcome = Outcome.BROKEN
        self._admission: Literal["fast", "queued", "rejected"] = "rejected"
        self._slot: Literal["new", "held"] | None = None
        self._asked: float | None = None
        """Since when it waits for a slot that it has not been given."""
        self._queue_ms: float | None = None
        self._status: int | None = None
        self._code: str | None = None
        self._meter: Meter | None = None
        self._first_content: float | None = None
        self._tokens = (0, 0, 0)
        self._figures = Figures.NONE

    # As it happens

    def asked(self) -> None:
        """The request asks for a slot: from now on it waits."""
        self._asked = time.monotonic()

    def admitted(self, slot: Slot) -> None:
        """The request has its slot."""
        self._asked = None
        self._admission, self._slot, self._queue_ms = slot.admission, slot.slot, slot.queue_ms

    def answered(self, status: int, meter: Meter) -> None:
        """The head of the upstream's answer has come."""
        self._status, self._meter = status, meter

    def content_came(self) -> None:
        """A chunk of the answer has come, and the meter has seen it."""
        if self._first_content is None and self._meter is not None and self._meter.has_content:
            self._first_content = time.monotonic()

    def relayed(self, *, is_whole: bool) -> None:
        """The answer has ended, or broken off: what it cost is known as well as it will be."""
        meter = self._meter
        if meter is None or self._status is None or self._status >= 400 or not meter.has_content:
            return
        assert self.route is not None, "what is relayed has a route"
        if not self.route.uses_tokens:
            return
        usage = meter.usage
        given = None if usage is None else usage.input_tokens
        made = None if usage is None else usage.output_tokens
        if not self.route.generates_text:
            made = made or 0
        self._figures = Figures.REPORTED
        if usage is not None and usage.clamped:
            self._figures = Figures.CLAMPED
        if given is None:
            given, self._figures = self.estimate.input_tokens, Figures.ESTIMATED
        guess = self.estimate.output_tokens
        if self.route.answers_in_text:
            guess = meter.guessed_output_tokens
        if made is None or (not is_whole and made < guess):
            made, self._figures = max(1, guess), Figures.ESTIMATED
        self._tokens = (given, made, (usage and usage.cached_tokens) or 0)

    def refused(self, refusal: Refusal) -> None:
        """The gateway gives the answer, or the end of it."""
        self._code = refusal.code
        if isinstance(refusal, RateLimited) and refusal.tokens is not None:
            self.rate_limit = RateLimitState(*refusal.tokens)
        if self._status is None or not self._client.has_started:
            self._status, self.outcome = refusal.status, Outcome.REFUSED
        else:
            self.outcome = Outcome.BROKEN

    def client_gone(self, outcome: Outcome) -> None:
        """The client is not there any more; if it has its answer, that changes nothing."""
        if self.outcome is not Outcome.ANSWERED:
            self.outcome = outcome

    # What follows from it

    @property
    def meter(self) -> Meter | None:
        """Of the upstream's answer, once it has begun."""
        return self._meter

    @property
    def is_forwarded(self) -> bool:
        """Whether it concerns a model, or nobody knows what it concerns."""
        return self.route is None or self.route.kind is Kind.FORWARD

    @property
    def went_well(self) -> bool:
        """Whether the upstream did what it was asked to, and the client has all of it."""
        return self.outcome is Outcome.ANSWERED and (self._status or 0) < 400

    @property
    def tokens_used(self) -> int | None:
        """What budgets are charged; None: nothing."""
        return None if self._figures is Figures.NONE else self._tokens[0] + self._tokens[1]

    def headers(self) -> HeaderList:
        """What the gateway says about the request in the head of its answer."""
        headers = dialects.identity_headers(self.request_id, self.dialect)
        if self._slot is not None:
            headers += [
                (b"x-obleth-admission", self._admission.encode()),
                (b"x-obleth-queue-ms", b"%d" % round(self._queue_ms or 0)),
                (b"x-obleth-session", self.session.source.encode()),
                (b"x-obleth-slot", self._slot.encode()),
            ]
        if self.rate_limit is not None:
            headers += dialects.rate_limit_headers(self.rate_limit)
        return headers

    def answer_headers(self, upstreams: Headers, meter: Meter) -> HeaderList:
        """The head of an answer that is the upstream's."""
        headers = crossing.to_client(
            upstreams,
            keeps_length=not meter.changes_bytes,
            own_rate_limit=self.rate_limit is not None,
        )
        if meter.is_event_stream:
            headers = [(name, value) for name, value in headers if name not in _OF_STREAMS]
            headers += _OF_STREAMS.items()
        return headers + self.headers()

    def finished(self) -> FinishedRequest:
        """All of it. The request has given back what it held."""
        now = time.monotonic()
        first = self._first_content
        waited = self._queue_ms if self._asked is None else (now - self._asked) * 1000
        return FinishedRequest(
            request_id=self.request_id,
            path=self.route.path if self.route is not None else "",
            started_at=self._started_at,
            duration_ms=(now - self._began) * 1000,
            status=CLIENT_LEFT_STATUS if self._status is None else self._status,
            outcome=self.outcome,
            code=self._code,
            key=self.key,
            model=self.model,
            admission=self._admission,
            slot=self._slot,
            queue_ms=waited,
            ttfb_ms=None if first is None else (first - self._began) * 1000,
            is_stream=self.is_stream,
            estimated_tokens=self.estimate.total if self._slot is not None else 0,
            input_tokens=self._tokens[0],
            output_tokens=self._tokens[1],
            cached_tokens=self._tokens[2],
            figures=self._figures,
            session=self.session.id,
            session_source=self.session.source,
            session_was_refused=self.session.was_refused,
            traceparent=_text(self._client.header(b"traceparent")),
        )


_OF_STREAMS: Final = {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"}
"""Nothing between the gateway and the client is to keep events or hold them back."""


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def request_id(given: bytes | None) -> str:
    """The client's own request id where it can be shown in a header and a log, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return str(uuid7())
