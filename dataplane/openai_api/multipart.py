"""The parts of an upload as they go by: enough to find the model's name. No I/O, nothing kept.

Only part headers and the value of the part called `model` are looked at; file contents are passed
over in search of the next delimiter. The whole stream is watched to its end, because a second
`model` further on would be another request than the one that was admitted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message
from typing import Final, NoReturn

from dataplane.errors import BadRequest

PART_HEADER_BYTES_MAX: Final = 16 * 1024
MODEL_BYTES_MAX: Final = 1024
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")
_NAME: Final = re.compile(
    rb'(?:^|;)\s*name\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE
)
_EXTENDED_NAME: Final = re.compile(rb"(?:^|;)\s*name\*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The value of the part called `model` and where it stands in the stream."""

    value: bytes
    start: int
    end: int


def boundary_of(content_type: bytes) -> bytes:
    """The boundary a `Content-Type` declares. Raises `BadRequest`."""
    message = Message()
    message["content-type"] = content_type.decode("latin-1")
    boundary = message.get_param("boundary")
    if not isinstance(boundary, str) or not _BOUNDARY.fullmatch(boundary):
        _refuse("The `Content-Type` declares no valid multipart boundary.")
    return boundary.encode("ascii")


class MultipartScanner:
    """Fed the bytes of one upload in pieces. Memory is bounded by the limits above."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter: Final = b"\r\n--" + boundary
        self._rest = b"\r\n"  # so that the first delimiter looks like the others
        self._offset = -2
        """Where `_rest` begins in the stream."""
        self._model_start: int | None = None
        self._in_headers = False
        self.model: ModelPart | None = None
        self.is_complete = False
        """Whether the closing delimiter has been seen."""

    def feed(self, data: bytes) -> None:
        """Take the next piece. Raises `BadRequest` for what cannot be read or comes twice."""
        self._rest += data
        while not self.is_complete and (
            self._take_headers() if self._in_headers else self._take_content()
        ):
            pass
        if self.is_complete:
            self._skip(len(self._rest))

    def _skip(self, count: int) -> None:
        self._rest = self._rest[count:]
        self._offset += count

    def _take_content(self) -> bool:
        """Go to the end of the next delimiter; whether it was there."""
        found = self._rest.find(self._delimiter)
        after = found + len(self._delimiter)
        if found < 0 or len(self._rest) < after + 2:
            self._keep_content_tail(found)
            return False
        if self._model_start is not None:
            self._end_model(self._offset + found)
        following = self._rest[after : after + 2]
        if following == b"--":
            self.is_complete = True
        elif following == b"\r\n":
            self._in_headers = True
            self._skip(after)  # its line end may be the start of an empty block of headers
        else:
            # Content or a padded delimiter: upstreams differ, and boundaries are random.
            _refuse("A multipart delimiter is followed by something else.")
        return True

    def _keep_content_tail(self, found: int) -> None:
        if self._model_start is not None:
            if len(self._rest) > MODEL_BYTES_MAX + len(self._delimiter):
                _refuse("The part `model` is too long.")
            return
        keeps = len(self._rest) - found if found >= 0 else len(self._delimiter) - 1
        self._skip(max(0, len(self._rest) - keeps))

    def _take_headers(self) -> bool:
        """Read one part's headers; whether they were all there."""
        end = self._rest.find(b"\r\n\r\n")
        if end < 0 or end > PART_HEADER_BYTES_MAX:
            if len(self._rest) > PART_HEADER_BYTES_MAX:
                _refuse("The headers of a part are too long.")
            return False
        name = _name_in(self._rest[:end])
        self._skip(end + 2)  # the empty line's end may belong to the next delimiter
        self._in_headers = False
        if name == b"model":
            if self.model is not None:
                raise BadRequest(
                    "The upload has the part `model` more than once.",
                    code="duplicate_key",
                    param="model",
                )
            self._model_start = self._offset + 2
        return True

    def _end_model(self, end: int) -> None:
        assert self._model_start is not None, "called at the end of the model's part"
        start = self._model_start
        end = max(start, end)
        value = self._rest[start - self._offset : end - self._offset]
        self.model = ModelPart(value, start, end)
        self._model_start = None


def _name_in(headers: bytes) -> bytes:
    """The name of a part, from its one `Content-Disposition`."""
    names: list[bytes] = []
    for line in headers.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() != b"content-disposition":
            continue
        if _EXTENDED_NAME.search(value):
            _refuse("A part's name is written in a way that upstreams read differently.")
        names += [quoted or plain for quoted, plain in _NAME.findall(value)]
    if len(names) > 1:
        _refuse("A part has more than one name.")
    return names[0] if names else b""


def _refuse(message: str) -> NoReturn:
    raise BadRequest(message, code="invalid_multipart")
