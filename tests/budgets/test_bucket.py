"""The arithmetic of the per-minute budget, alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.budgets.bucket import DEBT_MINUTES_MAX, UNITS_PER_TOKEN, TokenBucket, whole_secs

SIZES = st.integers(min_value=1, max_value=10**9)
TOKENS = st.integers(min_value=0, max_value=10**7)
PAUSES = st.integers(min_value=0, max_value=10**6)


def bucket(size: int, tokens: int) -> TokenBucket:
    return TokenBucket(size, tokens * UNITS_PER_TOKEN, 0)


def test_a_bucket_nobody_used_is_full() -> None:
    assert TokenBucket.full(1000, 5).remaining == 1000


def test_a_bucket_fills_continuously_and_not_by_the_minute() -> None:
    one = bucket(600, 0)
    one.advance(100, 600)
    assert one.remaining == 1
    one.advance(1050, 600)
    assert one.level == Fraction(105, 10) * UNITS_PER_TOKEN


def test_a_bucket_never_holds_more_than_its_size() -> None:
    one = bucket(600, 599)
    one.advance(3_600_000, 600)
    assert one.remaining == 600


def test_a_full_minute_refills_an_empty_bucket_to_the_token() -> None:
    one = bucket(7, 0)
    for now_ms in range(1, 60_001):
        one.advance(now_ms, 7)
    assert one.is_full


def test_the_wait_is_exactly_until_the_estimate_is_there() -> None:
    one = bucket(1000, 400)
    assert one.wait_ms(1000) == 36_000
    one.advance(35_999, 1000)
    assert one.wait_ms(1000) == 1
    one.advance(36_000, 1000)
    assert one.wait_ms(1000) == 0


def test_an_estimate_larger_than_the_bucket_passes_only_when_the_bucket_is_full() -> None:
    one = bucket(1000, 999)
    assert one.wait_ms(5000) == 60
    one.advance(60, 1000)
    assert one.wait_ms(5000) == 0
    one.take(5000)
    assert one.level == -4000 * UNITS_PER_TOKEN
    assert one.remaining == 0
    assert one.wait_ms(1000) == 5 * 60_000


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    one = TokenBucket(1000, 0, 10_000)
    one.advance(4_000, 1000)
    assert (one.level, one.at_ms) == (0, 10_000)
    one.advance(10_060, 1000)
    assert one.remaining == 1


@pytest.mark.parametrize(
    ("tokens", "size", "new_size", "left"),
    [
        (0, 1000, 5000, 0),
        (500, 1000, 5000, 2500),
        (1000, 1000, 5000, 5000),
        (1000, 1000, 10, 10),
        (500, 1000, 10, 5),
        (-300, 1000, 5000, -300),
        (-300, 1000, 10, -300),
    ],
)
def test_a_new_limit_keeps_the_fill_in_proportion_and_debts_as_they_are(
    tokens: int, size: int, new_size: int, left: int
) -> None:
    one = bucket(size, tokens)
    one.advance(0, new_size)
    assert one.level == left * UNITS_PER_TOKEN


def test_time_before_a_new_limit_is_refilled_at_the_old_one() -> None:
    one = bucket(600, 0)
    one.advance(10_000, 6000)
    assert one.remaining == 1000, "100 of 600 tokens came back, a sixth; a sixth of 6000"


def test_a_limit_moved_up_and_down_mints_nothing() -> None:
    one = bucket(1000, 123)
    for _ in range(50):
        one.advance(0, 7777)
        one.advance(0, 1000)
    assert one.remaining <= 123


@pytest.mark.parametrize(
    ("actual", "left"), [(0, 1000), (200, 800), (500, 500), (900, 100), (1500, -500)]
)
def test_settling_leaves_what_the_truth_would_have_left(actual: int, left: int) -> None:
    one = bucket(1000, 1000)
    one.take(500)
    one.correct(500, actual)
    assert one.level == left * UNITS_PER_TOKEN


def test_what_is_given_back_never_overfills() -> None:
    one = bucket(1000, 1000)
    one.take(800)
    one.advance(60_000, 1000)
    one.correct(800, 0)
    assert one.is_full


def test_no_figure_of_an_upstream_costs_more_than_an_hour_of_refill() -> None:
    one = bucket(1000, 1000)
    one.take(10)
    one.correct(10, 10**15)
    assert one.wait_ms(0) == DEBT_MINUTES_MAX * 60_000


def test_settling_forgives_nothing_of_a_debt_that_reservations_made() -> None:
    one = bucket(10, 10)
    one.take(100_000)
    before = one.level
    one.correct(100_000, 100_001)
    assert one.level == before


@pytest.mark.parametrize(
    ("wait_ms", "secs"), [(1, 1), (999, 1), (1000, 1), (1001, 2), (59_999, 60), (60_000, 60)]
)
def test_a_wait_is_told_in_whole_seconds_rounded_up(wait_ms: int, secs: int) -> None:
    assert whole_secs(wait_ms) == secs


@given(SIZES, TOKENS, TOKENS)
def test_the_stated_wait_is_the_shortest_that_lets_the_request_pass(
    size: int, taken: int, estimate: int
) -> None:
    early, late = TokenBucket.full(size, 0), TokenBucket.full(size, 0)
    early.take(taken)
    late.take(taken)
    wait_ms = early.wait_ms(estimate)
    late.advance(wait_ms, size)
    assert late.wait_ms(estimate) == 0
    if wait_ms:
        early.advance(wait_ms - 1, size)
        assert early.wait_ms(estimate) == 1


@given(SIZES, TOKENS)
def test_the_stated_reset_is_the_moment_the_bucket_is_full(size: int, taken: int) -> None:
    early, late = TokenBucket.full(size, 0), TokenBucket.full(size, 0)
    early.take(taken)
    late.take(taken)
    late.advance(early.reset_ms, size)
    assert late.is_full
    if early.reset_ms:
        early.advance(early.reset_ms - 1, size)
        assert not early.is_full


@given(
    size=st.integers(min_value=1, max_value=10_000),
    steps=st.lists(
        st.tuples(PAUSES, st.integers(min_value=0, max_value=20_000)), min_size=1, max_size=60
    ),
)
def test_what_passes_in_any_stretch_is_the_bucket_plus_its_refill_plus_the_last_excess(
    size: int, steps: list[tuple[int, int]]
) -> None:
    """With honest estimates: between any two moments no more is served than was in the bucket, came
    in, and the part of the last request that was larger than the whole bucket."""
    one = TokenBucket.full(size, 0)
    now_ms, served = 0, []
    for pause_ms, estimate in steps:
        now_ms += pause_ms
        one.advance(now_ms, size)
        if one.wait_ms(estimate) == 0:
            one.take(estimate)
            one.correct(estimate, estimate)
            served.append((now_ms, estimate))
    for first in range(len(served)):
        total = 0
        for at_ms, tokens in served[first:]:
            total += tokens
            refill = Fraction(size * (at_ms - served[first][0]), UNITS_PER_TOKEN)
            assert total <= size + refill + max(0, tokens - size)


@given(
    size=st.integers(min_value=1, max_value=10_000),
    pairs=st.lists(st.tuples(TOKENS, TOKENS, PAUSES), max_size=40),
)
def test_a_bucket_that_never_fills_up_keeps_exact_accounts(
    size: int, pairs: list[tuple[int, int, int]]
) -> None:
    """As long as it neither overflows nor is at the floor: level = start + refill - used."""
    one = TokenBucket.full(size, 0)
    one.take(10**9)
    one.level -= 60 * DEBT_MINUTES_MAX * one.capacity
    start, now_ms, used = one.level, 0, 0
    for estimate, actual, pause_ms in pairs:
        now_ms += pause_ms
        one.advance(now_ms, size)
        one.take(estimate)
        one.correct(estimate, min(actual, estimate))
        used += min(actual, estimate)
    assert one.level == start + size * now_ms - used * UNITS_PER_TOKEN


@given(
    size=st.integers(min_value=1, max_value=1000),
    errors=st.lists(st.integers(min_value=0, max_value=500), min_size=1, max_size=50),
)
def test_requests_at_once_overrun_by_no_more_than_their_estimates_were_wrong(
    size: int, errors: list[int]
) -> None:
    one = TokenBucket.full(size, 0)
    running = []
    for error in errors:
        if one.wait_ms(100) == 0 and one.remaining >= 100:
            one.take(100)
            running.append(error)
    used = 0
    for error in running:
        one.correct(100, 100 + error)
        used += 100 + error
    assert used <= size + sum(running)
