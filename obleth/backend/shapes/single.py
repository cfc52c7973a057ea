"""The routes that answer in one piece: embeddings, rerank, transcriptions, images."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any, Final

from obleth.backend import tokens
from obleth.backend.shapes import port
from obleth.backend.shapes.chat import bare_text
from obleth.backend.shapes.port import Ask, BadAsk, Body, Reply

_DIMENSIONS: Final = 8
_SECONDS_A_BYTE: Final = 1 / 32_000
"""Of 16-bit sound at 16 kHz: what an upload is taken for."""


class Embeddings(port.OpenAIErrors, port.SingleAnswer):
    """`/v1/embeddings`, in numbers or (as the SDKs ask for it) base64."""

    def ask(self, body: Body) -> Ask:
        text = tokens.whole(bare_text(body, "input"))
        return Ask(port.required_model(body), text, generates=False)

    def whole(self, reply: Reply) -> bytes:
        given = reply.body["input"]
        many = isinstance(given, list) and not all(isinstance(one, int) for one in given)
        size = port.token_limit(dict(reply.body), "dimensions") or _DIMENSIONS
        answer: dict[str, Any] = {"object": "list", "model": reply.ask.model, "data": []}
        for index, one in enumerate(given if many else [given]):
            vector = _vector(bare_text({"input": one}, "input"), size)
            written: object = vector
            if reply.body.get("encoding_format") == "base64":
                written = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
            answer["data"].append({"object": "embedding", "index": index, "embedding": written})
        if reply.figures is not None:
            figures = reply.figures
            answer["usage"] = {"prompt_tokens": figures.prompt, "total_tokens": figures.total}
        return port.encoded(answer)


class Rerank(port.OpenAIErrors, port.SingleAnswer):
    """`/v1/rerank`, as Cohere and Jina have it: documents by how many words they share."""

    def ask(self, body: Body) -> Ask:
        documents = body.get("documents")
        if not isinstance(documents, list) or not isinstance(body.get("query"), str):
            raise BadAsk(400, "rerank takes a query and a list of documents", "documents")
        text = "".join(tokens.whole(port.plain_text(one)) for one in documents)
        prompt = tokens.whole(body["query"]) + text
        return Ask(port.required_model(body), prompt, generates=False)

    def whole(self, reply: Reply) -> bytes:
        query = set(reply.body["query"].lower().split())
        results: list[dict[str, Any]] = []
        for index, document in enumerate(reply.body["documents"]):
            text = port.plain_text(document)
            score = len(query & set(text.lower().split())) / max(1, len(query))
            results.append({"index": index, "relevance_score": score, "document": {"text": text}})
        results.sort(key=lambda result: -result["relevance_score"])
        answer: dict[str, Any] = {
            "id": f"rerank-{reply.number}",
            "model": reply.ask.model,
            "results": results[: port.token_limit(dict(reply.body), "top_n")],
        }
        if reply.figures is not None:
            answer["usage"] = {"total_tokens": reply.figures.total}
        return port.encoded(answer)


class Transcriptions(port.OpenAIErrors, port.SingleAnswer):
    """`/v1/audio/transcriptions`: a form whose `file` is its size in bytes."""

    def ask(self, body: Body) -> Ask:
        if not isinstance(body.get("file"), int):
            raise BadAsk(400, "a transcription takes a file", "file")
        return Ask(port.required_model(body), "", generates=False)

    def whole(self, reply: Reply) -> bytes:
        size = reply.body["file"]
        text = f"A recording of {size} bytes."
        if reply.body.get("response_format") == "text":
            return text.encode()
        seconds = round(size * _SECONDS_A_BYTE, 3)
        return port.encoded({"text": text, "usage": {"type": "duration", "seconds": seconds}})


class Images(port.OpenAIErrors, port.SingleAnswer):
    """`/v1/images/generations`: one grey pixel, as often as asked for."""

    def ask(self, body: Body) -> Ask:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise BadAsk(400, "an image takes a prompt", "prompt")
        return Ask(port.required_model(body), tokens.whole(prompt), generates=False)

    def whole(self, reply: Reply) -> bytes:
        pixel = base64.b64encode(_grey_pixel()).decode()
        count = port.token_limit(dict(reply.body), "n") or 1
        return port.encoded({"created": reply.created, "data": [{"b64_json": pixel}] * count})


def _vector(text: str, size: int) -> list[float]:
    """A vector that depends on the text alone, in every process."""
    vector = []
    seed = zlib.crc32(text.encode())
    for _ in range(size):
        seed = (seed * 1_664_525 + 1_013_904_223) % (1 << 32)
        vector.append(seed / (1 << 31) - 1.0)
    return vector


def _grey_pixel() -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        length = struct.pack(">I", len(data))
        return length + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    image = chunk(b"IDAT", zlib.compress(b"\x00\x80"))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + image + chunk(b"IEND", b"")
