"""What can go wrong, each by name. A fault begins when it is called and ends by itself, or is ended
by `heal`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.fleet_member import Member
from tests.simulation.fleet_network import CALM, PARTED, REFUSED, Link, ServerState, Weather
from tests.simulation.fleet_world import World

Fault = Callable[[World, random.Random], None]


def heal(world: World) -> None:
    """Whatever is broken is not any more. Who is dead stays dead."""
    world.say("all is healed")
    for member in list(world.members.values()):
        world.thaw(member)
        _set_weather(world, (member.requests_link, member.beats_link), CALM)
    world.server.set_clock(drift=0.0)
    world.server.become(ServerState.UP)
    if not world.live:
        world.start()


# Links


def _set_weather(world: World, links: tuple[Link, ...], weather: Weather) -> None:
    for link in links:
        link.weather = weather


def _links(member: Member, choose: random.Random) -> tuple[Link, ...]:
    both = (member.requests_link, member.beats_link)
    return choose.choice((both, both, both[:1], both[1:]))


def _weather(name: str, draw: Callable[[random.Random], Weather]) -> Fault:
    def fault(world: World, choose: random.Random) -> None:
        members = list(world.members.values())
        if not members:
            return
        if choose.random() < 0.5:
            members = [choose.choice(members)]
        weather, secs = draw(choose), _secs(world, choose)
        links = tuple(link for member in members for link in _links(member, choose))
        world.say(f"{name} for {secs:.2f} s: {', '.join(each.name for each in members)}")
        _set_weather(world, links, weather)
        world.time.after(secs, lambda: _clear(world, links, weather))

    return fault


def _clear(world: World, links: tuple[Link, ...], weather: Weather) -> None:
    world.say("the weather clears")
    for link in links:
        if link.weather is weather:
            link.weather = CALM


def _secs(world: World, choose: random.Random) -> float:
    """How long something lasts: a moment, some heartbeats, or longer than a time to live."""
    settings = world.settings
    return choose.choice(
        (
            choose.uniform(0.05, 1),
            choose.uniform(0.5, 1.5) * settings.heartbeat,
            choose.uniform(0.8, 1.5) * settings.ttl,
        )
    )


def _lossy(choose: random.Random) -> Weather:
    most = choose.choice((0.1, 0.3, 0.6))
    return Weather(
        lost=choose.uniform(0, most),
        reply_lost=choose.uniform(0, most),
        cut_off=choose.uniform(0, most),
        announcement_lost=most,
    )


def _slow(choose: random.Random) -> Weather:
    at = choose.choice((0.03, 0.06, 0.115, 0.13, 0.2))
    return Weather(latency=(at / 2, at * 1.2))


def _odd(choose: random.Random) -> Weather:
    return Weather(
        latency=(0.0002, choose.choice((0.005, 0.1))),
        twice=choose.uniform(0, 0.5),
        late=choose.uniform(0, 0.3),
    )


# Redis


def _server_state(state: ServerState) -> Fault:
    def fault(world: World, choose: random.Random) -> None:
        secs = _secs(world, choose)
        world.say(f"Redis is {state.name.lower()} for {secs:.2f} s")
        world.server.become(state)
        world.time.after(secs, lambda: _recover(world, state))

    return fault


def _recover(world: World, state: ServerState) -> None:
    if world.server.state is state:
        world.say("Redis is up")
        world.server.become(ServerState.UP)


def restarted_empty(world: World, choose: random.Random) -> None:
    _server_state(ServerState.DOWN)(world, choose)
    world.say("it forgets everything")
    world.lose_books()


def emptied(world: World, choose: random.Random) -> None:
    world.say("Redis is flushed")
    world.lose_books()


def clock_jumps(world: World, choose: random.Random) -> None:
    ttl = world.settings.ttl
    secs = choose.choice((1, -1)) * choose.uniform(0.1, 1) * choose.choice((1, ttl, 60))
    world.say(f"the clock of Redis jumps by {secs:.2f} s")
    world.clock_moved_at = world.time.now
    world.server.set_clock(jump_secs=secs)


def clock_drifts(world: World, choose: random.Random) -> None:
    drift = choose.uniform(-0.05, 0.05)
    world.say(f"the clock of Redis drifts by {drift:.1%}")
    world.server.set_clock(drift=drift)


def key_damaged(world: World, choose: random.Random) -> None:
    """Somebody deletes one of the keys, or puts something else in its place."""
    keys = world.server.model.keys
    names = sorted(name for name in keys if not name.endswith(":roster"))
    if not names:
        return
    name = choose.choice(names)
    is_replaced = choose.random() < 0.5
    world.say(f"{name} is {'replaced' if is_replaced else 'deleted'}")
    if is_replaced:
        world.server.model.set_text(name, "something else")
    else:
        keys.pop(name)
    for member in world.members.values():
        member.damaged()


# Replicas


def killed(world: World, choose: random.Random) -> None:
    if world.live:
        world.kill(choose.choice(world.live))
        _maybe_start(world, choose)


def stopped(world: World, choose: random.Random) -> None:
    if world.live:
        world.stop(choose.choice(world.live))
        _maybe_start(world, choose)


def started(world: World, choose: random.Random) -> None:
    if len(world.members) < MEMBERS_MAX:
        world.start()


def _maybe_start(world: World, choose: random.Random) -> None:
    if choose.random() < 0.7 or len(world.live) < 2:
        secs = choose.choice((0.0, 0.5, 1.2 * world.settings.ttl))
        world.time.after(secs, lambda: started(world, choose))


def frozen(world: World, choose: random.Random) -> None:
    if world.live:
        world.freeze(choose.choice(world.live), _secs(world, choose))


def blocked(world: World, choose: random.Random) -> None:
    """A loop that does not come round for a moment."""
    for member in world.live:
        world.freeze(member, choose.uniform(0.01, 0.6))


# People


def resized(world: World, choose: random.Random) -> None:
    world.resize(choose.choice(list(world.models)), choose.choice((1, 2, 3, 5, 8, 12)))


def recapped(world: World, choose: random.Random) -> None:
    tenants = sorted({key.tenant.id for key in world.keys.values()} - {"burst"})
    caps = (None, 1, 2, 4)
    world.cap(choose.choice(tenants), choose.choice(caps), choose.choice(caps))


def deserted(world: World, choose: random.Random) -> None:
    """Every client leaves at once."""
    world.say("every client leaves")
    for member in world.members.values():
        for request in list(member.requests.values()):
            member.loop.call_soon(member.leave, request)


MEMBERS_MAX: Final = 4
FAULTS: Final[dict[str, Fault]] = {
    "lossy links": _weather("lossy links", _lossy),
    "slow links": _weather("slow links", _slow),
    "late and doubled calls": _weather("late and doubled calls", _odd),
    "parted": _weather("parted", lambda choose: PARTED),
    "refused": _weather("refused", lambda choose: REFUSED),
    "deaf": _weather("deaf", lambda choose: Weather(announcement_lost=1.0)),
    "Redis frozen": _server_state(ServerState.FROZEN),
    "Redis restarted": _server_state(ServerState.DOWN),
    "Redis restarted empty": restarted_empty,
    "Redis flushed": emptied,
    "Redis read only": _server_state(ServerState.READ_ONLY),
    "clock jumps": clock_jumps,
    "clock drifts": clock_drifts,
    "key damaged": key_damaged,
    "replica killed": killed,
    "replica stopped": stopped,
    "replica started": started,
    "replica frozen": frozen,
    "loops blocked": blocked,
    "pool resized": resized,
    "caps changed": recapped,
    "clients desert": deserted,
}
