"""One replica of a simulated fleet: the real admission, fleet, heartbeat and slots, put together as
the data plane does, on a loop and links that may be broken; and the clients it serves."""

from __future__ import annotations

import asyncio
import bisect
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dataplane import neighbours, picture
from dataplane.admission import Admission, Ask, Limits, Permit
from dataplane.admission.announcements import (
    Announcement,
    Freed,
    HoldBegun,
    HoldOver,
    TurnCalled,
    TurnTaken,
    parse,
)
from dataplane.admission.fleet import Fleet
from dataplane.admission.heartbeat import Heartbeat
from dataplane.admission.replica import Mode, ReplicaSettings, Stance
from dataplane.admission.slots.port import Heard, Holding, SlotsUnavailable
from dataplane.admission.slots.redis import RedisSlots
from dataplane.errors import Refusal
from dataplane.live_view import ReplicaView
from dataplane.scheduler.effects import Claim
from dataplane.scheduler.events import (
    ClaimGranted,
    ClaimRefused,
    HoldAnswered,
    HoldEnded,
    HoldMade,
)
from shared.policy import AffinityPolicy, KeyPolicy, ModelPolicy
from shared.redis_keys import SlotKeys
from tests.simulation.fleet_network import Link, Server
from tests.simulation.fleet_time import Loop, Time

T = TypeVar("T")

KEYS: Final = SlotKeys()
VIEW_SECS: Final = 0.5
SAME: Final = 1e-6
"""Seconds within which two moments may be one."""

Limit = tuple[str, ...]
"""What a request counts against: ("ceiling",), ("pool", p), ("tenant", p, t) or ("key", p, k)."""


class History(Generic[T]):
    """What something was, from when."""

    def __init__(self, first: T) -> None:
        self._times = [0.0]
        self._values = [first]

    @property
    def last(self) -> T:
        return self._values[-1]

    @property
    def last_at(self) -> float:
        """Since when it is what it is."""
        return self._times[-1]

    def add(self, now: float, value: T) -> None:
        self._times.append(now)
        self._values.append(value)

    def during(self, start: float, end: float) -> list[T]:
        """Everything it was at some moment from `start` to `end`."""
        first = max(0, bisect.bisect_left(self._times, start) - 1)
        return self._values[first : max(first + 1, bisect.bisect_right(self._times, end))]


@dataclass(eq=False, slots=True)
class Request:
    """One request of a client, and what came of it."""

    number: int
    member: Member
    key: KeyPolicy
    model: ModelPolicy
    secs: float
    """How long it runs."""
    tokens: int = 100
    session: str | None = None
    asked_at: float = 0.0
    id: str = ""
    """As the books name it."""
    entered_at: float | None = None
    queue_secs: float = 0.0
    end: str | None = None
    task: asyncio.Task[None] | None = None
    leaves_when_granted: bool = False

    @property
    def limits(self) -> tuple[Limit, ...]:
        pool = self.model.id
        return (
            ("pool", pool),
            ("ceiling",),
            ("tenant", pool, self.key.tenant.id),
            ("key", pool, self.key.id),
        )


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told what really happens."""

    entered: Callable[[Request], None]
    left: Callable[[Request], None]
    ended: Callable[[Request], None]
    said: Callable[[str], None]
    broken: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What all replicas of a fleet have in common. Times in seconds."""

    heartbeat: float = 5.0
    ttl: float = 15.0
    ceiling: int = 64
    timeout: float = 30.0
    expected: int = 1
    algorithm: str = "hierarchical"
    fleet_order: bool = True
    affinity: bool = False


