"""How a configured limit holds on one replica."""

from __future__ import annotations


def part(limit: int, replicas: int) -> int:
    """One replica's part of a limit that `replicas` divide among them: rounded up, at least one.

    A limit of 0 stays 0. Together the parts may exceed the limit by less than one a replica.
    """
    return -(-limit // replicas)


def part_of_cap(cap: int | None, replicas: int) -> int | None:
    """The same for a cap, which may be none."""
    return None if cap is None else part(cap, replicas)
