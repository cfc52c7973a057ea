"""Answers the control plane's questions about the live picture.

It asks a replica: the one of its own process if there is one, else over HTTP with the internal
token. Where none may be asked or none answers, it puts the picture together from what replicas
publish in Redis, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import httpx
import msgspec
from redis.asyncio import Redis

from controlplane.fairshare.source import Fleet, NobodyAnswers, UnknownModel, UnknownReplica
from dataplane.live import assembly, replica, what_if
from dataplane.live.fleet import Member, members
from dataplane.live.replica import Live, replica_state
from dataplane.ops.fairshare import NO_SUCH_MODEL
from shared.live_state import History, LiveState, Newcomer, Outlook, ReplicaState
from shared.redis import RedisUnavailable

ANSWER_SECS: Final = 2.0
"""How long a replica may take."""
ASKED_AT_MOST: Final = 3
_NO_TOKEN: Final = "no replica is asked: OBLETH_INTERNAL_TOKEN is not set"  # noqa: S105 - not one

T = TypeVar("T", LiveState, History)


class _NoAnswer(Exception):
    """The replica cannot be reached, or refuses; the message says which."""


class FleetLive:
    """See `controlplane.fairshare.source.LiveSource`.

    `own` is this process's replica, `redis` where the others are found, `token` what they are asked
    with. One of the first two is there.
    """

    def __init__(
        self, *, own: Live | None, redis: Redis | None, token: str | None, answer_secs: float
    ) -> None:
        self._own: Final = own
        self._redis: Final = redis
        self._token: Final = token
        self._answer_secs: Final = answer_secs
        self._http: Final = httpx.AsyncClient(timeout=ANSWER_SECS, trust_env=False)
        self._last: Sequence[Member] = ()
        """The fleet when Redis last answered: whom to ask when it does not."""

    async def stop(self) -> None:
        await self._http.aclose()
        if self._redis is not None:
            await self._redis.aclose()

    async def state(self, replica: str | None) -> LiveState:
        """See `LiveSource.state`."""
        if self._own is not None and replica in (None, self._own.instance):
            return await self._own.state()
        found, _ = await self._find(replica)
        try:
            return await self._ask(found, "live", {}, LiveState)
        except _NoAnswer as error:
            reason = str(error)
        return await self._from_views(replica, reason)

    async def history(self, replica_: str | None, model: str | None, since_ms: int) -> History:
        """See `LiveSource.history`."""
        if self._own is not None and replica_ in (None, self._own.instance):
            try:
                return self._own.history(model, since_ms)
            except replica.UnknownModel as error:
                raise UnknownModel from error
        found, trouble = await self._find(replica_)
        asked = {"since_ms": str(since_ms)} | ({} if model is None else {"model": model})
        try:
            return await self._ask(found, "history", asked, History)
        except _NoAnswer as error:
            reasons = [str(error)] if trouble is None else [trouble, str(error)]
            raise NobodyAnswers("; ".join(reasons)) from error

    async def fleet(self) -> Fleet:
        """See `LiveSource.fleet`."""
        found, trouble = await self._members()
        own = [] if self._own is None else [self._own.itself()]
        if trouble is not None and not own and not found:
            raise NobodyAnswers(trouble)
        age_known = trouble is None
        states = {each.name: _state(each, age_known) for each in found}
        for each in own:
            states.setdefault(each.instance, each)
        if trouble is not None:
            trouble = f"{trouble}. What is told of the others is what they last said."
        return Fleet([states[name] for name in sorted(states)], trouble)

    def outlook(self, state: LiveState, newcomer: Newcomer) -> Outlook:
        """See `LiveSource.outlook`."""
        return what_if.outlook(state, newcomer)

    async def _members(self) -> tuple[Sequence[Member], str | None]:
        """The fleet; if Redis is away, as it last was, and why."""
        if self._redis is None:
            return (), None
        try:
            self._last = await members(self._redis, answer_secs=self._answer_secs)
        except RedisUnavailable as error:
            return self._last, f"replicas cannot be looked up: {error}"
        return self._last, None

    async def _find(self, name: str | None) -> tuple[Sequence[Member], str | None]:
        """Those to ask, the longest running first. Raises `UnknownReplica`, `NobodyAnswers`."""
        found, trouble = await self._members()
        chosen = [each for each in found if name in (None, each.name)]
        if chosen:
            return sorted(chosen, key=_age), trouble
        if trouble is not None:
            raise NobodyAnswers(trouble)
        if name is not None:
            raise UnknownReplica(name)
        raise NobodyAnswers("no replica is live")

    async def _ask(
        self, found: Sequence[Member], what: str, params: dict[str, str], kind: type[T]
    ) -> T:
        """The first answer. Raises `_NoAnswer`, `UnknownModel`."""
        if not self._token:
            raise _NoAnswer(_NO_TOKEN)
        reasons = []
        for member in found[:ASKED_AT_MOST]:
            if member.view is None:
                reasons.append(f"{member.name} has not published where it is reached")
                continue
            url = f"{member.view.url}/internal/fairshare/{what}"
            try:
                answer = await self._http.get(
                    url, params=params, headers={"authorization": f"Bearer {self._token}"}
                )
                if (
                    answer.status_code == 404
                    and "model" in params
                    and _detail(answer) == NO_SUCH_MODEL
                ):
                    raise UnknownModel
                if answer.status_code == 200:
                    return msgspec.json.decode(answer.content, type=kind)
                reasons.append(f"{url} answered {answer.status_code}: {_detail(answer)}")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reasons.append(f"{url}: {str(error) or type(error).__name__}")
            except ValueError as error:
                reasons.append(f"{url} answered what this version does not understand: {error}")
        raise _NoAnswer("; ".join(reasons))

    async def _from_views(self, name: str | None, reason: str) -> LiveState:
        found, trouble = await self._members()
        seen = [each for each in found if each.view is not None]
        bases = [each for each in seen if name in (None, each.name)]
        if trouble is not None or not bases:
            silent = f"{name or 'no live replica'} has published nothing of late"
            raise NobodyAnswers(f"{trouble or silent}; {reason}")
        base = min(bases, key=_age)
        own = base.view_now
        assert own is not None, "only those with a view are in"
        others = [each.view_now for each in seen if each is not base]
        return assembly.assemble(
            own,
            [view for view in others if view is not None],
            state_age_ms=max(each.view_age_ms for each in seen),
            source="views",
            source_reason=reason,
        )


def _state(member: Member, age_known: bool) -> ReplicaState:
    age_ms = member.heartbeat_age_ms if age_known else None
    if member.view is not None:
        return replica_state(member.view, age_ms)
    return ReplicaState(
        instance=member.name,
        url=None,
        mode=None,
        heartbeat_age_ms=age_ms,
        in_flight=None,
        queued=None,
        held=None,
        started_at=None,
        version=None,
    )


def _age(member: Member) -> tuple[bool, float, str]:
    """Sorts the longest running first, so that it is the same one every time."""
    view = member.view
    return (view is None, 0.0 if view is None else view.started_at, member.name)


def _detail(answer: httpx.Response) -> Any:
    try:
        return answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase
