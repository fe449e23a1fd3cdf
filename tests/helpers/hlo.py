"""Reads a compiled program's text (XLA's HLO): what goes over the links between chips, how often.

Owns the grammar of that text as far as counting needs it, and the notations of a collective's
groups. What runs inside a loop counts once for each turn of the loop. A collective that XLA has cut
into steps (async_collective_fusion) is known by its chain and counts once.

A program is a list of computations, a computation a list of instructions, the last of which to be
evaluated is its root. An instruction is a line, such as

    %all-reduce.7 = f32[8,128]{1,0} all-reduce(%dot.3), channel_id=2, replica_groups=[2,4]<=[8], ...

and one that runs other computations (fusion, while, call, conditional) names them in its
attributes.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

KINDS = (
    'all-reduce',
    'all-gather',
    'reduce-scatter',
    'all-to-all',
    'collective-permute',
    'collective-broadcast',
    'ragged-all-to-all',
)
# "  ROOT %name = shape opcode(operands), attributes": the last two stay one text.
_INSTRUCTION = re.compile(r'^  (ROOT )?%(\S+) = (.+?) ([a-z][a-z0-9-]*)\((.*)$')
_COMPUTATION = re.compile(r'^(ENTRY )?%(\S+) \(.*\{$')
_ARRAY = re.compile(r'\b([a-z]+)(\d*)\w*\[([\d,]*)\]')  # kind, bits and dimensions of bf16[8,128]
_OPERAND = re.compile(r'%([^\s,)]+)')
# The computations that an instruction runs, and those of which it runs one.
_CALLED = re.compile(
    r'\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%([^\s,)}]+)'
)
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
# They call a computation for each element of an array, which costs nothing of its own.
_ELEMENTWISE = ('reduce', 'sort', 'scatter', 'map', 'select-and-scatter')
# What these run is a part of them: a fusion, and what another unit of the chip is called to do.
_OF_PARTS = ('fusion', 'call-start', 'async-start')


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    rest: str  # operands and attributes, as they are written

    @property
    def operands(self) -> list[str]:
        """Return names of the instructions whose results it takes."""
        return _OPERAND.findall(self.rest.split('), ', 1)[0])

    @property
    def origin(self) -> str:
        """Return the operation of the model that it came from, as jax names it, or ''."""
        name = re.search(r'op_name="([^"]*)"', self.rest)
        return name[1] if name else ''


@dataclass
class Computation:
    """A function of the program: its instructions by name, in order, and the one it returns."""

    name: str
    instructions: dict[str, Instruction]
    root: Instruction | None = None

    @functools.cached_property
    def done_of(self) -> dict[str, Instruction]:
        """Return {the name of what begins an asynchronous operation: what has its result}.

        Made once: to be asked for when the computation is complete.
        """
        done = {}
        for i in self.instructions.values():
            if i.opcode.endswith('-done') and i.operands:
                begun = i.operands[0]
                # libtpu 0.0.50 waits for the sparse cores in two steps.
                if (step := self.instructions.get(begun)) and step.opcode.endswith('-update'):
                    begun = step.operands[0]
                done[begun] = i
        return done


def size_of(shape: str) -> int:
    """Return the bytes of 'bf16[8,128]{1,0:T(8,128)}', or of a tuple of such, without padding."""
    total = 0
    # tokens order side effects and hold nothing.
    for kind, bits, dims in _ARRAY.findall(shape):
        if kind != 'token':
            # pred has no number and takes a byte
            total += math.prod(int(d) for d in dims.split(',') if d) * int(bits or 8) // 8
    return total


def plain(shape: str) -> str:
    """Return a shape as HLO writes it, without layouts and comments: 'bf16[8,128]'."""
    return re.sub(r'\{[^}]*\}|/\*.*?\*/', '', shape)


def matched(pattern: str, text: str) -> re.Match[str]:
    """Return the match of `pattern` in `text`; ValueError if none: XLA's notation has changed."""
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f'{text!r}: not in the notation of XLA that this file knows')
    return match


@functools.lru_cache(maxsize=1)
def parse(text: str) -> tuple[dict[str, Computation], str]:
    """Return ({name: computation}, the entry's name) of a program's text."""
    computations: dict[str, Computation] = {}
    entry, current = '', Computation('', {})

    # Lines of a computation follow its head, until the next head.
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = computations.setdefault(head[2], Computation(head[2], {}))
            entry = head[2] if head[1] else entry
        elif match := _INSTRUCTION.match(line):
            is_root, name, shape, opcode, tail = match.groups()
            current.instructions[name] = Instruction(name, shape, opcode, tail)
            if is_root:
                current.root = current.instructions[name]
    return computations, entry


