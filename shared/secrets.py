"""How secrets are kept: digests of API keys, and endpoints' keys encrypted at rest.

Both planes must agree on these to the byte: the control plane stores what the data plane looks up
or opens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

_ENCRYPTED: Final = "fernet:"
_AS_GIVEN: Final = "plain:"


class CannotUnseal(Exception):
    """A stored secret was sealed with a key that is not (or no longer) configured."""


def key_digest(secret: str, pepper: str) -> str:
    """What is stored of an API key and looked up by: hex SHA-256 over pepper and secret.

    Takes any text a client may send as a key, lone surrogates included.
    """
    text = (pepper + secret).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def seal(secret: str, encryption_keys: Sequence[str]) -> str:
    """`secret` as it is stored: encrypted with the first Fernet key; as given without one."""
    if not encryption_keys:
        return _AS_GIVEN + secret
    return _ENCRYPTED + _fernet(encryption_keys).encrypt(secret.encode()).decode("ascii")


def unseal(stored: str, encryption_keys: Sequence[str]) -> str:
    """The secret that `seal` was given, under any of the Fernet keys. Raises CannotUnseal."""
    if stored.startswith(_AS_GIVEN):
        return stored.removeprefix(_AS_GIVEN)
    if not stored.startswith(_ENCRYPTED) or not encryption_keys:
        raise CannotUnseal("OBLETH_ENCRYPTION_KEY is needed to read a stored API key")
    try:
        token = stored.removeprefix(_ENCRYPTED)
        return _fernet(encryption_keys).decrypt(token.encode("ascii")).decode()
    except InvalidToken:
        raise CannotUnseal("no key of OBLETH_ENCRYPTION_KEY opens a stored API key") from None


def _fernet(keys: Sequence[str]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])
