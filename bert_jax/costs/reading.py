"""What a compiled step tells, and how that of a deep model follows from two shallow ones.

Owns the numbers that are read of a program, as a value that can be added up layer by layer. An
unrolled program holds each layer by itself, so what it costs and keeps is affine in their number:
what a layer adds is half of what the program of four has more than that of two, and 24 need no
quarter of an hour of compiling. tests/plan holds that against a program of 12 layers. It must not
know what is done with the numbers, nor how a step is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from bert_jax.costs import libtpu_estimate, links, memory
from bert_jax.costs.chips import Topology


@dataclass(frozen=True)
class Reading:
    """The numbers of one compiled step, all of one chip.

    memory: as memory.of_step. flops, moved: by the compiler's own count, the body of a loop once.
    collectives: rows of links.added_up. libtpu: as of libtpu_estimate.read. layers: of the programs
    that it was read of.
    """

    memory: dict[str, int]
    flops: float
    moved: float
    collectives: list[dict[str, Any]]
    libtpu: dict[str, Any] | None
    layers: tuple[int, ...]


def read(
    program: jax.stages.Compiled, mesh: Mapping[str, int], topology: Topology, layers: int
) -> Reading:
    """Return the numbers of a compiled step of `layers` layers; mesh: {axis: chips}."""
    text = program.as_text()
    assert text is not None, 'what has just been compiled has a text'
    count = program.cost_analysis() or {}
    collectives = links.collectives(text, mesh)
    return Reading(
        memory=memory.of_step(program, topology.chip.platform),
        flops=count.get('flops', 0.0),
        moved=count.get('bytes accessed', 0.0),
        collectives=links.added_up(collectives),
        libtpu=libtpu_estimate.read(text, collectives, topology.chip),
        layers=(layers,),
    )


def deeper(shallow: Reading, deep: Reading, layers: int) -> Reading:
    """Return the step of an unrolled model of `layers` layers, from two that have fewer."""
    [few], [more] = shallow.layers, deep.layers
    further = lambda first, second: first + (layers - few) * (second - first) / (more - few)
    each_further = lambda first, second: {
        name: further(first.get(name, 0), second.get(name, 0)) for name in second | first
    }

    # Collectives by what they do. XLA joins small ones, so counts are less sure than bytes.
    before = {(row['kind'], *row['axes']): row for row in shallow.collectives}
    collectives = []
    for row in deep.collectives:
        first = before.get((row['kind'], *row['axes']), {})
        sums = {k: max(further(first.get(k, 0), row[k]), 0) for k in ('count', 'bytes', 'sent')}
        whole = {k: round(sums[k]) for k in ('count', 'bytes')}
        collectives.append(row | sums | whole)

    libtpu = None
    if shallow.libtpu and deep.libtpu:
        counts = each_further(shallow.libtpu['unpriced'], deep.libtpu['unpriced'])
        libtpu = {
            'step_s': further(shallow.libtpu['step_s'], deep.libtpu['step_s']),
            'unpriced': {kind: round(n) for kind, n in counts.items() if round(n) > 0},
        }
    memory_used = each_further(shallow.memory, deep.memory)
    return Reading(
        memory={use: round(size) for use, size in memory_used.items()},
        flops=further(shallow.flops, deep.flops),
        moved=further(shallow.moved, deep.moved),
        collectives=sorted(collectives, key=lambda row: -row['bytes']),
        libtpu=libtpu,
        layers=shallow.layers + deep.layers,
    )