class WatchedFleet(Fleet):
    """Notes which claims are made, and that they are made for the limits that are configured."""

    def __init__(self, member: Member, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._member: Final = member

    def claim(self, effect: Claim) -> None:
        self._member.claims(effect)
        super().claim(effect)


class Member:
    """A replica. Its state is read only to learn in which mode it is; what runs is in the ledger.

    `choose` is for what is random in the product itself.
    """

    def __init__(
        self,
        name: str,
        settings: FleetSettings,
        time: Time,
        loop: Loop,
        server: Server,
        choose: random.Random,
        watch: Watch,
    ) -> None:
        self.name: Final = name
        self.settings: Final = settings
        self.loop: Final = loop
        self.requests_link: Final = Link(server, time, loop, choose)
        self.beats_link: Final = Link(server, time, loop, choose)
        self.stances: Final[History[Stance | None]] = History(None)
        self.sizes: dict[str, History[int]] = {}
        self.caps: dict[str, History[int | None]] = {}
        """Of tenants and keys, by id."""
        self.models: dict[str, ModelPolicy] = {}
        self.keys: dict[str, KeyPolicy] = {}
        self.claimed_at: dict[int, float] = {}
        """When each request last claimed the slot it runs in, unless it was refused."""
        self.requests: dict[int, Request] = {}
        """Those that have not ended, by the number their permit has here."""
        self.unfinished: dict[int, Request] = {}
        """The same and those it has not even looked at, by their own number."""
        self.running: dict[int, Request] = {}
        self.counts: Counter[Limit] = Counter()
        self.is_closing = False
        self.is_gone = False
        self.frozen_secs = 0.0
        self.thawed_at = -1e9
        self.is_damaged = False
        """What it holds was taken off the books by a fault, and it has not asserted it since."""
        self._asserts_all_since_damage = False
        self._time: Final = time
        self._choose: Final = choose
        self.watch: Final = watch
        self.admission: Admission
        self.fleet: Fleet
        self.heartbeat: Heartbeat
        self.slots: RedisSlots
        self._look_now: Final = asyncio.Event()
        self._lookout: asyncio.Task[None] | None = None
        loop.call_soon(self._boot)

    # What it is made of

    def _boot(self) -> None:
        settings = self.settings
        self.admission = Admission(
            Limits(
                algorithm=settings.algorithm,
                ceiling=settings.ceiling,
                timeout=settings.timeout,
                fleet_order=settings.fleet_order,
                affinity=AffinityPolicy(enabled=settings.affinity),
            ),
            has_fleet=True,
        )
        self.slots = RedisSlots(
            self.requests_link, replica=self.name, ttl=settings.ttl, heartbeats=self.beats_link
        )
        self.heartbeat = Heartbeat(
            self.slots,
            self.name,
            ReplicaSettings(heartbeat=settings.heartbeat, expected_replicas=settings.expected),
            holdings=self._holdings,
            changed=self._changed,
            done=self._beat_done,
        )
        self.fleet = WatchedFleet(
            self,
            self.slots,
            self.name,
            post=self._answered,
            unavailable=self.heartbeat.slots_unavailable,
            lapsed=self.heartbeat.lapsed,
            draw=self._choose.uniform,
        )
        self.fleet.is_listening = True
        self.admission.join(self.fleet)
        self._changed(self.heartbeat.stance)
        self.heartbeat.start()
        self.requests_link.hears = self._hear
        if settings.fleet_order:
            self._lookout = self.loop.create_task(self._look_out())

    def _changed(self, stance: Stance) -> None:
        self.stances.add(self._time.now, stance)
        self.watch.said(
            f"{self.name} is {stance.mode} of {stance.replicas}, limits / {stance.divisor}"
            f"{', claims' if stance.claims else ''}{', paused' if stance.paused else ''}"
        )
        self.admission.stand(stance)
        self._look_now.set()

    def _holdings(self) -> list[Holding]:
        self._asserts_all_since_damage = True
        return self.admission.holdings()

    def _beat_done(self, heard: Heard | None) -> None:
        if heard is not None and self._asserts_all_since_damage:
            self.is_damaged = False

    def _answered(self, event: ClaimGranted | ClaimRefused | HoldAnswered) -> None:
        counts = self.requests_link.server.counts
        if isinstance(event, HoldAnswered):
            counts["slots held"] += event.held_secs is not None
            self.admission.answered(event)
            return
        counts["held slots taken"] += isinstance(event, ClaimGranted) and event.held
        if isinstance(event, ClaimRefused):
            self.claimed_at.pop(event.request, None)
        self.admission.answered(event)
        request = self.requests.get(event.request)
        if request is not None and request.leaves_when_granted:
            self.leave(request)

    def _hear(self, message: dict[str, object]) -> None:
        said: Announcement | None = parse(json.dumps(message))
        if isinstance(said, Freed):
            self.admission.slots_freed(said.pool, ceiling=said.ceiling)
        elif isinstance(said, TurnCalled) and said.replica == self.name:
            self.admission.called(said)
        elif isinstance(said, TurnCalled):
            self.admission.other_called(said, self.fleet.looks_at())
        elif isinstance(said, TurnTaken):
            self.admission.other_came(said)
        elif isinstance(said, HoldOver) and said.replica == self.name:
            self.admission.hold_ended(HoldEnded(said.pool, (said.key, said.session), said.why))
        elif isinstance(said, HoldBegun):
            self.admission.hold_made(HoldMade(said.pool, (said.key, said.session)))
        if said is not None:
            self.heartbeat.announced(said)

    async def _look_out(self) -> None:
        """Publishes its view and reads those of the others, as `Publisher` and `Lookout` do."""
        while True:
            self._look_now.clear()
            link = self.requests_link
            if self.is_shared and link.is_open:
                link.server.publish(self._view())
                await asyncio.sleep(link.latency())
                self._look()
            try:
                async with asyncio.timeout(VIEW_SECS):
                    await self._look_now.wait()
            except TimeoutError:
                continue

    def _look(self) -> None:
        server, core = self.requests_link.server, self.admission.core
        others = [view for name, view in server.published().items() if name != self.name]
        served = {
            pool: neighbours.served(fields, server.model.hash_values(KEYS.served(pool), fields))
            for pool, fields in neighbours.asked(core).items()
        }
        self.admission.fleet_seen(neighbours.seen(others, self.settings.algorithm, served))

    def _view(self) -> ReplicaView:
        core = self.admission.core
        return ReplicaView(
            instance=self.name,
            url="",
            version="",
            mode="shared",
            algorithm=self.settings.algorithm,
            replicas=0,
            started_at=0.0,
            taken_at=self._time.now,
            global_max_in_flight=core.ceiling,
            configured_global_max_in_flight=core.configured_ceiling,
            in_flight=core.in_flight,
            queued=core.queued,
            pools=picture.pools(core, self.loop.time()),
        )

    # What is known of it

    @property
    def stance(self) -> Stance | None:
        return self.stances.last

    @property
    def is_shared(self) -> bool:
        return self.stance is not None and self.stance.mode is Mode.SHARED

    def limit(self, limit: Limit) -> History[int | None] | History[int]:
        """How a limit is configured, as far as this replica has heard."""
        match limit:
            case ("ceiling",):
                return History(self.settings.ceiling)
            case ("pool", pool):
                return self.sizes[pool]
            case (_, _, who):
                return self.caps[who]
        raise AssertionError(limit)

    def taken(self) -> Counter[Limit]:
        """What it runs, or may have been granted and run next, by what that counts against."""
        return Counter(
            limit
            for number, request in self.requests.items()
            if number in self.running or number in self.claimed_at
            for limit in request.limits
        )

    def claims(self, claim: Claim) -> None:
        """A claim is about to be made."""
        self.claimed_at[claim.request] = self._time.now
        pool = claim.pool
        for limit, claimed in (
            (("pool", pool), claim.pool_size),
            (("ceiling",), claim.ceiling),
            (("tenant", pool, claim.tenant), claim.tenant_cap),
            (("key", pool, claim.key), claim.key_cap),
        ):
            known = self.limit(limit).during(self._time.now - SAME, self._time.now)
            if claimed not in known:
                self.watch.broken(f"{self.name} claims for {limit} at {claimed}, it is {known}")

    def damaged(self) -> None:
        self.is_damaged = True
        self._asserts_all_since_damage = False

    # What happens to it

    def learn(self, models: list[ModelPolicy], keys: list[KeyPolicy]) -> None:
        """Its policies are these from now on."""
        now = self._time.now
        self.models = {model.id: model for model in models}
        self.keys = {key.id: key for key in keys}
        for model in models:
            size = model.max_in_flight or 0
            history = self.sizes.setdefault(model.id, History(size))
            if history.last != size:
                history.add(now, size)
        for key in keys:
            for who, cap in (
                (key.id, key.max_in_flight),
                (key.tenant.id, key.tenant.max_in_flight),
            ):
                limit = self.caps.setdefault(who, History(cap))
                if limit.last != cap:
                    limit.add(now, cap)
        self.admission.models_changed(models)
        for waiting in self.admission.waiting_keys:
            self.admission.key_changed(self.keys[waiting.id])

    def serve(self, request: Request) -> None:
        self.unfinished[request.number] = request
        request.task = self.loop.create_task(self._serve(request))

    def leave(self, request: Request) -> None:
        """The request's client is gone."""
        if request.task is not None:
            request.task.cancel()

    def stop(self, grace: float) -> asyncio.Task[None]:
        return self.loop.create_task(self._stop(grace))

    async def _stop(self, grace: float) -> None:
        self.is_closing = True
        self.admission.close()
        await self.admission.drain(grace)
        tasks = [each.task for each in self.requests.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lookout is not None:
            self._lookout.cancel()
        await self.heartbeat.stop()
        await self.fleet.settled()
        try:
            await self.slots.leave(self.admission.holdings())
        except SlotsUnavailable as error:
            self.watch.said(f"{self.name} could not give back its slots: {error}")
        self.is_gone = True
        self.watch.said(f"{self.name} has stopped")

    async def _serve(self, request: Request) -> None:
        end = "left"
        permit: Permit | None = None
        frozen = self.frozen_secs
        request.asked_at = self._time.now
        request.key, request.model = self.keys[request.key.id], self.models[request.model.id]
        try:
            ask = Ask(request.key, request.model, request.tokens, request.session)
            permit = self.admission.admit(ask)
            request.id = f"{self.name}:{permit.request}"
            self.requests[permit.request] = request
            async with permit:
                request.queue_secs = permit.queue_ms / 1000
                request.entered_at = self._time.now
                self.running[permit.request] = request
                self.watch.entered(request)
                try:
                    await asyncio.sleep(request.secs)
                    end = "served"
                finally:
                    del self.running[permit.request]
                    self.watch.left(request)
        except Refusal as refusal:
            end = type(refusal).__name__
            request.queue_secs = self._time.now - request.asked_at - self.frozen_secs + frozen
        finally:
            if permit is not None:
                self.requests.pop(permit.request, None)
                self.claimed_at.pop(permit.request, None)
            assert request.end is None, "a request ends once"
            request.end = end
            del self.unfinished[request.number]
            self.watch.ended(request)
