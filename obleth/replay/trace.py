"""Traces of real and synthetic traffic, read into sessions of steps.

Three shapes are known, and told apart by their first row:

azure     CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Every row is a session of one step.
mooncake  JSON lines with timestamp (ms), input_length, output_length, hash_ids (blocks of 512
          tokens). A row whose blocks go on from an earlier row's belongs to that row's session.
          Each row keeps its recorded time and its whole prompt, so none waits for another.
agentic   JSON lines with session_id as well. input_length and hash_ids are what a step adds to
          its session's prompt; delay (ms) is the time since the end of the step before.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, Final

from obleth.replay.errors import BadTrace

BLOCK_TOKENS: Final = 512
"""Tokens of one hashed block in the JSON traces."""
_LARGEST: Final = 10_000_000
_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceKind(StrEnum):
    AZURE = "azure"
    MOONCAKE = "mooncake"
    AGENTIC = "agentic"


@dataclass(frozen=True, slots=True)
class Step:
    """One request. Its tokens come on top of what its session has said so far."""

    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of the prompt's blocks; equal names are equal text. Empty: text of its own."""
    delay_secs: float = 0.0
    """After the end of the step before it."""
    row: int = 0
    """Line number in the file."""


@dataclass(frozen=True, slots=True)
class Session:
    """Steps that follow one another; `id` None for a request that stands alone."""

    id: str | None
    starts_secs: float
    """After the beginning of the trace."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    kind: TraceKind
    sessions: tuple[Session, ...]
    """In order of their start."""

    @property
    def requests(self) -> int:
        return sum(len(session.steps) for session in self.sessions)


def load(
    path: Path,
    *,
    limit: int | None = None,
    max_sessions: int | None = None,
    max_steps: int | None = None,
) -> Trace:
    """Read a trace: its first `limit` rows, of these the first sessions, of each the first steps.

    Raises BadTrace, naming the file and the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            kind, sessions = _read(path.name, file, limit)
    except UnicodeDecodeError as error:
        raise BadTrace(f"{path}: not a trace: it is not text") from error
    except (OSError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadTrace(f"{path}: {reason or error}") from error
    if max_steps is not None:
        sessions = [
            Session(session.id, session.starts_secs, session.steps[:max_steps])
            for session in sessions
        ]
    sessions.sort(key=lambda session: session.starts_secs)
    return Trace(path.name, kind, tuple(sessions[:max_sessions]))


def _read(name: str, file: Iterable[str], limit: int | None) -> tuple[TraceKind, list[Session]]:
    lines = iter(file)
    first = next(lines, "").strip()
    if [column.strip() for column in first.split(",")] == list(_COLUMNS):
        sessions = _azure(name, csv.reader(lines), limit)
        kind = TraceKind.AZURE
    elif first.startswith("{"):
        rows = _json_rows(name, [first, *islice(lines, None if limit is None else limit - 1)])
        agentic = "session_id" in rows[0][1]
        sessions = _agentic(rows, name) if agentic else _mooncake(rows, name)
        kind = TraceKind.AGENTIC if agentic else TraceKind.MOONCAKE
    else:
        columns = ",".join(_COLUMNS)
        raise BadTrace(f"{name}:1: not a trace: neither JSON lines nor a CSV headed {columns}")
    if not sessions:
        raise BadTrace(f"{name}: the trace has no rows")
    return kind, sessions


def _azure(name: str, rows: Iterator[list[str]], limit: int | None) -> list[Session]:
    sessions = []
    begin: datetime | None = None
    for row, cells in enumerate(islice(rows, limit), start=2):
        if not cells:
            continue
        where = f"{name}:{row}"
        if len(cells) != len(_COLUMNS):
            raise BadTrace(f"{where}: {len(cells)} cells where {len(_COLUMNS)} belong")
        try:
            at = datetime.fromisoformat(cells[0].strip()).replace(tzinfo=None)
        except ValueError as error:
            raise BadTrace(f"{where}: TIMESTAMP {cells[0]!r} is not a time") from error
        begin = begin or at
        counts = [_count(cells[1], _COLUMNS[1], where), _count(cells[2], _COLUMNS[2], where)]
        step = Step(counts[0], counts[1], row=row)
        sessions.append(Session(None, max(0.0, (at - begin).total_seconds()), (step,)))
    return sessions


def _json_rows(name: str, lines: Iterable[str]) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadTrace(f"{name}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadTrace(f"{name}:{number}: not a JSON object")
        rows.append((number, row))
    return rows


def _mooncake(rows: Iterable[tuple[int, dict[str, Any]]], name: str) -> list[Session]:
    chains: dict[tuple[int, ...], str] = {}
    sessions = []
    for number, row in rows:
        where = f"{name}:{number}"
        step = _step(row, number, where)
        chain = _chain_of(step.blocks, chains) or f"row-{number}"
        chains[step.blocks] = chain
        # The last block of a prompt is hardly ever full: what follows goes on from the one before.
        if len(step.blocks) > 2:
            chains[step.blocks[:-1]] = chain
        starts = _milliseconds(row, "timestamp", where)
        sessions.append(Session(chain, starts, (step,)))
    return sessions


def _chain_of(blocks: tuple[int, ...], chains: Mapping[tuple[int, ...], str]) -> str | None:
    """The session of the longest earlier prompt that this one goes on from.

    One block alone says nothing: it is the system prompt that everybody has.
    """
    for length in range(len(blocks) - 1, 1, -1):
        if (chain := chains.get(blocks[:length])) is not None:
            return chain
    return None


def _agentic(rows: Iterable[tuple[int, dict[str, Any]]], name: str) -> list[Session]:
    starts: dict[str, float] = {}
    steps: dict[str, list[Step]] = {}
    for number, row in rows:
        where = f"{name}:{number}"
        session = row.get("session_id")
        if not isinstance(session, str) or not session:
            raise BadTrace(f"{where}: session_id {session!r} is not a name")
        if session not in starts:
            starts[session] = _milliseconds(row, "timestamp", where)
        delay = _milliseconds(row, "delay", where) if session in steps else 0.0
        steps.setdefault(session, []).append(_step(row, number, where, delay))
    return [Session(name, starts[name], tuple(found)) for name, found in steps.items()]


def _step(row: dict[str, Any], number: int, where: str, delay_secs: float = 0.0) -> Step:
    blocks = row.get("hash_ids", [])
    whole = isinstance(blocks, list) and all(type(block) is int for block in blocks)
    if not whole:
        raise BadTrace(f"{where}: hash_ids is not a list of whole numbers")
    return Step(
        prompt_tokens=_count(row.get("input_length"), "input_length", where),
        output_tokens=_count(row.get("output_length"), "output_length", where),
        blocks=tuple(blocks),
        delay_secs=delay_secs,
        row=number,
    )


def _count(value: object, name: str, where: str) -> int:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10:
        text = int(text)
    if type(text) is not int or not 0 <= text <= _LARGEST:
        raise BadTrace(f"{where}: {name} {value!r} is not a number of tokens (0…{_LARGEST})")
    return text


def _milliseconds(row: dict[str, Any], name: str, where: str) -> float:
    """A time in the row as seconds; 0 when it is not there."""
    value = row.get(name, 0)
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise BadTrace(f"{where}: {name} {value!r} is not a time in milliseconds")
    return float(value) / 1000
