"""A `multipart/form-data` body, passed on as it arrives.

Only what comes before the end of the part called `model` is kept, until it has been sent on: a
request cannot be admitted before its model is known. The rest goes through piece by piece, at the
pace of whichever side is slower.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from dataplane.errors import BadRequest, Refusal, RequestTooLarge
from dataplane.openai_api.body import check_model
from dataplane.openai_api.client import Client
from dataplane.openai_api.multipart import ModelPart, MultipartScanner, boundary_of


class Upload:
    """An upload whose model has been found. `begin` makes them."""

    asks_usage: Final = False

    def __init__(
        self,
        client: Client,
        scanner: MultipartScanner,
        part: ModelPart,
        prefix: bytes,
        limit_bytes: int,
    ) -> None:
        try:
            self.model: Final = check_model(part.value.decode())
        except UnicodeDecodeError:
            raise BadRequest(
                "`model` is not UTF-8 text.", code="invalid_model", param="model"
            ) from None
        self._client = client
        self._scanner = scanner
        self._part = part
        self._prefix = prefix
        self._limit_bytes = limit_bytes
        self._bytes = len(prefix)
        self._length = client.declared_bytes
        self.is_replayable = True
        """Whether nothing beyond the kept beginning has been taken from the client yet."""

    @classmethod
    async def begin(cls, client: Client, content_type: bytes, limit_bytes: int) -> Upload:
        """Read up to the model's name.

        Raises `BadRequest`, `RequestTooLarge` and `ClientLeft`; see also `Client.read`.
        """
        scanner = MultipartScanner(boundary_of(content_type))
        kept = bytearray()
        while scanner.model is None:
            piece = await client.read()
            kept += piece
            if len(kept) > limit_bytes:
                raise RequestTooLarge(limit_bytes)
            scanner.feed(piece)
            if scanner.model is None and (not piece or scanner.is_complete):
                check_model("")
        return cls(client, scanner, scanner.model, bytes(kept), limit_bytes)

    def declared_length(self, model: str) -> int | None:
        """What it declares to be long, naming `model`; None when the client declared nothing."""
        if self._length is None:
            return None
        return self._length - len(self._part.value) + len(model.encode())

    async def content(self, model: str, *, asks_usage: bool) -> AsyncIterator[bytes]:
        """The upload naming `model`, once. What is wrong with the rest of it ends the request."""
        yield self._prefix[: self._part.start] + model.encode() + self._prefix[self._part.end :]
        try:
            while True:
                self.is_replayable = False
                piece = await self._client.read()
                if not piece:
                    return
                self._bytes += len(piece)
                if self._bytes > self._limit_bytes:
                    raise RequestTooLarge(self._limit_bytes)
                self._scanner.feed(piece)
                yield piece
        except Refusal as refusal:
            self._client.cut(refusal)
            raise
