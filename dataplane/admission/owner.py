"""The scheduler's one caller.

`Admission` lives on one event loop. Every event goes through `_post`, which hands it to the core
and carries out the effects before it returns, without an await in between: so no two decisions can
overlap, and a request that finds room is admitted without a task switch. Time passes by one timer,
set to when the core next wants to be woken.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from dataplane.admission.affinity import in_force
from dataplane.admission.announcements import TurnCalled, TurnTaken
from dataplane.admission.fleet import Fleet
from dataplane.admission.permit import Ask, Permit
from dataplane.admission.replica import Stance
from dataplane.admission.slots.port import Holding
from dataplane.discovery.sizing import PoolSize, pool_size
from dataplane.errors import (
    AdmissionTimedOut,
    InvalidApiKey,
    ModelNotFound,
    Refusal,
    ShuttingDown,
)
from dataplane.scheduler.effects import (
    Admit,
    Claim,
    Effect,
    Noted,
    Reject,
    RejectReason,
    Release,
    Unhold,
)
from dataplane.scheduler.events import (
    AffinityRules,
    Arrived,
    ClaimGranted,
    ClaimRefused,
    Closing,
    Event,
    Finished,
    FleetSeen,
    HoldAnswered,
    HoldEnded,
    HoldMade,
    KeyChanged,
    KeyGone,
    Left,
    OtherCalled,
    OtherCame,
    PoolChanged,
    PoolGone,
    PoolPolicy,
    RegimeChanged,
    SlotsFreed,
    TurnCome,
    Woken,
)
from dataplane.scheduler.order import Hierarchical, Order, Weighted
from dataplane.scheduler.scheduler import Scheduler
from shared.policy import UNROUTED, AffinityPolicy, KeyPolicy, ModelPolicy

ORDERS: Final[dict[str, Callable[[], Order]]] = {"hierarchical": Hierarchical, "weighted": Weighted}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the gateway is configured to admit. Times in seconds."""

    algorithm: str = "hierarchical"
    default_size: int = 32
    """Slots of a pool whose model sets none, and of the pool that unregistered names share."""
    ceiling: int = 4096
    timeout: float = 60
    pool_idle: float = 600
    affinity: AffinityPolicy = field(default_factory=AffinityPolicy)
    """Session affinity where a model does not set its own."""
    warm_secs: float = 120
    max_jumps: int = 8
    fleet_order: bool = True
    """Whether replicas that share slots go by one order, or whoever claims first has a slot."""


