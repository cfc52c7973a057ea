"""Queues in order of arrival, by request number: first in, first out, and whoever leaves is taken
out of the middle."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

T = TypeVar("T")


def put_back(queue: OrderedDict[int, T], request: int, item: T) -> None:
    """Put a request that was taken out back in its place. Passes over those that are older."""
    older = []
    while queue and next(iter(queue)) < request:
        older.append(queue.popitem(last=False))
    for number, each in ((request, item), *reversed(older)):
        queue[number] = each
        queue.move_to_end(number, last=False)
