"""The live state as `obleth top` draws it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dataplane.live.assembly import assemble
from obleth.console.picture import drawn
from tests.live.views import pool, replica, tenant

BUSY = pool(8, tenant("a-tenant", 8, 12), tenant("other", 0, 3))


def lines(width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(drawn(assemble(replica(BUSY)), width))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [44, 60, 80, 160])
def test_who_waits_and_why_is_told_in_any_width(width: int) -> None:
    told = lines(width)
    assert max(map(len, told)) <= width
    (titles,) = [line.split() for line in told if "tenant" in line.split()]
    assert {"running", "waiting", "waits", "for"} <= set(titles)
    (row,) = [line.split() for line in told if line.startswith("  a")]
    assert {"8", "12"} <= set(row)
    assert row[-1] == "ahead_of_share"


def test_a_wide_terminal_has_shares_and_scores_too() -> None:
    (titles,) = [line.split() for line in lines(80) if "tenant" in line.split()]
    assert titles[:-2] == ["tenant", "group", "running", "held", "waiting", "fair", "score"]
