"""Who may use the Management API.

It stands in front of the routes, so that a route cannot forget it and no body is read for a
stranger.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from controlplane import problems

READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))
CLIENT_MAX: Final = 64
"""Characters of a caller's address that are kept: a proxy in front may pass on anything as one."""


class Role(StrEnum):
    ADMIN = "admin"
    VIEWER = "viewer"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the audit log names them."""

    role: Role
    client: str | None = None
    """Their network address."""


class Tokens:
    """The tokens that open the API. `viewer` None: there is no such role."""

    def __init__(self, admin: str, viewer: str | None) -> None:
        self._known = [(Role.ADMIN, _digest(admin.encode()))]
        if viewer is not None:
            self._known.append((Role.VIEWER, _digest(viewer.encode())))

    def role(self, token: bytes) -> Role | None:
        """Whose token this is; takes as long for any wrong one."""
        given = _digest(token)
        found = None
        for role, known in self._known:
            if hmac.compare_digest(known, given):
                found = role
        return found


class AdminAuth:
    """ASGI middleware: under `prefix`, and at the paths in `also`, tell who asks or refuse.

    `public` paths under the prefix are anyone's.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        prefix: str,
        public: Collection[str] = (),
        also: Collection[str] = (),
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._prefix = prefix
        self._public = frozenset(prefix + path for path in public)
        self._also = frozenset(also)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_guarded(scope):
            refused = self._identify(scope)
            if refused is not None:
                await problems.answer(refused)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_guarded(self, scope: Scope) -> bool:
        # As the router sees it: without the prefix that a proxy or a server may have put before.
        path = get_route_path(scope)
        inside = path == self._prefix or path.startswith(self._prefix + "/")
        return path in self._also or (inside and path not in self._public)

    def _identify(self, scope: Scope) -> problems.Problem | None:
        given = Headers(scope=scope).getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        # Header values are decoded as Latin-1, so that any byte survives the way back.
        role = self._tokens.role(token.strip(" ").encode("latin-1"))
        if scheme.lower() != "bearer" or role is None:
            return problems.Unauthorized()
        if role is Role.VIEWER and scope["method"] not in READING:
            return problems.Forbidden()
        client = scope.get("client")
        address = client[0][:CLIENT_MAX] if client else None
        scope.setdefault("state", {})["caller"] = Caller(role, address)
        return None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