def scheduled(text: str) -> list[tuple[Instruction, Computation, int]]:
    """Return (instruction, its computation, times a step) of all that a chip runs by itself.

    What is inside a fusion, or a call to another unit, runs as part of that: see `inside`.
    """
    computations, entry = parse(text)
    runs = runs_of(computations, entry)
    parts = {
        callee
        for computation in computations.values()
        for i in computation.instructions.values()
        if i.opcode in _OF_PARTS
        for callee in _CALLED.findall(i.rest)
    }
    return [
        (i, computation, runs[name])
        for name, computation in computations.items()
        if runs.get(name) and name not in parts
        for i in computation.instructions.values()
    ]


def inside(text: str, i: Instruction) -> Iterator[tuple[Instruction, Computation]]:
    """Return what one of _OF_PARTS is made of, nested parts included; nothing of other kinds."""
    computations = parse(text)[0]
    for callee in _CALLED.findall(i.rest) if i.opcode in _OF_PARTS else ():
        if (computation := computations.get(callee)) is None:
            continue
        for part in computation.instructions.values():
            yield part, computation
            yield from inside(text, part)


def runs_of(computations: Mapping[str, Computation], entry: str) -> dict[str, int]:
    """Return {computation: how often it runs in one execution of `entry`}.

    The branches of a conditional count as if all were taken.
    """
    runs: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        runs[name] = runs.get(name, 0) + times
        for i in computations[name].instructions.values() if name in computations else ():
            if i.opcode in KINDS or i.opcode.startswith(_ELEMENTWISE):
                continue
            called = _CALLED.findall(i.rest)
            for branches in _BRANCHES.findall(i.rest):
                called += _OPERAND.findall(branches)
            # A callee runs as often as its caller, and in a loop once a turn.
            turns = _trip_count(computations, i) if i.opcode == 'while' else 1
            for callee in called:
                visit(callee, times * turns)

    visit(entry, 1)
    return runs


def _trip_count(computations: Mapping[str, Computation], loop: Instruction) -> int:
    """Return number of turns of a counted loop; 1 where the loop has another form.

    The condition compares one part of the state with a constant, the body adds a constant to it.
    With 1 what an unknown loop holds is counted at least once.
    """
    empty = Computation('', {})
    condition = computations.get(matched(r'condition=%([^\s,)}]+)', loop.rest)[1], empty)
    body = computations.get(matched(r'body=%([^\s,)}]+)', loop.rest)[1], empty)
    # The condition must be `state[index] < limit`, and the body return its new state as a tuple.
    test, state = condition.root, body.root
    if test is None or test.opcode != 'compare' or 'direction=LT' not in test.rest:
        return 1
    if state is None or state.opcode != 'tuple':
        return 1
    counter, bound = (condition.instructions.get(o) for o in test.operands[:2])
    if counter is None or counter.opcode != 'get-tuple-element':
        return 1
    index, limit = re.search(r'index=(\d+)', counter.rest), _constant(bound)
    if index is None or limit is None:
        return 1
    # What the body puts at that index: the counter and a constant, added; else the step is 1.
    update = body.instructions.get(state.operands[int(index[1])])
    addends = update.operands if update and update.opcode == 'add' else []
    steps = [step for name in addends if (step := _constant(body.instructions.get(name)))]
    return max(-(-limit // (steps[0] if steps else 1)), 1)


def _constant(i: Instruction | None) -> int | None:
    """Return the value of an integer constant; None for any other instruction."""
    value = re.match(r'(-?\d+)\)', i.rest) if i and i.opcode == 'constant' else None
    return int(value[1]) if value else None


# A collective's groups of devices, in each of the notations; see `_groups`.
_MESH_GROUPS = re.compile(r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\S+)\))? \{([^}]*)\}')
_IOTA_GROUPS = re.compile(r'replica_groups=\[(\d+),(\d+)\]<=(\S+?)(?:, |$)')
_LISTED_GROUPS = re.compile(r'(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}')


@dataclass(frozen=True)
class Collective:
    """One collective instruction of a program.

    kind: one of KINDS; axes: the mesh axes that it spans, () where they could not be read; size:
    the chips that take part; bytes: of the whole array that it reduces or gathers, on one chip,
    each time it runs; count: times a step; shape: its result as the program has it; origin: the
    operation of the model that it came from.
    """

    kind: str
    axes: tuple[str, ...]
    size: int
    bytes: int
    count: int
    shape: str
    origin: str

    @property
    def sent(self) -> float:
        """Return bytes that a chip must send each time, whatever the algorithm.

        An all-reduce is a reduce-scatter and an all-gather.
        """
        share = (self.size - 1) / self.size
        factors = {'all-reduce': 2 * share, 'collective-permute': 1.0}
        return self.bytes * factors.get(self.kind, share)


