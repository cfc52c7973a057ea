"""Which term it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.budgets.terms import Scope, TermCount, limits_of
from shared.policy import Budget, BudgetPeriod
from tests.budgets.world import key, tenant

NOW = datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC).timestamp()


def starts(budget: Budget, now: float = NOW) -> datetime:
    (limit,) = limits_of(key(of=tenant(budget=budget)), now)
    return datetime.fromtimestamp(limit.term.starts_ms / 1000, UTC)


@pytest.mark.parametrize(
    ("budget", "start"),
    [
        (Budget(1, BudgetPeriod.DAY), datetime(2028, 2, 29, tzinfo=UTC)),
        (Budget(1, BudgetPeriod.MONTH), datetime(2028, 2, 1, tzinfo=UTC)),
        (Budget(1, BudgetPeriod.DAY, 5.0), datetime(2028, 2, 29, tzinfo=UTC)),
        (Budget(1, BudgetPeriod.TERM), datetime(1970, 1, 1, tzinfo=UTC)),
        (Budget(1, BudgetPeriod.TERM, 86_400.25), datetime(1970, 1, 2, 0, 0, 0, 250_000, UTC)),
        (Budget(1, BudgetPeriod.LIFETIME, 86_400.0), datetime(1970, 1, 2, tzinfo=UTC)),
    ],
)
def test_a_term_starts_where_its_period_says(budget: Budget, start: datetime) -> None:
    assert starts(budget) == start


def test_a_key_without_budgets_counts_against_none() -> None:
    assert list(limits_of(key(), NOW)) == []


def test_the_tenants_and_the_keys_budget_are_counted_apart() -> None:
    both = key("k", of=tenant("t", budget=Budget(10)), budget=Budget(5))
    limits = [(one.term.scope, one.term.subject_id, one.tokens) for one in limits_of(both, NOW)]
    assert limits == [(Scope.TENANT, "t", 10), (Scope.KEY, "k", 5)]


@given(st.floats(min_value=0, max_value=4e9))
def test_a_calendar_term_began_no_later_than_now_and_less_than_its_length_ago(now: float) -> None:
    assert 0 <= now - starts(Budget(1, BudgetPeriod.DAY), now).timestamp() < 86_400
    assert 0 <= now - starts(Budget(1, BudgetPeriod.MONTH), now).timestamp() < 31 * 86_400


@given(
    budget=st.integers(min_value=0, max_value=10_000),
    requests=st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=3000), st.integers(min_value=-500, max_value=500)
        ),
        max_size=40,
    ),
    running_max=st.integers(min_value=1, max_value=10),
)
def test_a_term_is_overrun_by_no_more_than_the_estimates_were_wrong(
    budget: int, requests: list[tuple[int, int]], running_max: int
) -> None:
    count, running, error_sum = TermCount(), [], 0
    for estimate, error in requests:
        if count.allows(estimate, budget):
            count.reserve(estimate)
            running.append((estimate, max(0, estimate + error)))
        if len(running) >= running_max:
            estimate, actual = running.pop(0)
            count.settle(estimate, actual)
            error_sum += max(0, actual - estimate)
        assert count.committed + count.reserved <= budget + error_sum
    for estimate, actual in running:
        count.settle(estimate, actual)
        error_sum += max(0, actual - estimate)
    assert count.reserved == 0
    assert count.committed <= budget + error_sum


def test_a_reservation_settled_twice_is_a_broken_invariant() -> None:
    count = TermCount()
    count.reserve(10)
    count.settle(10, 5)
    with pytest.raises(AssertionError, match="twice"):
        count.settle(10, 5)
