"""Hears from the control plane what was changed, and has the policy cache forget it.

It hurries what the cache finds out anyway by the revision number in the database. Whenever the
subscription stands, for the first time or again, everything counts as changed: what was said while
nobody listened is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from dataplane.subscription import Subscription
from shared import redis_keys
from shared.invalidation import Invalidation, Kind
from shared.redis import client

log = structlog.stdlib.get_logger(__name__)

QUIET_SECS: Final = 5.0
EVERYTHING: Final = Invalidation(Kind.ALL, "", 0)


class InvalidationSubscriber:
    """Passes invalidations on to `invalidate`, on the loop it is started on.

    `answer_secs` is how long Redis may take to answer.
    """

    def __init__(
        self,
        redis_url: str,
        invalidate: Callable[[Invalidation], None],
        *,
        answer_secs: float,
        channel: str = redis_keys.INVALIDATE,
    ) -> None:
        self._invalidate: Final = invalidate
        self._redis: Final = client(redis_url, connections=1, name="obleth-invalidations")
        self._is_deaf = False
        self._subscription: Final = Subscription(
            self._redis,
            channel,
            heard=self._heard,
            listening=self._listening,
            deaf=self._deaf,
            secs=answer_secs,
            quiet=QUIET_SECS,
        )

    def start(self) -> None:
        """Begin to listen, now and whenever Redis can be reached."""
        self._subscription.start()

    async def stop(self) -> None:
        await self._subscription.stop()
        await self._redis.aclose()

    def _heard(self, message: str) -> None:
        try:
            change = Invalidation.decode(message)
        except ValueError:
            # A newer control plane may name things that this version cannot tell apart.
            log.warning("invalidation_not_understood")
            change = EVERYTHING
        self._invalidate(change)

    def _listening(self) -> None:
        if self._is_deaf:
            self._is_deaf = False
            log.info("invalidations_heard_again")
        self._invalidate(EVERYTHING)

    def _deaf(self, reason: str) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            log.warning("invalidations_not_heard", error=reason)
