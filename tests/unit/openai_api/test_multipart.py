"""Uploads: finding the model without keeping the file."""

from __future__ import annotations

import pytest

from dataplane.errors import BadRequest
from dataplane.openai_api.multipart import (
    MODEL_BYTES_MAX,
    PART_HEADER_BYTES_MAX,
    MultipartScanner,
    boundary_of,
)

B = b"xYz"


def part(name: bytes, content: bytes, more: bytes = b"", headers: bytes = b"") -> bytes:
    head = b'Content-Disposition: form-data; name="' + name + b'"' + more + b"\r\n" + headers
    return b"--" + B + b"\r\n" + head + b"\r\n" + content + b"\r\n"


END = b"--" + B + b"--\r\n"
FILE = part(
    b"file", b"\0\r\n--\xff\r\n--xY\r\n" * 50, b'; filename="model"', b"Content-Type: a/b\r\n"
)


def scanned(text: bytes, piece: int) -> MultipartScanner:
    scanner = MultipartScanner(B)
    for at in range(0, len(text), piece):
        scanner.feed(text[at : at + piece])
    return scanner


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize(
    "text",
    [
        part(b"model", b"whisper-1") + FILE + END,
        FILE + part(b"model", b"whisper-1") + END,
        part(b"language", b"") + part(b"model", b"whisper-1") + part(b"x", b"") + END + b"more",
        b"preamble\r\n" + part(b"model", b"whisper-1") + END,
    ],
)
def test_the_model_is_found_wherever_it_stands_and_however_it_is_cut(
    text: bytes, piece: int
) -> None:
    scanner = scanned(text, piece)
    assert scanner.model is not None
    assert scanner.model.value == b"whisper-1"
    assert text[scanner.model.start : scanner.model.end] == b"whisper-1"
    assert scanner.is_complete
    assert scanner._rest == b""


@pytest.mark.parametrize("piece", [1, 100_000])
def test_an_empty_model_is_found_too(piece: int) -> None:
    scanner = scanned(part(b"model", b"") + END, piece)
    assert scanner.model is not None
    assert scanner.model.value == b""


def test_a_file_called_model_and_an_upload_without_one_have_none() -> None:
    assert scanned(FILE + END, 10).model is None
    assert scanned(b"--" + B + b"--\r\n", 10).is_complete


def test_a_large_file_is_not_kept() -> None:
    scanner = MultipartScanner(B)
    scanner.feed(part(b"file", b"")[:-2])
    for _ in range(100):
        scanner.feed(b"\r\n--xY" * 10_000)
        assert len(scanner._rest) < 100


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (part(b"model", b"a") + FILE + part(b"model", b"b") + END, "duplicate_key"),
        (part(b"x", b"", b'; name="model"') + END, "invalid_multipart"),
        (part(b"x", b"", b"; name*=utf-8''model") + END, "invalid_multipart"),
        (
            part(b"x", b"", b"", b'Content-Disposition: form-data; name="model"\r\n'),
            "invalid_multipart",
        ),
        (b"--" + B + b"  \r\n", "invalid_multipart"),
        (b"--" + B + b"junk\r\n", "invalid_multipart"),
        (b"--" + B + b"\r\nx: " + b"y" * PART_HEADER_BYTES_MAX, "invalid_multipart"),
        (part(b"model", b"m" * (MODEL_BYTES_MAX + 100)), "invalid_multipart"),
    ],
)
@pytest.mark.parametrize("piece", [1, 100_000])
def test_what_upstreams_could_read_differently_is_refused(
    text: bytes, code: str, piece: int
) -> None:
    with pytest.raises(BadRequest) as raised:
        scanned(text, piece)
    assert raised.value.code == code


def test_unquoted_names_and_headers_of_any_case_are_read() -> None:
    text = b"--" + B + b"\r\nCONTENT-disposition: form-data; NAME=model\r\n\r\nm\r\n" + END
    found = scanned(text, 5).model
    assert found is not None
    assert found.value == b"m"


def test_the_boundary_comes_from_the_content_type() -> None:
    assert boundary_of(b'multipart/form-data; charset=x; boundary="a b?c"') == b"a b?c"
    assert boundary_of(b"multipart/form-data; boundary=----abc") == b"----abc"


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary="a\xff"',
        b"multipart/form-data; boundary=" + b"x" * 71,
    ],
)
def test_a_content_type_without_a_proper_boundary_is_refused(content_type: bytes) -> None:
    with pytest.raises(BadRequest):
        boundary_of(content_type)
