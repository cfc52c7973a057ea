"""What the scheduler remembers: pools, their groups, tenants and keys, who waits and who runs."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from dataplane.scheduler.affinity import Affinity
from dataplane.scheduler.events import Arrived, PoolPolicy
from dataplane.scheduler.fairness import SCORE_UNIT, Level, Node
from dataplane.scheduler.holds import FleetHold
from dataplane.scheduler.queues import put_back
from dataplane.scheduler.standing import Charges, PoolElsewhere
from dataplane.scheduler.steps import Step
from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy


def order_name(policy: TenantPolicy | KeyPolicy) -> str:
    """Where a tenant or key comes in name order; names may repeat, ids do not."""
    return f"{policy.name}\0{policy.id}"


class Group(Node):
    """A group in one pool; its tenants share its part."""

    __slots__ = ("policy", "tenants")

    def __init__(self, policy: GroupPolicy, level: Level[Group]) -> None:
        super().__init__(policy.name, policy.name, policy.weight, level)
        self.policy = policy
        self.tenants: Level[Tenant] = Level()


class Tenant(Node):
    """A tenant in one pool. It may move from one group to another while it has work."""

    __slots__ = ("group", "keys", "policy")

    def __init__(self, policy: TenantPolicy, group: Group) -> None:
        super().__init__(policy.id, order_name(policy), policy.weight, group.tenants)
        self.policy = policy
        self.group = group
        self.keys: Level[Key] = Level()


class Key(Node):
    """A key in one pool, with the queue of its requests."""

    __slots__ = ("policy", "queue", "tenant")

    def __init__(self, policy: KeyPolicy, tenant: Tenant) -> None:
        super().__init__(policy.id, order_name(policy), policy.weight, tenant.keys)
        self.policy = policy
        self.tenant = tenant
        self.queue: OrderedDict[int, Waiter] = OrderedDict()
        """First in, first out; whoever leaves is taken out of the middle."""

    def take_back(self, waiter: Waiter) -> None:
        """A request that was taken for a slot it did not get goes back to its place."""
        put_back(self.queue, waiter.request, waiter)

    def head(self) -> Waiter | None:
        """The request of this key that has waited for longest."""
        return next(iter(self.queue.values()), None)


class Waiter:
    """A request that is not admitted yet."""

    __slots__ = (
        "arrived_at",
        "asks_again",
        "at_once",
        "is_late",
        "key",
        "passes",
        "pool",
        "request",
        "step",
        "tokens",
    )

    def __init__(
        self, event: Arrived, now: float, pool: Pool, key: Key, step: Step | None = None
    ) -> None:
        self.request: Final = event.request
        self.tokens: Final = event.tokens
        self.arrived_at: Final = now
        self.pool: Final = pool
        self.key: Final = key
        self.at_once = False
        """Whether its slot was claimed as it arrived and has not been refused yet."""
        self.step: Final = step
        """Of its session, where it has one that counts."""
        self.asks_again = False
        """Whether a slot came to be held for its session while a claim of it was on its way."""
        self.is_late = False
        """Whether it has waited for so long that nothing may pass it."""
        self.passes = False
        """Whether it was taken ahead of an older request of its key."""


class Slot:
    """A place in a pool that a request runs in, with what it was charged for it."""

    __slots__ = (
        "charged",
        "claimed_by",
        "group",
        "is_abandoned",
        "is_hold_only",
        "is_last",
        "key",
        "pool",
        "step",
        "tokens",
    )

    def __init__(
        self,
        pool: Pool,
        key: Key,
        tokens: int,
        charged: tuple[tuple[Node, int], ...],
        claimed_by: Waiter | None = None,
        step: Step | None = None,
    ) -> None:
        self.pool: Final = pool
        self.key: Final = key
        self.group: Final = key.tenant.group.id
        """The group it was taken under; the tenant may move to another."""
        self.tokens: Final = tokens
        """The estimate, kept until the end."""
        self.charged: Final = charged
        """The nodes whose scores were raised for it, and by how much."""
        self.claimed_by = claimed_by
        """The waiter it is claimed for, until the fleet has answered; None once it runs."""
        self.step = step
        """Of a session, once it runs."""
        self.is_abandoned = False
        """The waiter it is claimed for is gone: if it is granted it goes straight back."""
        self.is_hold_only = False
        """It is claimed ahead of the queue, if it is held for the waiter's session."""
        self.is_last = False
        """Its key may not be used any more: it is not held for a next step."""

    @property
    def charges(self) -> Charges:
        """What it was charged, in tokens a unit of weight."""
        return Charges(*(amount / SCORE_UNIT for _, amount in self.charged))

    def decided(self) -> None:
        """The fleet has answered: what it was charged is not in doubt any more."""
        for node, amount in self.charged:
            node.pending -= amount

    def refund(self) -> None:
        """Take back what was charged. `place` the key afterwards."""
        for node, amount in self.charged:
            node.score -= amount
        group = self.charged[0][0]
        if group is not self.key.tenant.group and group.entry is not None:
            group.level.place(group, group.entry[1])  # the tenant has left it, and it may wait on


