from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from shared.network import AddressRefused, NetworkRules, check_address, checked_url

OPEN = NetworkRules()
BLOCKED = NetworkRules(block_private=True)
EXCEPTED = NetworkRules(True, (ip_network("10.1.0.0/16"), ip_network("fd12::/32")))

NEVER = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "::ffff:169.254.169.254",
    "64:ff9b::169.254.169.254",
    "2002:a9fe:a9fe::1",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
]
PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "::1",
    "fd00::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::10.0.0.1",
    "::ffff:0:10.0.0.1",
]


@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize(
    "rules", [OPEN, BLOCKED, NetworkRules(True, (ip_network("0.0.0.0/0"), ip_network("::/0")))]
)
def test_what_leads_to_machine_credentials_is_never_allowed(
    address: str, rules: NetworkRules
) -> None:
    with pytest.raises(AddressRefused):
        check_address(ip_address(address), rules)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_allowed_until_they_are_blocked(address: str) -> None:
    check_address(ip_address(address), OPEN)
    with pytest.raises(AddressRefused, match="OBLETH_BLOCK_PRIVATE_NETWORKS"):
        check_address(ip_address(address), BLOCKED)


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "fd12::5", "8.8.8.8"])
def test_exceptions_and_public_addresses_are_allowed_while_private_ones_are_blocked(
    address: str,
) -> None:
    check_address(ip_address(address), EXCEPTED)


@pytest.mark.parametrize("address", ["10.2.0.1", "fd13::1", "127.0.0.1"])
def test_an_exception_is_no_more_than_it_says(address: str) -> None:
    with pytest.raises(AddressRefused):
        check_address(ip_address(address), EXCEPTED)


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("http://llm:8000/v1", "http://llm:8000/v1"),
        ("https://LLM.Example/v1///", "https://llm.example/v1"),
        ("HTTP://10.0.0.1", "http://10.0.0.1"),
        ("http://[2001:db8::1]:8000/v1", "http://[2001:db8::1]:8000/v1"),
        ("http://my_service.gpu/Path/V1", "http://my_service.gpu/Path/V1"),
    ],
)
def test_a_url_is_stored_in_one_spelling(url: str, stored: str) -> None:
    assert checked_url(url, OPEN) == stored


@pytest.mark.parametrize(
    "host",
    [
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:a9fe:a9fe]",
        "[fe80::1%25eth0]",
        "METADATA.google.internal",
        "metadata.google.internal.",
    ],
)
def test_no_spelling_gets_around_what_is_never_allowed(host: str) -> None:
    with pytest.raises(AddressRefused):
        checked_url(f"http://{host}/v1", OPEN)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "a.localhost", "127.1", "2130706433", "[::1]", "0x7f.1"]
)
def test_no_spelling_of_this_machine_gets_around_the_block(host: str) -> None:
    checked_url(f"http://{host}:8000/v1", OPEN)
    with pytest.raises(AddressRefused):
        checked_url(f"http://{host}:8000/v1", BLOCKED)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "llm",
        "//llm/v1",
        "ftp://llm",
        "javascript:alert(1)",
        "http://",
        "http:///v1",
        "http://u@llm",
        "http://u:p@llm",
        "http://llm:0",
        "http://llm:65536",
        "http://llm:x",
        "http://[::1]x/v1",
        "http://[::1/v1",
        "http://llm?x",
        "http://llm#",
        "http://llm/a b",
        "http://llm\t/v1",
        "http://llm\\@evil/v1",
        "http://a..b/v1",
        "http://8.8.8.8%25.evil.example/v1",
        "http://%31%36%39.254.169.254/",
        "http://лл.example/v1",
        "http://" + "a" * 254,
    ],
)
def test_what_is_no_plain_base_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        checked_url(url, OPEN)
