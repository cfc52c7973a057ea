"""What the two commands do."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live

from obleth.console.api import Api
from obleth.console.picture import drawn
from obleth.failures import Failed
from obleth.settings import ConsoleSettings
from shared.settings import load

WIDE = 160
"""Columns where it is no terminal, so that a line of a file is a line."""


def top(url: str | None, interval: float, *, once: bool) -> None:
    """Draw the live state every `interval` seconds until interrupted. Raises Failed."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    with _api(url) as api:
        first = drawn(api.live(), console.width)
        if once:
            console.print(first)
            return
        try:
            if console.is_terminal:
                _redraw(console, api, interval, first)
            else:
                _append(console, api, interval, first)
        except KeyboardInterrupt:
            return


def explain(url: str | None, key: str, model: str) -> None:
    """Print why a request would wait now. Raises Failed."""
    with _api(url) as api:
        told = api.explanation(key, model)
    cause = told["cause"] or told["code"]
    print(told["outcome"] + (f" ({cause})" if cause else ""))
    print(told["detail"])
    if told["scope_reason"]:
        print(f"of one replica alone: {told['scope_reason']}")


def _api(url: str | None) -> Api:
    settings = load(ConsoleSettings)
    token = settings.viewer_token or settings.admin_token
    return Api(
        url or f"http://{settings.admin_listen}",
        None if token is None else token.get_secret_value(),
    )


def _redraw(console: Console, api: Api, interval: float, first: object) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        screen.update(first, refresh=True)  # type: ignore[arg-type]
        while True:
            time.sleep(interval)
            screen.update(_now(api, console.width), refresh=True)  # type: ignore[arg-type]


def _append(console: Console, api: Api, interval: float, first: object) -> None:
    console.print(first)
    while True:
        time.sleep(interval)
        console.print(_now(api, console.width))


def _now(api: Api, width: int) -> object:
    """The picture, or why there is none: a control plane that restarts is waited for."""
    try:
        return drawn(api.live(), width)
    except Failed as failure:
        return str(failure)
