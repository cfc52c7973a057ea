"""The slots of one model inside the backend: what runs, what waits, and the most that ever did."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """`size` places, first come first served; None has no limit."""

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.running = 0
        self.waiting = 0
        self.peak = 0
        self.peak_present = 0
        """The most that ran or waited at once: what clients let through, whatever the size."""
        self._queue: deque[Place] = deque()

    def ask(self) -> Place:
        """A place, held at once if one is free, else in the queue. Give it back in any case."""
        place = Place(self)
        if self.size is None or (self.running < self.size and not self.waiting):
            self._grant(place)
        else:
            place.granted = asyncio.get_running_loop().create_future()
            self._queue.append(place)
            self.waiting += 1
        self.peak_present = max(self.peak_present, self.running + self.waiting)
        return place

    def forget_peaks(self) -> None:
        self.peak = self.running
        self.peak_present = self.running + self.waiting

    def release(self, place: Place) -> None:
        """Take a place back, held or not yet; called by the place, once."""
        if not place.held:
            self.waiting -= 1  # the queue drops it when its turn comes
            return
        self.running -= 1
        assert self.running >= 0, "a place was given back twice"
        while self._queue:
            following = self._queue.popleft()
            if not following.over:
                self.waiting -= 1
                self._grant(following)
                return

    def _grant(self, place: Place) -> None:
        place.held = True
        self.running += 1
        self.peak = max(self.peak, self.running)
        if place.granted is not None and not place.granted.done():
            place.granted.set_result(None)


class Place:
    """One request's place, from the queue to the end of its work."""

    __slots__ = ("_slots", "granted", "held", "over")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.held = False
        self.over = False
        self.granted: asyncio.Future[None] | None = None

    async def ready(self) -> None:
        """Return when the place is held. Cancelled when it is given back before that."""
        if self.granted is not None:
            await self.granted

    def give_back(self) -> None:
        """Leave the place or the queue, in the same instant; the second time nothing happens."""
        if self.over:
            return
        self.over = True
        self._slots.release(self)
        if self.granted is not None and not self.granted.done():
            self.granted.cancel()
