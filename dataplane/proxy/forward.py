"""One admitted request carried to an upstream: which endpoint, how often, and with what.

Before the head of a response has come, a failure may be tried again, on another endpoint where
there is one, `max_retries` times in all and inside the same slot. Once a head has come, the answer
is the client's, whatever becomes of it. The last try's answer is passed on as it is, an error too.

An upstream that refuses to report usage in a stream is asked again without, and remembered for a
while: another version of it, or another server at the same address, may know how.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Protocol

import structlog

from dataplane.errors import UpstreamFailed, UpstreamTimedOut
from dataplane.proxy import headers as crossing
from dataplane.proxy.endpoint_choice import EndpointChoice
from dataplane.proxy.headers import Headers
from dataplane.proxy.upstream import (
    Body,
    Timeouts,
    Upstream,
    UpstreamConnectError,
    UpstreamError,
    UpstreamResponse,
    UpstreamTimeout,
)
from shared.policy import EndpointPolicy, LoadBalancing

TRIED_AGAIN: Final = frozenset({429, 500, 502, 503, 504, 529})
"""Statuses by which an upstream says that another try, perhaps elsewhere, may succeed."""
REFUSES_OPTIONS: Final = frozenset({400, 422})
"""Statuses an upstream answers with to an option it does not know."""
BACK_OFF_SECS: Final = 0.05
"""Before the second try on the same endpoint, on average; doubled for each further one."""
BACK_OFF_MAX_SECS: Final = 1.0
"""The longest wait between tries, also where an upstream asks for more: the slot is not idle for
longer, and what it asks for is passed on to the client if no try succeeds."""
REMEMBERED_MAX: Final = 1000
REFUSAL_HOLDS_SECS: Final = 600.0
"""For how long an endpoint that refused to report usage is not asked for it."""

log = structlog.stdlib.get_logger(__name__)

Attempted = Callable[[str, str], None]
"""Told the model's label and the outcome of each try: `answered`, `refused` (a status of
`TRIED_AGAIN`), `unreachable`, `timed_out`, `broken` or `cancelled`."""
Watch = Callable[[EndpointPolicy, str, int | None], None]
"""Told the endpoint, the outcome and the status, where one came, of each try."""


class OutgoingBody(Protocol):
    """A request's body as upstreams are sent it."""

    @property
    def asks_usage(self) -> bool:
        """Whether the gateway adds a wish for usage figures that the client did not have."""

    @property
    def is_replayable(self) -> bool:
        """Whether it can still be sent from its beginning."""

    def declared_length(self, model: str) -> int | None:
        """Bytes of a stream that names `model`; None for a plain body, or if nobody knows."""

    def content(self, model: str, *, asks_usage: bool) -> Body:
        """The bytes to send, naming `model`."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a model's requests go."""

    label: str
    """Names the model in metrics and messages: a registered name, or the unrouted pool's."""
    upstream_model: str
    """What the model is called upstream."""
    endpoints: Sequence[EndpointPolicy]
    balancing: LoadBalancing = LoadBalancing.FAILOVER
    max_retries: int = 1


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as the gateway passes it on."""

    path: str
    """Below an endpoint's base URL, with the query string: `/chat/completions?beta=true`."""
    headers: Headers
    """The client's own."""
    secret: bytes
    """The client's key, which stays here."""
    request_id: str
    is_anthropic: bool
    body: OutgoingBody


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream's answer whose head has come."""

    response: UpstreamResponse
    usage_was_asked: bool
    """Whether the stream's usage report is for the gateway alone."""


