"""The simulation's model of Redis does to the letter what the real scripts do on a real server."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Final

from dataplane.admission.slots.port import Answer, Claim, Exchanged, Holding
from dataplane.scheduler.holds import HoldTerms, StepEnd
from dataplane.scheduler.standing import Charges, Cuts, Rank, Standing, Turn
from tests.contract.slot_worlds import ModelWorld, RedisWorld, redis_world
from tests.simulation.world import a_key

OF_HOLDS: Final = ("held", "refused", "redeem", "expire", "freed", "freed_starving")


class CommandList:
    """Random calls of a random fleet, the same ones for a given number. In a calm one replicas
    live on and the books are not lost, so that slots are held, taken, freed and refused often."""

    def __init__(self, number: int, *, calm: bool = False) -> None:
        self._calm = calm
        self._random = random.Random(number)
        self._ids = 0
        self.operations = 0
        """Claims, releases and other calls so far."""
        self.holdings: dict[str, dict[str, Holding]] = {
            name: {} for name in ("one", "two", "three")
        }

    def claims(self) -> list[Claim]:
        return [
            self._claim()
            for _ in range(self._random.choice((0, 1, 1, 2, 5, 5 if self._calm else 70)))
        ]

    def _claim(self) -> Claim:
        choose = self._random
        self._ids += 1
        repeated = choose.random() < 0.1
        group, tenant, key = choose.choice("gh"), choose.choice("tu"), choose.choice("kl")
        return Claim(
            id=f"id{choose.randint(1, self._ids) if repeated else self._ids}",
            pool=choose.choice(("m", "m", "n:") if self._calm else ("m", "n:", "(unrouted)")),
            group=group,
            tenant=tenant,
            key=key,
            pool_size=choose.choice((8, 8, 100) if self._calm else (0, 1, 3, 8, 100)),
            ceiling=choose.choice((5, 100, 100) if self._calm else (1, 5, 100)),
            tenant_cap=choose.choice((None, None, 1, 4)),
            key_cap=choose.choice((None, None, 1, 4)),
            turn=self._turn(group, tenant, key),
            holds=self._terms(),
        )

    def _terms(self) -> HoldTerms:
        choose = self._random
        return HoldTerms(
            session=choose.choice((None, None, None, "s", "a:b")),
            is_only=choose.random() < 0.2,
            most=choose.choice((0, 1, 2, 5, 5)) if choose.random() < 0.05 else 5,
            is_starving=choose.random() < 0.01,
        )

    def step(self) -> StepEnd | None:
        """How a session's step ends in a slot."""
        choose = self._random
        if choose.random() < 0.3:
            return None
        return StepEnd(
            session=choose.choice(("s", "a:b", "u")),
            age=choose.choice((0.0, 0.041, 0.5, 4.0)),
            hold_secs=choose.choice((0.0, 0.25, 3.0, 3.0, 60.0)),
            life_secs=choose.choice((600.0, 7200.0)),
            is_wanted=choose.random() < 0.9,
            most=choose.choice((0, 2, 5, 5, 5)),
            max_jumps=choose.choice((0, 1, 2, 8, 8)),
            pool_size=choose.choice((3, 100, 100)),
            ceiling=choose.choice((5, 100, 100)),
            tenant_cap=choose.choice((None, None, None, 1, 40)),
            key_cap=choose.choice((None, None, None, 1, 40)),
            key=a_key("t"),
        )

    def _turn(self, group: str, tenant: str, key: str) -> Turn | None:
        choose = self._random
        if choose.random() < 0.2:
            return None
        charges = Charges(*(choose.choice((0.25, 1.0, 7.5)) for _ in range(3)))
        cuts = choose.choice((None, None, Cuts(1, 4, 5, (0, 1, 2, 3), (1, 1, 1, 2))))
        others = tuple(
            self._standing(choose.choice("gh"), choose.choice("tu"), key, cuts)
            for _ in range(choose.choice((0, 0, 1, 3)))
        )
        return Turn(self._standing(group, tenant, key, cuts), charges, others)

    def _standing(self, group: str, tenant: str, key: str, cuts: Cuts | None) -> Standing:
        choose = self._random
        shares = choose.choice(((None, None), (1, 1), (2, 1), (5, 3)))
        floor = choose.choice((0.0, 0.0, 3.5))
        return Standing(
            Rank(group, floor, shares[0]),
            Rank(tenant, floor, shares[1], choose.choice((None, None, 1, 4))),
            Rank(key, 0.0, None, choose.choice((None, None, 1, 4))),
            choose.choice((0.0, 0.047, 2.017)),
            cuts,
        )

    def releases(self, replica: str) -> list[Holding]:
        held = list(self.holdings[replica].values())
        chosen = self._random.sample(held, self._random.randint(0, len(held)))
        chosen = [replace(each, step=self.step()) for each in chosen]
        if self._random.random() < 0.2:
            chosen.append(
                Holding(f"id{self._random.randint(1, self._ids + 1)}", "m", "g", "t", "k")
            )
        if self._random.random() < 0.05:
            chosen.append(Holding("hold:m:k:s", "m", "g", "t", "k"))
        return chosen

    async def play(self, world: RedisWorld | ModelWorld, length: int) -> AsyncIterator[object]:
        """Play `length` commands on a world, and say what came of each."""
        choose = self._random
        fleet = {name: world.replica(name) for name in self.holdings}
        for _ in range(length):
            name = choose.choice(list(fleet))
            slots, mine = fleet[name], self.holdings[name]
            self.operations += 1
            action = choose.random()
            if self._calm and action >= 0.95:
                action = 0.7
            if action < 0.6:
                releases, claims = self.releases(name), self.claims()
                self.operations += len(releases) + len(claims)
                exchanged = await slots.exchange(releases, claims)
                for holding in releases:
                    mine.pop(holding.id, None)
                for each, answer in zip(claims, exchanged.claims, strict=True):
                    # Now and then a grant is lost on its way.
                    if answer.answer is Answer.GRANTED and choose.random() < 0.9:
                        mine[each.id] = _granted(each, choose)
                yield exchanged
            elif action < 0.85:
                yield await slots.heartbeat(list(mine.values()), complete=choose.random() < 0.9)
            elif action < 0.95:
                times = (0.041, 0.203, 1.5) if self._calm else (0.041, 0.203, 1.5, 12.25, 40.0)
                await world.passes(choose.choice(times))
                yield "time"
            elif action < 0.97:
                await slots.leave(list(mine.values()))
                mine.clear()
                yield "left"
            else:
                await world.forgets()
                yield "lost"
            await world.passes(0)
            yield await world.counts(), await world.announced()


