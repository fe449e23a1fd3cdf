"""What a chip does in a step, in the program's order: its work, and its waiting for what is beside.

Owns the walk through a compiled program, with a clock for the chip's units, and for what works
beside them: the links between chips, and copies between the memories of one. The program tells
where a collective or a copy begins and where its result is needed: what is begun early enough costs
nothing, and what has nothing beside it costs all of its time. Prices of instructions are
prices.py's, the time of a collective links.py's. Nothing here was measured on a chip.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.costs import hlo, links, prices
from bert_jax.costs.chips import Topology

_Kind = tuple[str, str, str, str]  # opcode, shape, origin and basis of a Cost


def costs(
    text: str, collectives: Sequence[links.Collective], topology: Topology
) -> list[prices.Cost]:
    """What each kind of instruction adds to a step, dearest first, loops by their turns.

    collectives: links.collectives of the program. One of them, or an asynchronous copy, adds what
    is waited for it. [] for a program of another compiler than libtpu, which has no prices.
    """
    if not prices.are_known(text, topology.chip):
        return []
    best, worst = (_Walk(text, collectives, topology, at_worst) for at_worst in (False, True))
    found = [
        prices.Cost(
            best.seconds[kind], worst.seconds[kind], worst.counts[kind], *kind, worst.libtpu[kind]
        )
        for kind in worst.seconds
    ]
    return sorted(found, key=lambda cost: -cost.high)


@dataclass
class _Clock:
    """How far a walk has come, in seconds.

    now: of the step; idle: so much of it the memory has had nothing to do for the units, which is
    when copies get on; links: when, by `now`, the links will have done all that was begun; copies:
    the same of copies, by `idle`.
    """

    now: float = 0.0
    idle: float = 0.0
    links: float = 0.0
    copies: float = 0.0

    def work(self, seconds: float, of_memory: float) -> None:
        """The units work, and for so many seconds of that the memory works for them."""
        self.now += seconds
        self.idle += max(seconds - of_memory, 0.0)

    def send(self, seconds: float) -> float:
        """A collective begins, behind those that the links have; when it will be done."""
        self.links = max(self.links, self.now) + seconds
        return self.links

    def copy(self, seconds: float) -> float:
        """A copy begins, behind those before it; when it will be done."""
        self.copies = max(self.copies, self.idle) + seconds
        return self.copies

    def wait(self, seconds: float) -> float:
        """The units wait so long, and not at all if that is negative; the seconds that it took."""
        waited = max(seconds, 0.0)
        self.work(waited, of_memory=0.0)
        return waited


class _Walk:
    """A walk through a program with every price at one end of its range.

    seconds, libtpu, counts: what each kind of instruction has added to a step, by its price and by
    libtpu's estimate, and how often it ran.
    """

    def __init__(
        self,
        text: str,
        collectives: Sequence[links.Collective],
        topology: Topology,
        at_worst: bool,
    ):
        self.text, self.topology, self.at_worst = text, topology, at_worst
        self.seconds: dict[_Kind, float] = defaultdict(float)
        self.libtpu: dict[_Kind, float] = defaultdict(float)
        self.counts: dict[_Kind, int] = defaultdict(int)
        self.begun_by: dict[str, list[links.Collective]] = defaultdict(list)
        self.ended_by: dict[str, list[links.Collective]] = defaultdict(list)
        for collective in collectives:
            self.begun_by[collective.begins].append(collective)
            self.ended_by[collective.ends].append(collective)
        self.computations, entry = hlo.parse(text)
        self.through(self.computations[entry], times=1)

    def through(self, computation: hlo.Computation, times: int) -> _Clock:
        """Lets a computation run once, as one of `times` in a step; the clock after it."""
        clock = _Clock()
        # When what has begun here will be done. What was begun in another computation is taken to
        # begin where it ends.
        sent: dict[links.Collective, float] = {}
        copied: dict[str, float] = {}

        for i in computation.instructions.values():
            # What begins here goes on beside all that follows.
            for collective in self.begun_by.get(i.name, ()):
                sent[collective] = clock.send(self._time_of(collective))
            done = computation.done_of.get(i.name)
            if done and (copy := self._price(done, computation)):
                copied[done.name] = clock.copy(copy.high)

            # Then the work, of computations that it runs or its own. At best copies get on beside
            # any work, at worst while it leaves the memory alone.
            for callee, turns in hlo.called_by(self.computations, i):
                if i.opcode not in hlo.OF_PARTS and callee in self.computations:
                    turn = self.through(self.computations[callee], times * turns)
                    clock.work(turns * turn.now, turns * (turn.now - turn.idle))
            if price := self._price(i, computation):
                if price.basis == 'copy':
                    done_at = copied.get(i.name) or clock.copy(price.high)
                    seconds = clock.wait(done_at - clock.idle)
                else:
                    seconds = price.high if self.at_worst else price.low
                    clock.work(seconds, of_memory=price.memory if self.at_worst else 0.0)
                kind = (price.opcode, i.shape, i.origin, price.basis)
                self._add(seconds, times, kind, price.libtpu)

            # Last the waiting for collectives whose results are needed from here on.
            for c in self.ended_by.get(i.name, ()):
                done_at = sent.get(c) or clock.send(self._time_of(c))
                seconds = clock.wait(done_at - clock.now)
                self._add(seconds, times, (c.kind, c.shape, c.origin, 'links'))
        return clock

    def _price(self, i: hlo.Instruction, computation: hlo.Computation) -> prices.Price | None:
        return prices.price(self.text, i, computation, self.topology.chip)

    def _time_of(self, collective: links.Collective) -> float:
        once = dataclasses.replace(collective, count=1)
        return links.seconds(links.added_up([once]), self.topology)[self.at_worst]

    def _add(self, seconds: float, times: int, kind: _Kind, libtpu: float = 0.0) -> None:
        opcode, shape, origin, basis = kind
        kind = (opcode, hlo.plain(shape), origin, basis)
        self.seconds[kind] += times * seconds
        self.libtpu[kind] += times * libtpu
        self.counts[kind] += times
