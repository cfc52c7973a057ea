"""Scripts that run in Redis, and how they are run.

Each file in a package's folder `lua` is one atomic operation. Its header is its contract, and a
script without one does not load. A line `-- #include name` stands for the file `name.lua` in the
folder `include` beside it. Redis may forget its scripts at any time (a restart, a failover, SCRIPT
FLUSH), between two commands that came together too; a call it does not know is sent again, with
its script's text, within the same deadline.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from shared.redis import Command, Patience, RedisUnavailable, dial_anew, round_trip

HEADINGS: Final = ("Purpose:", "KEYS:", "ARGV:", "Returns:", "Safe to repeat?")
_INCLUDE: Final = re.compile(r"^-- #include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One script, to be run with these keys and arguments."""

    script: str
    keys: tuple[str, ...]
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class MalformedScript(Exception):
    """A script's header does not say what it must."""


def parse(name: str, text: str, includes: Traversable | None = None) -> Script:
    """A script from its text. Raises `MalformedScript`."""
    header = re.match(r"(?:--[^\n]*\n)*", text)
    said = header.group() if header else ""
    at = 0
    for heading in HEADINGS:
        at = said.find(f"-- {heading}", at)
        if at < 0:
            raise MalformedScript(f"{name}.lua: its header has no {heading!r} where it belongs")
    if includes is not None:
        text = _INCLUDE.sub(
            lambda match: includes.joinpath(f"{match[1]}.lua").read_text(encoding="utf-8"), text
        )
    return Script.of(name, text)


def load(package: str) -> Mapping[str, Script]:
    """Every script of a package by its name. Raises `MalformedScript`."""
    folder = resources.files(package).joinpath("lua")
    scripts = {}
    for file in folder.iterdir():
        name, dot, ending = file.name.rpartition(".")
        if dot and ending == "lua":
            text = file.read_text(encoding="utf-8")
            scripts[name] = parse(name, text, folder.joinpath("include"))
    return scripts


class RedisScripts:
    """Runs a package's scripts on a Redis server. `secs` is how long one `run` may take."""

    def __init__(self, redis: Redis, scripts: Mapping[str, Script], *, secs: float) -> None:
        self._redis: Final = redis
        self._secs: Final = secs
        self._scripts: Final = scripts
        self._loaded = False

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Carry out calls in order and together, though not as one; their answers.

        Raises `RedisUnavailable`; then any of them may have been carried out, or may yet be.
        """
        try:
            # However many round trips it takes, in the time of one.
            async with Patience(self._secs):
                return await self._run(calls)
        except TimeoutError as error:
            dial_anew(self._redis)
            raise RedisUnavailable("no answer from Redis in time") from error

    async def _run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        if not calls:
            return []
        replies = await self._send(calls)
        # What ran stays; only what Redis did not know is sent again. Each time some of it runs.
        while unknown := [at for at, reply in enumerate(replies) if _is_unknown(reply)]:
            self._loaded = False
            again = await self._send([calls[at] for at in unknown])
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise RedisUnavailable(f"{call.script}: {reply}") from reply
        return replies

    async def _send(self, calls: Sequence[ScriptCall]) -> list[Any]:
        commands: list[Command] = []
        told: set[str] = set()
        if self._loaded:
            told.update(self._scripts)
        else:
            commands += (("SCRIPT LOAD", script.text) for script in self._scripts.values())
        loads = len(commands)
        for call in calls:
            script = self._scripts[call.script]
            # A script that was just loaded may be forgotten before it is called; its text runs.
            how = ("EVALSHA", script.sha) if call.script in told else ("EVAL", script.text)
            told.add(call.script)
            commands.append((*how, len(call.keys), *call.keys, *call.args))
        replies = await round_trip(self._redis, commands, secs=self._secs)
        self._loaded = True
        return replies[loads:]


def _is_unknown(reply: object) -> bool:
    return isinstance(reply, NoScriptError)
