"""Whether an endpoint is healthy. Pure: signs and the time in, a record out.

Signs are of two kinds. Checks are the prober's own calls; calls are requests of clients, whose
failures are noticed sooner but may be theirs. Each kind is counted by itself, since an endpoint may
list its models and fail at every completion, and the one must not hide the other.

* The first sign decides for an endpoint nobody knows: a passed check or an answered call makes it
  healthy, a failed check unhealthy.
* A healthy one becomes unhealthy by `FAILURES` failures of one kind in a row.
* An unhealthy one becomes healthy by `SUCCESSES` good signs in a row of either kind, and not before
  `REST_SECS` have passed. It is then on probation: the next call that fails sends it back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Final, assert_never

FAILURES: Final = 3
SUCCESSES: Final = 2
REST_SECS: Final = 10.0


class Health(StrEnum):
    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Sign(Enum):
    """What was seen of an endpoint."""

    CHECK_PASSED = "check passed"
    CHECK_FAILED = "check failed"
    CALL_ANSWERED = "call answered"
    CALL_FAILED = "call failed"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one endpoint."""

    health: Health = Health.UNKNOWN
    since: float = 0.0
    """When it last became what it is, in seconds of the clock that `after` is given."""
    failed_checks: int = 0
    failed_calls: int = 0
    """In a row, by kind."""
    successes: int = 0
    """In a row, while unhealthy."""


def after(record: Record, sign: Sign, now: float) -> Record:
    """The record once `sign` was seen at `now`."""
    match sign:
        case Sign.CHECK_PASSED:
            return _better(replace(record, failed_checks=0), now)
        case Sign.CALL_ANSWERED:
            if record.health is Health.HEALTHY and not record.failed_checks + record.failed_calls:
                return record  # as nearly always
            return _better(replace(record, failed_checks=0, failed_calls=0), now)
        case Sign.CHECK_FAILED:
            return _worse(replace(record, failed_checks=record.failed_checks + 1), now)
        case Sign.CALL_FAILED:
            return _worse(replace(record, failed_calls=record.failed_calls + 1), now)
        case _:
            assert_never(sign)


def _better(record: Record, now: float) -> Record:
    match record.health:
        case Health.HEALTHY:
            return record
        case Health.UNKNOWN:
            return replace(record, health=Health.HEALTHY, since=now)
        case Health.UNHEALTHY:
            record = replace(record, successes=record.successes + 1)
            if record.successes < SUCCESSES or now - record.since < REST_SECS:
                return record
            return Record(Health.HEALTHY, now, failed_calls=min(record.failed_calls, FAILURES - 1))
        case _:
            assert_never(record.health)


def _worse(record: Record, now: float) -> Record:
    record = replace(record, successes=0)
    if record.health is Health.UNHEALTHY:
        return record
    unheard_of = record.health is Health.UNKNOWN and record.failed_checks > 0
    if unheard_of or max(record.failed_checks, record.failed_calls) >= FAILURES:
        return replace(record, health=Health.UNHEALTHY, since=now)
    return record
