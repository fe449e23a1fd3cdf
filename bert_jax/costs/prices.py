"""What the instructions of a compiled step cost a TPU: libtpu's price list, completed.

Owns the prices of what a chip does by itself, each as a range of seconds, and what each follows
from. libtpu writes an estimate beside most instructions. It has none for kernels of our own
(Pallas), gathers, scatters, sorts, drawn bits and asynchronous copies, which would look free. What
it says of the rest was held against the code that it makes of it (benchmarks/step_code.py): of
products it is right, of elementwise work twice too high, and of Threefry's bits too low. Nothing
here was measured on a chip. Collectives are links.py's; what runs at the same time timeline.py
knows.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bert_jax.costs.chips import Chip
from bert_jax.costs.hlo import KINDS, Computation, Instruction, dimensions, inside, size_of, touched

# Where a price comes from, as a plan says it: the key stands in the JSON.
BASES = {
    'libtpu': "libtpu's estimate",
    'elementwise': "elementwise work: bytes, beside its code or after it (a third of libtpu's"
    ' estimate, which is known to be too high)',
    'drawn': "bits of dropout that are computed: libtpu's estimate, up to 1.4 of it",
    'bytes': 'without an estimate: bytes at the speed of the memory, up to 4 times that (a guess)',
    'kernel': 'without an estimate: kernels by the time that they state, or by their FLOPs and'
    ' bytes, one after the other and filled as their heads do (a guess)',
    'copy': 'without an estimate: waiting for copies between the memories of the chip',
    'links': 'without an estimate: waiting for collectives',
}
WAITED = ('copy', 'links')
# How much of libtpu's estimate its code takes, read in BERT-large for v5e and v6e: of elementwise
# work; at most, of these instructions where they are not fused with other work; and at most, of
# fusions that draw Threefry's bits.
CODE, CODE_BY_ITSELF = 1 / 3, 0.1
BY_ITSELF = ('convert', 'pad', 'reduce')
DRAWN = 1.4
# A gather, scatter, sort or generator may take so many times what its bytes need: a guess.
SLOWEST = 4.0
# A kernel of ours states the time of its code for v5e, products and all, good to a tenth. For v6e
# libtpu's code takes 0.8 of that, and at most so much with what the code waits for (docs/plan.md).
_STATES_ITS_TIME = 'fused_attention'
_READ_FOR = 'v5e'
ROUNDED, PACKED, DELAYED = 0.9, 0.7, 1.25
# Names, loops and scalars' homes: they do nothing themselves.
_FREE = {
    'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'conditional',
    'call', 'partition-id', 'replica-id', 'after-all', 'opt-barrier', 'add-dependency', 'domain',
}  # fmt: skip
# Custom calls of libtpu that give a buffer another name.
_RENAMED = re.compile(r'custom_call_target="\w*(Bitcast|AllocateBuffer|Bitpacked|Assume\w+)"')
_TILE = 4096  # bytes up to which work without an estimate is of single numbers, and left out
_UNIT, _UNIT_V6E = 128, 256  # rows of a chip's matrix unit, and of a v6e's
_PRODUCTS = ('convolution', 'dot')
# Instructions that libtpu has no estimate for, and that may stand inside a fusion.
_UNPRICED = ('gather', 'scatter', 'sort', 'rng-bit-generator')
# Instructions that move data and compute nothing, where they stand by themselves, not in a fusion.
_MOVING = ('broadcast', 'copy', 'transpose', 'reshape', 'bitcast-convert')
_COSTLIEST = 10  # kinds of instruction that a plan lists
_MUCH = 0.2  # share of a step from which moving data is worth a warning


@dataclass(frozen=True)
class Cost:
    """What instructions of one kind, shape and origin cost a chip in a step, all `count` of them.

    low, high: seconds; basis: of BASES, what they follow from; libtpu: seconds by its own estimate,
    0 where it has none.
    """

    low: float
    high: float
    count: int
    opcode: str
    shape: str
    origin: str
    basis: str
    libtpu: float = 0.0


class Price(NamedTuple):
    """What one run of an instruction costs: see Cost.

    memory: of `high` the seconds in which the chip's memory is at work for it.
    """

    low: float
    high: float
    opcode: str
    basis: str
    memory: float
    libtpu: float = 0.0


def are_known(text: str, chip: Chip) -> bool:
    """Whether a program has prices: they are those of libtpu, completed."""
    return bool(chip.flops_per_cycle) and 'estimated_cycles' in text


def price(text: str, i: Instruction, computation: Computation, chip: Chip) -> Price | None:
    """The price of an instruction of `computation`; None for what costs nothing.

    That of an asynchronous copy is the time that it takes, whether it is waited for or not.
    """
    if i.opcode in _FREE or i.opcode.startswith(KINDS) or _RENAMED.search(i.rest):
        return None
    parts = [(i, computation), *inside(text, i)]
    opcodes = [part.opcode for part, _ in parts]
    shapes = [i.shape, *computation.shapes_of_operands(i)]
    every_byte = touched(text, i, computation) / chip.hbm_bandwidth

    # libtpu's own estimate, in the backend_config, which is JSON within the text.
    if cycles := re.search(r'"estimated_cycles":"(\d+)"', i.rest):
        said = int(cycles[1]) / chip.clock
        if any(opcode in _PRODUCTS for opcode in opcodes):
            return Price(said, said, i.opcode, 'libtpu', every_byte, said)
        if 'xor' in opcodes:
            return Price(said, DRAWN * said, i.opcode, 'drawn', every_byte, said)
        # Code and bytes at the same time, or one after the other; in any case bytes count wherever
        # they lie.
        code = (CODE_BY_ITSELF if i.opcode in BY_ITSELF else CODE) * said
        low, high = max(code, every_byte), code + every_byte
        return Price(min(low, said), min(high, said), i.opcode, 'elementwise', every_byte, said)

    # An asynchronous copy is two instructions; the second has the result, and counts. So is a
    # collective that another unit is called for, which is the links' affair.
    if i.opcode.endswith(('-start', '-update')):
        return None
    if i.opcode.endswith('-done'):
        begun = computation.instructions.get(i.operands[0])
        if begun and any(part.opcode in KINDS for part, _ in inside(text, begun)):
            return None
        copied = size_of(i.shape) / chip.hbm_bandwidth
        kind = f'asynchronous {i.opcode.removesuffix("-done")}'
        return Price(copied, copied, kind, 'copy', copied)
    if 'custom_call_target="tpu_custom_call"' in i.rest:
        return _kernel(i, shapes, chip)

    # The rest by bytes. A piece of a collective, fused with other work, is the links' affair.
    if any(opcode.startswith(KINDS) for opcode in opcodes):
        return None
    for part, its in parts:
        if part.opcode in _UNPRICED:
            return _by_bytes(
                _moved(part, its.shapes_of_operands(part)) / chip.hbm_bandwidth, part.opcode
            )
    if all(size_of(shape) <= _TILE for shape in shapes):
        return None
    return _by_bytes(every_byte, i.opcode)


def _by_bytes(least: float, opcode: str) -> Price:
    """The price of what moves its bytes in `least` seconds, or keeps the memory busy for longer."""
    return Price(least, SLOWEST * least, opcode, 'bytes', SLOWEST * least)


def _kernel(i: Instruction, shapes: Sequence[str], chip: Chip) -> Price:
    """A kernel by its FLOPs, as it states them or as attention of its arrays has them, and bytes.

    At best at the peak and at the same time, at worst with so much of the matrix units as the width
    of a head fills, and one after the other. Ours by the time that it states, as operations of the
    vector units: no less than ROUNDED of it, or PACKED on another chip, and no more than DELAYED.
    """
    called = f'kernel {re.sub(r"[.][0-9]+$", "", i.name)}'
    least = sum(map(size_of, shapes)) / chip.hbm_bandwidth
    arrays = collections.Counter(dims for shape in shapes for dims in dimensions(shape))
    [(heads, _)] = arrays.most_common(1) or [((), 0)]
    flops, operations = _stated(i, 'flops'), _stated(i, 'transcendentals')
    if not flops:
        if len(heads) != 4:
            return _by_bytes(least, called)
        # Arrays of [rows, heads, tokens, width]. What states nothing is of a backward pass: scores
        # and their gradient, and a product for each gradient that it returns.
        rows, count, tokens, width = heads
        products = 2 + dimensions(i.shape).count(heads)
        flops = 2 * products * rows * count * tokens * tokens * width
    # Heads that lie side by side do not show their width: that of all published BERTs is 64.
    width = heads[-1] if len(heads) == 4 else 64
    filled = min(width / (_UNIT_V6E if chip.name == 'v6e' else _UNIT), 1)
    product, vector = flops / chip.peak_flops, operations / (chip.vector_ops_per_cycle * chip.clock)
    if _STATES_ITS_TIME in i.name:
        low = (ROUNDED if chip.name == _READ_FOR else PACKED) * vector
        high = max(product / filled, DELAYED * vector, least)
    else:
        low, high = vector, product / filled + vector + least
    return Price(max(product, low, least), high, called, 'kernel', least)


def _stated(kernel: Instruction, name: str) -> int:
    """What a kernel states of its own cost, 0 for nothing."""
    stated = re.search(rf'"cost_estimate":\{{[^}}]*"{name}":"?(\d+)', kernel.rest)
    return int(stated[1]) if stated else 0


def _moved(i: Instruction, operands: Sequence[str]) -> int:
    """Bytes that a gather, scatter, sort or generator reads and writes at least."""
    result = size_of(i.shape)
    if i.opcode == 'gather':  # of the table only the rows that are looked up
        return 2 * result + size_of(operands[1])
    if i.opcode == 'scatter':  # updates are read, and what they are added to read and written
        return size_of(operands[1]) + 3 * size_of(operands[-1])
    return 2 * result if i.opcode == 'sort' else result


def expected(costs: Sequence[Cost], of_links: tuple[float, float]) -> dict[str, Any]:
    """What the costs of a step come to; {} where there are no costs.

    of_links: links.seconds. low_s, high_s: seconds a step, where the guesses are kind and where
    they are not; libtpu_s: what libtpu alone says; parts: {basis: low_s, high_s, count}; unpriced:
    what libtpu has no estimate for, by kind; collectives: low_s and high_s of what the links do,
    waited for or not; moving: the share of libtpu's estimate that copies and spreads out arrays;
    costliest: the costs at the top, each with its share of high_s.
    """
    if not costs:
        return {}
    total = _sum(costs)
    of_basis = {basis: [c for c in costs if c.basis == basis] for basis in BASES}
    kinds = dict.fromkeys((c.opcode, c.basis) for c in costs if not c.libtpu)
    unpriced = [
        {'opcode': opcode, 'basis': basis} | _sum(c for c in of_basis[basis] if c.opcode == opcode)
        for opcode, basis in kinds
    ]
    of_libtpu = sum(c.libtpu for c in costs)
    moving = sum(c.libtpu for c in costs if c.opcode in _MOVING)
    return {
        'low_s': total['low_s'],
        'high_s': total['high_s'],
        'libtpu_s': of_libtpu,
        'parts': {basis: _sum(part) for basis, part in of_basis.items() if part},
        'unpriced': sorted(unpriced, key=lambda row: -row['high_s']),
        'collectives': {'low_s': of_links[0], 'high_s': of_links[1]},
        'moving': moving / of_libtpu if of_libtpu else 0.0,
        'costliest': [{**vars(c), 'share': c.high / total['high_s']} for c in costs[:_COSTLIEST]],
    }


def _sum(costs: Iterable[Cost]) -> dict[str, Any]:
    """{'low_s', 'high_s', 'count'} of all of them."""
    listed = list(costs)
    return {
        'low_s': sum(c.low for c in listed),
        'high_s': sum(c.high for c in listed),
        'count': sum(c.count for c in listed),
    }


def reordering(expected: Mapping[str, Any]) -> list[str]:
    """A warning where much of a step moves data about and computes nothing; see `expected`."""
    if expected.get('moving', 0.0) < _MUCH:
        return []
    worst = next((c for c in expected['costliest'] if c['opcode'] in _MOVING), None)
    worst_of_all = f', most of all {worst["shape"]} at {worst["origin"]}' if worst else ''
    return [
        f'the compiler expects {expected["moving"]:.0%} of a step to copy and spread out arrays,'
        f' computing nothing{worst_of_all}'
    ]
