"""Who is looking at the dashboard: a signed cookie, and the token that its forms must carry.

A session says which role's token was given at login and until when that holds. It is kept nowhere:
the cookie is signed with a key derived from the API's tokens, so every control plane with the same
tokens knows it, and changing a token ends all sessions. The derivation is slow on purpose, so that
a cookie does not help to guess a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controlplane.admin_auth import Role

COOKIE: Final = "obleth_session"
LIFE_SECS: Final = 12 * 3600
STRANGER: Final = "-"
"""In a cookie, the role of somebody who has not logged in: their login form is protected too."""


@dataclass(frozen=True, slots=True)
class Session:
    role: Role | None
    """None: not logged in."""
    expires_at: int
    """Unix seconds."""
    nonce: str


class Sessions:
    """Makes sessions and recognises their cookies. `now`: Unix seconds."""

    def __init__(
        self, admin_token: str, viewer_token: str | None, now: Callable[[], float] = time.time
    ) -> None:
        secret = "\n".join((admin_token, viewer_token or "")).encode()
        self._key = hashlib.scrypt(secret, salt=b"obleth dashboard", n=2**14, r=8, p=1)
        self._now = now

    def start(self, role: Role | None) -> Session:
        return Session(role, int(self._now()) + LIFE_SECS, secrets.token_urlsafe(16))

    def cookie(self, session: Session) -> str:
        said = f"{session.role or STRANGER}.{session.expires_at}.{session.nonce}"
        return f"{said}.{self._sign('cookie', said)}"

    def read(self, cookie: str | None) -> Session | None:
        """The session of a cookie that was given out here and has not run out."""
        said, _, signature = (cookie or "").rpartition(".")
        if not _same(self._sign("cookie", said), signature):
            return None
        role, expires_at, nonce = said.split(".")
        if int(expires_at) <= self._now():
            return None
        return Session(None if role == STRANGER else Role(role), int(expires_at), nonce)

    def form_token(self, session: Session) -> str:
        """What each form of this session carries, so that no other site can send one."""
        return self._sign("form", session.nonce)

    def is_form_token(self, session: Session, given: str) -> bool:
        return _same(self.form_token(session), given)

    def _sign(self, purpose: str, said: str) -> str:
        mac = hmac.digest(self._key, f"{purpose}\n{said}".encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def _same(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))
