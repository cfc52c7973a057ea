"""The size of a pool, out of policy and what was heard of the backends."""

from __future__ import annotations

import pytest

from dataplane.discovery.sizing import Answer, PoolSize, discovered, pool_size
from shared.policy import CapacityPolicy, CapacitySource, EndpointPolicy, ModelPolicy


def model(**fields: object) -> ModelPolicy:
    return ModelPolicy(id="m", name="m", **fields)  # type: ignore[arg-type]


def capacity(each: int = 8, headroom: float = 1.0, source: str = "dns") -> CapacityPolicy:
    return CapacityPolicy(CapacitySource(source), each, headroom)


def endpoints(*caps: int | None) -> tuple[EndpointPolicy, ...]:
    return tuple(EndpointPolicy(str(n), "http://x", max_in_flight=c) for n, c in enumerate(caps))


def test_without_capacity_a_pool_is_as_configured_or_the_default() -> None:
    assert pool_size(model(max_in_flight=7), None, default=32) == PoolSize(7, "configured")
    assert pool_size(model(), None, default=32) == PoolSize(32, "default")


@pytest.mark.parametrize(
    ("caps", "size"),
    [((2, 3), 5), ((2, None), 10), ((20, 30), 10), ((), 10), ((10,), 10)],
)
def test_a_pool_is_no_larger_than_its_endpoints_caps_together(
    caps: tuple[int | None, ...], size: int
) -> None:
    found = pool_size(model(max_in_flight=10, endpoints=endpoints(*caps)), None, default=32)
    assert found == PoolSize(size, "configured")


def test_the_cap_of_a_disabled_endpoint_does_not_count() -> None:
    one, two = endpoints(2, None)
    off = EndpointPolicy(two.id, two.url, enabled=False)
    assert pool_size(model(endpoints=(one, off)), None, default=32).size == 2


def test_an_endpoint_that_is_down_takes_its_cap_with_it_while_another_is_there() -> None:
    found = model(max_in_flight=10, endpoints=endpoints(2, 3, None))

    def size(*down: str) -> int:
        return pool_size(found, None, default=32, is_usable=lambda each: each.id not in down).size

    assert size() == size("0") == size("0", "1") == 10
    assert size("2") == 5
    assert size("1", "2") == 2
    assert size("0", "1", "2") == 10


@pytest.mark.parametrize(
    ("each", "headroom", "ready", "size"),
    [
        (8, 1.0, (None, None, None), 24),
        (8, 1.0, (None, 5), 13),
        (10, 1.1, (None,) * 10, 110),  # in floats a little more, which would be 111
        (3, 1.5, (None,), 5),
        (1, 0.1, (None,), 1),
        (8, 1.0, (), 0),
        (100_000, 10.0, (None,) * 5, 100_000),
    ],
)
def test_a_discovered_size_is_slots_times_headroom_rounded_up(
    each: int, headroom: float, ready: tuple[int | None, ...], size: int
) -> None:
    assert discovered(capacity(each, headroom), ready) == size


@pytest.mark.parametrize("source", CapacitySource)
def test_an_answer_makes_the_size_and_says_where_it_is_from(source: CapacitySource) -> None:
    asked = model(max_in_flight=99, capacity=capacity(8, source=source))
    fresh = pool_size(asked, Answer((None, None)), default=32)
    assert fresh == PoolSize(16, f"discovered:{source}")
    stale = pool_size(asked, Answer((None, None), is_stale=True), default=32)
    assert stale == PoolSize(16, f"discovered:{source}:stale")
    assert pool_size(asked, Answer(()), default=32).size == 0


def test_without_any_answer_ever_it_is_as_configured_or_the_default() -> None:
    assert pool_size(model(max_in_flight=9, capacity=capacity()), None, default=32) == PoolSize(
        9, "configured"
    )
    assert pool_size(model(capacity=capacity()), None, default=32) == PoolSize(32, "default")