class OwnSlots:
    """Whether a replica that waits in line claims the slots it frees at once, in the same trip, or
    lets the fleet call who comes first, which may be itself. Each time somebody else did, it lets
    more of them pass: one, three, then seven."""

    __slots__ = ("_is_tried", "_lost", "_pass")

    def __init__(self) -> None:
        self._is_tried = False
        self._lost = 0
        self._pass = 0

    def lets_pass(self) -> bool:
        """One is free; whether it is for whom the fleet calls."""
        self._is_tried = not self._pass
        self._pass = max(0, self._pass - 1)
        return not self._is_tried

    def answered(self, *, granted: bool) -> None:
        """A claim was answered, which may have been for such a slot."""
        if self._is_tried:
            self._is_tried = False
            self._lost = 0 if granted else min(self._lost + 1, 3)
            self._pass = 2**self._lost - 1


class Pool:
    """The slots of one model, and everyone who uses or wants one."""

    __slots__ = (
        "affinity",
        "affinity_events",
        "blocked",
        "blocked_nodes",
        "claiming",
        "elsewhere",
        "fleet_holds",
        "gone",
        "groups",
        "held",
        "is_aligned",
        "named",
        "own_slots",
        "policy",
        "running",
        "size",
        "takes_turns",
        "tenants",
        "turn_of",
        "waiting",
        "was_called",
        "was_redirected",
        "was_refused",
    )

    def __init__(self, policy: PoolPolicy, size: int) -> None:
        self.policy = policy
        self.size = size
        """As enforced now."""
        self.running = 0
        self.held = 0
        self.waiting = 0
        self.claiming = 0
        """Slots claimed and not answered yet; they count as running until they are."""
        self.blocked = False
        """The fleet says the pool is full; whether that still holds is asked again in a moment."""
        self.takes_turns = False
        """It is blocked by the ceiling, and called when it is its turn."""
        self.blocked_nodes: dict[Node, Key] = {}
        """Tenants and keys that the fleet says are at their caps, each with a key to place it by.
        """
        self.was_refused = False
        """A claim was refused since its queue was last empty: claims go one at a time."""
        self.was_called = False
        """While a claim is under way, whose answer may be older, something changed for the pool."""
        self.named: set[Key] = set()
        """The keys the fleet was last told of as those that may come first."""
        self.turn_of: tuple[str, str] | None = None
        """The tenant and key whose turn the fleet says it is."""
        self.was_redirected = False
        """The last claim was answered with another tenant's turn: two in a row are one too many."""
        self.own_slots = OwnSlots()
        self.elsewhere = PoolElsewhere()
        self.is_aligned = False
        """Its scores have been compared with the fleet's."""
        self.gone = False
        """Its model is deleted or disabled: it is dropped when its last request ends."""
        self.affinity: Affinity | None = None
        """None: sessions count for nothing here."""
        self.fleet_holds: dict[tuple[str, str], FleetHold] = {}
        """By session, for whoever looks on: one is forgotten as it ends, or is heard to have."""
        self.affinity_events: Counter[str] = Counter()
        """What affinity did here so far, for whoever looks on; nothing is decided by it."""
        self.groups: Level[Group] = Level()
        self.tenants: dict[str, Tenant] = {}
        """The tenants that have work, by id, whatever their group."""

    @property
    def occupied(self) -> int:
        return self.running + self.held

    @property
    def has_work(self) -> bool:
        return self.running + self.held + self.waiting > 0

    @property
    def ready(self) -> bool:
        """Whether a waiter could go here, as far as the pool is concerned."""
        return (
            self.running + self.held < self.size
            and bool(self.groups.contenders)
            and not self.blocked
            and not (self.was_refused and self.claiming)
        )

    @property
    def is_seen(self) -> bool:
        """Whether it takes part in the live picture."""
        return self.has_work or bool(self.fleet_holds)

    def ask_again(self) -> None:
        """Whatever the fleet said, or says to what was claimed before now, it may claim."""
        self.blocked = self.takes_turns = False
        self.was_called = self.claiming > 0

    def head(self, key: Key) -> Waiter | None:
        """The request of a key that goes when it is the key's turn."""
        return key.head() if self.affinity is None else self.affinity.head(key)

    def forget(self) -> None:
        """An idle pool starts afresh: no counters, no virtual time. It remembers its sessions."""
        self.groups = Level()
        self.is_aligned = False
