"""What one replica answers when it is asked for the live state, and for its history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from dataplane.live import assembly
from dataplane.live.fleet import Member
from dataplane.live.history import INTERVAL_SECS
from dataplane.live.history import History as Samples
from dataplane.live_view import ReplicaView
from shared.live_state import History, LiveState, ReplicaState
from shared.redis import RedisUnavailable


class UnknownModel(Exception):
    """No model of that name is registered or remembered."""


class Live:
    """One replica's answers. `members` is asked for the fleet, None: there is none.

    `model_name` gives the name under which a model or an alias of it is known, None for neither.
    """

    def __init__(
        self,
        instance: str,
        *,
        view: Callable[[], ReplicaView],
        members: Callable[[], Awaitable[Sequence[Member]]] | None,
        samples: Samples,
        model_name: Callable[[str], str | None],
    ) -> None:
        self.instance: Final = instance
        self._view: Final = view
        self._members: Final = members
        self._samples: Final = samples
        self._model_name: Final = model_name

    async def state(self) -> LiveState:
        """Now: the fleet's where slots are shared and the others' views can be read."""
        own = self._view()
        if own.mode in assembly.NOT_SHARED:
            return assembly.assemble(own)
        assert self._members is not None, "who shares slots is in a fleet"
        try:
            found = await self._members()
        except RedisUnavailable as error:
            reason = f"the other replicas' views cannot be read: {error}"
            return assembly.assemble(self._view(), scope_reason=reason)
        others = [each for each in found if each.name != self.instance]
        views = [view for each in others if (view := each.view_now) is not None]
        age_ms = max((each.view_age_ms for each in others if each.view is not None), default=0)
        # Read anew: meanwhile it went on.
        return assembly.assemble(self._view(), views, state_age_ms=age_ms)

    def history(self, model: str | None = None, since_ms: int = 0) -> History:
        """Samples of one model, by name or alias, or of all together. Raises `UnknownModel`."""
        samples = self._samples
        if model is not None and model not in samples.models:
            name = self._model_name(model)
            if name is None:
                raise UnknownModel(model)
            model = name
        return History(
            instance=self.instance,
            interval_ms=round(INTERVAL_SECS * 1000),
            retention_ms=samples.retention_ms,
            oldest_ts_ms=samples.oldest_ts_ms,
            points=samples.points(model, since_ms),
        )

    def itself(self) -> ReplicaState:
        """This replica, where nobody publishes anything."""
        return replica_state(self._view())


def replica_state(view: ReplicaView, heartbeat_age_ms: int | None = None) -> ReplicaState:
    """A replica by its view."""
    return ReplicaState(
        instance=view.instance,
        url=view.url,
        mode=view.mode,
        heartbeat_age_ms=heartbeat_age_ms,
        in_flight=view.in_flight,
        queued=view.queued,
        held=view.held,
        started_at=datetime.fromtimestamp(view.started_at, UTC),
        version=view.version,
    )
