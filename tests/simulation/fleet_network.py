"""A Redis that may be broken in every way, and the links by which replicas reach it.

A trip carries script calls there and their replies back. On its way it may be delayed, lost, lost
on the way back, cut off in the middle, carried out twice, or carried out long after nobody waits
for it any more. What the scripts do is the model's part; it is never wrong, only late or unheard.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from dataplane.admission.slots.port import SlotsUnavailable
from dataplane.live_view import ReplicaView
from dataplane.scripts import ScriptCall
from shared.redis import Patience
from tests.simulation.fleet_time import Loop, Time
from tests.simulation.redis_model import RedisModel
from tests.simulation.redis_store import WrongType

ANSWER_SECS: Final = 0.25
VIEW_LIFE_SECS: Final = 1.5
EPOCH_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Weather:
    """How a link is. Latency one way in seconds; the rest are probabilities a trip."""

    latency: tuple[float, float] = (0.0002, 0.002)
    lost: float = 0.0
    reply_lost: float = 0.0
    cut_off: float = 0.0
    """The connection breaks between two of its calls."""
    twice: float = 0.0
    late: float = 0.0
    late_secs: tuple[float, float] = (0.25, 4.0)
    refused: float = 0.0
    announcement_lost: float = 0.0

    @property
    def is_calm(self) -> bool:
        return self == CALM


CALM: Final = Weather()
PARTED: Final = Weather(lost=1.0, announcement_lost=1.0)
REFUSED: Final = Weather(refused=1.0, announcement_lost=1.0)


class ServerState(Enum):
    UP = auto()
    FROZEN = auto()
    """It takes calls and carries them out when it goes on."""
    DOWN = auto()
    READ_ONLY = auto()


class Server:
    """The process that is Redis."""

    def __init__(self, time: Time, choose: random.Random) -> None:
        self._time: Final = time
        self._choose: Final = choose
        self.model: Final = RedisModel()
        self.state = ServerState.UP
        self.state_since = 0.0
        self.drift = 0.0
        self._set_at = 0.0
        self._set_to = float(EPOCH_MS)
        self._held_up: list[Callable[[], None]] = []
        self.links: list[Link] = []
        self.before: Callable[[ScriptCall], object] = lambda call: None
        self.after: Callable[[ScriptCall, object, Any, bool], None] = lambda *seen: None
        self.counts: Counter[str] = Counter()
        self._views: dict[str, ReplicaView] = {}

    def ms(self) -> int:
        """The server's own clock."""
        return int(self._set_to + (self._time.now - self._set_at) * 1000 * (1 + self.drift))

    def set_clock(self, *, jump_secs: float = 0.0, drift: float | None = None) -> None:
        self._set_to, self._set_at = self.ms() + jump_secs * 1000, self._time.now
        if drift is not None:
            self.drift = drift

    def publish(self, view: ReplicaView) -> None:
        self._views[view.instance] = view

    def published(self) -> dict[str, ReplicaView]:
        """The views whose life is not over."""
        return {
            name: view
            for name, view in self._views.items()
            if self._time.now - view.taken_at < VIEW_LIFE_SECS
        }

    def take(self, work: Callable[[], None]) -> None:
        """A trip has arrived."""
        match self.state:
            case ServerState.UP | ServerState.READ_ONLY:
                work()
            case ServerState.FROZEN:
                self._held_up.append(work)
            case ServerState.DOWN:
                pass

    def become(self, state: ServerState) -> None:
        if state is not self.state:
            self.state_since = self._time.now
        self.state = state
        if state is ServerState.DOWN:
            self._held_up.clear()
        elif state is ServerState.UP:
            works, self._held_up = self._held_up, []
            for work in works:
                work()

    def execute(self, call: ScriptCall, *, fresh: bool) -> Any:
        """Carry out one script; what it answers, or the `SlotsUnavailable` that stands for it."""
        if self.state is ServerState.READ_ONLY:
            return SlotsUnavailable(f"{call.script}: read only")
        self.counts["scripts"] += 1
        seen = self.before(call)
        try:
            reply = self.model.run(call, self.ms())
        except WrongType as error:
            return SlotsUnavailable(f"{call.script}: wrong type: {error}")
        self.after(call, seen, reply, fresh)
        published, self.model.published = self.model.published, []
        for message in published:
            for link in self.links:
                link.announce(message)
        return reply


