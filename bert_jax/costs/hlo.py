"""Reads a compiled program's text (XLA's HLO): what it communicates, keeps in memory, and costs.

Owns the grammar of that text, and of the compiler's refusal, as far as counting needs it. Knows
nothing of models; imports no jax. What runs inside a loop counts once for each turn of the loop; a
collective that XLA has cut into steps (async_collective_fusion) is known by its channel and counts
once.

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
from collections.abc import Mapping
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
_INSTRUCTION = re.compile(r'^  (ROOT )?%(\S+) = (.+?) ([a-z][a-z0-9-]*)\((.*)$')
_COMPUTATION = re.compile(r'^(ENTRY )?%(\S+) \(.*\{$')
_ARRAY = re.compile(r'\b([a-z]+)(\d*)\w*\[([\d,]*)\]')
_CALLED = re.compile(
    r'\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%([^\s,)}]+)'
)
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_OPERAND = re.compile(r'%([^\s,)]+)')


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
        """Bytes that a chip must send each time, whatever the algorithm.

        An all-reduce is a reduce-scatter and an all-gather.
        """
        share = (self.size - 1) / self.size
        return self.bytes * {'all-reduce': 2 * share, 'collective-permute': 1.0}.get(
            self.kind, share
        )


@dataclass(frozen=True)
class Allocation:
    """Buffers of one shape and origin, of those that the compiler lists as the largest.

    bytes: of all `count` of them together, padded to tiles.
    """

    bytes: float
    count: int
    shape: str
    origin: str


@dataclass(frozen=True)
class Cost:
    """What instructions of one kind, shape and origin cost together.

    cycles: of a chip in a step, by libtpu's estimate, for all `count` of them.
    """

    cycles: int
    count: int
    opcode: str
    shape: str
    origin: str


@dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str  # operands and attributes

    @property
    def operands(self) -> list[str]:
        return _OPERAND.findall(self.rest.split('), ', 1)[0])


def size_of(shape: str) -> int:
    """Bytes of 'bf16[8,128]{1,0:T(8,128)}', or a tuple of such shapes, without padding to tiles."""
    total = 0
    for kind, bits, dims in _ARRAY.findall(shape):
        if kind != 'token':
            # pred has no number and takes a byte
            total += math.prod(int(d) for d in dims.split(',') if d) * int(bits or 8) // 8
    return total


def _plain(shape: str) -> str:
    """A shape as HLO writes it, without layouts and comments: 'bf16[8,128]'."""
    return re.sub(r'\{[^}]*\}|/\*.*?\*/', '', shape)


def collectives(text: str, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """Every collective of a compiled program for the mesh {axis: size}.

    What stands in the body of a loop has the loop's turns in its count.
    """
    computations, entry = _parse(text)
    runs = _runs(computations, entry)
    done = {
        i.operands[0]: i.shape
        for body in computations.values()
        for i in body.values()
        if i.opcode.endswith('-done') and i.operands
    }
    found: dict[tuple[str, str], Collective] = {}
    # 'ROOT' names a root a second time; the same key then finds it again, and nothing changes.
    for name, body in computations.items():
        for i in body.values():
            kind = i.opcode.removesuffix('-start')
            if kind not in KINDS or not runs.get(name):
                continue
            shape = done.get(i.name, i.shape) if i.opcode.endswith('-start') else i.shape
            axes, size = _groups(i.rest, mesh_shape)
            # TPU's form of it: a reduction that keeps its own part
            if kind == 'all-reduce' and name.startswith('all-reduce-scatter'):
                kind = 'reduce-scatter'
                whole = size_of(shape)
            else:
                whole = size_of(shape) * (size if kind == 'reduce-scatter' else 1)
            channel = re.search(r'channel_id=(\d+)', i.rest)
            origin = re.search(r'op_name="([^"]*)"', i.rest)
            one = Collective(
                kind, axes, size, whole, runs[name], _plain(shape), origin[1] if origin else ''
            )
            key = (kind, channel[1] if channel else i.name)
            # a piece may run beside a loop's every turn
            if key not in found or found[key].count > one.count:
                found[key] = one
    return list(found.values())


def _matched(pattern: str, text: str) -> re.Match[str]:
    """The match of `pattern` in `text`; ValueError if none: XLA's notation has changed."""
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f'{text!r}: not in the notation of XLA that this file knows')
    return found


