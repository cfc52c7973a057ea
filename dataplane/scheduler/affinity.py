"""Session affinity in one pool: which sessions are warm, who goes ahead of whom in a key, when a
slot is held for a session's next step, and when none may be. It decides; `sessions.py` acts.

A *session* is an agent's run under one key; its *steps* are requests, each over the same growing
prompt, which the backend keeps in its cache only until other work pushes it out. A session is
*warm* while a step of it runs, and for a while after one has finished.

**Order within a key.** Requests of warm sessions go ahead of older ones; among them, and among the
others, the older goes first. Which group, tenant and key is served next has nothing to do with it:
there a key stands for the request that has waited for longest.

**Holding.** A step *follows* if it arrived within the hold time of its session's previous step
finishing, as an agent's next step does and a person's next message does not. When a step that
follows ends well, its slot is *held* for as long, and the session's next step takes it. A step may
arrive before its predecessor is known to have finished: where it waits it is given the slot in that
instant, and where it runs already nothing is held.

**Why it starves nobody.** A queued request is *passed* by each later one of its key that goes ahead
of it, as a warm one or with a held slot. Whoever has waited for longest in a key has been passed
most often: whatever passed a younger one passed it too. So it alone need be asked whether it has
been passed too often; then it goes next, and until it has gone no slot is held for its key. Across
keys the limit is time: a request that waits too long, and is kept out by neither its tenant's cap
nor its key's, frees what its pool holds and is passed by nothing. Caps are judged by what runs,
since a held slot is the very thing that would be freed for it.

**What it costs.** Sessions stand in a key by their oldest request, in a sorted list. Passes are
kept as the numbers of those that passed, which tells the count of every waiter at once; there are
no more of them than passes allowed. What time alone changes (who is late, who is no longer warm)
stands in order of its time, and is worked off when the pool is next looked at. Sessions are
forgotten when they are neither warm, nor running, waiting or held; the number of those that are
remembered for their last finish alone is bounded.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

from dataplane.scheduler.events import AffinityRules
from dataplane.scheduler.queues import put_back
from dataplane.scheduler.steps import Hold, Line, Session, Step

if TYPE_CHECKING:
    from dataplane.scheduler.fairness import Node
    from dataplane.scheduler.state import Key, Tenant, Waiter

SESSIONS_MAX: Final = 10_000
"""Sessions of one pool that are remembered for their last finish; the oldest are forgotten."""


class Affinity:
    """The sessions of one pool. `now` never goes back."""

    def __init__(self, rules: AffinityRules) -> None:
        self.rules = rules
        self.holds: SortedList[Hold] = SortedList(key=lambda hold: (hold.ends, hold.session.name))
        """The one that ends first comes first."""
        self._sessions: dict[tuple[str, str], Session] = {}
        self._lines: dict[Key, Line] = {}
        self._recent: OrderedDict[Session, None] = OrderedDict()
        """Sessions that are warm for their last finish, by its time."""
        self._known: OrderedDict[Session, None] = OrderedDict()
        """Those that are not any more, but whose next step would still follow; by the same."""
        self._young: OrderedDict[int, Waiter] = OrderedDict()
        """Everyone who waits here and is not late, by arrival."""
        self._late: dict[Tenant, dict[Key, int]] = {}
        """How many late requests each key has."""
        self._away: dict[int, Waiter] = {}
        """Those that left their queue for a slot and may come back: few, and they still wait."""

    @property
    def remembered(self) -> int:
        """How many sessions are remembered."""
        return len(self._sessions)

    # Who goes next in a key

    def head(self, key: Key) -> Waiter | None:
        """The request of a key that goes next."""
        line = self._lines.get(key)
        if line is None or not line.warm or not self._may_be_passed(key):
            return key.head()
        _, session = line.warm[0]
        return next(iter(session.waiting.values()))

    def is_passed_enough(self, key: Key) -> bool:
        """Whether the oldest request of a key has been passed so often that it may not be again."""
        if self._oldest(key) is None:
            return False
        line = self._lines.get(key)
        passed = 0 if line is None else len(line.passers)
        return passed >= self.rules.max_jumps

    def goes_ahead(self, key: Key, oldest: Waiter | None, request: int) -> bool:
        """A request that is not in its key's queue any more, or never was, gets a slot: whoever is
        older has been passed. Whether the oldest is."""
        if oldest is None or oldest.request >= request:
            return False
        passers = self._line(key).passers
        if request not in passers:
            passers.add(request)
        return True

    def goes_ahead_no_more(self, key: Key, request: int) -> None:
        """It did not get the slot after all."""
        line = self._lines.get(key)
        if line is not None:
            line.passers.discard(request)

    # Holding

    @property
    def next_alarm(self) -> float | None:
        """When a slot is no longer to be held, or somebody becomes too late to be passed."""
        if not self.holds:
            return None
        return min(self.holds[0].ends, self.next_late)

    def most_held(self, size: int) -> int:
        """How many of `size` slots may be held at once."""
        return -(-size * self.rules.max_held_percent // 100)

    def is_starving(self, ending: Key | None = None) -> bool:
        """Whether a request has waited too long and is at no cap; `ending` is the key of a running
        request that is about to end.

        Passes over tenants and keys at their caps, each of which runs something: no more of them
        than the pool has slots.
        """
        for tenant, keys in self._late.items():
            if _is_at_cap(tenant, ending is not None and tenant is ending.tenant):
                continue
            if any(not _is_at_cap(key, key is ending) for key in keys):
                return True
        return False

    def wants_hold(self, step: Step, now: float) -> bool:
        """Whether a step that has just ended well leaves a slot for the next one, limits apart."""
        return step.follows and self.rules.hold_secs > 0 and self.is_newest(step, now)

    def is_newest(self, step: Step, now: float) -> bool:
        """Whether the step after one that has just ended is still to come, or waits."""
        return step.session.latest is step or self.successor(step, now) is not None

    def may_hold_for(self, key: Key) -> bool:
        """Whether nobody has been passed too often, or has waited too long, for the slot of a
        running request of a key to be held when it ends."""
        return not (self.is_passed_enough(key) or self.is_starving(key))

    def may_take(self, waiter: Waiter) -> bool:
        """Whether a request that waits may go ahead with the slot held for its session."""
        if self.session_of(waiter) is None or self.rules.hold_secs <= 0 or self.is_starving():
            return False
        return self._oldest(waiter.key) is waiter or self._may_be_passed(waiter.key)

    def successor(self, step: Step, now: float) -> Waiter | None:
        """The step after one that has just ended, if it has come already, and waits."""
        latest = step.session.latest
        if latest is None or latest is step or latest.arrived_at + self.rules.hold_secs < now:
            return None
        return step.session.waiting.get(latest.request)

    def first_step(self, name: tuple[str, str]) -> Waiter | None:
        """The oldest step of a session that waits, whether or not a slot is claimed for it."""
        session = self._sessions.get(name)
        if session is None:
            return None
        away = (each for each in self._away.values() if self.session_of(each) is session)
        steps = itertools.chain(away, itertools.islice(session.waiting.values(), 1))
        return min(steps, key=lambda each: each.request, default=None)

    def hold(self, session: Session, key: Key, now: float) -> None:
        """Hold a slot for a session."""
        session.hold = Hold(session, key, now + self.rules.hold_secs)
        self.holds.add(session.hold)

    def let_go(self, hold: Hold) -> None:
        """A slot is not held any more."""
        self.holds.remove(hold)
        hold.session.hold = None
        self._forget_if_idle(hold.session)

    # What happens to requests

    def arrives(self, key: Key, session_id: str, request: int, now: float) -> Step:
        """A step of a session arrives."""
        name = (key.id, session_id)
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(name)
        before = session.finished_at
        follows = before is not None and now <= before + self.rules.hold_secs
        session.steps += 1
        session.latest = Step(self, session, request, now, follows)
        return session.latest

    def waits(self, waiter: Waiter) -> None:
        """A request has joined the queue of its key."""
        self._young[waiter.request] = waiter
        if (session := self.session_of(waiter)) is not None:
            session.waiting[waiter.request] = waiter
            self._settle(session, waiter.key)

    def left_queue(self, waiter: Waiter) -> None:
        """A request has been taken out of the queue of its key, for a slot or for good."""
        if (session := self.session_of(waiter)) is not None:
            del session.waiting[waiter.request]
            self._settle(session, waiter.key)

    def is_taken(self, waiter: Waiter) -> bool:
        """A request has left the queue of its key for a slot. Whether one that is older is still
        there."""
        self.left_queue(waiter)
        self._away[waiter.request] = waiter
        return self.goes_ahead(waiter.key, waiter.key.head(), waiter.request)

    def takes_held(self, waiter: Waiter) -> None:
        """It has the slot that the fleet held, past those too that may still come back."""
        self.goes_ahead(waiter.key, self._oldest(waiter.key), waiter.request)

    def is_back(self, waiter: Waiter) -> None:
        """A request that left the queue for a slot is back in its place."""
        self._away.pop(waiter.request, None)
        self.goes_ahead_no_more(waiter.key, waiter.request)
        if (session := self.session_of(waiter)) is not None:
            put_back(session.waiting, waiter.request, waiter)
            self._settle(session, waiter.key)

    def waits_no_more(self, waiter: Waiter) -> None:
        """A request has its slot, or will never have one. It is in no queue any more."""
        key = waiter.key
        self._away.pop(waiter.request, None)
        if waiter.is_late:
            keys = self._late[key.tenant]
            keys[key] -= 1
            if not keys[key]:
                del keys[key]
            if not keys:
                del self._late[key.tenant]
        else:
            del self._young[waiter.request]
        line = self._lines.get(key)
        if line is not None:
            oldest = self._oldest(key)
            end = len(line.passers)
            if oldest is not None:
                end = line.passers.bisect_left(oldest.request)
            del line.passers[:end]
            self._drop_if_empty(key, line)

    def gives_up(self, step: Step) -> None:
        """A step that waited will never have a slot."""
        step.session.steps -= 1
        self._forget_if_idle(step.session)

    def starts(self, step: Step, key: Key) -> None:
        """A step has its slot and runs."""
        step.session.running += 1
        self._settle(step.session, key)

    def ends(self, step: Step, now: float) -> None:
        """A step that ran has ended, well or not."""
        session = step.session
        session.running -= 1
        session.steps -= 1
        session.finished_at = now
        session.is_recent = True
        self._known.pop(session, None)
        self._recent[session] = None
        self._recent.move_to_end(session)
        latest = session.latest
        if latest is not None and latest is not step:
            latest.follows = latest.follows or now <= latest.arrived_at + self.rules.hold_secs
        if len(self._recent) > SESSIONS_MAX:
            self._cool(next(iter(self._recent)))

    def never_ran(self, step: Step, key: Key) -> None:
        """A step that was given a slot did not run in it."""
        step.session.running -= 1
        step.session.steps -= 1
        self._settle(step.session, key)
        self._forget_if_idle(step.session)

    # What happens by time and by policy

    @property
    def next_late(self) -> float:
        """When the next request will have waited too long."""
        if not self._young:
            return math.inf
        return next(iter(self._young.values())).arrived_at + self.rules.max_bypass_secs

    def age(self, now: float) -> None:
        """Time has passed."""
        rules = self.rules
        while self._young:
            waiter = next(iter(self._young.values()))
            if now < waiter.arrived_at + rules.max_bypass_secs:
                break
            del self._young[waiter.request]
            self._is_late_now(waiter)
        while self._recent:
            session = next(iter(self._recent))
            if now <= _finish(session) + rules.warm_secs:
                break
            self._cool(session)
        while self._known:
            session = next(iter(self._known))
            if now <= _finish(session) + rules.hold_secs:
                break
            del self._known[session]
            self._forget_if_idle(session)

    def change(self, rules: AffinityRules, waiters: Iterable[Waiter]) -> None:
        """Other rules from now on; `waiters` is everyone who waits in the pool, by arrival."""
        self.rules = rules
        self._late.clear()
        self._young = OrderedDict((waiter.request, waiter) for waiter in waiters)
        for waiter in self._young.values():
            waiter.is_late = False

    @property
    def held_keys(self) -> list[Key]:
        """Keys that slots are held for, each once."""
        return list(dict.fromkeys(hold.key for hold in self.holds))

    def session_of(self, waiter: Waiter) -> Session | None:
        """The session of a request that waits, if it is remembered here."""
        step = waiter.step
        return step.session if step is not None and step.affinity is self else None

    def _oldest(self, key: Key) -> Waiter | None:
        """Who has waited for longest in a key, whether or not a slot is claimed for it."""
        away = (each for each in self._away.values() if each.key is key)
        in_queue = key.head()
        all = away if in_queue is None else itertools.chain([in_queue], away)
        return min(all, key=lambda each: each.request, default=None)

    def _may_be_passed(self, key: Key) -> bool:
        oldest = self._oldest(key)
        return oldest is None or not (oldest.is_late or self.is_passed_enough(key))

    def _is_late_now(self, waiter: Waiter) -> None:
        key = waiter.key
        waiter.is_late = True
        keys = self._late.setdefault(key.tenant, {})
        keys[key] = keys.get(key, 0) + 1

    def _cool(self, session: Session) -> None:
        """A session's last finish does not keep it warm any more."""
        del self._recent[session]
        session.is_recent = False
        if self.rules.hold_secs > self.rules.warm_secs and len(self._known) < SESSIONS_MAX:
            self._known[session] = None
        if session.waiting:
            self._settle(session, next(iter(session.waiting.values())).key)
        self._forget_if_idle(session)

    def _forget_if_idle(self, session: Session) -> None:
        if session.is_idle and session not in self._known:
            self._sessions.pop(session.name, None)

    def _settle(self, session: Session, key: Key) -> None:
        """Put a session where it stands among the warm of its key."""
        place = next(iter(session.waiting), None) if session.is_warm else None
        if place == session.place:
            return
        line = self._line(key)
        if session.place is not None:
            line.warm.remove((session.place, session))
        if place is not None:
            line.warm.add((place, session))
        session.place = place
        self._drop_if_empty(key, line)

    def _line(self, key: Key) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line()
        return line

    def _drop_if_empty(self, key: Key, line: Line) -> None:
        if not line.warm and not line.passers:
            del self._lines[key]


def _finish(session: Session) -> float:
    assert session.finished_at is not None, "it is remembered for its last finish"
    return session.finished_at


def _is_at_cap(node: Node, has_ending: bool) -> bool:
    return node.at_cap or (node.cap is not None and node.running - has_ending >= node.cap)