class Admission:
    """Admits requests to the pools of one replica. Not to be shared between event loops.

    `size_of` is a pool's size as it is now, from memory; without it, the configured one.
    `on_affinity` is told of each thing that session affinity does, and in which model's pool.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        has_fleet: bool = False,
        size_of: Callable[[ModelPolicy], PoolSize] | None = None,
        on_affinity: Callable[[str, str], None] = lambda model, event: None,
    ) -> None:
        self._limits: Final = limits
        self._size_of: Final = size_of or partial(
            pool_size, answer=None, default=limits.default_size
        )
        self._on_affinity: Final = on_affinity
        self._fleet: Fleet | None = None
        self._core: Final = Scheduler(
            ORDERS[limits.algorithm](),
            ceiling=limits.ceiling,
            timeout=limits.timeout,
            pool_idle=limits.pool_idle,
            has_fleet=has_fleet,
            fleet_order=limits.fleet_order,
        )
        self._numbers: Final = itertools.count(1)
        self._undecided: dict[int, Permit] = {}
        """Permits that wait, by request."""
        self._unrouted: Final = PoolPolicy(UNROUTED, UNROUTED, limits.default_size)
        self._policies: dict[str, tuple[ModelPolicy, PoolPolicy]] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._closing = False
        self._empty: asyncio.Event = asyncio.Event()

    # For requests

    def admit(self, ask: Ask) -> Permit:
        """The permit for a request, to be entered as a block; see `Permit`."""
        return Permit(self, ask, next(self._numbers))

    def arrive(self, permit: Permit) -> None:
        """For `Permit` alone: its request asks. Raises `ShuttingDown`."""
        if self._closing:
            raise ShuttingDown()
        ask = permit.ask
        self._undecided[permit.request] = permit
        pool = self._unrouted if ask.model is None else self._pool_of(ask.model)
        self._post(Arrived(permit.request, pool, ask.key, ask.tokens, ask.session))

    def leave(self, permit: Permit) -> None:
        """For `Permit` alone: its request will not run, or is refused after all."""
        # The time of any who wait, this one too, may be found to be up now.
        self._post(Left(permit.request))
        self._undecided.pop(permit.request, None)

    def finish(self, permit: Permit) -> None:
        """For `Permit` alone: its request has ended."""
        self._post(Finished(permit.request, permit.has_failed))

    # For policy changes, so that what waits already follows them too

    @property
    def waiting_keys(self) -> list[KeyPolicy]:
        """The keys under which requests wait, as they were when the newest of those arrived, and
        those that slots are held for or may be. One whose secret was replaced is there under the
        old and under the new one."""
        keys = [*self._core.session_keys, *(each.ask.key for each in self._undecided.values())]
        return list({(key.id, key.digest): key for key in keys}.values())

    @property
    def running_keys(self) -> list[KeyPolicy]:
        """The keys of whose requests any run, as they were when they were last heard of."""
        found: dict[str, KeyPolicy] = {}
        for pool in self._core.pools:
            for tenant in pool.tenants.values():
                found |= {key.id: key.policy for key in tenant.keys.nodes.values() if key.running}
        return list(found.values())

    def key_changed(self, key: KeyPolicy) -> None:
        """A key, its tenant or its group has a new policy."""
        self._post(KeyChanged(key))

    def key_gone(self, key: KeyPolicy, because: Callable[[], Refusal] = InvalidApiKey) -> None:
        """A key may not be used any more: what waits under it is refused, but for what came with
        another secret, which replaced the one that this key had."""
        replaced = frozenset(
            request
            for request, permit in self._undecided.items()
            if permit.ask.key.id == key.id and permit.ask.key.digest != key.digest
        )
        self._post(KeyGone(key.id, replaced), because)

    def models_changed(self, models: Iterable[ModelPolicy]) -> None:
        """These are the enabled models and their sizes now; pools of others reject what waits."""
        now = {model.id: model for model in models}
        # A model may go long after its pool was dropped.
        self._policies = {id: known for id, known in self._policies.items() if id in now}
        for id in [pool.policy.id for pool in self._core.pools]:
            if id in now:
                self._post(PoolChanged(self._pool_of(now[id])))
            elif id != UNROUTED:
                self._post(PoolGone(id))

    # For a fleet that shares its slots

    def join(self, fleet: Fleet) -> None:
        """Before the first request, where `has_fleet`: what carries claims and releases."""
        self._fleet = fleet

    def holdings(self) -> list[Holding]:
        """Everything that runs, as the fleet's books have it."""
        return [] if self._fleet is None else self._fleet.holdings(self._core.running())

    def stand(self, stance: Stance) -> None:
        """How limits hold here from now on."""
        self._post(RegimeChanged(stance.claims, stance.divisor, stance.paused))

    def answered(self, event: ClaimGranted | ClaimRefused | HoldAnswered) -> None:
        """The fleet's answer to a claim, or to a release whose slot it was to hold."""
        self._post(event)

    def hold_ended(self, event: HoldEnded) -> None:
        """A slot that the fleet held for this replica is held no more."""
        self._post(event)

    def hold_made(self, event: HoldMade) -> None:
        """A slot is held for a session, some step of which may wait here."""
        self._post(event)

    def fleet_seen(self, event: FleetSeen) -> None:
        """What the other replicas have now."""
        self._post(event)

    def all_may_try(self) -> None:
        """Announcements may have been missed: whoever was refused may claim again."""
        for pool in [pool.policy.id for pool in self._core.pools]:
            self._post(SlotsFreed(pool))
        self._post(SlotsFreed(None))

    def called(self, call: TurnCalled) -> None:
        """It is this replica's turn."""
        self._post(TurnCome(call.pool, (call.tenant, call.key)))

    def other_called(self, call: TurnCalled, look_at: float) -> None:
        """It is another's turn, who is waited for until then."""
        self._post(OtherCalled(call.pool, call.replica, look_at))

    def other_came(self, taken: TurnTaken) -> None:
        """Another whose turn it was has its slot."""
        self._post(OtherCame(taken.pool, taken.replica))

    def slots_freed(self, pool: str, *, ceiling: bool) -> None:
        """A slot is to be had; with `ceiling` one that others than its pool want."""
        self._post(SlotsFreed(pool))
        if ceiling:
            self._post(SlotsFreed(None))

    # Life

    def close(self) -> None:
        """Admit nobody from now on; who waits is refused, nothing is held. What runs goes on."""
        self._closing = True
        self._post(Closing())
        for request, permit in list(self._undecided.items()):
            if request in self._undecided:
                self._post(Left(request))
            if self._undecided.pop(request, None) is not None:
                permit.decide(ShuttingDown())

    async def drain(self, grace: float) -> int:
        """After `close`: wait until nothing runs, at most `grace` seconds; how many still run."""
        try:
            async with asyncio.timeout(grace):
                while self._core.in_flight:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            pass
        return self._core.in_flight

    @property
    def core(self) -> Scheduler:
        """The scheduler, for reading its state."""
        return self._core

    # The one caller

    def _post(self, event: Event, because: Callable[[], Refusal] | None = None) -> None:
        now = asyncio.get_running_loop().time()
        for effect in self._core.handle(event, now):
            self._perform(effect, because)
        if not self._core.in_flight:
            self._empty.set()
        self._set_timer()

    def _perform(self, effect: Effect, because: Callable[[], Refusal] | None) -> None:
        if isinstance(effect, Noted):
            self._on_affinity(effect.model, effect.event)
            return
        if isinstance(effect, Claim | Release | Unhold):
            self._carry(effect)
            return
        permit = self._undecided.pop(effect.request)
        match effect:
            case Admit():
                permit.decide(effect)
            case Reject(_, RejectReason.TIMED_OUT):
                permit.decide(AdmissionTimedOut())
            case Reject(_, RejectReason.MODEL_GONE):
                assert permit.ask.model is not None, "the shared pool never goes"
                permit.decide(ModelNotFound(permit.ask.model.name))
            case Reject(_, RejectReason.KEY_GONE):
                assert because is not None, "whoever says a key is gone says why"
                permit.decide(because())

    def _carry(self, effect: Claim | Release | Unhold) -> None:
        assert self._fleet is not None, "only a replica that has joined a fleet claims"
        if isinstance(effect, Claim):
            self._fleet.claim(effect)
        elif isinstance(effect, Release):
            self._fleet.release(effect)
        else:
            self._fleet.unhold(effect)

    def _set_timer(self) -> None:
        """Have `Woken` come in time. A timer set too early is left to fire and set anew."""
        at = self._core.wake_at()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        # The handle may not know its time: uvloop's does not where the time has come already.
        self._timer = asyncio.get_running_loop().call_at(at, self._wake)
        self._timer_at = at

    def _wake(self) -> None:
        self._timer = None
        self._post(Woken())

    def _pool_of(self, model: ModelPolicy) -> PoolPolicy:
        now = self._size_of(model)
        known = self._policies.get(model.id)
        if known is not None and known[0] is model:
            pool = known[1]
            if (pool.size, pool.size_source) == (now.size, now.source):
                return pool
        pool = PoolPolicy(
            id=model.id,
            model=model.name,
            size=now.size,
            size_source=now.source,
            admission_weight=model.admission_weight,
            affinity=self._rules_of(model),
        )
        self._policies[model.id] = (model, pool)
        return pool

    def _rules_of(self, model: ModelPolicy) -> AffinityRules | None:
        affinity = in_force(model, self._limits.affinity)
        if affinity is None:
            return None
        return AffinityRules(
            warm_secs=self._limits.warm_secs,
            hold_secs=affinity.hold_ms / 1000,
            max_jumps=self._limits.max_jumps,
            max_bypass_secs=affinity.max_bypass_secs,
            max_held_percent=affinity.max_held_percent,
        )
