"""Where it is asked how many backends are ready: what a source is, and the two simple ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol

from dataplane.discovery.health import Health
from dataplane.discovery.sizing import Ready
from shared.policy import EndpointPolicy, ModelPolicy

NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""What a resolver says of a name without addresses, as against being unable to tell."""


class NoAnswer(Exception):
    """It cannot be told at the moment how many backends are ready. The text says why."""


class Source(Protocol):
    """Tells the ready backends of models."""

    async def ready(self, model: ModelPolicy) -> Ready:
        """The backends that are ready now. Raises `NoAnswer`; may take a few seconds."""

    async def keep(self, models: list[ModelPolicy]) -> None:
        """These are all models that are asked about: what is kept for others can go."""


class EndpointSource:
    """Counts a model's enabled endpoints that are healthy, with their own caps."""

    def __init__(self, health: Callable[[EndpointPolicy], Health]) -> None:
        self._health: Final = health

    async def ready(self, model: ModelPolicy) -> Ready:
        """See `Source.ready`. No answer before any endpoint has been checked."""
        enabled = [endpoint for endpoint in model.endpoints if endpoint.enabled]
        health = [self._health(endpoint) for endpoint in enabled]
        if enabled and all(each is Health.UNKNOWN for each in health):
            raise NoAnswer("no endpoint has been checked yet")
        return [
            endpoint.max_in_flight
            for endpoint, each in zip(enabled, health, strict=True)
            if each is Health.HEALTHY
        ]

    async def keep(self, models: list[ModelPolicy]) -> None:
        """See `Source.keep`: it keeps nothing."""


class DnsSource:
    """Counts the addresses of a name, as a headless service has one for each ready backend.

    A name of which the resolver says that it does not exist, or has no address, has no backend.
    """

    async def ready(self, model: ModelPolicy) -> Ready:
        """See `Source.ready`."""
        assert model.capacity is not None, "who is asked about has a source"
        name = model.capacity.dns_name
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                name, None, type=socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            if error.errno in NO_SUCH_NAME:
                return []
            raise NoAnswer(f"{name}: {error.strerror}") from error
        except (OSError, UnicodeError) as error:
            raise NoAnswer(f"{name}: {error}") from error
        return [None] * len({address[0] for *_, address in found})

    async def keep(self, models: list[ModelPolicy]) -> None:
        """See `Source.keep`: it keeps nothing."""