def _parse_size(text: str) -> float:
    """Bytes of XLA's '24.50G', '512.0K', '96B' or '96'; its letters are powers of 1024."""
    number, letter = _matched(r'^([\d.]+)([BKMGT]?)$', text).groups()
    return float(number) * 1024 ** ' KMGT'.find(letter or ' ') if letter != 'B' else float(number)


def refused_sizes(text: str) -> tuple[float, float] | None:
    """(bytes needed, bytes there) in libtpu's refusal of a program; None if it tells neither."""
    found = re.search(r'Used (\S+?) of (\S+?) hbm|\((\S+)\) exceeds available HBM \((\S+)\)', text)
    if found is None:
        return None
    needed, there = (_parse_size(size) for size in found.groups() if size)
    return needed, there


def allocations(text: str) -> list[Allocation]:
    """The largest buffers in libtpu's refusal, summed by shape and origin, largest first."""
    found: dict[tuple[str, str], Allocation] = {}
    for entry in re.split(r'\n\s+\d+\. Size: ', text)[1:]:
        shape, origin = (
            re.search(pattern, entry) for pattern in (r'Shape: ([^{\n]+)', r'op_name="([^"]*)"')
        )
        key = shape[1].strip() if shape else '?', origin[1] if origin else ''
        before = found.get(key, Allocation(0.0, 0, *key))
        found[key] = Allocation(
            before.bytes + _parse_size(entry.split()[0]), before.count + 1, *key
        )
    return sorted(found.values(), key=lambda one: -one.bytes)


def generators(text: str) -> list[tuple[tuple[int, ...], int]]:
    """(dims on one chip, bytes) of every array of random bits that XLA's own generator draws.

    That is the generator of `rbg` keys; threefry is arithmetic, and no instruction of its own.
    """
    found = []
    for body in _parse(text)[0].values():
        for key, i in body.items():
            if key != 'ROOT' and i.opcode == 'rng-bit-generator':
                # beside the bits stands the new state
                drawn = max(_ARRAY.finditer(i.shape), key=lambda array: size_of(array[0]))
                found.append((tuple(int(d) for d in drawn[3].split(',') if d), size_of(drawn[0])))
    return found


def costs(text: str) -> list[Cost]:
    """What libtpu expects each kind of instruction to take, most cycles first.

    [] for a program of another compiler. Of collectives it says nothing, nor of what runs at the
    same time.
    """
    computations, entry = _parse(text)
    runs = _runs(computations, entry)
    found: dict[tuple[str, str, str], Cost] = {}
    for name, body in computations.items():
        for key, i in body.items():
            cycles = re.search(r'"estimated_cycles":"(\d+)"', i.rest)
            if key == 'ROOT' or not cycles or not runs.get(name):
                continue
            origin = re.search(r'op_name="([^"]*)"', i.rest)
            kind = (i.opcode, _plain(i.shape), origin[1] if origin else '')
            before = found.get(kind, Cost(0, 0, *kind))
            found[kind] = Cost(
                before.cycles + runs[name] * int(cycles[1]), before.count + runs[name], *kind
            )
    return sorted(found.values(), key=lambda one: -one.cycles)


def kept_for_backward(text: str) -> int:
    """Bytes of activations on one chip: what the forward pass leaves for the backward pass.

    In whatever memory, without padding. That is every buffer that an operation of the forward pass,
    which jax names jvp(...), made and one of the backward pass, transpose(jvp(...)), reads.
    """
    computations, entry = _parse(text)
    runs = _runs(computations, entry)
    return max(
        (
            _kept(body)
            for name, body in computations.items()
            if runs.get(name) and not name.startswith('fused')
        ),
        default=0,
    )