def collectives(text: str, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """Return every collective of a compiled program for the mesh {axis: size}.

    What is in the body of a loop has the loop's turns in its count.
    """
    by_chain: dict[tuple[str, str], Collective] = {}
    for i, its, count in scheduled(text):
        # What a chip runs is a collective, or a fusion that has one, or a step of one, in it, or it
        # calls another unit to run one.
        for part, computation in [(i, its), *inside(text, i)]:
            kind = part.opcode.removesuffix('-start')
            if kind not in KINDS:
                continue
            # An asynchronous collective is two instructions; only the second has the plain result.
            done = computation.done_of.get(part.name, part)
            axes, size = _groups(part.rest, mesh_shape)
            array_bytes = size_of(done.shape)
            # Either form of a reduce-scatter: TPU's, a reduction that keeps its own share, is still
            # written as an all-reduce of the whole array; the other's result is that share.
            if kind == 'all-reduce' and computation.name.startswith('all-reduce-scatter'):
                kind = 'reduce-scatter'
            elif kind == 'reduce-scatter':
                array_bytes *= size
            collective = Collective(
                kind, axes, size, array_bytes, count, plain(done.shape), part.origin
            )
            # The steps of one collective share a chain and a channel, which others may have too.
            # Some of them may run in every turn of a loop: those that run least often run once
            # for each collective.
            chain = re.search(r'chain_id="(\d+)"', part.rest)
            channel = re.search(r'channel_id=(\d+)', part.rest)
            key = (kind, f'{chain[1]} {channel and channel[1]}' if chain else part.name)
            row = by_chain.get(key)
            if row is None or row.count > count:
                by_chain[key] = collective
    return list(by_chain.values())


def _groups(attributes: str, mesh_shape: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """Return the mesh axes along which the members of a group differ, and their number.

    They name the groups of devices in one of four notations:
    replica_groups=mesh['a'=2,'b'=4] {'a'}, =[2,4]<=[8] or ={{0,1},{2,3}}, or, of a permutation,
    source_target_pairs={{0,1},{1,0}}. Without any of them all devices are one group.
    """
    sizes = tuple(mesh_shape.values())
    devices = math.prod(sizes)
    if match := _MESH_GROUPS.search(attributes):
        axes_text, ids, spanned = match.groups()
        groups = [_mesh_group(axes_text, _iota(ids) if ids else np.arange(devices), spanned)]
    elif match := _IOTA_GROUPS.search(attributes):
        groups = list(_iota(match[3]).reshape(int(match[1]), -1))
    elif match := _LISTED_GROUPS.search(attributes):
        listed = re.findall(r'\{([\d,]+)\}', match[1])
        groups = [np.array([int(n) for n in group.split(',')]) for group in listed]
    else:
        return tuple(mesh_shape), devices
    # Devices are counted along the last axis first: from a number back to a coordinate an axis.
    varies = set()
    for group in groups:
        coordinates = np.unravel_index(group, sizes)
        varies |= {axis for axis, c in zip(mesh_shape, coordinates) if np.unique(c).size > 1}
    axes = tuple(axis for axis in mesh_shape if axis in varies)
    # A pair is one link of a ring along these axes, and all chips of the ring take part.
    is_ring = 'source_target_pairs' in attributes
    return axes, math.prod(mesh_shape[a] for a in axes) if is_ring else groups[0].size


def _mesh_group(axes_text: str, device_ids: np.ndarray, spanned: str) -> np.ndarray:
    """Return the devices of the first group of mesh['a'=2,'b'=8] {'a','b':(2)4}.

    axes_text: the text in the brackets; device_ids: the devices of that mesh, flat; spanned:
    the text in the braces, where 'b':(2)4 is a part of the axis b: split in 2 x 4 x the rest,
    the group spans the 4.
    """
    parts = {
        name: (int(before), int(size))
        for name, before, size in re.findall(r"'([^']+)':\((\d+)\)(\d+)", spanned)
    }
    # Every axis as three: what is before the part, the part, and what is after it.
    split: list[int] = []
    is_spanned: list[bool] = []
    for name, size in re.findall(r"'([^']+)'=(\d+)", axes_text):
        before, part = parts.get(name, (1, int(size)))
        split += [before, part, int(size) // (before * part)]
        is_spanned += [False, f"'{name}'" in spanned, False]
    grid = device_ids.reshape(split)
    return grid[tuple(slice(None) if spans else 0 for spans in is_spanned)].ravel()


def _iota(text: str) -> np.ndarray:
    """Return the device numbers of '[2,2,2]T(0,2,1)', flat.

    They are counted up in the first shape, then transposed by the second.
    """
    shape, order = matched(r'^\[([\d,]+)\](?:T\(([\d,]+)\))?$', text).groups()
    sizes = [int(n) for n in shape.split(',')]
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return (grid.transpose([int(n) for n in order.split(',')]) if order else grid).ravel()
