"""What simulated lives came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """What lives came to, summed up."""

    seeds: int = 0
    secs: float = 0.0
    requests: int = 0
    entries: int = 0
    grants: int = 0
    checks: int = 0
    scripts: int = 0
    starts: int = 0
    slowest_recovery: float = 0.0
    digest: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        for name in (
            "seeds",
            "secs",
            "requests",
            "entries",
            "grants",
            "checks",
            "scripts",
            "starts",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest_recovery = max(self.slowest_recovery, other.slowest_recovery)
        self.digest ^= other.digest
        self.faults += other.faults
        self.ends += other.ends

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return (
            f"{self.seeds} seeds, {self.secs / 3600:.1f} hours of {self.starts} replicas,"
            f" {self.requests} requests ({ends}); {self.scripts} scripts run,"
            f" {self.grants} grants on the books, {self.entries} requests run, each within"
            f" {self.checks} limits checked; slowest recovery {self.slowest_recovery:.1f} s;"
            f" faults: {faults}"
        )
