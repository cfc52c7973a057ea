"""`obleth top` and `obleth explain` against a running product, as processes."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.e2e.processes import COMMAND, ENVIRONMENT
from tests.embedded.conftest import TOKEN, Product

NAME = "[red]t[/red]"
"""Nobody's markup, and nobody's HTML."""


async def obleth(product: Product, *arguments: str, token: str = TOKEN) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    running = await asyncio.create_subprocess_exec(
        *(*COMMAND, *arguments, "--url", url(product)),
        env={**ENVIRONMENT, "OBLETH_ADMIN_TOKEN": token, "COLUMNS": "120"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await running.communicate()
    assert running.returncode is not None
    return running.returncode, out.decode(), err.decode()


def url(product: Product) -> str:
    return str(product.api.base_url).removesuffix("/api/v1/")


@asynccontextmanager
async def busy(product: Product) -> AsyncIterator[str]:
    """A pool of two slots, both in use, and three that wait; the key."""
    await product.model("m", max_in_flight=2, aliases=["alias"])
    _, key = await product.tenant(NAME)
    slow = {"x-sim-token-ms": "20"}
    asked = [
        asyncio.create_task(product.ask(key, "m", max_tokens=5000, headers=slow)) for _ in range(5)
    ]
    await product.queued(3)
    try:
        yield key
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_top_looks_once_and_tells_what_the_backend_runs(product: Product) -> None:
    async with busy(product):
        code, out, err = await obleth(product, "top", "--once")
        running = product.backend.running("m")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert f"m  [##] {running}/2 · 3 waiting" in out
    (row,) = [line.split() for line in out.splitlines() if NAME in line]
    assert row[1:] == ["default", "2", "0", "3", "2.0", row[6], "pool_full"]


async def test_top_says_when_there_is_nothing(product: Product) -> None:
    code, out, _ = await obleth(product, "top", "--once")
    assert code == 0
    assert "nothing runs and nothing waits" in out
    assert "mode local" in out


async def test_top_draws_again_and_again_on_a_terminal_until_ctrl_c(product: Product) -> None:
    ours, its = pty.openpty()
    running = await asyncio.create_subprocess_exec(
        *(*COMMAND, "top", "--interval", "0.2", "--url", url(product)),
        env={**ENVIRONMENT, "OBLETH_ADMIN_TOKEN": TOKEN, "TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=its,
        preexec_fn=_heed_ctrl_c,
    )
    os.close(its)
    seen = b""
    while seen.count(b"nothing runs") < 3:
        seen += (drawn := await asyncio.to_thread(_taken, ours))
        assert drawn, seen
    running.send_signal(signal.SIGINT)
    while await asyncio.to_thread(_taken, ours):
        pass  # were it not taken, the command could not end
    assert await running.wait() == 0
    os.close(ours)


def _heed_ctrl_c() -> None:
    """As from a terminal, also where the tests themselves were started in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _taken(terminal: int) -> bytes:
    """What was drawn next; nothing once nobody draws any more, which Linux calls an error."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


async def test_explain_says_why_a_request_would_wait(product: Product) -> None:
    async with busy(product) as key:
        for given, model in ((key, "m"), (key[:11], "alias")):
            code, out, err = await obleth(product, "explain", "--key", given, "--model", model)
            assert (code, err) == (0, "")
            assert out.startswith("waits (pool_full)\n2 of 2 slots of m are in use")
            assert "3 requests wait" in out
            assert "of one replica alone: mode local" in out


@pytest.mark.parametrize(
    ("arguments", "token", "said"),
    [
        (("top", "--once"), "wrong", "does not know the token"),
        (("explain", "--key", "sk-" + "0" * 48, "--model", "m"), TOKEN, "there is no key"),
        (("top", "--once"), "", "OBLETH_VIEWER_TOKEN or OBLETH_ADMIN_TOKEN"),
    ],
)
async def test_what_the_caller_can_set_right_is_one_line_and_exit_code_2(
    product: Product, arguments: tuple[str, ...], token: str, said: str
) -> None:
    code, out, err = await obleth(product, *arguments, token=token)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said.lower() in err.lower()
    assert "0" * 20 not in err


async def test_a_control_plane_that_does_not_answer_is_one_line_and_exit_code_1() -> None:
    running = await asyncio.create_subprocess_exec(
        *(*COMMAND, "top", "--once", "--url", "http://127.0.0.1:1"),
        env={**ENVIRONMENT, "OBLETH_ADMIN_TOKEN": TOKEN},
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await running.communicate()
    assert running.returncode == 1
    assert err.decode().startswith("obleth: http://127.0.0.1:1/")
    assert err.count(b"\n") == 1
