"""Reads a compiled program's text (XLA's HLO): what runs how often, and what a refusal lists.

Owns the grammar of that text, and of the compiler's refusal, as far as counting needs it. Knows
nothing of models, nor what anything costs; imports no jax. What runs inside a loop counts once for
each turn of the loop.

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
from typing import Any

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

    def shapes_of_operands(self, i: Instruction) -> list[str]:
        """Return the shapes that instruction `i` of this computation takes."""
        return [self.instructions[name].shape for name in i.operands if name in self.instructions]


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


def _parse_size(text: str) -> float:
    """Return bytes of XLA's '24.50G', '512.0K', '96B' or '96'; its letters are powers of 1024."""
    number, letter = matched(r'^([\d.]+)B?([KMGT]?)$', text).groups()
    return float(number) * 1024 ** ' KMGT'.index(letter or ' ')


def refused_sizes(text: str) -> tuple[float, float] | None:
    """Return the bytes needed and there in libtpu's refusal of a program; None if it has none."""
    match = re.search(r'Used (\S+?) of (\S+?) hbm|\((\S+)\) exceeds available HBM \((\S+)\)', text)
    # Two wordings, of different places in libtpu; the groups of the other are None.
    if match is None:
        return None
    needed, there = (_parse_size(size) for size in match.groups() if size)
    return needed, there


def allocations(text: str) -> list[dict[str, Any]]:
    """Return the largest buffers in libtpu's refusal, summed by shape and origin, largest first.

    'bytes': of all 'count' of them together, padded to tiles; 'shape'; 'origin'.
    """
    # Entries look like "  1. Size: 1.5G\n  Shape: ...\n  ... op_name=...".
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in re.split(r'\n\s+\d+\. Size: ', text)[1:]:
        shape = re.search(r'Shape: ([^{\n]+)', entry)
        origin = re.search(r'op_name="([^"]*)"', entry)
        key = shape[1].strip() if shape else '?', origin[1] if origin else ''
        row = sums.setdefault(key, {'bytes': 0.0, 'count': 0, 'shape': key[0], 'origin': key[1]})
        row['bytes'] += _parse_size(entry.split()[0])
        row['count'] += 1
    return sorted(sums.values(), key=lambda row: -row['bytes'])


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
