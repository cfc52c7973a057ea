"""Which addresses an endpoint may have. Pure: nothing here looks a name up.

The control plane checks a URL when it is saved; the data plane checks the address a name resolved
to when it connects, since names can be pointed elsewhere later. Link-local and cloud metadata
addresses are refused always: who reaches them gets the machine's own credentials.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address

_METADATA: Final = frozenset(
    map(
        ip_address,
        ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Beside the link-local ones, of which 169.254.169.254 is the usual."""
_EVERYBODY: Final = IPv4Address("255.255.255.255")
_METADATA_NAMES: Final = frozenset(
    ("metadata", "metadata.google.internal", "metadata.goog", "instance-data.ec2.internal")
)
_TRANSLATED: Final = tuple(
    map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96"))
)
"""Where the last 32 bits are an IPv4 address; `::` and `::1` are not meant by the last one."""
_HOST_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")


class AddressRefused(ValueError):
    """An endpoint may not be at this address; the message completes "the URL ..."."""


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """What an operator allows beyond what is never allowed."""

    block_private: bool = False
    allowed_private: Sequence[IPv4Network | IPv6Network] = ()
    """Exceptions while private networks are blocked."""


def checked_url(url: str, rules: NetworkRules) -> str:
    """`url` as it is stored: a base as SDKs take it, host in lower case, no slash at the end.

    Raises AddressRefused for what is no plain http(s) URL and for a host that is refused as it
    stands there; a host name is checked again when it is resolved.
    """
    if not url.isascii() or any(char <= " " or char == "\x7f" for char in url) or "\\" in url:
        raise AddressRefused("must be ASCII without spaces or control characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise AddressRefused("must be a URL with a valid host and port") from None
    if parts.scheme not in ("http", "https"):
        raise AddressRefused("must begin with http:// or https://")
    if not host or port == 0:
        raise AddressRefused("must have a host and, if any, a port from 1 to 65,535")
    if "]" in parts.netloc and parts.netloc.rpartition("]")[2][:1] not in ("", ":"):
        raise AddressRefused("must have nothing but a port after an IPv6 address")
    if "@" in parts.netloc:
        raise AddressRefused("must not hold a user name or password; use api_key")
    if "?" in url or "#" in url:
        raise AddressRefused("must not have a query or a fragment")
    _check_host(host, rules)
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def check_address(address: Address, rules: NetworkRules) -> None:
    """Raises AddressRefused unless an endpoint may be at `address`; for use when connecting."""
    for one in _meant(address):
        if one in _METADATA or one.is_link_local:
            raise AddressRefused(f"must not lead to {address}: link-local or cloud metadata")
        if one.is_unspecified or one.is_multicast or one == _EVERYBODY:
            raise AddressRefused(f"must not lead to {address}: not the address of one machine")
        if rules.block_private and not one.is_global and not _is_allowed(one, rules):
            raise AddressRefused(
                f"must not lead to {address}: private networks are blocked here "
                "(OBLETH_BLOCK_PRIVATE_NETWORKS, OBLETH_ALLOWED_PRIVATE_CIDRS)"
            )


def _check_host(host: str, rules: NetworkRules) -> None:
    literal = _literal(host)
    if literal is not None:
        check_address(literal, rules)
        return
    name = host.rstrip(".")
    if not name or len(name) > 253 or not _HOST_CHARS.issuperset(name) or ".." in name:
        raise AddressRefused("must have a host name of letters, digits, dots and hyphens")
    if name in _METADATA_NAMES:
        raise AddressRefused(f"must not lead to {name}: cloud metadata")
    if name == "localhost" or name.endswith(".localhost"):
        check_address(IPv4Address("127.0.0.1"), rules)


def _literal(host: str) -> Address | None:
    """The address a host is written as, in any spelling that resolvers take; None for a name."""
    try:
        return ip_address(host.partition("%")[0] if ":" in host else host)
    except ValueError:
        pass
    try:
        # Also 2130706433, 0x7f.1 and 0177.0.0.1, which resolvers read as 127.0.0.1.
        return IPv4Address(socket.inet_aton(host.rstrip(".")))
    except OSError:
        return None


def _meant(address: Address) -> list[Address]:
    """What `address` leads to: itself, or IPv4 addresses that are read out of an IPv6 one."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    found: list[Address] = [address, *(address.teredo or ())]
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if any(address in network for network in _TRANSLATED) and int(address) > 1:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return found


def _is_allowed(address: Address, rules: NetworkRules) -> bool:
    return any(
        address in network
        for network in rules.allowed_private
        if network.version == address.version
    )