def _kept(body: dict[str, _Instruction]) -> int:
    """The bytes of `kept_for_backward` within one computation, {instruction name: instruction}.

    Tuples, their members and other names for a buffer are looked through to where it was made.
    """

    def made(name: str, part: int | None = None) -> tuple[str, int | None] | None:
        i = body.get(name)
        if i is None or (not i.operands and i.opcode not in ('fusion', 'while')):
            return None
        if i.opcode == 'get-tuple-element':
            return made(i.operands[0], int(_matched(r'index=(\d+)', i.rest)[1]))
        if i.opcode == 'tuple':
            return made(i.operands[part]) if part is not None else None
        # of the same size, and often without a name of its own
        if i.opcode in (
            'bitcast',
            'copy',
            'copy-start',
            'copy-done',
        ):
            return made(i.operands[0])
        return (name, part)

    def parts(name: str) -> list[str]:
        """What is read where `name` is read: the members of a tuple that a loop takes."""
        i = body.get(name)
        return (
            [p for o in i.operands for p in parts(o)]
            if i is not None and i.opcode == 'tuple'
            else [name]
        )

    kept: dict[tuple[str, int | None], int] = {}
    for key, reader in body.items():
        if key == 'ROOT' or 'transpose(jvp(' not in reader.rest:
            continue
        for name in (p for o in reader.operands for p in parts(o)):
            source = made(name)
            if (
                source is None
                or 'jvp(' not in body[source[0]].rest
                or 'transpose(jvp(' in body[source[0]].rest
            ):
                continue
            shapes = [array[0] for array in _ARRAY.finditer(body[source[0]].shape)]
            # reductions that XLA has put together are read whole
            if source[1] is not None or len(shapes) == 1:
                kept[source] = size_of(shapes[source[1] or 0])
    return sum(kept.values())


@functools.lru_cache(maxsize=1)
def _parse(text: str) -> tuple[dict[str, dict[str, _Instruction]], str]:
    """({computation: {instruction name: instruction}}, the entry's name) of a program's text.

    A computation's root stands in it twice: under its name, and under 'ROOT'.
    """
    computations: dict[str, dict[str, _Instruction]] = {}
    entry, body = '', {}
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            body = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            body[found[2]] = instruction = _Instruction(*found.groups()[1:])
            if found[1]:
                body['ROOT'] = instruction
    return computations, entry


def _runs(computations: dict[str, dict[str, _Instruction]], entry: str) -> dict[str, int]:
    """{computation: how often it runs in one execution of `entry`}.

    The branches of a conditional count as if all were taken.
    """
    runs: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        runs[name] = runs.get(name, 0) + times
        for key, i in computations.get(name, {}).items():
            if key == 'ROOT':
                continue
            called = _CALLED.findall(i.rest)
            for branches in _BRANCHES.findall(i.rest):
                called += _OPERAND.findall(branches)
            if (
                called
                and i.opcode not in KINDS
                and not i.opcode.startswith(
                    ('reduce', 'sort', 'scatter', 'map', 'select-and-scatter')
                )
            ):
                trip_count = _trip_count(computations, i) if i.opcode == 'while' else 1
                for c in called:
                    visit(c, times * trip_count)

    visit(entry, 1)
    return runs


