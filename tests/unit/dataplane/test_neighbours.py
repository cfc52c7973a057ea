"""What a replica makes of what the others have."""

from __future__ import annotations

import pytest

from dataplane import neighbours


@pytest.mark.parametrize("value", ["", "something else 1", "nan 1", "inf 1", "1e300 1"])
def test_a_score_that_is_none_counts_for_nothing(value: str) -> None:
    served = neighbours.served(["g:a", "t:b", "k:c"], ["12.5 3", value, None])
    assert served.groups == {"a": 12.5}
    assert served.tenants == {"b": 0.0}
    assert served.keys == {"c": 0.0}
