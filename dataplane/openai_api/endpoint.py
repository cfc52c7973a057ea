"""The data plane's whole public surface, and the order in which a request is dealt with.

Head → key → body → model and policy → budgets, before any queue → admission → reservation →
upstream → stream → settling → release. Each of the last five is a block inside the one before, so
that whatever happens, and whenever the client leaves, all are given back, in reverse order, once.
A refusal anywhere is raised, and said to the client after everything has been given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import structlog

from dataplane.admission.affinity import in_force
from dataplane.admission.permit import Ask
from dataplane.budgets.port import Budgets
from dataplane.errors import (
    BadRequest,
    InternalFailure,
    ModelNotAllowed,
    ModelNotFound,
    Refusal,
    ShuttingDown,
    TenantSuspended,
    UpstreamFailed,
    UpstreamTimedOut,
)
from dataplane.openai_api import credentials, dialects, model_list, routes, session_id
from dataplane.openai_api.client import Client, ClientLeft, ClientStalled, Receive, Scope, Send
from dataplane.openai_api.intake import Incoming, Intake
from dataplane.openai_api.ports import Admitting, Observer, Outcome, PolicyLookup, Slot
from dataplane.openai_api.prompt import Prompt
from dataplane.openai_api.routes import Dialect, Kind, Route
from dataplane.openai_api.session_id import DerivedSessions, Outline, Session, SessionHash
from dataplane.openai_api.story import Story
from dataplane.openai_api.token_estimate import UPLOAD, Estimate, estimate
from dataplane.proxy.forward import Answer, Destination, Forwarder, Outgoing
from dataplane.proxy.meter import Meter
from dataplane.proxy.upstream import UpstreamError, UpstreamTimeout
from shared.policy import UNROUTED, AffinityPolicy, EndpointPolicy, KeyPolicy, ModelPolicy

UNROUTED_TIMEOUT_SECS: Final = 600.0
"""The longest a request to the default upstream may take; a registered model sets its own."""
_VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F)))
GOODBYE_SECS: Final = 10.0
"""How long requests that were cut off at the end of a drain get to say so."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """How the surface is configured. Times in seconds."""

    max_body_bytes: int = 64 * 1024 * 1024
    body_timeout_secs: float = 60
    client_write_timeout_secs: float = 120
    default_endpoint: EndpointPolicy | None = None
    """Where unregistered names go; None: they are refused."""
    affinity: AffinityPolicy = field(default_factory=AffinityPolicy)
    """Where a model does not set its own."""
    derives_sessions: bool = True


class Gateway:
    """A plain ASGI application. Lives on one event loop."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        policy: PolicyLookup,
        budgets: Budgets,
        admission: Admitting,
        forwarder: Forwarder,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._options: Final = options
        self._policy: Final = policy
        self._budgets: Final = budgets
        self._admission: Final = admission
        self._forwarder: Final = forwarder
        self._observers: Final = tuple(observers)
        self._intake: Final = Intake(options.max_body_bytes)
        self._derived: Final = DerivedSessions()
        self._open: Final[set[Client]] = set()
        self._none_open: Final = asyncio.Event()
        self._is_draining = False

    # Life

    @property
    def open_requests(self) -> int:
        """Requests that have not ended yet."""
        return len(self._open)

    def drain(self) -> None:
        """Answer new requests with 503 from now on; those under way go on."""
        self._is_draining = True

    async def stop(self, grace_secs: float) -> None:
        """After `drain`: returns when no request is under way, cutting off those still there after
        `grace_secs`: a stream ends with an error event, what has no answer yet gets 503.
        """
        self.drain()
        if not await self._until_none_open(grace_secs):
            for client in list(self._open):
                client.cut(ShuttingDown())
            await self._until_none_open(GOODBYE_SECS)
        self._intake.close()

    async def _until_none_open(self, secs: float) -> bool:
        try:
            async with asyncio.timeout(secs):
                while self._open:
                    self._none_open.clear()
                    await self._none_open.wait()
        except TimeoutError:
            return False
        return True

    # One request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, for `http` alone: nothing here has a lifespan or a socket to upgrade to."""
        assert scope["type"] == "http", f"the gateway does not serve {scope['type']}"
        client = Client(
            scope,
            receive,
            send,
            body_timeout_secs=self._options.body_timeout_secs,
            write_timeout_secs=self._options.client_write_timeout_secs,
        )
        story = Story(client)
        self._open.add(client)
        try:
            await self._serve(client, story)
        finally:
            self._open.discard(client)
            if not self._open:
                self._none_open.set()
            if story.is_forwarded:
                finished = story.finished()
                for observer in self._observers:
                    observer.request_finished(finished)

    async def _serve(self, client: Client, story: Story) -> None:
        """Answer a request, one way or another."""
        try:
            with client.served():
                await self._answer(client, story)
        except ClientLeft:
            story.client_gone(Outcome.CLIENT_LEFT)
        except ClientStalled:
            story.client_gone(Outcome.CLIENT_STALLED)
            client.abort()
        except Refusal as refusal:
            await self._refuse(client, story, refusal)
        except Exception:
            # A fault of our own: whoever asked gets an answer, whoever runs us a traceback.
            log.exception("request_failed", request_id=story.request_id, path=client.path)
            await self._refuse(client, story, InternalFailure())

    async def _answer(self, client: Client, story: Story) -> None:
        if self._is_draining:
            raise ShuttingDown
        _check_framing(client)
        story.route = route = routes.match(client.method, client.path)
        if route.kind is Kind.ALIVE:
            await client.respond(200, [dialects.JSON, *story.headers()], b'{"status":"ok"}')
            return
        secret = credentials.secret_of(client.headers)
        story.key = key = self._policy.cached_key(secret) or await self._policy.key(secret)
        if key.tenant.suspended:
            raise TenantSuspended
        if route.kind is Kind.FORWARD:
            await self._forward(client, story, route, secret)
        else:
            body = self._models(route, key)
            await client.respond(200, [dialects.JSON, *story.headers()], body)

    async def _forward(self, client: Client, story: Story, route: Route, secret: str) -> None:
        """The path of a request to a model."""
        incoming = await self._intake.read(client, route)
        story.is_stream = incoming.is_stream
        # A body may be long in coming, and the key may have gone meanwhile.
        key, model, _ = await self._in_force(story, secret, incoming.model)
        # Sessions go by the client's own key: all replicas have it, and nobody keeps it.
        hasher = SessionHash(secret)
        story.estimate, outline = await self._read_prompt(route, model, incoming, hasher)
        story.session = self._session(client, incoming, outline, hasher)
        tokens = story.estimate.total
        await self._budgets.check(key, tokens)
        outgoing = _outgoing(client, story, incoming, secret)
        # That took a moment, too. An old policy would be in force again for all who wait, and a
        # model that is gone would be waited for: so from here on nothing is awaited.
        key, model, destination = await self._in_force(story, secret, incoming.model)
        story.asked()
        async with self._admission.admit(Ask(key, model, tokens, story.session.id)) as slot:
            story.admitted(slot)
            if slot.admission == "queued":
                key, destination = await self._after_waiting(secret, incoming.model, model, slot)
                story.key = key
            async with self._reserved(client, key, story, slot):
                with client.cut_after(_time_limit(model), _took_too_long()):
                    async with self._forwarder.opened(destination, outgoing) as answer:
                        await self._relay(client, story, answer)

    async def _in_force(
        self, story: Story, secret: str, name: str
    ) -> tuple[KeyPolicy, ModelPolicy | None, Destination]:
        """What policy says now of who asks and for what. Raises what refuses that."""
        story.key = key = await self._usable_key(secret)
        model = self._policy.model(name)
        destination = self._destination(key, name, model)
        story.model = destination.label
        return key, model, destination

    async def _after_waiting(
        self, secret: str, name: str, model: ModelPolicy | None, slot: Slot
    ) -> tuple[KeyPolicy, Destination]:
        """The policy in force now, since it may have changed while the request waited.

        The model is the same one, whatever it is called by now: if it went, the queue said so.
        """
        try:
            key = await self._usable_key(secret)
            if model is not None:
                newest = (each for each in self._policy.models() if each.id == model.id)
                model = next(newest, model)
            return key, self._destination(key, name, model)
        except BaseException:
            slot.undo()
            raise

    async def _usable_key(self, secret: str) -> KeyPolicy:
        key = self._policy.cached_key(secret) or await self._policy.key(secret)
        if key.tenant.suspended:
            raise TenantSuspended
        return key

    @asynccontextmanager
    async def _reserved(
        self, client: Client, key: KeyPolicy, story: Story, slot: Slot
    ) -> AsyncIterator[None]:
        """The request's tokens, reserved for as long as the block runs and settled at its end."""
        try:
            reservation = await self._budgets.reserve(key, story.estimate.total)
        except BaseException:
            slot.undo()
            raise
        story.rate_limit = reservation.rate_limit
        try:
            yield
        finally:
            client.spare()
            if not story.went_well:
                slot.fail()
            await self._budgets.settle(reservation, story.tokens_used)

    async def _relay(self, client: Client, story: Story, answer: Answer) -> None:
        """The upstream's answer to the client, as it comes."""
        response = answer.response
        meter = Meter(response.headers, strips_usage=answer.usage_was_asked)
        story.answered(response.status, meter)
        is_whole = False
        try:
            await client.start(response.status, story.answer_headers(response.headers, meter))
            async for chunk in response.chunks():
                passed_on = meter.feed(chunk)
                story.content_came()
                if passed_on:
                    await client.write(passed_on)
            rest = meter.finish()
            if rest:
                await client.write(rest)
            await client.finish()
            is_whole = True
            story.outcome = Outcome.ANSWERED
        except UpstreamError as failure:
            log.warning(
                "upstream_broke_off",
                request_id=story.request_id,
                model=story.model,
                error=str(failure),
            )
            if isinstance(failure, UpstreamTimeout):
                raise UpstreamTimedOut("The model's upstream stopped sending.") from failure
            raise UpstreamFailed("The model's upstream broke off its answer.") from failure
        finally:
            story.relayed(is_whole=is_whole)

    async def _refuse(self, client: Client, story: Story, refusal: Refusal) -> None:
        """Say a refusal: as an answer, or as the end of one that had begun well."""
        if client.has_finished:
            return  # what failed since then is ours alone
        story.refused(refusal)
        if client.has_started:
            meter = story.meter
            last_words = b""
            if meter is not None and meter.takes_event:
                event = dialects.error_event(refusal, story.dialect, story.request_id)
                last_words = event if meter.at_boundary else b"\n\n" + event
            await client.break_off(last_words)
            return
        headers = [*dialects.error_headers(refusal), *story.headers()]
        if refusal.closes_connection or client.waits_to_send:
            headers.append((b"connection", b"close"))
        body = dialects.error_body(refusal, story.dialect, story.request_id)
        await client.respond(refusal.status, headers, body)

    # What a request means

    def _models(self, route: Route, key: KeyPolicy) -> bytes:
        if route.kind is Kind.MODEL_LIST:
            models = self._policy.models()
            return model_list.model_list(each for each in models if model_list.allows(key, each))
        model = self._policy.model(route.model)
        if model is None or not model_list.allows(key, model):
            raise ModelNotFound(route.model)
        return model_list.one_model(model)

    def _destination(self, key: KeyPolicy, name: str, model: ModelPolicy | None) -> Destination:
        """Where a model's requests go. Raises `ModelNotFound` and `ModelNotAllowed`."""
        default = self._options.default_endpoint
        if model is None and default is None:
            raise ModelNotFound(name)
        allowed = key.tenant.allowed_models
        if allowed is not None and (name if model is None else model.name) not in allowed:
            raise ModelNotAllowed(name)
        if model is None:
            assert default is not None, "checked above"
            return Destination(UNROUTED, name, (default,))
        return Destination(
            label=model.name,
            upstream_model=model.upstream_model or model.name,
            endpoints=model.endpoints,
            balancing=model.load_balancing,
            max_retries=model.max_retries,
        )

    async def _read_prompt(
        self, route: Route, model: ModelPolicy | None, incoming: Incoming, hasher: SessionHash
    ) -> tuple[Estimate, Outline | None]:
        """What the request's text is worth in tokens, and how it begins where that is asked for."""
        body = incoming.body
        if body is None:
            return UPLOAD, None
        if not route.uses_tokens:
            return Estimate(0, 0), None
        recognises = self._recognises_sessions(model)

        def work() -> tuple[Estimate, Outline | None]:
            prompt = Prompt(body)
            tokens = estimate(body, prompt, generates_text=route.generates_text)
            if model is None or not recognises:
                return tokens, None
            return tokens, session_id.outline(body, prompt, model.name, hasher)

        return await self._intake.run(len(body.text), work)

    def _recognises_sessions(self, model: ModelPolicy | None) -> bool:
        """Whether sessions that clients do not name matter: affinity is in force."""
        if model is None or not self._options.derives_sessions:
            return False
        return in_force(model, self._options.affinity) is not None

    def _session(
        self, client: Client, incoming: Incoming, outline: Outline | None, hasher: SessionHash
    ) -> Session:
        named = session_id.from_client(client.headers, incoming.body, hasher)
        if named.id is None and not named.was_refused and outline is not None:
            return self._derived.join(outline)
        return named