def _trip_count(computations: dict[str, dict[str, _Instruction]], loop: _Instruction) -> int:
    """Number of turns of a counted loop; 1 where the loop has another form.

    The condition compares one part of the state with a constant, the body adds a constant to it.
    With 1 what an unknown loop holds is counted at least once.
    """
    condition = computations.get(_matched(r'condition=%([^\s,)}]+)', loop.rest)[1], {})
    body = computations.get(_matched(r'body=%([^\s,)}]+)', loop.rest)[1], {})
    test, result = condition.get('ROOT'), body.get('ROOT')
    if (
        test is None
        or result is None
        or test.opcode != 'compare'
        or 'direction=LT' not in test.rest
    ):
        return 1
    counter, bound = (condition.get(o) for o in test.operands[:2])
    place = (
        re.search(r'index=(\d+)', counter.rest)
        if counter and counter.opcode == 'get-tuple-element'
        else None
    )
    limit = _constant(bound)
    if place is None or limit is None or result.opcode != 'tuple':
        return 1
    update = body.get(result.operands[int(place[1])])
    steps = [
        n
        for o in (update.operands if update and update.opcode == 'add' else ())
        if (n := _constant(body.get(o)))
    ]
    return max(-(-limit // (steps[0] if steps else 1)), 1)


def _constant(i: _Instruction | None) -> int | None:
    found = re.match(r'(-?\d+)\)', i.rest) if i and i.opcode == 'constant' else None
    return int(found[1]) if found else None


def _groups(rest: str, mesh_shape: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """(mesh axes along which the members of a group differ, members of a group) of a collective.

    rest: the collective's attributes, which name the groups of devices in one of HLO's four
    notations. Without any of them all devices are one group.
    """
    sizes = tuple(mesh_shape.values())
    devices = np.arange(math.prod(sizes))
    if found := re.search(
        r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\S+)\))? \{([^}]*)\}', rest
    ):
        split, spanned = [], []  # sizes of the grid's axes, and whether the group spans each
        parts = {
            name: (int(before), int(size))
            for name, before, size in re.findall(r"'([^']+)':\((\d+)\)(\d+)", found[3])
        }
        for name, size in re.findall(r"'([^']+)'=(\d+)", found[1]):
            before, part = parts.get(name, (1, int(size)))
            split += [before, part, int(size) // (before * part)]
            spanned += [False, f"'{name}'" in found[3], False]
        grid = (_iota(found[2]) if found[2] else devices).reshape(split)
        pairs = [grid[tuple(slice(None) if spans else 0 for spans in spanned)].ravel()]
        size = pairs[0].size
    elif found := re.search(r'replica_groups=\[(\d+),(\d+)\]<=(\S+?)(?:, |$)', rest):
        pairs, size = list(_iota(found[3]).reshape(int(found[1]), -1)), int(found[2])
    elif found := re.search(r'replica_groups=\{(\{[\d,{}]*\})\}', rest):
        pairs = [
            np.array([int(n) for n in group.split(',')])
            for group in re.findall(r'\{([\d,]+)\}', found[1])
        ]
        size = pairs[0].size
    elif found := re.search(r'source_target_pairs=\{(\{[\d,{}]*\})\}', rest):
        pairs = [
            np.array([int(n) for n in pair.split(',')])
            for pair in re.findall(r'\{([\d,]+)\}', found[1])
        ]
        size = devices.size
    else:
        return tuple(mesh_shape), devices.size
    varies = set()
    for group in pairs:
        for axis, coordinates in zip(
            mesh_shape, np.unravel_index(np.asarray(group), sizes), strict=True
        ):
            if np.unique(coordinates).size > 1:
                varies.add(axis)
    axes = tuple(axis for axis in mesh_shape if axis in varies)
    return axes, math.prod(mesh_shape[a] for a in axes) if 'source_target_pairs' in rest else size


def _iota(text: str) -> np.ndarray:
    """The device numbers that '[2,2,2]T(0,2,1)' stands for, flat.

    They are counted up in the first shape, then transposed by the second.
    """
    shape, order = _matched(r'^\[([\d,]+)\](?:T\(([\d,]+)\))?$', text).groups()
    sizes = [int(n) for n in shape.split(',')]
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return (grid.transpose([int(n) for n in order.split(',')]) if order else grid).ravel()
