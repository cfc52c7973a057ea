"""Shares against the worked examples, a naive second writing, and each other."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.scheduler.shares import Shares
from shared.policy import split

WEIGHTS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.one_of(st.sampled_from([1, 50, 100, 500]), st.integers(1, 1_000_000)),
    min_size=1,
    max_size=24,
)


@pytest.mark.parametrize(
    ("slots", "weights", "expected"),
    [
        (8, {"chatbot": 500, "api": 50}, {"chatbot": 7, "api": 1}),
        (8, {"a": 100, "b": 100}, {"a": 4, "b": 4}),
        (10, {"a": 300, "b": 100}, {"a": 8, "b": 2}),
        (10, {"b": 300, "a": 100}, {"b": 7, "a": 3}),
        (4, {"a": 1000, "b": 1}, {"a": 3, "b": 1}),
        (2, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 0}),
        (1, {"a": 1, "b": 3}, {"a": 0, "b": 1}),
        (0, {"a": 1, "b": 3}, {"a": 0, "b": 0}),
        (5, {"a": 7}, {"a": 5}),
        (10, {"a": 1000, "b": 30, "c": 30, "d": 30}, {"a": 7, "b": 1, "c": 1, "d": 1}),
    ],
)
def test_the_worked_examples_come_out_as_stated(
    slots: int, weights: dict[str, int], expected: dict[str, int]
) -> None:
    assert split(slots, weights) == expected


def naive(slots: int, weights: dict[str, int]) -> dict[str, int]:
    """The rule once more with fractions and repeated passes, as one would do it on paper."""
    fixed: set[str] = set()
    while True:
        rest = {n: w for n, w in weights.items() if n not in fixed}
        left = slots - len(fixed)
        quota = {n: Fraction(left * w, sum(rest.values())) for n, w in rest.items()}
        small = {n for n, q in quota.items() if q < 1}
        if len(weights) > slots or not small:
            break
        fixed |= small
    shares = dict.fromkeys(fixed, 1) | {n: int(q) for n, q in quota.items()}
    order = sorted(quota, key=lambda n: (-(quota[n] - int(quota[n])), n))
    for n in order[: slots - sum(shares.values())]:
        shares[n] += 1
    return shares


@given(st.integers(0, 40), WEIGHTS)
def test_split_agrees_with_the_rule_done_on_paper(slots: int, weights: dict[str, int]) -> None:
    assert split(slots, weights) == naive(slots, weights)


@given(st.integers(0, 40), WEIGHTS)
def test_parts_add_up_and_nobody_is_left_out_where_there_is_room(
    slots: int, weights: dict[str, int]
) -> None:
    shares = split(slots, weights)
    assert sum(shares.values()) == slots
    if len(weights) <= slots:
        assert min(shares.values()) >= 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), WEIGHTS, WEIGHTS)
def test_the_fast_answer_is_the_definition_while_members_come_and_go(
    sizes: list[int], first: dict[str, int], second: dict[str, int]
) -> None:
    shares = Shares()
    for name, weight in first.items():
        shares.add(weight, name)
    for members, others in ((first, {}), (second, first)):
        for name, weight in others.items():
            shares.remove(weight, name)
        for name, weight in members.items():
            if others:
                shares.add(weight, name)
        for slots in sizes:
            expected = split(slots, members)
            answered = {n: shares.of(w, n, slots) for n, w in members.items()}
            assert answered == expected
            for n, w in members.items():
                for occupied in range(expected[n] + 3):
                    under = occupied == 0 or occupied < expected[n]
                    assert shares.under(w, n, slots, occupied) is under
