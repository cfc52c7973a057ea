"""Courses: lists of requests for a fleet to live through: when, of which key, at which replica, for
which pool, how long."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy


@dataclass(frozen=True, slots=True)
class Come:
    """One request of a course."""

    at: float
    key: KeyPolicy
    replica: int
    secs: float
    leaves_after: float | None = None
    model: str = "m"


@dataclass(slots=True)
class Course:
    """What happens. `killed_at` is when the last replica dies; `blocked` of every second its loop
    stands still."""

    name: str
    replicas: int
    size: int
    comes: list[Come]
    algorithm: str = "hierarchical"
    ceiling: int = 4096
    killed_at: float | None = None
    blocked: float = 0.0
    reply_lost: float = 0.0
    pools: Mapping[str, int] = field(default_factory=dict)
    """Pools besides the first, and their sizes."""
    reweighed: Sequence[tuple[float, str, int]] = ()
    """When a tenant's weight becomes another."""
    joined_at: float | None = None
    more: int = 0
    """So many requests come besides: whenever one ends, another of its key, at any replica."""

    @property
    def service_secs(self) -> float:
        return max(come.secs for come in self.comes)


def key_of(
    name: str, group: str, weight: int, cap: int | None = None, group_weight: int = 100
) -> KeyPolicy:
    tenant = TenantPolicy(name, name, GroupPolicy(group, group_weight), weight, max_in_flight=cap)
    return KeyPolicy(f"{name}/k", "k", tenant)


def backlogged(
    name: str,
    keys: Sequence[tuple[KeyPolicy, Sequence[int]]],
    *,
    replicas: int,
    size: int,
    secs: float,
    grants: int,
    choose: random.Random,
    leaving: float = 0.0,
    **more: object,
) -> Course:
    """Everybody has a backlog from the start; each key's requests come in at the replicas named."""
    comes = []
    for key, replicas_of in keys:
        for number in range(grants):
            leaves = choose.uniform(0, grants * secs / size) if choose.random() < leaving else None
            at = number * 0.002 + choose.random() * 0.01
            comes.append(
                Come(at, key, choose.choice(replicas_of), choose.uniform(0.5, 1.5) * secs, leaves)
            )
    comes.sort(key=lambda come: come.at)
    return Course(name, replicas, size, comes, **more)  # type: ignore[arg-type]


def skewed(algorithm: str, replicas: int = 3, secs: float = 0.25, grants: int = 600) -> Course:
    """Weights 4 to 1, all of A's requests at one replica, B's at the others."""
    choose = random.Random(1)
    a, b = key_of("a", "a", 400, group_weight=400), key_of("b", "b", 100, group_weight=100)
    others = range(1, replicas)
    return backlogged(
        f"skewed {algorithm}",
        [(a, [0]), (b, list(others))],
        replicas=replicas,
        size=8,
        secs=secs,
        grants=grants,
        choose=choose,
        algorithm=algorithm,
    )


def with_newcomer(course: Course, *, at: float) -> Course:
    """The same, and one more tenant that comes to the last replica only then."""
    key = key_of("new", "a", 100)
    comes = [Come(at, key, course.replicas - 1, 1.0) for _ in range(300)]
    return replace(course, comes=[*course.comes, *comes])


