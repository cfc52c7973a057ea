"""Whether this replica should be sent requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class PolicyState(Protocol):
    """What is needed of the policy cache."""

    @property
    def loaded(self) -> bool: ...

    @property
    def schema_problem(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready when nothing stands in the way. The mode is told, never judged: a replica on its own
    keeps serving.
    """

    mode: str
    problems: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.problems


def assess(policy: PolicyState, *, mode: str, is_draining: bool) -> Readiness:
    """How it stands. A database that went away after policy was loaded is no problem."""
    problems = []
    if not policy.loaded:
        problems.append("policy has not been loaded yet")
    if policy.schema_problem is not None:
        problems.append(policy.schema_problem)
    if is_draining:
        problems.append("shutting down")
    return Readiness(mode, tuple(problems))


Assess = Callable[[], Readiness]
