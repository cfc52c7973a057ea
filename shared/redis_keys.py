"""Every key and channel obleth has in Redis. No other module spells one out.

`T` stands for `{obleth:slots}`, the hash tag of all slot keys, `B` for `{obleth:budgets}`.

| name | type | written by | read by | life |
|---|---|---|---|---|
| `T:roster` | hash: replica → record | heartbeat, settle, leave | the same, claim | L |
| `T:1:all` | sorted set: id → end of lease | claim, assert, release, reclaim | claim | L |
| `T:1:pool:<pool>` | the same | the same | claim | L |
| `T:1:group:<pool>:<group>` | the same | the same | claim | L |
| `T:1:tenant:<pool>:<tenant>` | the same | the same | claim | L |
| `T:1:key:<pool>:<key>` | the same | the same | claim | L |
| `T:1:held:<replica>` | hash: id → note | claim, assert, release | heartbeat, leave | L |
| `T:1:served:<pool>` | hash: node → score, taken | claim, release | claim, replicas | L |
| `T:1:holds` | sorted set: hold → its end | every slot script but three | the same | M |
| `T:1:holds:<pool>` | the same | the same | the same | M |
| `T:1:hold_notes` | hash: hold → where it stands | the same | the same | M |
| `T:1:starving:<pool>` | string | claim | release | 1 s |
| `T:1:session:<pool>:<key>:<session>` | string: finish, holds | release | the same, claim | S |
| `T:1:line:all` | hash: pool → turn, note; replica → place | claim, release | the same | 8 s |
| `T:1:line:pool:<pool>` | hash: replica → place | the same | the same | 8 s |
| `T:1:line:tenant:<pool>:<tenant>` | the same | the same | the same | 8 s |
| `T:1:line:key:<pool>:<key>` | the same | the same | the same | 8 s |
| `B:1:minute:<tenant>` | hash: size, level, at | reserve, settle | the same, check | until full |
| `B:1:count:<term>` | hash: committed, reserved | found, settle, reserve | the same | a day |
| `B:1:open:<term>` | sorted set: reservation → end of lease | the same, renew | the same | N |
| `B:1:mark` | string | renew | – | 1 lease |
| `obleth:fairshare:view:<replica>` | string | that replica | both planes | 3 intervals |
| `obleth:endpoints:health:<replica>` | string | that replica | control plane | 3 intervals |
| `obleth:fairshare:released` | channel | every slot script but assert | every replica | – |
| `obleth:invalidate` | channel | control plane, after a commit | every replica | – |

L: as long as the leases in it, at most twice the longest. An id is a claim's. A note is
`pool:group:tenant:key`, each escaped. A node is `g:<group>`,
`t:<tenant>` or `k:<key>`, its score in tokens a unit of weight; what a place is stands in
`include/line.lua`. A record is `heard ttl layout asserted`: when the replica was last
heard of, for how long that is good, whose `LAYOUT` it keeps its books in, and whether (1 or 0) all
it holds is on them. `assert` and `reclaim` clear that of every replica when they repair a key.

M: one to two minutes after the last hold. A hold is `hold:pool:key:session`, and stands in its
slot's sets as a claim does; all slot scripts but heartbeat, assert and settle keep them. S: as long
as a session is warm, an hour from each claim of it.

N: twice the lease of a reservation. A `<term>` is `scope:id:start`, its start in Unix milliseconds.
A reservation is `estimate id`. Counts are tokens; a level is in units of 1/60,000 token. The
database has what terms have used as well, so a count that is lost is read back from there; the rest
may be lost at any time.

Times are milliseconds of the Redis server's clock. All slot keys carry one hash tag: a claim looks
at the pool, the ceiling and both caps at once, so on Redis Cluster the whole of the books lives on
one shard. So does a reservation at the minute and the terms it counts in.

**Versions.** `LAYOUT` is in the name of every key but the roster's, and goes up when what such a
key holds changes its meaning. The roster keeps its form for ever: so replicas of two layouts, in
a rolling restart, see each other; and as neither finds the other's holdings on its own books, both
stay on their part of each limit until only one layout is left.

Parts of a name that come from outside are escaped, so that no two of them make the same key.
"""

