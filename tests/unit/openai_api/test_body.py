"""Bodies: what is refused, what is read, and what is spliced in."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.fields import is_plain
from dataplane.errors import BadRequest
from dataplane.openai_api.body import CONTAINERS_MAX, DEPTH_MAX, LARGE_NUMBERS_MAX, parse

X = b'{"model":"m","x":'


def refusal(text: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as raised:
        parse(text)
    return raised.value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"7",
        b"not json",
        b'{"model":"m"} {}',
        b"\xef\xbb\xbf" + X + b"1}",
        (X + b"1}").decode().encode("utf-16"),
        (X + b"1}").decode().encode("utf-16-le"),
        X + b"NaN}",
        X + b"Infinity}",
        X + b'"\xff"}',
        X + b'["\xed\xa0\x80"]}',
        X + b'"\\ud800"}',
        X + b'["\\udc00 and more text"]}',
        X + b"[" * 10_000 + b"]" * 10_000 + b"}",
        X + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
        X + b"[" * 100_000,
        X + b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1) + b"}",
        X + b'["[\\"",' + b'{"a":[' * 200 + b"]}" * 200 + b"]}",
        X + b"9" * 5000 + b"}",
        X + b"[-0." + b"9" * 5000 + b"]}",
        X + b"1e" + b"9" * 5000 + b"}",
        X + b'["' + b"9" * 5000 + b'", ' + b"9" * 401 + b"]}",
        X + b"1e999}",
        X + b"-1E+309}",
        X + b"1.8e308}",
        X + b"9" * 308 + b"." + b"9" * 308 + b"e1}",
        X + b'[1e308, "\\"", {"y": [1e0000000309]}]}',
        X + b"9" * 309 + b"}",
    ],
)
def test_what_is_no_sane_json_object_is_refused_as_such(text: bytes) -> None:
    assert (refusal(text).status, refusal(text).code) == (400, "invalid_json")


@pytest.mark.parametrize(
    "value",
    [
        b'"' + b"[" * 10_000 + b'"',
        b'"\\"' + b"{" * 10_000 + b'\\\\"',
        b'"' + b"9" * 5000 + b'"',
        b'["\\\\", "' + b"9" * 5000 + b'"]',
        b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1),
        b"[" + b"[]," * 1000 + b"[]]",
        b"1" * 300,
        b"9" * 308,
        b'["1e999", "\\"1e+999", 1e308, -1.7E+308, 1e-999, 0e999, true]',
        b'"' + b"deadbeef1e999" * 1000 + b'"',
        '"🙂é\u2028"'.encode(),
        b'"\\ud83d\\ude42"',
    ],
)
def test_what_only_looks_absurd_passes(value: bytes) -> None:
    text = X + value + b"}"
    assert parse(text).with_model("m", asks_usage=False) is text


@pytest.mark.parametrize(
    "text",
    [
        rb'{"model":"\ud800"}',
        rb'{"model":"\udc00"}',
        rb'{"model":"m","x":["\\\ud83d and \n"]}',
        rb'{"model":"m","x":"\ud83d\ud83d\ude42"}',
        rb'{"model":"m","\uDBFF":1}',
    ],
)
def test_a_lone_surrogate_is_called_that(text: bytes) -> None:
    assert refusal(text).code == "invalid_json"
    assert "lone surrogate" in str(refusal(text))


@pytest.mark.parametrize(
    "text",
    [
        b'{"model":"m',
        rb'{"model":"\ud83d\ude42',
        rb'{"model":"\ud83d\u',
        rb'{"model":"\ud83d',
        rb'{"model":"\\ud800"',
    ],
)
def test_a_body_that_was_cut_off_is_called_that(text: bytes) -> None:
    assert "truncated" in str(refusal(text))


def test_very_large_numbers_are_looked_at_up_to_a_count() -> None:
    assert parse(X + b"[" + b"1e307," * LARGE_NUMBERS_MAX + b"1]}").model == "m"
    assert refusal(X + b"[" + b"1e307," * LARGE_NUMBERS_MAX + b"1e307]}").code == "invalid_json"


def test_a_million_arrays_are_too_many() -> None:
    assert refusal(X + b"[" + b"[]," * CONTAINERS_MAX + b"1]}").code == "invalid_json"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (b'{"model":"a","model":"a"}', "model"),
        (b'{"model":"a","x":[1,2],"m\\u006fdel":"b"}', "model"),
        (b'{"model":"a","Model":"b"}', "model"),
        (b'{"MODEL":"a","model":"b"}', "model"),
        (b'{"model":"a","stream":true,"stream":false}', "stream"),
    ],
)
def test_a_key_given_twice_is_refused(text: bytes, param: str) -> None:
    assert (refusal(text).code, refusal(text).param) == ("duplicate_key", param)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"null", "missing_model"),
        (b'""', "missing_model"),
        (b"7", "invalid_model"),
        (b'["m"]', "invalid_model"),
        (b'"a\\r\\nset-cookie: x=1"', "invalid_model"),
        (b'"a\\u0000"', "invalid_model"),
        (b'"' + b"m" * 257 + b'"', "invalid_model"),
    ],
)
def test_a_model_that_cannot_be_one_is_refused(value: bytes, code: str) -> None:
    assert refusal(b'{"model":' + value + b"}").code == code


def test_a_body_without_a_model_is_refused() -> None:
    assert refusal(b"{}").code == "missing_model"
    assert refusal(b'{"Model":"m"}').code == "missing_model"


def test_a_model_may_have_any_printable_name() -> None:
    assert parse('{"model":"模型/é:1"}'.encode()).model == "模型/é:1"


def test_every_name_that_can_be_registered_can_be_asked_for() -> None:
    for char in map(chr, (*range(0x20, 0x3100), 0xE000, 0xFEFF, 0xFFFD, 0x1F642, 0xE0001)):
        name = f"m{char}n"
        text = json.dumps({"model": name}).encode()
        if is_plain(name):
            assert parse(text).model == name
        else:
            assert refusal(text).code == "invalid_model"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"model":"m"}', b'{"model":"new"}'),
        (b'{"model" : "\\u006d" , "x":1}', b'{"model" : "new" , "x":1}'),
        (
            b' {"a":"\\"model\\":\\"m\\"", "model":\t"m","z":{"model":"m"}}\n',
            b' {"a":"\\"model\\":\\"m\\"", "model":\t"new","z":{"model":"m"}}\n',
        ),
    ],
)
def test_the_models_name_is_spliced_in_and_nothing_else_is_touched(
    text: bytes, expected: bytes
) -> None:
    assert parse(text).with_model("new", asks_usage=False) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, {"include_usage": True}),
        ("null", {"include_usage": True}),
        ('{"include_usage":false}', {"include_usage": True}),
        ('{"include_obfuscation":false}', {"include_obfuscation": False, "include_usage": True}),
    ],
)
def test_the_wish_for_usage_is_added_to_what_the_client_wishes(
    options: str | None, expected: dict[str, bool]
) -> None:
    text = b'{"model":"m","stream":true' + (
        b"}" if options is None else b',"stream_options":%b}' % options.encode()
    )
    body = parse(text)
    assert body.is_usage_option_open
    sent = msgspec.json.decode(body.with_model("n", asks_usage=True))
    assert sent == {"model": "n", "stream": True, "stream_options": expected}


def test_whether_the_client_asks_for_usage_itself_is_known() -> None:
    assert parse(b'{"model":"m","stream_options":{"include_usage":true}}').includes_usage
    assert not parse(b'{"model":"m","stream_options":{"include_usage":1}}').includes_usage
    assert not parse(b'{"model":"m","stream_options":7}').is_usage_option_open


def test_fields_are_read_leniently() -> None:
    body = parse(b'{"model":"m","a":"s","b":7,"c":true,"d":{"e":"f"},"g":1e99,"h":1.5}')
    assert (body.string("a"), body.string("b"), body.string("z")) == ("s", None, None)
    assert (body.whole_number("b"), body.whole_number("g"), body.whole_number("h")) == (
        7,
        None,
        None,
    )
    assert (body.is_true("c"), body.is_true("b")) == (True, False)
    assert (list(body.object("d")), body.object("a")) == (["e"], {})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=50)
@given(
    st.dictionaries(st.text().filter(lambda name: name.lower() != "model"), _JSON),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_whatever_else_a_body_has_arrives_as_it_was(
    others: dict[str, object], asks_usage: bool, ascii_only: bool, indent: int | None
) -> None:
    others.pop("stream_options", None)
    text = json.dumps({**others, "model": "m", "z": 1}, ensure_ascii=ascii_only, indent=indent)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return
    sent = json.loads(parse(encoded).with_model("other", asks_usage=asks_usage))
    if asks_usage:
        assert sent.pop("stream_options") == {"include_usage": True}
    assert sent == {**others, "model": "other", "z": 1}
