from __future__ import annotations

import hashlib

import pytest
from cryptography.fernet import Fernet

from controlplane.keys import secret
from shared.invalidation import Invalidation, Kind
from shared.secrets import CannotUnseal, key_digest, seal, unseal

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


def test_a_digest_is_over_pepper_and_key() -> None:
    assert key_digest("sk-1", "pepper") == hashlib.sha256(b"peppersk-1").hexdigest()
    assert key_digest("sk-1", "pepper") != key_digest("sk-1", "")


def test_any_text_has_a_digest() -> None:
    digests = {key_digest(text, "") for text in ("", "\x00", "ключ", "\ud800", "\udc80", "ÿ")}
    assert len(digests) == 6


def test_a_new_secret_is_random_and_its_prefix_tells_little() -> None:
    first, second = secret.new_secret(), secret.new_secret()
    assert len(first) == len("sk-") + 48
    assert first != second
    assert secret.prefix(first) == first[:11]


def test_what_is_sealed_can_be_unsealed_with_any_of_the_keys() -> None:
    sealed = seal("upstream-key", [OLD])
    assert "upstream-key" not in sealed
    assert unseal(sealed, [NEW, OLD]) == "upstream-key"
    assert unseal(seal("upstream-key", [NEW, OLD]), [NEW]) == "upstream-key"


def test_without_keys_a_secret_is_kept_as_given_and_stays_readable_with_keys() -> None:
    sealed = seal("upstream-key", [])
    assert unseal(sealed, []) == "upstream-key"
    assert unseal(sealed, [NEW]) == "upstream-key"


def test_a_plain_secret_that_looks_encrypted_is_still_plain() -> None:
    assert unseal(seal("fernet:x", []), [NEW]) == "fernet:x"


@pytest.mark.parametrize("keys", [[], [NEW]])
def test_without_the_right_key_nothing_is_unsealed(keys: list[str]) -> None:
    with pytest.raises(CannotUnseal, match="OBLETH_ENCRYPTION_KEY"):
        unseal(seal("upstream-key", [OLD]), keys)


@pytest.mark.parametrize("stored", ["", "upstream-key", "fernet:", "fernet:x"])
def test_what_was_never_sealed_is_not_unsealed(stored: str) -> None:
    with pytest.raises(CannotUnseal):
        unseal(stored, [NEW])


@pytest.mark.parametrize("kind", Kind)
def test_an_invalidation_is_read_as_it_was_written(kind: Kind) -> None:
    change = Invalidation(kind, 'größe "x"', 2**53)
    assert Invalidation.decode(change.encode()) == change
    assert Invalidation.decode(change.encode().encode()) == change


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        b"\xff",
        '{"kind": "key", "id": "x"}',
        '{"kind": "moon", "id": "x", "revision": 1}',
        '{"kind": "key", "id": 5, "revision": 1}',
        '{"kind": "key", "id": "x", "revision": "1"}',
        "[" * 100_000,
    ],
)
def test_anything_else_is_no_invalidation(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="not an invalidation"):
        Invalidation.decode(text)