def _outgoing(client: Client, story: Story, incoming: Incoming, secret: str) -> Outgoing:
    path = client.path.removeprefix(routes.API)
    query = quote(client.query, safe=_VISIBLE).split("&")
    # A key is nothing to pass on, wherever a client puts it.
    passed_on = "&".join(each for each in query if secret not in each)
    return Outgoing(
        path=f"{path}?{passed_on}" if passed_on else path,
        headers=client.headers,
        secret=secret.encode("ascii"),
        request_id=story.request_id,
        is_anthropic=story.dialect is Dialect.ANTHROPIC,
        body=incoming.outgoing,
    )


def _time_limit(model: ModelPolicy | None) -> float:
    return UNROUTED_TIMEOUT_SECS if model is None else model.request_timeout_secs


def _took_too_long() -> UpstreamTimedOut:
    return UpstreamTimedOut("The model took longer over the whole answer than it may.")


def _check_framing(client: Client) -> None:
    """Refuse a body whose end two servers could see in different places."""
    names = [name for name, _ in client.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise BadRequest(
            "The request has both `Content-Length` and `Transfer-Encoding`.",
            code="invalid_framing",
            closes=True,
        )
    expectation = client.header(b"expect")
    if expectation is not None and expectation.strip().lower() != b"100-continue":
        raise BadRequest("The request's `Expect` is not understood.", code="invalid_expect")