def uneven_pools(requests: int = 1600) -> Course:
    """Two pools of one slot beside one of sixteen, under a ceiling of eight."""
    choose = random.Random(1)
    models = {"m": 1, "n": 1, "o": 16}
    comes = []
    for number, weight in enumerate((200, 50, 200, 200)):
        group, group_weight = (("g", 300), ("h", 100))[number % 2]
        key = key_of(f"t{number}", group, weight, group_weight=group_weight)
        for model in models:
            comes += [
                Come(n * 0.002, key, choose.randrange(3), choose.uniform(0.5, 1.5), model=model)
                for n in range(requests // 12)
            ]
    comes.sort(key=lambda come: come.at)
    return Course("uneven pools", 3, 1, comes, ceiling=8, pools={"n": 1, "o": 16})


def loops(replicas: int, size: int) -> Course:
    """Sixteen clients of four tenants, each of which asks again as soon as it has its answer."""
    keys = [key_of(name, "g", 100) for name in "abcd"]
    comes = [Come(0.01 * n, keys[n % 4], n % replicas, 1.0) for n in range(16)]
    return Course("loops", replicas, size, comes, more=400)


def any_course(seed: int) -> Course:
    """A course drawn at random."""
    choose = random.Random(f"{seed} course")
    replicas = choose.choice((2, 2, 3, 3, 4))
    size = choose.choice((4, 8, 16))
    groups = choose.sample(["x", "y", "z"], choose.choice((1, 2, 3)))
    weights = {group: choose.choice((100, 100, 300)) for group in groups}
    keys = []
    for name in "abcde"[: choose.choice((2, 3, 4, 5))]:
        group = choose.choice(groups)
        cap = choose.choice((None, None, None, max(1, size // 4)))
        key = key_of(name, group, choose.choice((50, 100, 200)), cap, weights[group])
        keys.append((key, choose.sample(range(replicas), choose.randint(1, replicas))))
    secs = choose.choice((0.5, 1.0, 2.0))
    return backlogged(
        f"seed {seed}",
        keys,
        replicas=replicas,
        size=size,
        secs=secs,
        grants=450,
        choose=choose,
        leaving=choose.choice((0.0, 0.0, 0.1)),
        algorithm=choose.choice(("hierarchical", "hierarchical", "weighted")),
        ceiling=choose.choice((4096, 4096, size - 1)),
    )


def wide_course(seed: int, requests: int = 2600) -> Course:
    """A course drawn at random, with more of one thing than any other has: groups, tenants of one
    group, tenants with caps, keys, pools under one ceiling, or changes while it lasts."""
    choose = random.Random(f"{seed} wide")
    replicas, size, secs = choose.choice((2, 3, 4)), choose.choice((8, 16)), choose.choice((0.5, 1))
    kinds = ("groups", "tenants", "caps", "keys", "pools", "changes")
    kind = kinds[seed % len(kinds)]
    models = ["m", "n", "o"][: choose.choice((2, 3))] if kind == "pools" else ["m"]
    tenants, groups = {"groups": (24, 8), "tenants": (12, 1), "caps": (10, 3)}.get(kind, (4, 2))
    weights = [choose.choice((100, 100, 300)) for _ in range(groups)]
    keys: list[tuple[KeyPolicy, Sequence[int], str]] = []
    for number in range(tenants):
        cap = choose.choice({"caps": (1, 2), "tenants": (None, None, 2)}.get(kind, (None,)))
        first = key_of(
            f"t{number:02}",
            f"g{number % groups}",
            choose.choice((50, 100, 200)),
            cap,
            weights[number % groups],
        )
        names = ["k"] if kind != "keys" else "klmnop"
        most = choose.choice((None, 1)) if kind == "keys" else None
        for name in names:
            id = f"{first.tenant.id}/{name}"
            key = replace(first, id=id, name=name, max_in_flight=most)
            for model in models:
                keys.append(
                    (key, choose.sample(range(replicas), choose.randint(1, replicas)), model)
                )
    each = requests // len(keys)
    comes = [
        Come(
            number * 0.002 + choose.random() * 0.01,
            key,
            choose.choice(where),
            choose.uniform(0.5, 1.5) * secs,
            model=model,
        )
        for key, where, model in keys
        for number in range(each)
    ]
    comes.sort(key=lambda come: come.at)
    lasts = len(comes) * secs / size
    changes = [
        (lasts * part, f"t0{choose.randrange(4)}", choose.choice((50, 400))) for part in (0.2, 0.4)
    ]
    return Course(
        f"wide seed {seed} {kind}",
        replicas,
        size,
        comes,
        algorithm=choose.choice(("hierarchical", "hierarchical", "weighted")),
        ceiling=choose.choice((size + 2, 2 * size - 2)) if kind == "pools" else 4096,
        pools=dict.fromkeys(models[1:], size),
        reweighed=changes if kind == "changes" else (),
        joined_at=lasts * 0.15 if kind == "changes" else None,
    )