class Forwarder:
    """Carries requests to upstreams."""

    def __init__(
        self,
        upstream: Upstream,
        choice: EndpointChoice,
        timeouts: Timeouts,
        attempted: Attempted = lambda label, outcome: None,
        *,
        watch: Watch = lambda endpoint, outcome, status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds, from any beginning."""
        self.upstream: Final = upstream
        self.choice: Final = choice
        self.timeouts: Final = timeouts
        self.attempted: Final = attempted
        self.watch: Final = watch
        self._clock: Final = clock
        self._usage_refused: OrderedDict[str, float] = OrderedDict()
        """When each endpoint refused, by its id; the latest last."""

    def opened(self, destination: Destination, outgoing: Outgoing) -> Forwarding:
        """The call, as a block: entered when an answer's head has come.

        Entering raises `UpstreamFailed` and `UpstreamTimedOut`. Leaving returns once the upstream's
        connection is at rest or closed.
        """
        return Forwarding(self, destination, outgoing)

    def reports_usage(self, endpoint_id: str) -> bool:
        """Whether an endpoint can be asked for usage: not if it refused a short while ago."""
        refused_at = self._usage_refused.get(endpoint_id)
        return refused_at is None or self._clock() - refused_at >= REFUSAL_HOLDS_SECS

    def remember_refusal(self, endpoint_id: str) -> None:
        self._usage_refused[endpoint_id] = self._clock()
        self._usage_refused.move_to_end(endpoint_id)
        if len(self._usage_refused) > REMEMBERED_MAX:
            self._usage_refused.popitem(last=False)


class Forwarding:
    """One request's tries, as a block; see `Forwarder.opened`."""

    def __init__(self, forwarder: Forwarder, destination: Destination, outgoing: Outgoing) -> None:
        self._forwarder = forwarder
        self._destination = destination
        self._outgoing = outgoing
        self._open = AsyncExitStack()
        """What the try under way holds: the count of its endpoint, and its connection."""

    async def __aenter__(self) -> Answer:
        destination = self._destination
        endpoints = self._forwarder.choice.order(destination.endpoints, destination.balancing)
        if not endpoints:
            raise UpstreamFailed(f"The model `{destination.label}` has no enabled endpoint.")
        try:
            return await self._first_answer(endpoints)
        except UpstreamTimeout as failure:
            raise UpstreamTimedOut("The model's upstream took too long to answer.") from failure
        except UpstreamConnectError as failure:
            raise UpstreamFailed("The model's upstream cannot be reached.") from failure
        except UpstreamError as failure:
            raise UpstreamFailed("The model's upstream gave no valid answer.") from failure

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def _first_answer(self, endpoints: Sequence[EndpointPolicy]) -> Answer:
        tries_left = self._destination.max_retries
        number = 0
        while True:
            endpoint = endpoints[number % len(endpoints)]
            wait_secs = 0.0
            try:
                answer = await self._try(endpoint)
            except UpstreamError:
                if not tries_left or not self._outgoing.body.is_replayable:
                    raise
            else:
                status = answer.response.status
                is_last = not tries_left or not self._outgoing.body.is_replayable
                if status not in TRIED_AGAIN or is_last:
                    return answer
                wait_secs = _wished_wait_secs(answer.response.headers)
                await self._open.aclose()
            tries_left -= 1
            number += 1
            if number >= len(endpoints):
                await asyncio.sleep(_back_off_secs(number - len(endpoints), wait_secs))

    async def _try(self, endpoint: EndpointPolicy) -> Answer:
        """One try, counted; a second call belongs to it where usage reporting is refused."""
        body = self._outgoing.body
        asks_usage = body.asks_usage and self._forwarder.reports_usage(endpoint.id)
        answer = await self._call(endpoint, asks_usage=asks_usage)
        if asks_usage and answer.response.status in REFUSES_OPTIONS:
            await self._open.aclose()
            answer = await self._call(endpoint, asks_usage=False)
            if answer.response.status == HTTPStatus.OK:
                self._forwarder.remember_refusal(endpoint.id)
        return answer

    async def _call(self, endpoint: EndpointPolicy, *, asks_usage: bool) -> Answer:
        forwarder, outgoing = self._forwarder, self._outgoing
        outcome, status = "cancelled", None
        try:
            self._open.enter_context(forwarder.choice.calling(endpoint))
            response = await self._open.enter_async_context(
                forwarder.upstream.request(
                    "POST",
                    endpoint.url + outgoing.path,
                    self._headers(endpoint),
                    outgoing.body.content(self._destination.upstream_model, asks_usage=asks_usage),
                    forwarder.timeouts,
                )
            )
            status = response.status
            _check_status(status)
            outcome = "refused" if status in TRIED_AGAIN else "answered"
        except BaseException as failure:
            outcome = _outcome_of(failure)
            await self._open.aclose()
            if isinstance(failure, UpstreamError):
                log.warning(
                    "upstream_failed",
                    request_id=outgoing.request_id,
                    model=self._destination.label,
                    endpoint_id=endpoint.id,
                    outcome=outcome,
                    error=str(failure),
                )
            raise
        finally:
            forwarder.attempted(self._destination.label, outcome)
            forwarder.watch(endpoint, outcome, status)
        return Answer(response, usage_was_asked=asks_usage)

    def _headers(self, endpoint: EndpointPolicy) -> list[tuple[str, str]]:
        outgoing = self._outgoing
        headers = crossing.to_upstream(outgoing.headers, secret=outgoing.secret)
        headers += [("accept-encoding", "identity"), ("x-request-id", outgoing.request_id)]
        headers += crossing.credentials(endpoint.api_key, anthropic=outgoing.is_anthropic)
        length = outgoing.body.declared_length(self._destination.upstream_model)
        if length is not None:
            headers.append(("content-length", str(length)))
        return headers


def _check_status(status: int) -> None:
    if not 200 <= status < 300 and status < 400:
        # A redirect passed on would send the client, and its key, to a host nobody registered.
        raise UpstreamError(f"answered with status {status}, which is not followed")


def _outcome_of(failure: BaseException) -> str:
    match failure:
        case UpstreamConnectError():
            return "unreachable"
        case UpstreamTimeout():
            return "timed_out"
        case UpstreamError():
            return "broken"
        case _:
            return "cancelled"


def _wished_wait_secs(headers: Headers) -> float:
    """How long an upstream asks to be left alone, up to the longest wait there is."""
    value = crossing.find(headers, b"retry-after") or b""
    return min(float(value), BACK_OFF_MAX_SECS) if value.isdigit() else 0.0


def _back_off_secs(earlier_rounds: int, wished_secs: float) -> float:
    # Spread out, so that requests that failed together do not come back together.
    secs = BACK_OFF_SECS * 2.0**earlier_rounds * random.uniform(0.5, 1.5)  # noqa: S311
    return min(max(secs, wished_secs), BACK_OFF_MAX_SECS)
