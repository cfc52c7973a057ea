"""Which session a request belongs to: the id its client gave, or one derived from how it begins.

A session is one run of an agent's loop, under the key that sends it. Names of people and of single
calls are no sessions: `user`, `safety_identifier` and request ids are not looked at. Only keyed
hashes leave this module.

A derived session is known by its beginning: the model, the tools, what the system says and what the
user says first. Runs that begin alike are told apart by their messages: a request joins a run only
when its list of messages extends, or repeats, the list last seen of that run. The first run of a
beginning has the same id on every replica.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import unquote

import msgspec

from dataplane.openai_api.body import JsonBody, string_in
from dataplane.openai_api.prompt import Block, Prompt, texts_of
from dataplane.proxy.headers import Headers

Source = Literal["client", "derived", "none"]

ID_CHARS_MAX: Final = 256
RUNS_PER_BEGINNING_MAX: Final = 16
BEGINNINGS_MAX: Final = 20_000

_OWN_HEADER: Final = "x-obleth-session-id"
_HEADERS: Final = (
    _OWN_HEADER,
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "agent-session-id",
    "x-opencode-session",
    "x-grok-conv-id",
    "x-claude-code-session-id",
    "x-litellm-session-id",
    "x-openwebui-chat-id",
    "x-conversation-id",
)
"""The first one that is there counts."""
_REFINING_HEADERS: Final = ("x-claude-code-agent-id", "thread-id")
"""Sub-agents: they share their parent's session id but not its prompt."""
_LOOKED_AT: Final = {name.encode(): name for name in (*_HEADERS, *_REFINING_HEADERS, "baggage")}
_IN_USER_ID: Final = re.compile(r"_session_(.+)\Z", re.DOTALL)
_BAGGAGE_KEY: Final = "session.id"
_FIRST_SPEAKERS: Final = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Session:
    """What is known of a request's session."""

    source: Source = "none"
    id: str | None = None
    """A keyed hash; equal for equal sessions of one key, on every replica."""
    was_refused: bool = False
    """Whether the client gave an id that cannot be used."""


class SessionHash:
    """Hashes under the API key that a request brought, so that each key has sessions of its own, a
    stored id can neither be read back nor guessed, and all replicas agree on it with nothing
    configured."""

    def __init__(self, secret: str) -> None:
        self._key: Final = hashlib.blake2b(secret.encode(), digest_size=32).digest()

    def of(self, *parts: str) -> bytes:
        """A hash of texts, each kept apart from the next."""
        state = hashlib.blake2b(digest_size=16, key=self._key)
        for part in parts:
            encoded = part.encode()
            state.update(b"%d:" % len(encoded))
            state.update(encoded)
        return state.digest()


def from_client(headers: Headers, body: JsonBody | None, hasher: SessionHash) -> Session:
    """The session that the client itself names, if it names one."""
    given: dict[str, str] = {}
    for name, value in headers:
        known = _LOOKED_AT.get(name)
        if known is not None and known not in given:
            given[known] = _text_of(value)
        elif known == "baggage":
            given[known] += f",{_text_of(value)}"
    found = _first_given(given, body)
    if found is None:
        return Session()
    parts = [found, *(given.get(name, "") for name in _REFINING_HEADERS)]
    if not is_usable(found) or not all(is_usable(part) for part in parts[1:] if part):
        return Session(was_refused=True)
    return Session("client", hasher.of("client", *parts).hex())


def is_usable(session_id: str) -> bool:
    """1 to 256 visible characters."""
    return (
        0 < len(session_id) <= ID_CHARS_MAX
        and session_id.isprintable()
        and not any(character.isspace() for character in session_id)
    )


def _first_given(given: dict[str, str], body: JsonBody | None) -> str | None:
    for name in _HEADERS:
        if name in given:
            return given[name]
    found = None if body is None else _in_body(body)
    return _in_baggage(given.get("baggage", "")) if found is None else found


def _in_body(body: JsonBody) -> str | None:
    metadata = body.object("metadata")
    candidates = (
        (body.fields, "session_id"),
        (metadata, "session_id"),
        (metadata, "cursorConversationId"),
        (body.object("client_metadata"), "session_id"),
        (body.fields, "prompt_cache_key"),
    )
    for members, name in candidates:
        found = string_in(members, name)
        if found is not None:
            return found
    user_id = string_in(metadata, "user_id")
    return None if user_id is None else _in_user_id(user_id)


