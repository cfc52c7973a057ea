"""`deploy/dev/fleet`: the processes of docker-compose.yml behind HAProxy, in use."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import openai
import pytest

from tests import redis_server
from tests.architecture.tree import ROOT
from tests.conftest import POSTGRES

FLEET = ROOT / "deploy" / "dev" / "fleet"
MODEL = "demo-model"
SLOTS = 8
CLIENTS = SLOTS + 4
"""More than there are slots, so that some wait at a replica when it is told to go."""
LONGEST_SECS = 120


class Fleet:
    """The script, on a state folder and servers of the test's own."""

    def __init__(self, folder: Path, redis: str, database: str) -> None:
        self._folder = folder
        self._servers = ["--free-ports", "--redis-url", redis, "--database-url", database]
        self.key = ""

    def try_to(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        given = [*options, *(self._servers if command == "up" else [])]
        return subprocess.run(
            [FLEET, command, "--state", self._folder, *given],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECS,
        )

    def run(self, command: str, *options: str) -> str:
        done = self.try_to(command, *options)
        assert done.returncode == 0, done.stderr + self._logs()
        return done.stdout

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self._folder.glob("*.log"))

    @property
    def state(self) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads((self._folder / "fleet.json").read_text())
        return kept

    def pid(self, name: str) -> int:
        return int(self.state["processes"][name]["pid"])

    def url(self, listener: str) -> str:
        return f"http://127.0.0.1:{self.state['ports'][listener]}"

    def replicas(self) -> list[str]:
        return sorted(name for name in self.state["processes"] if name.startswith("dataplane"))

    async def running(self) -> int:
        """How many requests the replicas say they run."""
        async with httpx.AsyncClient(trust_env=False) as client:
            texts = [
                (await client.get(self.url(name.replace("dataplane", "metrics")) + "/metrics")).text
                for name in self.replicas()
            ]
        return sum(
            int(float(line.rpartition(" ")[2]))
            for text in texts
            for line in text.splitlines()
            if line.startswith("obleth_in_flight{")
        )