def _granted(claim: Claim, choose: random.Random) -> Holding:
    refund = claim.turn.charges if claim.turn and choose.random() < 0.2 else None
    return Holding(claim.id, claim.pool, claim.group, claim.tenant, claim.key, refund)


async def test_the_model_does_what_the_scripts_do_on_random_commands() -> None:
    operations = 0
    seen_of: Counter[str] = Counter()
    for number, calm in enumerate((False, False, False, False, True, True)):
        commands, length = CommandList(number, calm=calm), 600 if calm else 300
        model = [seen async for seen in commands.play(ModelWorld(), length)]
        operations += commands.operations
        seen_of.update(word for seen in model for word in _of_holds(seen))
        at = 0
        async with redis_world(stopped=True) as real:
            await real.passes(0)
            async for seen in CommandList(number, calm=calm).play(real, length):
                assert seen == model[at], f"list {number}, step {at}"
                at += 1
        assert at == len(model)
    assert operations > 10_000
    assert all(seen_of[word] for word in OF_HOLDS), seen_of


def _of_holds(seen: object) -> Iterator[str]:
    """What became of holds in what was seen."""
    if isinstance(seen, Exchanged):
        yield from seen.releases
    elif isinstance(seen, tuple):
        yield from (message["why"] for message in seen[1] if "hold" in message)
