"""Which headers cross."""

from __future__ import annotations

import pytest

from dataplane.proxy.headers import credentials, to_client, to_upstream

SECRET = b"sk-secret"


@pytest.mark.parametrize(
    "name",
    [
        "connection",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "authorization",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "cookie",
        "host",
        "content-length",
        "accept-encoding",
        "expect",
    ],
)
def test_a_header_of_this_connection_or_of_the_clients_own_stays_here(name: str) -> None:
    assert to_upstream([(name.encode(), b"x")], secret=SECRET) == []


def test_what_connection_names_stays_here_both_ways() -> None:
    headers = [(b"connection", b"x-a , close"), (b"connection", b"X-B"), (b"x-a", b"1")]
    headers += [(b"x-b", b"2"), (b"x-c", b"3")]
    assert to_upstream(headers, secret=SECRET) == [("x-c", "3")]
    assert to_client(headers, keeps_length=True, own_rate_limit=False) == [(b"x-c", b"3")]


def test_the_clients_key_crosses_under_no_name() -> None:
    headers = [(b"x-forwarded-auth", b"Bearer sk-secret"), (b"anthropic-version", b"2023-06-01")]
    assert to_upstream(headers, secret=SECRET) == [("anthropic-version", "2023-06-01")]


def test_other_headers_cross_as_they_are_and_as_often() -> None:
    headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"user-agent", "né".encode())]
    crossing = [("x-a", "1"), ("x-a", "2"), ("user-agent", "né")]
    assert to_upstream(headers, secret=SECRET) == crossing
    assert to_upstream([(b"x-a", b"\xff")], secret=SECRET) == []


def test_an_endpoint_gets_its_own_key_in_its_apis_way() -> None:
    assert credentials(None, anthropic=True) == []
    assert credentials("k", anthropic=False) == [("authorization", "Bearer k")]
    assert ("x-api-key", "k") in credentials("k", anthropic=True)


@pytest.mark.parametrize(
    "name", ["set-cookie", "server", "date", "x-request-id", "x-obleth-slot", "transfer-encoding"]
)
def test_what_the_gateway_says_itself_does_not_come_from_an_upstream(name: str) -> None:
    headers = [(name.upper().encode(), b"x")]
    assert to_client(headers, keeps_length=True, own_rate_limit=False) == []


def test_the_length_crosses_only_while_it_is_true() -> None:
    length = [(b"content-length", b"5")]
    assert to_client(length, keeps_length=True, own_rate_limit=False) == length
    assert to_client(length, keeps_length=False, own_rate_limit=False) == []
    both = [*length, (b"transfer-encoding", b"chunked")]
    assert to_client(both, keeps_length=True, own_rate_limit=False) == []


def test_the_tenants_own_budget_replaces_the_upstreams() -> None:
    headers = [(b"x-ratelimit-remaining-tokens", b"1"), (b"x-ratelimit-remaining-requests", b"2")]
    assert to_client(headers, keeps_length=True, own_rate_limit=False) == headers
    assert to_client(headers, keeps_length=True, own_rate_limit=True) == headers[1:]


@pytest.mark.parametrize("value", [b"a\x01b", b"a\x7f", b"a\x00", b"a\nb"])
def test_a_value_no_server_could_send_stays_here(value: bytes) -> None:
    assert to_client([(b"x-a", value)], keeps_length=True, own_rate_limit=False) == []