@dataclass(slots=True)
class Trip:
    calls: Sequence[ScriptCall]
    answered: asyncio.Future[list[Any]]
    carried_out: int = 0
    replies: list[Any] = field(default_factory=list)
    is_fresh: bool = True
    """Whether whoever sent it may still be waiting."""


class Link:
    """A `ScriptRunner`: one replica's way to the server, with a limit on how long it waits."""

    def __init__(self, server: Server, time: Time, loop: Loop, choose: random.Random) -> None:
        self.server: Final = server
        self._time: Final = time
        self._loop: Final = loop
        self._choose: Final = choose
        self.weather = CALM
        self.trips = 0
        self.hears: Callable[[dict[str, object]], None] | None = None
        """Whoever listens to announcements here."""
        server.links.append(self)

    def close(self) -> None:
        self.server.links.remove(self)

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """See `ScriptRunner`."""
        if not calls:
            return []
        self.trips += 1
        trip = Trip(calls, self._loop.create_future())
        self._send(trip)
        try:
            async with Patience(ANSWER_SECS):
                return await trip.answered
        except TimeoutError as error:
            raise SlotsUnavailable("no answer in time") from error
        finally:
            trip.is_fresh = False

    @property
    def is_open(self) -> bool:
        """Whether anything at all gets through."""
        return self.server.state is ServerState.UP and self.weather.lost + self.weather.refused < 1

    def announce(self, message: dict[str, object]) -> None:
        """The server says something to all who listen."""
        if self.hears is None or self._draw(self.weather.announcement_lost, "announcement lost"):
            return
        hears = self.hears
        self._time.after(self.latency(), lambda: self._tell(lambda: hears(message)))

    def _send(self, trip: Trip) -> None:
        weather = self.weather
        if self._loop.is_dead:
            return
        if self.server.state is ServerState.DOWN:
            self._fail(trip, "connection broken")
        elif self._draw(weather.refused, "refused"):
            self._fail(trip, "connection refused")
        elif self._draw(weather.lost, "lost"):
            pass
        elif self._draw(weather.late, "late"):
            self._time.after(self._choose.uniform(*weather.late_secs), lambda: self._arrive(trip))
        else:
            self._time.after(self.latency(), lambda: self._arrive(trip))
            if self._draw(weather.twice, "twice"):
                again = Trip(trip.calls, self._loop.create_future(), is_fresh=False)
                secs = self._choose.uniform(0.0, weather.late_secs[1])
                self._time.after(secs, lambda: self._arrive(again))

    def _arrive(self, trip: Trip) -> None:
        if self.server.state is ServerState.DOWN:
            self._fail(trip, "connection broken")
        else:
            self.server.take(lambda: self._carry_out(trip))

    def _carry_out(self, trip: Trip) -> None:
        """The calls one by one; others may come in between."""
        while trip.carried_out < len(trip.calls):
            if trip.carried_out and self._draw(self.weather.cut_off, "cut off"):
                self._fail(trip, "connection broken")
                return
            call = trip.calls[trip.carried_out]
            trip.carried_out += 1
            trip.replies.append(self.server.execute(call, fresh=trip.is_fresh))
            if trip.carried_out < len(trip.calls) and self._choose.random() < 0.2:
                self._time.after(self._choose.uniform(0, 0.001), lambda: self._arrive(trip))
                return
        if not self._draw(self.weather.reply_lost, "reply lost"):
            self._time.after(self.latency(), lambda: self._tell(lambda: self._reply(trip)))

    def _reply(self, trip: Trip) -> None:
        if trip.answered.done():
            return
        errors = [reply for reply in trip.replies if isinstance(reply, SlotsUnavailable)]
        if errors:
            _refuse(trip.answered, errors[0])
        else:
            trip.answered.set_result(trip.replies)

    def _fail(self, trip: Trip, reason: str) -> None:
        def fail() -> None:
            if not trip.answered.done():
                _refuse(trip.answered, SlotsUnavailable(reason))

        if trip.is_fresh:
            self._time.after(self.latency(), lambda: self._tell(fail))

    def _tell(self, what: Callable[[], object]) -> None:
        if not self._loop.is_dead:
            self._loop.call_soon(what)

    def latency(self) -> float:
        return self._choose.uniform(*self.weather.latency)

    def _draw(self, probability: float, kind: str) -> bool:
        if probability and self._choose.random() < probability:
            self.server.counts[f"trips {kind}"] += 1
            return True
        return False


def _refuse(answered: asyncio.Future[list[Any]], error: SlotsUnavailable) -> None:
    answered.set_exception(error)
    answered.exception()  # whoever waited for it may be gone