from __future__ import annotations

from typing import Final

LAYOUT: Final = 1
RELEASED: Final = "obleth:fairshare:released"
INVALIDATE: Final = "obleth:invalidate"
SLOTS_TAG: Final = "{obleth:slots}"
BUDGETS_TAG: Final = "{obleth:budgets}"
BUDGETS_LAYOUT: Final = 1


def view(replica: str) -> str:
    """Where a replica publishes what it runs and what waits."""
    return f"obleth:fairshare:view:{replica}"


def endpoint_health(replica: str) -> str:
    """Where a replica publishes which endpoints it finds healthy: a JSON object of health by id."""
    return f"obleth:endpoints:health:{replica}"


def escaped(part: str) -> str:
    """A part of a key's name, without the separator. `unescaped` is its inverse."""
    return part.replace("%", "%25").replace(":", "%3A")


def unescaped(part: str) -> str:
    return part.replace("%3A", ":").replace("%25", "%")


class SlotKeys:
    """The names of the books' keys. `tag` tells one fleet's books from another's."""

    __slots__ = ("_books", "all", "hold_notes", "holds", "line_all", "roster")

    def __init__(self, tag: str = SLOTS_TAG) -> None:
        self._books: Final = f"{tag}:{LAYOUT}"
        self.roster: Final = f"{tag}:roster"
        self.all: Final = f"{self._books}:all"
        self.line_all: Final = f"{self._books}:line:all"
        self.holds: Final = f"{self._books}:holds"
        self.hold_notes: Final = f"{self._books}:hold_notes"

    def held(self, replica: str) -> str:
        """The index of what one replica holds."""
        return f"{self._books}:held:{escaped(replica)}"

    def sets(self, pool: str, group: str, tenant: str, key: str) -> tuple[str, str, str, str]:
        """What a slot counts in beside the ceiling: its pool, its group, tenant and key there."""
        in_pool = escaped(pool)
        return (
            f"{self._books}:pool:{in_pool}",
            f"{self._books}:group:{in_pool}:{escaped(group)}",
            f"{self._books}:tenant:{in_pool}:{escaped(tenant)}",
            f"{self._books}:key:{in_pool}:{escaped(key)}",
        )

    def served(self, pool: str) -> str:
        """What a pool's groups, tenants and keys have been served, over the fleet."""
        return f"{self._books}:served:{escaped(pool)}"

    def lines(self, pool: str, tenant: str, key: str) -> tuple[str, str, str]:
        """Which replicas were refused by a pool, by a tenant's and by a key's cap there."""
        in_pool = escaped(pool)
        return (
            f"{self._books}:line:pool:{in_pool}",
            f"{self._books}:line:tenant:{in_pool}:{escaped(tenant)}",
            f"{self._books}:line:key:{in_pool}:{escaped(key)}",
        )

    def affinity(self, pool: str, key: str, session: str) -> tuple[str, str, str]:
        """A pool's holds, that it starves, and one session in it, empty for none."""
        in_pool = escaped(pool)
        return (
            f"{self._books}:holds:{in_pool}",
            f"{self._books}:starving:{in_pool}",
            f"{self._books}:session:{in_pool}:{escaped(key)}:{escaped(session)}",
        )


class BudgetKeys:
    """The names of the budgets' keys. `tag` tells one fleet's budgets from another's."""

    __slots__ = ("_budgets", "mark")

    def __init__(self, tag: str = BUDGETS_TAG) -> None:
        self._budgets: Final = f"{tag}:{BUDGETS_LAYOUT}"
        self.mark: Final = f"{self._budgets}:mark"

    def minute(self, tenant: str) -> str:
        """A tenant's bucket of tokens a minute."""
        return f"{self._budgets}:minute:{escaped(tenant)}"

    def term(self, scope: str, subject: str, starts_ms: int) -> tuple[str, str]:
        """What a term has used, and its open reservations."""
        term = f"{scope}:{escaped(subject)}:{starts_ms}"
        return f"{self._budgets}:count:{term}", f"{self._budgets}:open:{term}"
