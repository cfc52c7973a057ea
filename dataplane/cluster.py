"""The parts that make one replica a member of a fleet, put together around its admission.

Claims and releases, the heartbeat, the published view and announcements each have a Redis client of
their own: what requests do never keeps a heartbeat waiting, and a subscription blocks nobody.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import structlog

from dataplane import live_view, neighbours, picture
from dataplane.admission import Admission
from dataplane.admission.announcements import (
    Announcement,
    Announcements,
    Deaf,
    Freed,
    HoldBegun,
    HoldOver,
    Listening,
    TurnCalled,
    TurnTaken,
)
from dataplane.admission.fleet import Fleet
from dataplane.admission.heartbeat import Heartbeat
from dataplane.admission.replica import Mode, ReplicaSettings, Stance
from dataplane.admission.slots.port import Heard, SlotsUnavailable
from dataplane.admission.slots.redis import RedisSlots
from dataplane.admission.slots.scripts import Called, SlotScripts
from dataplane.admission.slots.server import server_warnings
from dataplane.live.fleet import Member, members
from dataplane.live_view import ReplicaView
from dataplane.lookout import Lookout
from dataplane.picture import Identity
from dataplane.publisher import INTERVAL_SECS, Publisher
from dataplane.scheduler.events import HoldEnded, HoldMade
from dataplane.scheduler.standing import Served
from shared import redis_keys
from shared.redis import client

HEALTH_INTERVAL_SECS: Final = 2.0
"""How often a replica says which endpoints it finds healthy."""

log = structlog.stdlib.get_logger(__name__)


def instance_name() -> str:
    """A name for this run of this replica, which no other run of any replica has."""
    return f"{socket.gethostname()[:64]}-{secrets.token_hex(6)}"


class Cluster:
    """One replica's membership. Made on the loop it runs on.

    `repaired` hears of slots that had to be put right, by kind and how many; `slots_called` of each
    call to the books. `endpoint_health` is how this replica finds endpoints.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        redis_url: str,
        who: Identity,
        fleet_order: bool,
        answer_secs: float,
        ttl_secs: float,
        settings: ReplicaSettings,
        repaired: Callable[[str, int], None],
        slots_called: Called,
        endpoint_health: Callable[[], Mapping[str, str]],
    ) -> None:
        self.name: Final = who.instance
        self._admission: Final = admission
        self._answer_secs: Final = answer_secs
        self._repaired: Final = repaired
        self._who: Final = who
        self._view_interval: Final = min(INTERVAL_SECS, settings.heartbeat)
        self._beaten_at = asyncio.get_running_loop().time()
        self._live: tuple[str, ...] = ()
        self._requests = client(redis_url, name="obleth-slots")
        self._beats = client(redis_url, connections=2, name="obleth-heartbeat")
        self._views = client(redis_url, connections=4, name="obleth-views")
        self._ear = client(redis_url, connections=2, name="obleth-announcements")
        self._slots = RedisSlots(
            SlotScripts(self._requests, secs=answer_secs, called=slots_called),
            replica=self.name,
            ttl=ttl_secs,
            heartbeats=SlotScripts(self._beats, secs=answer_secs, called=slots_called),
        )
        self._heartbeat = Heartbeat(
            self._slots,
            self.name,
            settings,
            holdings=admission.holdings,
            changed=self._changed,
            done=self._beat_done,
        )
        self._fleet = Fleet(
            self._slots,
            self.name,
            post=admission.answered,
            unavailable=self._heartbeat.slots_unavailable,
            lapsed=self._heartbeat.lapsed,
        )
        self._announcements = Announcements(
            self._ear,
            redis_keys.RELEASED,
            self._heard,
            secs=answer_secs,
            quiet=settings.heartbeat,
        )

        self._publisher = Publisher(
            self._views,
            redis_keys.view(self.name),
            text=lambda: live_view.encode(self.view()),
            interval=self._view_interval,
            answer_secs=answer_secs,
        )

        self._health_publisher = Publisher(
            self._views,
            redis_keys.endpoint_health(self.name),
            text=lambda: msgspec.json.encode(endpoint_health()),
            interval=HEALTH_INTERVAL_SECS,
            answer_secs=answer_secs,
        )
        self._lookout = self._look_out(fleet_order)

    def _look_out(self, fleet_order: bool) -> Lookout:
        return Lookout(
            self._views,
            others=lambda: [name for name in self._live if name != self.name],
            asked=lambda: neighbours.asked(self._admission.core),
            seen=self._seen,
            is_on=lambda: fleet_order and self.stance.mode is Mode.SHARED,
            interval=self._view_interval,
            answer_secs=self._answer_secs,
        )

    @property
    def stance(self) -> Stance:
        """How limits hold here now."""
        return self._heartbeat.stance

    @property
    def heartbeat_age_secs(self) -> float:
        """Since a heartbeat was last answered, or this was made."""
        return asyncio.get_running_loop().time() - self._beaten_at

    def view(self) -> ReplicaView:
        """This replica's scheduler as it is now."""
        return picture.replica(
            self._admission.core,
            asyncio.get_running_loop().time(),
            self._who,
            mode=self.stance.mode,
            replicas=self.stance.replicas,
            interval=self._view_interval,
        )

    async def members(self) -> list[Member]:
        """Who lives, this one included, and what they publish. Raises `RedisUnavailable`."""
        return await members(self._views, answer_secs=self._answer_secs)

    async def start(self) -> None:
        """Become a member. Works without Redis: the replica is then on its own part at once."""
        self._admission.join(self._fleet)
        self._admission.stand(self.stance)
        self._heartbeat.start()
        self._announcements.start()
        self._publisher.start()
        self._health_publisher.start()
        self._lookout.start()
        try:
            for warning in await server_warnings(self._beats, secs=self._answer_secs):
                log.warning("redis_unsuitable", detail=warning)
        except SlotsUnavailable as error:
            log.warning("redis_away", detail=str(error))

    async def stop(self) -> None:
        """After nothing runs any more: give back what the books still have, and be gone."""
        await self._announcements.stop()
        await self._publisher.stop()
        await self._health_publisher.stop()
        await self._lookout.stop()
        await self._heartbeat.stop()
        await self._fleet.settled()
        try:
            await self._slots.leave(self._admission.holdings())
        except SlotsUnavailable as error:
            # What is left on the books lapses with this replica's time to live.
            log.warning("slots_not_given_back", detail=str(error))
        for redis in (self._requests, self._beats, self._views, self._ear):
            await redis.aclose()

    def _changed(self, stance: Stance) -> None:
        log.info(
            "fairshare_mode",
            mode=stance.mode,
            replicas=stance.replicas,
            divisor=stance.divisor,
            claims=stance.claims,
        )
        self._admission.stand(stance)
        self._lookout.look_now()

    def _seen(self, views: Iterable[ReplicaView], served: Mapping[str, Served]) -> None:
        self._admission.fleet_seen(neighbours.seen(views, self._who.algorithm, served))

    def _beat_done(self, heard: Heard | None) -> None:
        if heard is None:
            return
        self._beaten_at = asyncio.get_running_loop().time()
        self._live = heard.live
        for kind, count in (("reclaimed", heard.reclaimed), ("reasserted", heard.repaired)):
            if count:
                self._repaired(kind, count)

    def _heard(self, announcement: Announcement) -> None:
        match announcement:
            case Freed(pool, ceiling):
                self._admission.slots_freed(pool, ceiling=ceiling)
            case TurnCalled(replica=replica) if replica == self.name:
                self._admission.called(announcement)
            case TurnCalled():
                self._admission.other_called(announcement, self._fleet.looks_at())
            case TurnTaken():
                self._admission.other_came(announcement)
            case HoldOver(replica, pool, key, session, why) if replica == self.name:
                self._admission.hold_ended(HoldEnded(pool, (key, session), why))
            case HoldOver():
                pass
            case HoldBegun(pool, key, session):
                self._admission.hold_made(HoldMade(pool, (key, session)))
            case Deaf(reason):
                log.warning("announcements_lost", detail=reason)
                self._fleet.is_listening = False
                self._admission.all_may_try()
            case Listening():
                self._fleet.is_listening = True
                self._admission.all_may_try()
        self._heartbeat.announced(announcement)
