"""Which endpoint is called."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from dataplane.proxy.endpoint_choice import EndpointChoice
from shared.policy import EndpointPolicy, LoadBalancing


def endpoint(id: str, **fields: object) -> EndpointPolicy:
    return EndpointPolicy(id=id, url=f"http://{id}", **fields)  # type: ignore[arg-type]


def ids(endpoints: list[EndpointPolicy]) -> str:
    return "".join(each.id for each in endpoints)


def test_failover_goes_by_priority_and_leaves_out_what_is_disabled() -> None:
    endpoints = [endpoint("b", priority=2), endpoint("x", enabled=False), endpoint("a", priority=1)]
    choice = EndpointChoice()
    assert ids(choice.order(endpoints, LoadBalancing.FAILOVER)) == "ab"
    assert ids(choice.order(endpoints, LoadBalancing.FAILOVER)) == "ab"
    assert choice.order([], LoadBalancing.FAILOVER) == []


def test_round_robin_gives_each_its_part_by_weight_spread_out() -> None:
    endpoints = [endpoint("a", weight=300), endpoint("b", weight=100)]
    choice = EndpointChoice()
    orders = [ids(choice.order(endpoints, LoadBalancing.ROUND_ROBIN)) for _ in range(8)]
    assert [order[0] for order in orders] == list("aabaaaba")
    assert Counter(order[0] for order in orders) == {"a": 6, "b": 2}
    assert {len(order) for order in orders} == {2}


def test_round_robin_turns_only_among_the_first_to_be_tried() -> None:
    endpoints = [endpoint("a"), endpoint("b"), endpoint("z", priority=1)]
    choice = EndpointChoice()
    orders = [ids(choice.order(endpoints, LoadBalancing.ROUND_ROBIN)) for _ in range(4)]
    assert orders == ["abz", "baz", "abz", "baz"]


def test_least_in_flight_looks_at_what_runs_and_at_weights() -> None:
    endpoints = [endpoint("a"), endpoint("b", weight=200)]
    choice = EndpointChoice()
    with choice.calling(endpoints[0]):
        assert ids(choice.order(endpoints, LoadBalancing.LEAST_IN_FLIGHT)) == "ba"
        with ExitStack() as calls:
            for _ in range(3):
                calls.enter_context(choice.calling(endpoints[1]))
            assert ids(choice.order(endpoints, LoadBalancing.LEAST_IN_FLIGHT)) == "ab"
    assert choice.in_flight("a") == choice.in_flight("b") == 0
    assert not choice._in_flight


def test_an_endpoint_at_its_cap_goes_behind_all_that_have_room() -> None:
    endpoints = [endpoint("a", max_in_flight=1), endpoint("b"), endpoint("z", priority=1)]
    choice = EndpointChoice()
    with choice.calling(endpoints[0]):
        assert ids(choice.order(endpoints, LoadBalancing.FAILOVER)) == "bza"
    assert ids(choice.order(endpoints, LoadBalancing.FAILOVER)) == "abz"


@pytest.mark.parametrize("balancing", LoadBalancing)
def test_an_unhealthy_endpoint_goes_behind_every_healthy_one(balancing: LoadBalancing) -> None:
    endpoints = [endpoint("a"), endpoint("b", max_in_flight=1), endpoint("z", priority=9)]
    ill = {"a"}
    choice = EndpointChoice(lambda each: each.id not in ill)
    assert ids(choice.order(endpoints, balancing)) == "bza"
    with choice.calling(endpoints[1]):
        assert ids(choice.order(endpoints, balancing)) == "zba"


def test_with_none_healthy_all_are_tried_in_the_order_they_always_have() -> None:
    endpoints = [endpoint("z", priority=1), endpoint("a"), endpoint("b")]
    choice = EndpointChoice(lambda each: False)
    assert ids(choice.order(endpoints, LoadBalancing.FAILOVER)) == "abz"
    firsts = [ids(choice.order(endpoints, LoadBalancing.ROUND_ROBIN))[0] for _ in range(4)]
    assert firsts == list("abab")


def test_round_robin_turns_among_the_healthy_and_takes_in_who_comes_back() -> None:
    endpoints = [endpoint("a"), endpoint("b"), endpoint("c")]
    ill = {"b"}
    choice = EndpointChoice(lambda each: each.id not in ill)
    firsts = [ids(choice.order(endpoints, LoadBalancing.ROUND_ROBIN))[0] for _ in range(4)]
    assert firsts == list("acac")
    ill.clear()
    firsts = [ids(choice.order(endpoints, LoadBalancing.ROUND_ROBIN))[0] for _ in range(9)]
    assert Counter(firsts) == {"a": 3, "b": 3, "c": 3}
