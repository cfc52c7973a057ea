"""The health of all endpoints: told apart by place, followed through policy, shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from dataplane.discovery.endpoint_health import EndpointHealth
from dataplane.discovery.health import FAILURES, Health, Sign
from shared.policy import EndpointPolicy, ModelPolicy

E1 = EndpointPolicy("e1", "http://one/v1")
E2 = EndpointPolicy("e2", "http://two/v1")


class Known:
    def __init__(self, *endpoints: EndpointPolicy) -> None:
        self.models = [ModelPolicy("m", "m", endpoints=endpoints)]
        self.news = 0
        self.health = EndpointHealth(lambda: self.models, clock=lambda: 0.0)
        self.health.subscribe(self.heard)

    def heard(self) -> None:
        self.news += 1

    def ill(self, endpoint: EndpointPolicy) -> None:
        for _ in range(FAILURES):
            self.health.see(endpoint, Sign.CHECK_FAILED)


def test_an_endpoint_nobody_has_seen_is_unknown_and_usable() -> None:
    known = Known(E1)
    assert known.health.of(E1) is Health.UNKNOWN
    assert known.health.is_usable(E1)
    assert known.health.shown() == {}


def test_an_unhealthy_endpoint_is_not_usable_and_its_fall_is_told_once() -> None:
    known = Known(E1, E2)
    with capture_logs() as lines:
        known.ill(E1)
        known.ill(E1)
    assert not known.health.is_usable(E1)
    assert known.news == 1
    assert [line["event"] for line in lines] == ["endpoint_unhealthy"]


def test_that_no_endpoint_of_a_model_is_healthy_is_said() -> None:
    known = Known(E1, E2)
    known.ill(E1)
    with capture_logs() as lines:
        known.ill(E2)
    assert ["no_healthy_endpoint", "m"] in [[line["event"], line.get("model")] for line in lines]


@pytest.mark.parametrize(
    ("outcome", "status", "health"),
    [
        ("unreachable", None, Health.UNHEALTHY),
        ("timed_out", None, Health.UNHEALTHY),
        ("broken", None, Health.UNHEALTHY),
        ("broken", 302, Health.UNHEALTHY),
        ("refused", 502, Health.UNHEALTHY),
        ("refused", 503, Health.UNHEALTHY),
        ("refused", 504, Health.UNHEALTHY),
        ("refused", 500, Health.UNKNOWN),
        ("refused", 429, Health.UNKNOWN),
        ("refused", 529, Health.UNKNOWN),
        ("cancelled", None, Health.UNKNOWN),
        ("answered", 200, Health.HEALTHY),
        ("answered", 400, Health.HEALTHY),
    ],
)
def test_what_became_of_calls_says_how_an_endpoint_is(
    outcome: str, status: int | None, health: Health
) -> None:
    known = Known(E1)
    for _ in range(FAILURES):
        known.health.attempted(E1, outcome, status)
    assert known.health.of(E1) is health


def test_an_endpoint_at_a_new_address_or_with_a_new_key_is_unknown_again() -> None:
    known = Known(E1)
    known.ill(E1)
    assert known.health.of(replace(E1, weight=5)) is Health.UNHEALTHY
    for moved in (replace(E1, url="http://other/v1"), replace(E1, api_key="new")):
        assert known.health.of(moved) is Health.UNKNOWN
        known.models = [ModelPolicy("m", "m", endpoints=(moved,))]
        assert known.health.shown() == {}
        known.health.see(moved, Sign.CHECK_PASSED)
        assert known.health.of(moved) is Health.HEALTHY
        known.ill(E1)


def test_what_is_gone_is_forgotten_and_what_is_disabled_is_not_shown() -> None:
    known = Known(E1, E2)
    known.health.see(E1, Sign.CHECK_PASSED)
    known.ill(E2)
    assert known.health.shown() == {"e1": "healthy", "e2": "unhealthy"}
    known.models = [ModelPolicy("m", "m", endpoints=(replace(E1, enabled=False),))]
    known.health.policy_changed()
    assert known.health.shown() == {}
    assert list(known.health._records) == ["e1"]
