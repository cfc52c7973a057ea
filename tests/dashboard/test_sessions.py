"""Session cookies, form tokens, and how often a wrong token may be given."""

from __future__ import annotations

import pytest

from controlplane.admin_auth import Role
from controlplane.dashboard.login_limit import ADDRESSES, AT_ONCE, PAUSE_SECS, LoginLimit
from controlplane.dashboard.sessions import LIFE_SECS, Sessions


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions("admin", "viewer", clock)


@pytest.mark.parametrize("role", [Role.ADMIN, Role.VIEWER, None])
def test_a_cookie_gives_back_the_session_it_was_made_of(
    sessions: Sessions, role: Role | None
) -> None:
    session = sessions.start(role)
    assert sessions.read(sessions.cookie(session)) == session


def test_a_cookie_that_was_changed_in_any_place_is_nobodys(sessions: Sessions) -> None:
    cookie = sessions.cookie(sessions.start(Role.VIEWER))
    said, _, signature = cookie.rpartition(".")
    forged = [
        cookie.replace("viewer", "admin"),
        said,
        f"{said}.",
        f".{signature}",
        signature,
        f"{cookie}x",
        "ключ.1.2.3",
        "\udcff",
        "",
        *(cookie[:i] + ("A" if cookie[i] != "A" else "B") + cookie[i + 1 :] for i in range(80)),
    ]
    assert [sessions.read(each) for each in (None, *forged)] == [None] * (len(forged) + 1)


def test_a_session_ends(sessions: Sessions, clock: Clock) -> None:
    cookie = sessions.cookie(sessions.start(Role.ADMIN))
    clock.now += LIFE_SECS - 1
    assert sessions.read(cookie) is not None
    clock.now += 1
    assert sessions.read(cookie) is None


@pytest.mark.parametrize("tokens", [("other", "viewer"), ("admin", "other"), ("admin", None)])
def test_another_token_ends_all_sessions(
    sessions: Sessions, clock: Clock, tokens: tuple[str, str | None]
) -> None:
    cookie = sessions.cookie(sessions.start(Role.ADMIN))
    assert Sessions("admin", "viewer", clock).read(cookie) is not None
    assert Sessions(*tokens, clock).read(cookie) is None


def test_a_form_token_is_good_in_its_own_session_alone(sessions: Sessions) -> None:
    mine, theirs = sessions.start(Role.ADMIN), sessions.start(Role.ADMIN)
    assert sessions.is_form_token(mine, sessions.form_token(mine))
    for given in (sessions.form_token(theirs), "", mine.nonce, sessions.cookie(mine), "\udcff"):
        assert not sessions.is_form_token(mine, given)


def test_after_a_few_wrong_tokens_an_address_has_to_pause(clock: Clock) -> None:
    limit = LoginLimit(clock)
    for _ in range(AT_ONCE):
        assert limit.wait_secs("a") == 0
        limit.failed("a")
    assert limit.wait_secs("a") == pytest.approx(PAUSE_SECS)
    assert limit.wait_secs("b") == 0
    clock.now += PAUSE_SECS
    assert limit.wait_secs("a") == 0
    limit.failed("a")
    assert limit.wait_secs("a") == pytest.approx(PAUSE_SECS)


def test_an_address_that_pauses_long_enough_starts_anew(clock: Clock) -> None:
    limit = LoginLimit(clock)
    for _ in range(AT_ONCE):
        limit.failed("a")
    clock.now += AT_ONCE * PAUSE_SECS
    for _ in range(AT_ONCE):
        assert limit.wait_secs("a") == 0
        limit.failed("a")


def test_many_addresses_do_not_fill_the_memory(clock: Clock) -> None:
    limit = LoginLimit(clock)
    for number in range(ADDRESSES + 100):
        limit.failed(str(number))
    assert len(limit._clear_at) == ADDRESSES