async def _execute(statement: str) -> None:
    connection = await asyncpg.connect(POSTGRES)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two replicas, and a model of eight slots on the simulated backend."""
    folder = tmp_path_factory.mktemp("fleet")
    redis = redis_server.Server(folder)
    asyncio.run(redis.start())
    name = f"obleth_test_{secrets.token_hex(6)}"
    server = POSTGRES.replace("postgresql://", "postgresql+asyncpg://").rpartition("/")[0]
    fleet = Fleet(folder, redis.url, f"{server}/{name}")
    try:
        fleet.run("up", "--replicas", "2")
        fleet.key = _register(fleet)
        yield fleet
    finally:
        if (folder / "fleet.json").exists():
            fleet.run("down")
        asyncio.run(redis.stop())
        asyncio.run(_execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


def _register(fleet: Fleet) -> str:
    with httpx.Client(
        base_url=fleet.url("admin") + "/api/v1/",
        headers={"authorization": f"Bearer {fleet.state['admin_token']}"},
        trust_env=False,
    ) as api:

        def post(path: str, **body: Any) -> Any:
            answer = api.post(path, json=body)
            assert answer.is_success, answer.text
            return answer.json()

        model = post("models", name=MODEL, max_in_flight=SLOTS)["id"]
        post(f"models/{model}/endpoints", url=fleet.url("backend") + "/v1")
        tenant = post("tenants", name="search")["id"]
        return str(post(f"tenants/{tenant}/keys", name="test")["secret"])


def _client(fleet: Fleet) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=fleet.url("gateway"),
        headers={"authorization": f"Bearer {fleet.key}"},
        trust_env=False,
        timeout=LONGEST_SECS,
    )


def _body(tokens: int) -> dict[str, Any]:
    hello = [{"role": "user", "content": "Hello"}]
    return {"model": MODEL, "stream": True, "max_tokens": tokens, "messages": hello}


async def test_a_stream_reaches_the_client_while_it_still_runs(fleet: Fleet) -> None:
    async with (
        _client(fleet) as client,
        client.stream("POST", "/v1/chat/completions", json=_body(500)) as answer,
    ):
        assert answer.status_code == 200
        async for first in answer.aiter_raw():
            assert first.startswith(b"data: ")
            break
        assert await fleet.running() == 1


def test_up_said_again_starts_nothing_anew(fleet: Fleet) -> None:
    before = fleet.state["processes"]
    fleet.run("up", "--replicas", "2")
    assert fleet.state["processes"] == before


def test_a_port_that_is_another_programs_is_named_before_anything_starts(fleet: Fleet) -> None:
    before = fleet.state["processes"]
    port = fleet.state["ports"]["metrics4"]
    with socket.create_server(("127.0.0.1", port)):
        done = fleet.try_to("up", "--replicas", "4")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"port {port}, for dataplane4, is another program's" in done.stderr
    assert fleet.state["processes"] == before


async def test_replicas_come_and_go_under_load_without_a_failed_request(fleet: Fleet) -> None:
    over = asyncio.Event()
    served: list[str] = []

    async def ask(client: httpx.AsyncClient) -> None:
        while not over.is_set():
            answer = await client.post("/v1/chat/completions", json=_body(25))
            ended = answer.text.count("data: [DONE]")
            served.append("served" if (answer.status_code, ended) == (200, 1) else answer.text)

    async with _client(fleet) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(CLIENTS)]
        await asyncio.to_thread(fleet.run, "up", "--replicas", "3")
        at_three = fleet.replicas()
        await asyncio.to_thread(fleet.run, "up", "--replicas", "1")
        over.set()
        await asyncio.gather(*asking)
    assert at_three == ["dataplane1", "dataplane2", "dataplane3"]
    assert fleet.replicas() == ["dataplane1"]
    assert set(served) == {"served"}


async def test_clients_that_wait_at_a_replica_told_to_stop_are_served_by_another(
    fleet: Fleet,
) -> None:
    """What `docker compose` does when it scales down; the SDK comes again when told to."""
    await asyncio.to_thread(fleet.run, "up", "--replicas", "2")
    hello: Any = [{"role": "user", "content": "Hello"}]
    async with openai.AsyncOpenAI(base_url=fleet.url("gateway") + "/v1", api_key=fleet.key) as sdk:

        async def ask() -> str:
            answer = await sdk.chat.completions.create(model=MODEL, messages=hello, max_tokens=50)
            return answer.choices[0].finish_reason

        asking = [asyncio.create_task(ask()) for _ in range(4 * SLOTS)]
        await _until_all_slots_are_taken(fleet)
        os.kill(fleet.pid("dataplane2"), signal.SIGTERM)
        assert set(await asyncio.gather(*asking)) == {"length"}


async def _until_all_slots_are_taken(fleet: Fleet) -> None:
    while True:
        if await fleet.running() == SLOTS:
            return
        await asyncio.sleep(0.05)


def test_haproxy_takes_what_it_is_given_in_containers(fleet: Fleet) -> None:
    assert fleet.replicas()  # so that HAProxy is there
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:/opt/homebrew/bin")
    assert haproxy
    folder = ROOT / "deploy" / "haproxy"
    done = subprocess.run(
        [haproxy, "-c", "-f", folder / "haproxy.cfg", "-f", folder / "compose.cfg"],
        env={**os.environ, "OBLETH_GATEWAY_BIND": "127.0.0.1:8080"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_down_ends_every_process_it_started(fleet: Fleet) -> None:
    pids = [process["pid"] for process in fleet.state["processes"].values()]
    fleet.run("down")
    assert [pid for pid in pids if _lives(pid)] == []
    assert fleet.run("status") == "nothing runs\n"


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
