"""What the scheduler remembers: pools, their groups, tenants and keys, who waits and who runs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dataplane.scheduler.events import Arrived, PoolPolicy
from dataplane.scheduler.fairness import Level, Node


class Group(Node):
    """A group in one pool; its tenants share its part."""

    __slots__ = ("tenants",)

    def __init__(self, name: str, weight: int, level: Level[Group]) -> None:
        super().__init__(name, name, weight, level)
        self.tenants: Level[Tenant] = Level()


class Tenant(Node):
    """A tenant in one pool. It may move from one group to another while it has work."""

    __slots__ = ("group", "keys", "own_weight")

    def __init__(self, id: str, name: str, group: Group) -> None:
        super().__init__(id, name, 1, group.tenants)
        self.group = group
        self.own_weight = 1
        """Its weight before the model's admission weight scales it."""
        self.keys: Level[Key] = Level()


class Key(Node):
    """A key in one pool, with the queue of its requests."""

    __slots__ = ("queue", "tenant")

    def __init__(self, id: str, name: str, weight: int, tenant: Tenant) -> None:
        super().__init__(id, name, weight, tenant.keys)
        self.tenant = tenant
        self.queue: OrderedDict[int, Waiter] = OrderedDict()
        """First in, first out; whoever leaves is taken out of the middle."""

    def head(self) -> Waiter | None:
        """The request of this key that goes next."""
        return next(iter(self.queue.values()), None)


class Waiter:
    """A request that is not admitted yet."""

    __slots__ = ("arrived_at", "key", "pool", "request", "tokens")

    def __init__(self, event: Arrived, now: float, pool: Pool, key: Key) -> None:
        self.request: Final = event.request
        self.tokens: Final = event.tokens
        self.arrived_at: Final = now
        self.pool: Final = pool
        self.key: Final = key


class Slot:
    """A place in a pool that a request runs in, with what it was charged for it."""

    __slots__ = ("charged", "key", "pool", "tokens")

    def __init__(
        self, pool: Pool, key: Key, tokens: int, charged: tuple[tuple[Node, int], ...]
    ) -> None:
        self.pool: Final = pool
        self.key: Final = key
        self.tokens: Final = tokens
        """The estimate, kept until the end."""
        self.charged: Final = charged
        """The nodes whose scores were raised for it, and by how much."""


class Pool:
    """The slots of one model, and everyone who uses or wants one."""

    __slots__ = (
        "gone",
        "groups",
        "held",
        "policy",
        "running",
        "size",
        "tenants",
        "waiting",
    )

    def __init__(self, policy: PoolPolicy, size: int) -> None:
        self.policy = policy
        self.size = size
        """As enforced now."""
        self.running = 0
        self.held = 0
        self.waiting = 0
        self.gone = False
        """Its model is deleted or disabled: it is dropped when its last request ends."""
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
        return self.running + self.held < self.size and bool(self.groups.contenders)

    def forget(self) -> None:
        """An idle pool starts afresh: no counters, no virtual time."""
        self.groups = Level()
