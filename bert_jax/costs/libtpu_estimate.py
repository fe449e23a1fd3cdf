"""Reads libtpu's own estimate of a compiled step's time, and lists what it has no estimate for.

libtpu writes an estimate in cycles at most instructions. It has none for collectives, kernels
of our own (Pallas), gathers, scatters, sorts, drawn bits and copies between a chip's memories: in
the sum these look free. No chip has confirmed an estimate. Knows nothing of models.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from typing import Any

from bert_jax.costs.chips import Chip
from bert_jax.costs.hlo import KINDS, Computation, Instruction, inside, scheduled, size_of
from bert_jax.costs.links import Collective

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Names, loops and scalars' homes: they do nothing themselves.
_FREE = {
    'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'conditional',
    'call', 'partition-id', 'replica-id', 'after-all', 'opt-barrier', 'add-dependency', 'domain',
}  # fmt: skip
# Custom calls of libtpu that give a buffer another name.
_RENAMED = re.compile(r'custom_call_target="\w*(Bitcast|AllocateBuffer|Bitpacked|Assume\w+)"')
# What a fusion without an estimate is called after, where it has one of them in it.
_UNPRICED = ('gather', 'scatter', 'sort', 'rng-bit-generator')
_TILE = 4096  # bytes up to which work without an estimate is of single numbers, and left out


def read(text: str, collectives: Iterable[Collective], chip: Chip) -> dict[str, Any] | None:
    """Return the estimate of a program's text; None for a program of another compiler.

    'step_s': seconds, the sum over its instructions, loops by their turns; 'unpriced': {kind of
    instruction: times a step} of what is not in that sum.
    """
    if not chip.flops_per_cycle or not _CYCLES.search(text):
        return None
    seconds, unpriced = 0.0, collections.Counter[str]()
    for i, computation, times in scheduled(text):
        if (cycles := _CYCLES.search(i.rest)) and not i.opcode.startswith(KINDS):
            seconds += times * int(cycles[1]) * chip.flops_per_cycle / chip.peak_flops
        elif kind := _kind_without_estimate(text, i, computation):
            unpriced[kind] += times
    for collective in collectives:
        unpriced[collective.kind] += collective.count
    return {'step_s': seconds, 'unpriced': dict(unpriced.most_common())}


def _kind_without_estimate(text: str, i: Instruction, computation: Computation) -> str | None:
    """Return what to call an instruction of `computation`; None for what takes no time.

    Also None for collectives, which come from links.py, each once.
    """
    opcodes = [i.opcode, *(part.opcode for part, _ in inside(text, i))]
    if i.opcode in _FREE or _RENAMED.search(i.rest):
        return None
    # An asynchronous operation is several instructions: the first one counts.
    if i.opcode.endswith(('-update', '-done')) or any(o.startswith(KINDS) for o in opcodes):
        return None
    if i.opcode.endswith('-start'):
        return f'asynchronous {i.opcode.removesuffix("-start")}'
    if 'custom_call_target="tpu_custom_call"' in i.rest:
        return f'kernel {re.sub(r"[.][0-9]+$", "", i.name)}'
    if unpriced := next((opcode for opcode in opcodes if opcode in _UNPRICED), None):
        return unpriced
    is_small = all(size_of(s) <= _TILE for s in [i.shape, *computation.shapes_of_operands(i)])
    return None if is_small else i.opcode