def _in_user_id(user_id: str) -> str | None:
    """The session part of Anthropic's `metadata.user_id`; the rest of it names a person."""
    if user_id.lstrip().startswith("{"):
        try:
            members = msgspec.json.decode(user_id, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return None
        return string_in(members, "session_id")
    match = _IN_USER_ID.search(user_id)
    return None if match is None else match[1]


def _in_baggage(baggage: str) -> str | None:
    for member in baggage.split(","):
        name, equals, value = member.partition(";")[0].partition("=")
        if equals and name.strip() == _BAGGAGE_KEY:
            return unquote(value.strip())
    return None


def _text_of(value: bytes) -> str:
    try:
        return value.strip().decode()
    except UnicodeDecodeError:
        return value.strip().decode("latin-1")


@dataclass(frozen=True, slots=True)
class Outline:
    """A conversation as hashes: where it begins, and a chain over its messages."""

    beginning: bytes
    messages: Sequence[bytes]
    """The n-th stands for the first n + 1 messages together."""


def outline(body: JsonBody, prompt: Prompt, model: str, hasher: SessionHash) -> Outline | None:
    """The outline of a request; None where there is no conversation to recognise.

    Only roles and texts count, so that marks a client moves along its messages change nothing.
    Takes about 2 ms a megabyte.
    """
    if body.string("previous_response_id") is not None:
        return None  # the earlier messages stand elsewhere
    conversation = prompt.conversation()
    first = next((each for each in conversation if each.role == "user"), None)
    if first is None:
        return None
    system = [text for name in ("system", "instructions") for text in _texts(prompt, name)]
    for block in conversation:
        if block.role in _FIRST_SPEAKERS:
            system += block.texts()
    beginning = hasher.of("begins", model, *prompt.tool_names(), "", *system, "", *first.texts())
    return Outline(beginning, _chain(conversation, hasher))


def _texts(prompt: Prompt, name: str) -> Iterable[str]:
    found = prompt.fields.get(name)
    return () if found is None else texts_of(found)


def _chain(conversation: Sequence[Block], hasher: SessionHash) -> list[bytes]:
    chain = []
    before = ""
    for block in conversation:
        digest = hasher.of("message", before, block.role or block.type or "", *block.texts())
        before = digest.hex()
        chain.append(digest)
    return chain


@dataclass(slots=True)
class _Run:
    number: int
    length: int
    last: bytes

    def is_extended_by(self, messages: Sequence[bytes]) -> bool:
        return len(messages) >= self.length and messages[self.length - 1] == self.last


@dataclass(slots=True)
class _Beginning:
    runs: list[_Run] = field(default_factory=list)
    """Longest unused first."""
    started: int = 0


class DerivedSessions:
    """The runs known by their beginnings. Bounded: those unused for longest are forgotten."""

    def __init__(self, *, beginnings_max: int = BEGINNINGS_MAX) -> None:
        self._beginnings_max = beginnings_max
        self._beginnings: OrderedDict[bytes, _Beginning] = OrderedDict()

    def __len__(self) -> int:
        """Beginnings remembered."""
        return len(self._beginnings)

    def join(self, outline: Outline) -> Session:
        """The session of a request with this outline: a known run that it goes on, or a new one."""
        known = self._beginnings.get(outline.beginning)
        if known is None:
            known = self._beginnings[outline.beginning] = _Beginning()
            if len(self._beginnings) > self._beginnings_max:
                self._beginnings.popitem(last=False)
        else:
            self._beginnings.move_to_end(outline.beginning)
        run = self._run_in(known, outline.messages)
        run.length = len(outline.messages)
        run.last = outline.messages[-1]
        known.runs.append(run)
        # What it begins with is hashed under a secret already.
        run_of = b"%s %d" % (outline.beginning, run.number)
        return Session("derived", hashlib.blake2b(run_of, digest_size=16).hexdigest())

    def _run_in(self, known: _Beginning, messages: Sequence[bytes]) -> _Run:
        """The run these messages go on, taken out of its place in the order of use."""
        candidates = [run for run in known.runs if run.is_extended_by(messages)]
        if candidates:
            run = max(candidates, key=lambda each: each.length)
            known.runs.remove(run)
            return run
        if len(known.runs) >= RUNS_PER_BEGINNING_MAX:
            del known.runs[0]
        run = _Run(known.started, 0, b"")
        known.started += 1
        return run
