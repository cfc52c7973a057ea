"""Asks regularly how many backends are ready, and keeps the size of every pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from dataplane.discovery.sizing import Answer, PoolSize, pool_size
from dataplane.discovery.sources import NoAnswer, Source
from shared.policy import CapacityPolicy, CapacitySource, EndpointPolicy, ModelPolicy

log = structlog.stdlib.get_logger(__name__)

ANSWER_SECS: Final = 5.0
"""How long a source may take."""


class Capacity:
    """Sizes of pools. Lives on one event loop.

    `resized` is called when a size, or what it rests on, has changed; `default_size` is the size of
    a pool whose model says nothing, `is_usable` an endpoint's health.
    """

    def __init__(
        self,
        models: Callable[[], Sequence[ModelPolicy]],
        sources: Mapping[CapacitySource, Source],
        *,
        default_size: int,
        every_secs: float,
        is_usable: Callable[[EndpointPolicy], bool],
        answer_secs: float = ANSWER_SECS,
    ) -> None:
        self._models: Final = models
        self._sources: Final = sources
        self._default_size: Final = default_size
        self._every_secs: Final = every_secs
        self._answer_secs: Final = answer_secs
        self._is_usable: Final = is_usable
        self._answers: dict[str, tuple[CapacityPolicy, Answer]] = {}
        """By model, with the question that was answered."""
        self._sizes: dict[str, tuple[ModelPolicy, PoolSize]] = {}
        self._silent: set[str] = set()
        """Models of which it has been told that nobody answers."""
        self._resized: list[Callable[[], None]] = []
        self._due: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, resized: Callable[[], None]) -> None:
        """Call `resized` when answers have changed any size."""
        self._resized.append(resized)

    def size_of(self, model: ModelPolicy) -> PoolSize:
        """The size of a model's pool, from memory."""
        known = self._sizes.get(model.id)
        if known is not None and known[0] is model:
            return known[1]
        size = pool_size(
            model,
            self._answer(model),
            default=self._default_size,
            is_usable=self._is_usable,
        )
        self._sizes[model.id] = (model, size)
        return size

    def start(self) -> None:
        """Ask from now on."""
        self._due.set()
        self._task = asyncio.create_task(self._run(), name="capacity")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for source in self._sources.values():
            await source.keep([])

    def ask_soon(self) -> None:
        """Something has changed that answers depend on: ask again without waiting."""
        self._due.set()

    def health_changed(self) -> None:
        """An endpoint has become healthy or unhealthy."""
        self._recalculate()
        self.ask_soon()

    async def ask(self) -> None:
        """Ask for every model that has a source; sizes follow at once."""
        asked = [model for model in self._models() if model.capacity is not None]
        for kind, source in self._sources.items():
            await source.keep([m for m in asked if m.capacity and m.capacity.source is kind])
        found = await asyncio.gather(*(self._asked(model) for model in asked))
        before = self._answers
        self._answers = {}
        for model, answer in zip(asked, found, strict=True):
            assert model.capacity is not None, "only such models are asked about"
            if answer is not None:
                self._answers[model.id] = (model.capacity, answer)
        current = {model.id for model in self._models()}
        self._sizes = {id: known for id, known in self._sizes.items() if id in current}
        self._silent &= current
        if self._answers != before:
            self._recalculate()

    def _recalculate(self) -> None:
        before, self._sizes = self._sizes, {}
        for model in self._models():
            size = self.size_of(model)
            known = before.get(model.id)
            if known is None or known[1] != size:
                log.info("pool_size", model=model.name, size=size.size, source=size.source)
        for resized in self._resized:
            resized()

    async def _asked(self, model: ModelPolicy) -> Answer | None:
        """A new answer; the last one, as such, if there is none; None: there never was one."""
        assert model.capacity is not None, "only such models are asked about"
        try:
            async with asyncio.timeout(self._answer_secs):
                ready = tuple(await self._sources[model.capacity.source].ready(model))
            self._silent.discard(model.id)
            return Answer(ready)
        except (NoAnswer, TimeoutError) as error:
            reason = str(error) or f"no answer within {self._answer_secs:g} s"
        except Exception as error:
            # A fault of ours: it must not end the asking for all other models.
            log.exception("capacity_failed", model=model.name)
            reason = type(error).__name__
        last = self._answer(model)
        if model.id not in self._silent:
            self._silent.add(model.id)
            log.warning("capacity_not_answered", model=model.name, error=reason)
        return None if last is None else Answer(last.ready, is_stale=True)

    def _answer(self, model: ModelPolicy) -> Answer | None:
        known = self._answers.get(model.id)
        if known is None or model.capacity is None:
            return None
        return known[1] if _question(known[0]) == _question(model.capacity) else None

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._every_secs):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            try:
                await self.ask()
            except Exception:
                # A fault of ours in one round, and no reason to keep all sizes from then on.
                log.exception("capacity_round_failed")


def _question(capacity: CapacityPolicy) -> tuple[object, ...]:
    """What makes an answer the answer to something else."""
    return (capacity.source, capacity.dns_name, capacity.service, capacity.namespace)
