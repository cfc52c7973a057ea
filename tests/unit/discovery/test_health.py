"""What signs mean for an endpoint's health."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.discovery.health import (
    FAILURES,
    REST_SECS,
    SUCCESSES,
    Health,
    Record,
    Sign,
    after,
)

PASSED, FAILED = Sign.CHECK_PASSED, Sign.CHECK_FAILED
ANSWERED, BROKEN = Sign.CALL_ANSWERED, Sign.CALL_FAILED
LATER = REST_SECS + 1


def seen(*signs: Sign, record: Record = Record(), now: float = 0.0) -> Record:  # noqa: B008
    return reduce(lambda known, sign: after(known, sign, now), signs, record)


HEALTHY = seen(PASSED)
ILL = seen(*[FAILED] * FAILURES, record=HEALTHY)


@pytest.mark.parametrize(
    ("sign", "health"),
    [
        (PASSED, Health.HEALTHY),
        (ANSWERED, Health.HEALTHY),
        (FAILED, Health.UNHEALTHY),
        (BROKEN, Health.UNKNOWN),
    ],
)
def test_the_first_sign_decides_but_for_a_single_call(sign: Sign, health: Health) -> None:
    assert seen(sign).health is health


@pytest.mark.parametrize("failing", [FAILED, BROKEN])
def test_a_healthy_endpoint_goes_after_failures_in_a_row(failing: Sign) -> None:
    almost = seen(*[failing] * (FAILURES - 1), record=HEALTHY)
    assert almost.health is Health.HEALTHY
    assert seen(failing, record=almost).health is Health.UNHEALTHY
    spared = seen(ANSWERED, *[failing] * (FAILURES - 1), record=almost)
    assert spared.health is Health.HEALTHY


def test_checks_that_pass_do_not_hide_calls_that_fail() -> None:
    assert seen(*[BROKEN, PASSED] * FAILURES, record=HEALTHY).health is Health.UNHEALTHY


def test_an_answered_call_outweighs_checks_that_fail() -> None:
    assert seen(*[FAILED, ANSWERED] * 9, record=HEALTHY).health is Health.HEALTHY


def test_an_unhealthy_endpoint_comes_back_after_successes_in_a_row_and_a_rest() -> None:
    assert seen(*[PASSED] * 9, record=ILL, now=REST_SECS / 2).health is Health.UNHEALTHY
    almost = seen(*[PASSED] * (SUCCESSES - 1), record=ILL, now=LATER)
    assert almost.health is Health.UNHEALTHY
    assert seen(PASSED, record=almost, now=LATER).health is Health.HEALTHY
    again = seen(FAILED, *[PASSED] * (SUCCESSES - 1), record=almost, now=LATER)
    assert again.health is Health.UNHEALTHY


def test_who_went_by_calls_is_on_probation_when_it_comes_back() -> None:
    gone = seen(*[BROKEN] * FAILURES, record=HEALTHY)
    back = seen(*[PASSED] * SUCCESSES, record=gone, now=LATER)
    assert back.health is Health.HEALTHY
    assert seen(BROKEN, record=back, now=LATER).health is Health.UNHEALTHY
    proven = seen(ANSWERED, BROKEN, record=back, now=LATER)
    assert proven.health is Health.HEALTHY


def test_it_is_known_since_when_it_is_so() -> None:
    assert (HEALTHY.since, seen(PASSED, record=HEALTHY, now=5).since) == (0.0, 0.0)
    back = seen(*[PASSED] * SUCCESSES, record=ILL, now=LATER)
    assert back.since == LATER


@given(st.lists(st.tuples(st.sampled_from(Sign), st.floats(0, 5)), max_size=60))
def test_health_never_changes_on_less_than_it_takes(steps: list[tuple[Sign, float]]) -> None:
    record, now = Record(), 0.0
    history: list[Sign] = []
    for sign, pause in steps:
        now += pause
        history.append(sign)
        before, record = record, after(record, sign, now)
        if before.health is Health.HEALTHY and record.health is Health.UNHEALTHY:
            assert sign in (FAILED, BROKEN)
        if before.health is Health.UNHEALTHY and record.health is Health.HEALTHY:
            assert set(history[-SUCCESSES:]) <= {PASSED, ANSWERED}
            assert now - before.since >= REST_SECS
        assert record.health is not Health.UNKNOWN or set(history) <= {BROKEN}
