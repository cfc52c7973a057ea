"""A whole replay: read the trace, check the gateway and the keys, play, report."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from obleth.replay.engine import Player
from obleth.replay.options import ReplayOptions
from obleth.replay.report import Report, measure
from obleth.replay.sender import Sender
from obleth.replay.trace import Trace, load


def run(options: ReplayOptions, console: Console | None = None) -> Report:
    """Replay to the end, with a progress bar on `console` when there is one.

    Interrupted (Ctrl-C), it reports what was measured until then. Raises ReplayError, whose text is
    one line and whose `exit_code` is what a command should end with.
    """
    trace = read(options)
    if console is None:
        return asyncio.run(_interruptible(options, trace, lambda: None))
    columns = (
        TextColumn("replaying {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(trace.name, total=trace.requests)
        return asyncio.run(_interruptible(options, trace, lambda: progress.advance(task)))


def read(options: ReplayOptions) -> Trace:
    """The part of the trace that is to be played. Raises BadTrace."""
    return load(
        options.trace,
        limit=options.limit,
        max_sessions=options.max_sessions,
        max_steps=options.max_steps,
    )


async def replay(
    options: ReplayOptions,
    trace: Trace | None = None,
    on_step: Callable[[], None] = lambda: None,
    on_ready: Callable[[Player], None] = lambda player: None,
) -> Report:
    """Replay inside a running loop; `on_ready` is given the player, which can be interrupted.

    Raises ReplayError.
    """
    played_trace = trace or read(options)
    async with Sender(options) as sender:
        await sender.check()
        player = Player(played_trace, options, sender, on_step)
        on_ready(player)
        played = await player.play()
        return measure(played_trace, options, sender.model, played)


async def _interruptible(
    options: ReplayOptions, trace: Trace, on_step: Callable[[], None]
) -> Report:
    loop = asyncio.get_running_loop()

    def listen(player: Player) -> None:
        loop.add_signal_handler(signal.SIGINT, player.interrupt)

    try:
        return await replay(options, trace, on_step, listen)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
