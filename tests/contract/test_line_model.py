"""The order of a line, as the model has it that the contract holds to the scripts."""

from __future__ import annotations

from tests.simulation.line_model import Rank


def test_of_tenants_that_stand_alike_the_older_request_goes_first_whatever_their_keys_had() -> None:
    older = Rank("m", 0.0, ("t", "t/k"), order=(1.0, 0.0, 5.0, 100.0))
    newer = Rank("m", 500.0, ("u", "u/k"), order=(1.0, 0.0, 5.0, 0.0))
    assert older.comes_before(newer, 0)
    assert not newer.comes_before(older, 0)


def test_inside_a_tenant_the_key_that_had_less_goes_first_however_old_the_others_request() -> None:
    older = Rank("m", 0.0, ("t", "t/k"), order=(1.0, 0.0, 5.0, 100.0))
    newer = Rank("m", 500.0, ("t", "t/l"), order=(1.0, 0.0, 5.0, 0.0))
    assert newer.comes_before(older, 0)
    assert not older.comes_before(newer, 0)
