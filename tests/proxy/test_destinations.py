"""Where a request goes, under which name, and what crosses with it."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network

import pytest

from dataplane.proxy import aiohttp_upstream
from shared.network import NetworkRules
from tests.proxy.parts import SECRET, endpoint, model
from tests.proxy.serving import answers, chat, streams, upstream, world

GOOD = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/v1",
        "http://[::ffff:169.254.169.254]/v1",
        "http://0.0.0.0:{port}/v1",
        "http://127.0.0.1:{port}/v1",
        "http://[::ffff:127.0.0.1]:{port}/v1",
        "http://localhost:{port}/v1",
        "http://2130706433:{port}/v1",
        "http://127.1:{port}/v1",
        "file:///etc/passwd",
        "http:///v1",
    ],
)
async def test_what_may_not_be_connected_to_is_not(url: str) -> None:
    rules = NetworkRules(block_private=True)
    async with upstream(answers(GOOD)) as up:
        forbidden = model(url.format(port=up.port), max_retries=0)
        async with world(forbidden, rules=rules) as w:
            reply = await w.ask(body=chat())
            assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
            assert up.connections == 0


async def test_a_name_that_comes_to_mean_another_address_is_checked_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it resolved to when it was saved, or a moment ago."""
    monkeypatch.setattr(aiohttp_upstream, "DNS_CACHE_SECS", 0)
    rules = NetworkRules(block_private=True, allowed_private=[ip_network("127.0.0.1/32")])
    means = ["127.0.0.1", "127.0.0.2"]

    async def getaddrinfo(host: str, port: int, **options: object) -> list[object]:
        assert host == "backend.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (means[0], port))]

    once = answers(GOOD, connection="close")
    async with upstream(once) as up:
        named = model(up.url.replace("127.0.0.1", "backend.example"), max_retries=0)
        async with world(named, rules=rules) as w:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
            assert (await w.ask(body=chat())).status == 200
            del means[0]
            assert (await w.ask(body=chat())).status == 502
            assert up.connections == 1


async def test_an_allowed_private_address_is_connected_to() -> None:
    rules = NetworkRules(block_private=True, allowed_private=[ip_network("127.0.0.0/8")])
    async with upstream(answers(GOOD)) as up, world(model(up.url), rules=rules) as w:
        assert (await w.ask(body=chat())).status == 200


async def test_fields_of_the_body_do_not_choose_where_a_request_goes() -> None:
    async with (
        upstream(answers(GOOD)) as up,
        upstream(answers(GOOD)) as other,
        world(model(up.url)) as w,
    ):
        await w.ask(body=chat(api_base=other.url, base_url=other.url, api_key="x"))
        assert (len(up.asked), len(other.asked)) == (1, 0)


# Names and keys


async def test_the_model_is_called_upstream_what_its_policy_says() -> None:
    async with upstream(answers(GOOD)) as up:
        renamed = model(up.url, upstream_model="org/real", aliases=("nick",))
        plain = model(up.url, name="plain", aliases=("other",))
        async with world(renamed, plain) as w:
            for name, called in (("m", "org/real"), ("nick", "org/real"), ("other", "plain")):
                await w.ask(body=chat(model=name))
                assert up.last.json["model"] == called
            assert [each.model for each in w.seen.finished] == ["m", "m", "plain"]


async def test_an_endpoint_gets_its_own_key_and_never_the_clients() -> None:
    async with upstream(answers(GOOD)) as up:
        keyed = model(endpoints=(endpoint(up.url, api_key="sk-upstream"),))
        async with world(keyed) as w:
            sent = {"cookie": "a=b", "x-custom": "kept", "proxy-authorization": "x"}
            await w.ask(body=chat(), headers=sent)
            assert up.last.header("authorization") == "Bearer sk-upstream"
            assert up.last.header("x-custom") == "kept"
            await w.ask(path="/v1/messages", body=chat(), headers=sent)
            assert up.last.header("x-api-key") == "sk-upstream"
            await w.ask(path=f"/v1/messages?key={SECRET}&a=%20b", body=chat())
            assert up.last.target == "/v1/messages?a=%20b"
            for asked in up.asked:
                assert SECRET not in repr(asked)
                assert asked.header("cookie") is None


async def test_hop_by_hop_headers_cross_neither_way() -> None:
    script = streams(
        b"data: 1\n\n",
        connection="x-b, keep-alive",
        x_b="1",
        keep_alive="timeout=5",
        proxy_authenticate="x",
        trailer="x",
        upgrade="h2c",
        set_cookie="a=b",
        x_c="kept",
    )
    async with upstream(script) as up, world(model(up.url)) as w:
        sent = {"connection": "x-a, keep-alive", "x-a": "1", "te": "trailers", "x-d": "kept"}
        reply = await w.ask(body=chat(), headers=sent)
        crossing = {name for name, _ in up.last.headers}
        assert not crossing & {"connection", "x-a", "te", "authorization"}
        assert up.last.header("x-d") == "kept"
        back = {name for name, _ in reply.headers}
        assert not back & {"x-b", "keep-alive", "proxy-authenticate", "trailer", "set-cookie"}
        assert reply.header("x-c") == "kept"
