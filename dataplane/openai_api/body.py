"""A JSON body: checked, read for the few fields the gateway needs, and passed on as it came.

Values are left undecoded. Where the gateway must change a field (the model's name, the wish for a
usage report) the new value is spliced in between the client's own bytes; nothing else is touched.

Whatever another parser could understand differently is refused here, so that the request which was
admitted is the request which the upstream sees: keys given twice, text that is not UTF-8, numbers
and nesting no parser should be asked to try.
"""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from itertools import accumulate
from typing import Any, Final, NoReturn

import msgspec

from dataplane.errors import BadRequest, shown

DEPTH_MAX: Final = 256
"""Levels of nesting; the deepest tool schemas in use have about thirty."""
NUMBER_CHARS_MAX: Final = 308
"""Digits in a row. With one more a number can be too large for a float."""
LARGE_NUMBERS_MAX: Final = 10_000
"""Numbers that have to be looked at one by one."""
CONTAINERS_MAX: Final = 1_000_000
MODEL_CHARS_MAX: Final = 256
_SLICE_BYTES: Final = 256 * 1024

_DIGITS: Final = b"0123456789"
_ONES_FOR_DIGITS: Final = bytes(
    0x31 if byte in _DIGITS else byte if byte in b"e+" else 0x65 if byte == 0x45 else 0x30
    for byte in range(256)
)
"""What matters about numbers is left: `1` for a digit, `e` for an exponent, and its `+`."""
_TOO_LONG: Final = b"1" * (NUMBER_CHARS_MAX + 1)
_LONG: Final = b"1" * (NUMBER_CHARS_MAX - 100)
"""Shorter numbers stay finite with an exponent of two digits."""
_LARGE_EXPONENTS: Final = (b"1e111", b"1e+111")
_EXPONENTS: Final = (b"1e1", b"1e+1")
_EXPONENT: Final = re.compile(rb"[eE]\+?[0-9]+")
_MANTISSA_CHARS_MAX: Final = 2 * NUMBER_CHARS_MAX + 1
_ONLY_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_MEMBER: Final = re.compile(rb'[ \t\r\n,]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F]|(?:\\|\\u|\\u[dD])?\Z)"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
"""Half of an escaped pair. One that stands at the very end is cut off rather than alone."""
_ASKS_USAGE: Final = b'"stream_options":{"include_usage":true}'


class _Name:
    """A key of an object. Equal to none but itself, so that one given twice is seen twice."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _name(kind: type, value: Any) -> Any:
    return kind(value)


_decode_members: Final = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_name).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_whole: Final = msgspec.json.Decoder(int).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonBody:
    """A body that has passed every check. `parse` makes them."""

    def __init__(self, text: bytes, fields: dict[str, msgspec.Raw], model: str) -> None:
        self.text: Final = text
        self.fields: Final = fields
        self.model: Final = model
        """The name the client used."""

    def string(self, name: str) -> str | None:
        """A field's value if it is a string."""
        return string_in(self.fields, name)

    def whole_number(self, name: str) -> int | None:
        """A field's value if it is a whole number."""
        raw = self.fields.get(name)
        try:
            return None if raw is None else _decode_whole(raw)
        except msgspec.DecodeError:
            return None

    def is_true(self, name: str) -> bool:
        """Whether a field's value is `true`."""
        raw = self.fields.get(name)
        return raw is not None and bytes(memoryview(raw)[:4]) == b"true"

    def object(self, name: str) -> dict[str, msgspec.Raw]:
        """A field's members if it is an object, else none."""
        return object_in(self.fields, name)

    @property
    def includes_usage(self) -> bool:
        """Whether the client asks for a usage report at the end of the stream."""
        raw = self.object("stream_options").get("include_usage")
        return raw is not None and bytes(raw) == b"true"

    @property
    def is_usage_option_open(self) -> bool:
        """Whether `stream_options` is absent, null or an object: something to be added to."""
        raw = self.fields.get("stream_options")
        return raw is None or bytes(memoryview(raw)[:1]) in (b"{", b"n")

    def with_model(self, model: str, *, asks_usage: bool) -> bytes:
        """The client's bytes, naming `model`, and asking for usage if so wished."""
        parts: list[bytes | memoryview] = []
        view = memoryview(self.text)
        after = 0
        for start, end, new in self._changes(model, asks_usage=asks_usage):
            parts += [view[after:start], new]
            after = end
        return b"".join([*parts, view[after:]]) if parts else self.text

    def _changes(self, model: str, *, asks_usage: bool) -> list[tuple[int, int, bytes]]:
        changes = {}
        if model != self.model:
            changes["model"] = msgspec.json.encode(model)
        inserted = b""
        if asks_usage and "stream_options" in self.fields:
            options: dict[str, Any] = {**self.object("stream_options"), "include_usage": True}
            changes["stream_options"] = msgspec.json.encode(options)
        elif asks_usage:
            inserted = _ASKS_USAGE + b","
        spans = self._spans(len(changes), changes)
        edits = [(start, end, changes[name]) for name, start, end in spans]
        if inserted:
            start = self.text.index(b"{") + 1
            edits.insert(0, (start, start, inserted))
        return edits

    def _spans(self, count: int, names: dict[str, bytes]) -> list[tuple[str, int, int]]:
        """Where the values of `names` stand, in order. Walks over the members before them."""
        found: list[tuple[str, int, int]] = []
        position = self.text.index(b"{") + 1
        for name, raw in self.fields.items():
            if len(found) == count:
                break
            member = _MEMBER.match(self.text, position)
            assert member is not None, "a checked body is a row of members"
            position = member.end() + len(memoryview(raw))
            if name in names:
                found.append((name, member.end(), position))
        return found


def parse(text: bytes) -> JsonBody:
    """Check and read a body. Raises `BadRequest`.

    Takes about 10 ms a megabyte: for large bodies, not to be called on the event loop.
    """
    _check_encoding(text)
    try:
        members = _decode_members(text)
    except msgspec.ValidationError:
        _refuse("The body must be a JSON object.")
    except msgspec.DecodeError as error:
        _refuse(f"The body is not valid JSON: {_reason(text, error)}.")
    except RecursionError:
        _refuse(f"The body is nested more than {DEPTH_MAX} levels deep.")
    _check_shape(text)
    fields: dict[str, msgspec.Raw] = {}
    for name, raw in members.items():
        # Some upstreams match keys without regard to case.
        key = "model" if name.text.lower() == "model" and "model" in fields else name.text
        if key in fields:
            raise BadRequest(
                f"The body has the key {shown(key)} more than once.",
                code="duplicate_key",
                param=key,
            )
        fields[key] = raw
    return JsonBody(text, fields, _model_in(fields))


def check_model(model: str) -> str:
    """A model's name as a client gave it, if it can be one. Raises `BadRequest`."""
    if not model:
        raise BadRequest("The request names no model.", code="missing_model", param="model")
    if len(model) > MODEL_CHARS_MAX or not _is_plain(model):
        raise BadRequest(
            f"`model` must be 1 to {MODEL_CHARS_MAX} characters, none of them control characters.",
            code="invalid_model",
            param="model",
        )
    return model


def _is_plain(text: str) -> bool:
    """Whether a model can be registered under `text`: what cannot be seen may stand in a name."""
    return text.isprintable() or not any(
        unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text
    )


def string_in(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    """A member's value if it is a string."""
    raw = fields.get(name)
    try:
        return None if raw is None else _decode_text(raw)
    except msgspec.DecodeError:
        return None


def object_in(fields: dict[str, msgspec.Raw], name: str) -> dict[str, msgspec.Raw]:
    """A member's members if it is an object, else none."""
    raw = fields.get(name)
    try:
        return {} if raw is None else _decode_object(raw)
    except msgspec.DecodeError:
        return {}


def _model_in(fields: dict[str, msgspec.Raw]) -> str:
    for name in fields:
        if name != "model" and name.lower() == "model":
            raise BadRequest(
                f"`model` must be written in lower case, not {shown(name)}.",
                code="missing_model" if "model" not in fields else "duplicate_key",
                param="model",
            )
    raw = fields.get("model")
    if raw is None or bytes(raw) == b"null":
        return check_model("")
    model = string_in(fields, "model")
    if model is None:
        raise BadRequest("`model` must be a string.", code="invalid_model", param="model")
    return check_model(model)


def _check_encoding(text: bytes) -> None:
    if not text:
        _refuse("The request has no body.")
    if text.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(text), _SLICE_BYTES):
            decoder.decode(text[start : start + _SLICE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        _refuse("The body is not UTF-8 text.")


def _reason(text: bytes, error: msgspec.DecodeError) -> str:
    # The decoder calls a lone surrogate by several names, "truncated" among them.
    if _LONE_SURROGATE.search(text.replace(rb"\\", b"")):
        return (
            "a string has a lone surrogate, half of a `\\ud83d\\ude42` pair, which is no character"
        )
    return str(error).removeprefix("JSON is malformed: ")


def _check_shape(text: bytes) -> None:
    """Refuse depth and numbers that parsers choke on. `text` is valid JSON.

    Most bodies pass on counts that take no look at structure. For the rest, what stands inside
    strings is taken out first: a prompt may well consist of brackets or digits.
    """
    openers = text.count(b"[") + text.count(b"{")
    if openers <= DEPTH_MAX and not _may_have_absurd_number(text):
        return
    structure = _without_strings(text)
    if _may_have_absurd_number(structure):
        _check_numbers(structure)
    brackets = structure.translate(None, _ONLY_BRACKETS)
    if len(brackets) > 2 * CONTAINERS_MAX:
        _refuse(f"The body has more than {CONTAINERS_MAX:,} arrays and objects.")
    steps = (1 if bracket in b"[{" else -1 for bracket in brackets)
    if max(accumulate(steps), default=0) > DEPTH_MAX:
        _refuse(f"The body is nested more than {DEPTH_MAX} levels deep.")


def _may_have_absurd_number(text: bytes) -> bool:
    shape = text.translate(_ONES_FOR_DIGITS)
    return _LONG in shape or any(mark in shape for mark in _LARGE_EXPONENTS)


def _check_numbers(structure: bytes) -> None:
    shape = structure.translate(_ONES_FOR_DIGITS)
    if _TOO_LONG in shape:
        _refuse(f"The body has a number of more than {NUMBER_CHARS_MAX} digits.")
    looked_at = 0
    for mark in _EXPONENTS if _LONG in shape else _LARGE_EXPONENTS:
        at = shape.find(mark)
        while at >= 0:
            looked_at += 1
            if looked_at > LARGE_NUMBERS_MAX:
                _refuse(f"The body has more than {LARGE_NUMBERS_MAX:,} very large numbers.")
            if _is_infinite(structure, at + 1):
                # Some parsers make infinity of it, which the next one cannot write.
                _refuse("The body has a number that is too large for a float.")
            at = shape.find(mark, at + len(mark))


def _is_infinite(structure: bytes, at: int) -> bool:
    """Whether the number whose exponent begins at `at` is too large for a float."""
    exponent = _EXPONENT.match(structure, at)
    assert exponent is not None, "there is a digit behind it"
    before = structure[max(0, at - _MANTISSA_CHARS_MAX) : at]
    mantissa = before[len(before.rstrip(_DIGITS + b".")) :]
    return float(mantissa + exponent[0]) == math.inf


def _without_strings(text: bytes) -> bytes:
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = []
    is_inside = 0
    for start in range(0, len(text), _SLICE_BYTES):
        # In slices: split makes an object of every piece, and there can be millions.
        pieces = text[start : start + _SLICE_BYTES].split(b'"')
        parts.append(b" ".join(pieces[is_inside::2]))
        is_inside = (is_inside + len(pieces) - 1) & 1
    return b"".join(parts)


def _refuse(message: str) -> NoReturn:
    raise BadRequest(message, code="invalid_json")
