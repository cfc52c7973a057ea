"""The table of faults, and the four places it is read from."""

from __future__ import annotations

import dataclasses

import pytest

from obleth.backend.switches import (
    SWITCHES,
    BadSwitch,
    Faults,
    from_headers,
    from_model_name,
    table,
)


def test_every_fault_has_its_row_in_the_table_and_every_row_its_fault() -> None:
    fields = {field.name for field in dataclasses.fields(Faults)}
    assert {switch.field for switch in SWITCHES} == fields
    assert len(table()) == len(fields)


def test_headers_that_are_no_switches_are_left_alone() -> None:
    headers = [("x-sim-status", "500"), ("x-sim-tenant", "a"), ("x-other", "1")]
    assert from_headers(headers) == {"status": "500"}


def test_a_model_name_carries_switches_after_its_plus_sign() -> None:
    assert from_model_name("chat+status=429,retry-after=7") == {"status": "429", "retry-after": "7"}
    assert from_model_name("chat+mute") == {"mute": "1"}
    assert from_model_name("command-r+") == {}
    assert from_model_name("chat") == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "99"),
        ("status", "five"),
        ("mute", "yes"),
        ("cut", "sometimes"),
        ("first-token-ms", "-1"),
        ("first-token-ms", "nan"),
        ("write-bytes", "0"),
        ("usage", "[]"),
        ("usage", "NaN"),
        ("usage", "true"),
        ("answer-headers", "hop,others"),
        ("retry-after", "7\r\nx: y"),
        ("no-such", "1"),
    ],
)
def test_a_wrong_switch_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(BadSwitch) as caught:
        Faults().changed({name: value})
    assert f"x-sim-{name}" in str(caught.value)


@pytest.mark.parametrize("value", ["1000000000000000", "-5", "1.5", '"7"', "none", "always"])
def test_usage_can_be_any_number_or_string(value: str) -> None:
    assert Faults().changed({"usage": value}).usage == value
