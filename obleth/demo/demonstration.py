"""The demo from start to end, and what it prints."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from obleth import __version__, server
from obleth.backend import BackendOptions, SimulatedBackend
from obleth.demo.set_up import SHARES, SLOTS, Keys, set_up
from obleth.demo.traffic import Traffic
from obleth.embedded import Sockets, embedded_service, prepare
from obleth.failures import Failed
from obleth.server import CannotListen, StopSignal
from obleth.settings import EmbeddedSettings
from shared.settings import ListenAddress, load, variable_name

MODEL: Final = "demo-model"
BACKEND: Final = BackendOptions(
    models=(MODEL,),
    # A little more than the gateway lets through: what waits, waits where it can be ordered.
    slots=16,
    token_secs=0.04,
    prefill_secs_per_token=0.0005,
    cache_tokens=50_000,
    reply_tokens=25,
)
GRACE_SECS: Final = 5.0
LISTENERS: Final = ("proxy_listen", "admin_listen", "metrics_listen")


def run_demo(*, traffic: bool, data: Path | None) -> None:
    """Run until a signal says to stop. Raises Failed."""
    with _folder(data) as folder:
        settings = _settings(folder)
        server.run(_demonstrate(settings, traffic=traffic))


async def _demonstrate(settings: EmbeddedSettings, *, traffic: bool) -> None:
    signal = StopSignal()
    signal.install()
    sockets, notes = _sockets(settings)
    prepare(settings)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(SimulatedBackend(BACKEND))
        service = embedded_service(settings, sockets)
        await service.start()
        stack.push_async_callback(service.stop, signal)
        admin = f"http://{sockets.admin_address}"
        token = settings.admin_token.get_secret_value()
        keys = await set_up(admin, token, model=MODEL, backend=backend.url)
        gateway = f"http://{sockets.proxy_address}"
        where = {
            "dashboard": f"{admin}/",
            "admin token": token,
            "gateway": f"{gateway}/v1",
            "metrics": f"http://{sockets.metrics_address}/metrics",
            "backend": f"{backend.url} (simulated)",
        }
        print("\n".join((*notes, *_welcome(where, keys), *_try_it(gateway, keys))), flush=True)
        if traffic:
            await stack.enter_async_context(Traffic(gateway, MODEL, keys.traffic))
        await signal.wait()
        print("stopping: requests that run may end first", flush=True)


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is None:
        with tempfile.TemporaryDirectory(prefix="obleth-demo-") as temporary:
            yield Path(temporary)
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"cannot use the folder {data}: {error.strerror}") from None
    yield data


def _settings(folder: Path) -> EmbeddedSettings:
    """The environment's, but for the database, and with tokens and listeners where it has none."""
    given: dict[str, object] = {
        "database_url": f"sqlite+aiosqlite:///{(folder / 'obleth.db').resolve()}",
        "admin_token": SecretStr(secrets.token_hex(16)),
        "redis_url": None,
    }
    settings = load(EmbeddedSettings, **given)
    update: dict[str, object] = {}
    if "proxy_listen" not in settings.model_fields_set:
        update["proxy_listen"] = ListenAddress("127.0.0.1", settings.proxy_listen.port)
    if "shutdown_grace_secs" not in settings.model_fields_set:
        update["shutdown_grace_secs"] = GRACE_SECS
    if "log_level" not in settings.model_fields_set:
        update["log_level"] = "warning"  # a line for each request would bury what is to be seen
    return settings.model_copy(update=update)


def _sockets(settings: EmbeddedSettings) -> tuple[Sockets, list[str]]:
    """The three listeners' sockets; a default port that is taken gives way to a free one."""
    bound, notes = {}, []
    for field in LISTENERS:
        address: ListenAddress = getattr(settings, field)
        try:
            bound[field] = server.bind(address, variable_name(field))
        except CannotListen:
            if field in settings.model_fields_set:
                raise
            bound[field] = server.bind(ListenAddress(address.host, 0), variable_name(field))
            instead = server.bound_address(bound[field])
            notes.append(f"{address} is taken: using {instead} ({variable_name(field)} sets it)")
    return Sockets(*(bound[field] for field in LISTENERS)), notes


def _welcome(where: Mapping[str, str], keys: Keys) -> Iterator[str]:
    yield f"obleth {__version__} demo: {MODEL} has {SLOTS} slots, shared by two tenants"
    yield ""
    for name, value in where.items():
        yield f"  {name:<11}  {value}"
    for share in SHARES:
        yield (
            f"  {share.tenant:<11}  {keys.yours[share.tenant]}"
            f"  (group {share.group}, weight {share.weight})"
        )
    yield ""


def _try_it(gateway: str, keys: Keys) -> Iterator[str]:
    key = keys.yours[SHARES[0].tenant]
    yield "Try it:"
    yield ""
    yield (
        f"curl -sS {gateway}/v1/chat/completions -H 'Authorization: Bearer {key}'"
        f" -H 'Content-Type: application/json'"
        f' -d \'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}]}}\''
    )
    yield ""
    yield "or in Python:"
    yield ""
    yield "from openai import OpenAI"
    yield f'client = OpenAI(base_url="{gateway}/v1", api_key="{key}")'
    yield "stream = client.chat.completions.create("
    yield f'    model="{MODEL}", messages=[{{"role": "user", "content": "Hello"}}], stream=True'
    yield ")"
    yield "for chunk in stream:"
    yield '    print(chunk.choices[0].delta.content or "", end="", flush=True)'
    yield ""
    yield "Ctrl-C stops it."
    yield ""
