"""What states are called on the pages, and what they mean."""

from __future__ import annotations

from typing import Final, NamedTuple


class Mode(NamedTuple):
    name: str
    consequence: str
    is_good: bool


class Cause(NamedTuple):
    name: str
    meaning: str
    tone: str
    """Of its badge: `bad`, `warn`, `good` or `calm`."""


MODES: Final = {
    "shared": Mode(
        "Shared",
        "Slots are counted in Redis for all replicas together: configured limits hold for the"
        " fleet, wherever requests arrive.",
        True,
    ),
    "fallback": Mode(
        "Fallback",
        "Redis is away or this replica is not reconciled yet. Until then each replica enforces"
        " its part of every limit, rounded up, so a little more may run than configured; or the"
        " whole of it, where replicas are told not to count each other.",
        False,
    ),
    "split": Mode(
        "Split",
        "Shared slots are off: each replica enforces its part of every limit, rounded up.",
        True,
    ),
    "local": Mode(
        "Local",
        "This replica counts its own slots and enforces the configured limits by itself.",
        True,
    ),
}
CAUSES: Final = {
    "at_tenant_cap": Cause(
        "Tenant cap", "The tenant runs as much as its max_in_flight allows in this pool.", "warn"
    ),
    "at_key_cap": Cause(
        "Key cap", "Each waiting key runs as much as its max_in_flight allows in this pool.", "warn"
    ),
    "pool_full": Cause("Pool full", "Every slot of the pool is taken.", "warn"),
    "global_ceiling": Cause(
        "Global ceiling", "All pools together run as much as the gateway allows.", "warn"
    ),
    "below_share": Cause(
        "Below share",
        "Holds fewer slots than its fair share while another holds at least one more than its own."
        " It is first in line as those finish.",
        "bad",
    ),
    "ahead_of_share": Cause(
        "Ahead of share", "Runs its share or more; others under theirs go first.", "calm"
    ),
    "passed_by_warm_session": Cause(
        "Warm session first",
        "A request of the same key that continues a session goes ahead.",
        "calm",
    ),
    "no_ready_backend": Cause("No ready backend", "No endpoint of the model is ready.", "bad"),
    "idle": Cause("Idle", "Nothing waits.", "good"),
}

AFFINITY: Final = {
    "warm": "Warm steps went ahead",
    "hold": "Slots held",
    "redeem": "Held slots taken",
    "expire": "Holds run out",
    "refused": "Holds not made, for a limit",
    "freed_starving": "Holds freed for who waits",
}
"""What session affinity does, by event."""


def mode(name: str) -> Mode:
    return MODES.get(name) or Mode(name, "This dashboard does not know the mode.", False)


def cause(name: str) -> Cause:
    return CAUSES.get(name) or Cause(name, "This dashboard does not know the cause.", "calm")
