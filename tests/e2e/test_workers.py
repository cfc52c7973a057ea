"""`obleth serve`, and `obleth dataplane --workers`: several replicas on one port of one machine."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests import redis_server
from tests.e2e.processes import Process

TOKEN = "an-admin-token"
WORKERS = 2


def _consecutive_ports() -> int:
    """The first of two ports that nobody listens on."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[redis_server.Server]:
    async with redis_server.server(tmp_path) as own:
        yield own


async def _mode(client: httpx.AsyncClient, port: int) -> str:
    """What a replica says of itself, once it is ready."""
    while True:
        try:
            answer = await client.get(f"http://127.0.0.1:{port}/readyz")
        except httpx.TransportError:
            await asyncio.sleep(0.05)
            continue
        if answer.status_code == 200:
            return str(answer.json()["mode"])
        await asyncio.sleep(0.05)


async def _began(client: httpx.AsyncClient, port: int) -> float:
    """When the replica's process did."""
    await _mode(client, port)
    text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    found = re.search(r"^process_start_time_seconds (\S+)$", text, re.MULTILINE)
    assert found
    return float(found[1])


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_workers_count_on_each_other_before_redis_is_there_and_one_that_dies_is_started_again(
    tmp_path: Path, postgres_url: str, redis: redis_server.Server
) -> None:
    stores = {"OBLETH_DATABASE_URL": postgres_url, "OBLETH_REDIS_URL": redis.url}
    first = _consecutive_ports()
    with Process("migrate", folder=tmp_path, **stores) as migrate:
        assert migrate.exit_code() == 0
    listen = {"OBLETH_METRICS_LISTEN": f"127.0.0.1:{first}"}
    arguments = ("dataplane", "--workers", str(WORKERS))
    fast = {"OBLETH_FAIRSHARE_REPLICA_HEARTBEAT_SECS": "0.5"}
    await redis.stop()
    with Process(*arguments, folder=tmp_path, **stores, **listen, **fast) as plane:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert [await _mode(client, first + n) for n in range(WORKERS)] == ["fallback"] * 2
            await redis.start()
            before = {n: await _began(client, first + n) for n in range(WORKERS)}
            os.kill(_children(plane.running.pid)[-1], signal.SIGKILL)
            await _until_one_began_anew(client, first, before)
        plane.terminate()
        assert plane.exit_code() == 0
    for number in range(WORKERS):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", first + number)) != 0


async def _until_one_began_anew(
    client: httpx.AsyncClient, first: int, before: dict[int, float]
) -> None:
    while True:
        try:
            now = {n: await _began(client, first + n) for n in range(WORKERS)}
        except httpx.TransportError:
            continue
        if now != before:
            return


async def test_serve_has_all_three_listeners_and_keeps_policy_in_the_folder(tmp_path: Path) -> None:
    ports = [_consecutive_ports() for _ in range(3)]
    names = ("PROXY", "ADMIN", "METRICS")
    listen = {
        f"OBLETH_{name}_LISTEN": f"127.0.0.1:{port}"
        for name, port in zip(names, ports, strict=True)
    }
    proxy, admin, metrics = (f"http://127.0.0.1:{port}" for port in ports)
    with Process("serve", folder=tmp_path, OBLETH_ADMIN_TOKEN=TOKEN, **listen) as serve:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert await _mode(client, ports[2]) == "local"
            assert (await client.get(proxy)).status_code == 200
            assert (await client.get(f"{admin}/api/v1/health")).status_code == 200
            assert (await client.get(f"{metrics}/metrics")).status_code == 200
        serve.terminate()
        assert serve.exit_code() == 0
    assert (tmp_path / "obleth.db").exists()
