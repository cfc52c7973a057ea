"""Claims, holdings and replies as the scripts have them: strings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from typing import Final

from dataplane.admission.slots.port import Answer, Claim, Holding, Reply
from dataplane.scheduler.standing import Standing, Told
from shared.redis_keys import escaped, unescaped

HELD: Final = "held"
"""Stands in a reply where a claim took the slot that was held for its session."""


def note(slot: Claim | Holding) -> str:
    return ":".join(map(escaped, (slot.pool, slot.group, slot.tenant, slot.key)))


def noted(id: str, note: str) -> Holding:
    pool, group, tenant, key = map(unescaped, note.split(":"))
    return Holding(id, pool, group, tenant, key)


def reply(reply: Sequence[str]) -> Reply:
    answer, number, at, tenant, key, *told = reply
    is_held = at == HELD
    turn_at = None if is_held or not at else Answer(at)
    is_full = answer in (Answer.POOL, Answer.CEILING, Answer.TENANT, Answer.KEY)
    ends = int(number) / 1000 if is_full and number != "0" else None
    return Reply(
        Answer(answer),
        is_more=number == "1",
        is_held=is_held,
        hold_ends=ends,
        turn_at=turn_at,
        turn_of=(tenant, key) if key else None,
        told=_told(told) if told else None,
    )


def _told(told: Sequence[str]) -> Told:
    group, tenant, key, group_taken, tenant_taken = told
    return Told((float(group), float(tenant), float(key)), (int(group_taken), int(tenant_taken)))


def hold_terms(claim: Claim) -> tuple[str, str, str, str]:
    """The hold it may take, whether that alone, and what else it says of its pool's holds."""
    terms = claim.holds
    id = "" if terms.session is None else hold(claim.pool, claim.key, terms.session)
    return id, flag(terms.is_only), str(terms.most), flag(terms.is_starving)


def refund(holding: Holding) -> str:
    return "" if holding.refund is None else json.dumps(holding.refund)


def step_end(holding: Holding) -> str:
    """What the end of a session's step says, as `release` takes it."""
    step = holding.step
    if step is None:
        return ""
    return json.dumps(
        [
            hold(holding.pool, holding.key, step.session),
            *(round(secs * 1000) for secs in (step.age, step.hold_secs, step.life_secs)),
            *(int(step.is_wanted), step.most, step.max_jumps, step.pool_size, step.ceiling),
            *(_or_none(step.tenant_cap), _or_none(step.key_cap)),
        ]
    )


def turn(claim: Claim) -> tuple[str, str, str]:
    """How it stands, how the others do, and what it is charged, as `claim` takes them."""
    turn = claim.turn
    if turn is None:
        return "", "", ""
    own = json.dumps([_standing(claim.pool, turn.standing)])
    others = [_standing(claim.pool, each) for each in turn.others]
    return own, json.dumps(others) if others else "", json.dumps(turn.charges)


def _standing(pool: str, standing: Standing) -> list[object]:
    group, tenant, key, cuts = standing.group, standing.tenant, standing.key, standing.cuts
    by_slots = () if cuts is None else astuple(cuts)
    return [
        *(pool, round(standing.waited * 1000)),
        *(group.id, group.floor, _or_none(group.share)),
        *(tenant.id, tenant.floor, _or_none(tenant.share), _or_none(tenant.cap)),
        *(key.id, key.floor, _or_none(key.cap)),
        *by_slots,
    ]


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def cap(cap: int | None) -> str:
    return "" if cap is None else str(cap)


def flag(value: bool) -> str:
    return "1" if value else "0"


def pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def hold(pool: str, key: str, session: str) -> str:
    """The id of the slot held for a session."""
    return ":".join(("hold", escaped(pool), escaped(key), escaped(session)))


def session_of(id: str) -> tuple[str, str, str] | None:
    """The pool, key and session of a hold; None if it is no hold's id."""
    match id.split(":"):
        case ["hold", pool, key, session]:
            return unescaped(pool), unescaped(key), unescaped(session)
    return None
