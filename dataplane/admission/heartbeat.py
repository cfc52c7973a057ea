"""The task that keeps a replica on the books, off the path of requests.

It alone calls `Slots.heartbeat`, when `Replica` says one is due, and tells what may be done from
then on whenever that changes. What is held is read in the same turn of the loop in which the call
begins, so that between the two nothing can be admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from dataplane.admission.announcements import Announcement, ReplicaChanged
from dataplane.admission.replica import Replica, ReplicaSettings, Stance
from dataplane.admission.slots.port import Heard, Holding, Slots, SlotsUnavailable

log = structlog.stdlib.get_logger(__name__)


class Heartbeat:
    """One replica's heartbeat.

    `holdings` is asked for everything that runs in a slot, claimed or not; `changed` is told each
    new `Stance`, from within `start`'s task or from within the method that brought it about, and
    must have put it in force when it returns; `done` hears of each heartbeat, None: unanswered.
    """

    def __init__(
        self,
        slots: Slots,
        name: str,
        settings: ReplicaSettings,
        *,
        holdings: Callable[[], Sequence[Holding]],
        changed: Callable[[Stance], None],
        done: Callable[[Heard | None], None] = lambda heard: None,
    ) -> None:
        self._slots: Final = slots
        self._name: Final = name
        self._holdings: Final = holdings
        self._changed: Final = changed
        self._done: Final = done
        self._replica: Final = Replica(name, settings, asyncio.get_running_loop().time())
        self._told = self._replica.stance
        self._sooner: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def stance(self) -> Stance:
        return self._replica.stance

    def start(self) -> None:
        """Begin at once. Until the first answer, or its absence, the stance is `paused`."""
        self._task = asyncio.create_task(self._run(), name="heartbeat")

    async def stop(self) -> None:
        """No further heartbeats. The books are left as they are: `Slots.leave` is for the caller,
        once nothing runs any more.

        One that is under way is let end, which takes as long as the books may take to answer. Were
        it cut off it could be carried out after `leave`, and the others would count with this
        replica for a time to live.
        """
        self._stopping = True
        self._sooner.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task = None

    # What others meet with

    def slots_unavailable(self) -> None:
        """A claim or a release had no answer."""
        self._replica.slots_unavailable(self._now())
        self._tell()

    def lapsed(self) -> None:
        """A claim was answered `NOT_LIVE`."""
        self._replica.lapsed(self._now())
        self._tell()

    def announced(self, announcement: Announcement) -> None:
        """Something was heard on the channel; only news of other replicas matters here."""
        match announcement:
            case ReplicaChanged(replica) if replica != self._name:
                self._replica.replicas_changed(self._now())
                self._sooner.set()
            case _:
                pass

    # The task

    async def _run(self) -> None:
        while await self._until_due():
            complete = self._replica.begin()
            try:
                holdings = self._holdings() if self._replica.tells_holdings else []
                heard: Heard | None = await self._slots.heartbeat(holdings, complete=complete)
            except SlotsUnavailable:
                heard = None
            except Exception:
                # A fault of ours: as good as no answer, and no reason for the heart to stop.
                log.exception("heartbeat_failed")
                heard = None
            if heard is None:
                self._replica.unheard(self._now())
            else:
                self._replica.heard(heard, self._now())
            self._done(heard)
            self._tell()

    async def _until_due(self) -> bool:
        """Wait for the next heartbeat; whether there is to be one."""
        while not self._stopping and (left := self._replica.next_at - self._now()) > 0:
            self._sooner.clear()
            try:
                async with asyncio.timeout(left):
                    await self._sooner.wait()
            except TimeoutError:
                break
        return not self._stopping

    def _tell(self) -> None:
        self._sooner.set()
        stance = self._replica.stance
        if stance != self._told:
            self._told = stance
            self._changed(stance)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
