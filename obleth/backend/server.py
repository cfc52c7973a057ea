"""The simulated backend as a server: routes, life and death, and what tests ask it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from aiohttp import BodyPartReader, web

from obleth.accepting import stop_accepting
from obleth.backend import switches
from obleth.backend.answer import Question, answer, refuse
from obleth.backend.connection import Connection, Server
from obleth.backend.ledger import Account, Ledger, Outcome, RequestRecord
from obleth.backend.options import BackendOptions
from obleth.backend.shapes.chat import Chat, Completion
from obleth.backend.shapes.messages import CountTokens, Messages
from obleth.backend.shapes.port import BadAsk, Body, Shape
from obleth.backend.shapes.responses import Responses
from obleth.backend.shapes.single import Embeddings, Images, Rerank, Transcriptions
from obleth.backend.switches import BadSwitch, Faults
from obleth.backend.wire import Written

_SHAPES: Final[dict[str, Shape]] = {
    "/v1/chat/completions": Chat(),
    "/v1/completions": Completion(),
    "/v1/responses": Responses(),
    "/v1/embeddings": Embeddings(),
    "/v1/messages": Messages(),
    "/v1/messages/count_tokens": CountTokens(),
    "/v1/rerank": Rerank(),
    "/v1/audio/transcriptions": Transcriptions(),
    "/v1/audio/translations": Transcriptions(),
    "/v1/images/generations": Images(),
}
_MODELS_PATH: Final = "/v1/models"
_LONGEST_HEADER_BYTES: Final = 65536
_LARGEST_BODY: Final = 1 << 30
_LAST_WORDS_SECS: Final = 1.0
"""How long cancelled answers get to clean up."""
_EPOCH: Final = 1_700_000_000
"""When every simulated model was made."""


class CannotListen(Exception):
    """The backend's address cannot be bound; the text says which and why."""


class SimulatedBackend:
    """A backend on a real socket, in the running loop.

        async with SimulatedBackend(slots=4) as backend:
            ... backend.url ... backend.running("m") ... backend.log

    Takes BackendOptions, its fields by name, or both (the fields win).
    """

    def __init__(self, options: BackendOptions | None = None, **fields: Any) -> None:
        self.options = dataclasses.replace(options or BackendOptions(), **fields)
        self.faults = self.options.faults
        """For all models; may be set at any time."""
        self.model_faults = dict(self.options.model_faults)
        """By model, in place of `faults`; may be changed at any time."""
        self._ledger = Ledger(self.options)
        self._server: Server | None = None
        self._listening: asyncio.Server | None = None
        self._port = self.options.port

    async def start(self) -> None:
        """Listen. Raises CannotListen."""
        self._server = Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=self.options.keep_alive_secs,
            max_line_size=_LONGEST_HEADER_BYTES,
            max_field_size=_LONGEST_HEADER_BYTES,
        )
        await self.listen_again()

    async def stop(self) -> None:
        """Stop listening and cut whatever runs."""
        for account in list(self._ledger.open):
            account.close(Outcome.CUT)
        await self.stop_listening()
        if self._server is not None:
            self._server.abort_connections()
            await self._server.shutdown(_LAST_WORDS_SECS)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop_listening(self) -> None:
        """Refuse new connections; those that are open go on."""
        if self._listening is not None:
            await stop_accepting(self._listening.sockets)
            self._listening.close()
            self._listening = None

    async def listen_again(self) -> None:
        """Take new connections, at the same address as before. Raises CannotListen."""
        assert self._server is not None, "start the backend first"
        where = f"{self.options.host}:{self._port}"
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                self._server, self.options.host, self._port, backlog=2048
            )
        except OSError as error:
            raise CannotListen(f"cannot listen on {where}: {error.strerror or error}") from error
        self._port = self._listening.sockets[0].getsockname()[1]

    def drop_connections(self) -> None:
        """Cut every open connection, as a crash would; the backend goes on listening."""
        for account in list(self._ledger.open):
            account.close(Outcome.CUT)
        if self._server is not None:
            self._server.abort_connections()

    @property
    def root_url(self) -> str:
        """As Anthropic's SDK takes it: without `/v1`."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"http://{host}:{self._port}"

    @property
    def url(self) -> str:
        """As OpenAI's SDK and an endpoint's row take it: with `/v1`."""
        return f"{self.root_url}/v1"

    @property
    def log(self) -> list[RequestRecord]:
        """Every request so far, in the order of arrival."""
        return list(self._ledger.log)

    @property
    def connections(self) -> int:
        """Open client connections, idle ones too."""
        return 0 if self._server is None else len(self._server.connections)

    def running(self, model: str) -> int:
        """Requests of a model that hold a slot."""
        return self._figure(model, "running")

    def waiting(self, model: str) -> int:
        """Requests of a model that came through but have no slot yet."""
        return self._figure(model, "waiting")

    def peak(self, model: str) -> int:
        """The most of a model that ever ran at once; never above `slots`."""
        return self._figure(model, "peak")

    def peak_present(self, model: str) -> int:
        """The most of a model that were ever running or waiting here at once."""
        return self._figure(model, "peak_present")

    async def until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        """Return when something about this backend holds, seconds. Raises TimeoutError."""
        await self._ledger.until(condition, within)

    def reset(self) -> None:
        """Forget the log, the peaks, the caches and the faults set since the start."""
        self.faults = self.options.faults
        self.model_faults = dict(self.options.model_faults)
        self._ledger.reset()

    def state(self) -> dict[str, Any]:
        """What `GET /sim/state` answers."""
        models = {name: pool.as_json() for name, pool in self._ledger.pools.items()}
        return {"connections": self.connections, "requests": len(self.log), "models": models}

    def _figure(self, model: str, name: str) -> int:
        pool = self._ledger.pools.get(model)
        return 0 if pool is None else int(getattr(pool.slots, name))

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        shape = _SHAPES.get(path)
        if shape is not None:
            if request.method == "POST":
                return await self._question(request, shape)
            return _json(shape.error(405, f"{request.method} is not allowed here").decode(), 405)
        if request.method in ("GET", "HEAD"):
            if path in ("/", "/health"):
                return web.Response()
            if path == _MODELS_PATH or path.startswith(_MODELS_PATH + "/"):
                return self._models(request)
        if path.startswith("/sim/"):
            return await self._sim(request)
        return _json(_SHAPES["/v1/completions"].error(404, f"no route {path}").decode(), 404)

    async def _question(self, request: web.BaseRequest, shape: Shape) -> web.StreamResponse:
        account = self._ledger.account(request.method, request.path_qs, request.raw_headers)
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.account = account
        faults = self.faults
        try:
            body = await self._body(request, account)
            faults = self._faults_of(account.record)
            self._admit(account.record)
            question = Question(request, shape, body, faults, account)
            return await answer(question, self._ledger.pool(account.record.model), self.options)
        except BadAsk as error:
            return await refuse(request, account, shape, faults, error)
        except BadSwitch as error:
            return await refuse(request, account, shape, faults, BadAsk(400, str(error)))
        except ConnectionError:
            account.close(Outcome.CLIENT_LEFT)
            return Written(keep_alive=False)
        except asyncio.CancelledError:
            account.close(Outcome.CLIENT_LEFT)
            raise
        finally:
            account.close(Outcome.FAILED)  # only counts for an error of our own
            connection.account = None

    async def _body(self, request: web.BaseRequest, account: Account) -> Body:
        """The request's fields; the model's name goes into its record. Raises BadAsk."""
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.content_type == "multipart/form-data":
            body = await _form(request)
        else:
            raw = await request.read()
            if self.options.keep_bodies:
                account.record.body = raw
            try:
                body = msgspec.json.decode(raw)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise BadAsk(400, f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise BadAsk(400, "the body is not a JSON object")
        model = body.get("model")
        account.record.model = model if isinstance(model, str) else ""
        return body

    def _faults_of(self, record: RequestRecord) -> Faults:
        faults = self.model_faults.get(record.model, self.faults)
        faults = faults.changed(switches.from_model_name(record.model))
        return faults.changed(switches.from_headers(record.headers))

    def _admit(self, record: RequestRecord) -> None:
        """Raises BadAsk for a wrong key or a model that is not there."""
        if not self._key_fits(record.header("authorization"), record.header("x-api-key")):
            raise BadAsk(401, "the backend's own key is missing or wrong")
        if self.options.only_listed and record.model not in self.options.models:
            raise BadAsk(404, f"The model `{record.model}` does not exist.", "model")

    def _key_fits(self, authorization: str | None, api_key: str | None) -> bool:
        wanted = self.options.api_key
        given = (api_key, (authorization or "").removeprefix("Bearer "))
        return wanted is None or wanted in given

    def _models(self, request: web.BaseRequest) -> web.Response:
        """The list, in a form that is both OpenAI's and Anthropic's."""
        path, headers = request.path, request.headers
        if not self._key_fits(headers.get("authorization"), headers.get("x-api-key")):
            refusal = _SHAPES["/v1/completions"].error(401, "the key is missing or wrong")
            return _json(refusal.decode(), 401)
        wanted = path.removeprefix(_MODELS_PATH).removeprefix("/")
        known = {name: _model(name) for name in self.options.models}
        if not wanted:
            names = self.options.models
            ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
            return _json({"object": "list", "data": list(known.values()), **ends})
        if wanted in known:
            return _json(known[wanted])
        return _json(_SHAPES["/v1/completions"].error(404, f"no model {wanted}").decode(), 404)

    async def _sim(self, request: web.BaseRequest) -> web.Response:
        match request.method, request.path:
            case "GET", "/sim/state":
                return _json(self.state())
            case "GET", "/sim/log":
                after = request.query.get("after", "0")
                least = int(after) if after.isascii() and after.isdigit() else 0
                return _json([one.as_json() for one in self.log if one.number > least])
            case "GET", "/sim/switches":
                return _json([list(row) for row in switches.table()])
            case "POST", "/sim/reset":
                self.reset()
                return _json(self.state())
            case "PUT", "/sim/faults":
                return self._set_faults(await request.read())
        return _json(
            {"error": "GET /sim/state|log|switches, POST /sim/reset, PUT /sim/faults"}, 404
        )

    def _set_faults(self, raw: bytes) -> web.Response:
        """`{"model": name or null, "switches": {"status": 500}}`; an empty set heals."""
        try:
            change = msgspec.json.decode(raw, type=_FaultsChange)
            faults = self.options.faults.changed(
                {name: str(value) for name, value in change.switches.items()}
            )
        except (msgspec.MsgspecError, BadSwitch) as error:
            return _json({"error": str(error)}, 400)
        if change.model is None:
            self.faults = faults
        else:
            self.model_faults[change.model] = faults
        return _json({"model": change.model, "switches": change.switches})


class _FaultsChange(msgspec.Struct, forbid_unknown_fields=True):
    switches: dict[str, str | int | float]
    model: str | None = None


def _request(*parts: Any) -> web.BaseRequest:
    """A request with a limit far above the gateway's, which is the one that is tested."""
    message, payload, protocol, writer, task = parts
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=_LARGEST_BODY
    )


async def _form(request: web.BaseRequest) -> Body:
    """A form's fields as text; a file as its size, so that uploads are never kept."""
    fields: Body = {}
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise BadAsk(400, "the form has a form inside")
            if part.filename is None:
                fields[part.name or ""] = await part.text()
                continue
            size = 0
            while chunk := await part.read_chunk(1 << 16):
                size += len(chunk)
            fields[part.name or ""] = size
    except ValueError as error:
        raise BadAsk(400, f"the form is broken: {error}") from error
    return fields


def _model(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": _EPOCH,
        "owned_by": "simulated",
        "type": "model",
        "display_name": name,
        "created_at": "2023-11-14T22:13:20Z",
    }


def _json(content: object, status: int = 200) -> web.Response:
    text = content if isinstance(content, str) else json.dumps(content)
    return web.Response(text=text, status=status, content_type="application/json")
