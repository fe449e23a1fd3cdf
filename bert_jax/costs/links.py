"""What a compiled step sends over the links between chips.

Owns the collectives of a program's text and the notations of their groups. A collective that XLA
has cut into steps (async_collective_fusion) is known by its chain and counts once. It must not know
what else a step does, nor how long anything takes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.costs.hlo import KINDS, inside, matched, plain, scheduled, size_of

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
    operation of the model that it came from; begins, ends: the instructions that begin it and that
    have its result, one and the same where nothing can run meanwhile.
    """

    kind: str
    axes: tuple[str, ...]
    size: int
    bytes: int
    count: int
    shape: str
    origin: str
    begins: str
    ends: str

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
            done, ended = computation.done_of.get(part.name, part), its.done_of.get(i.name, i)
            axes, size = _groups(part.rest, mesh_shape)
            array_bytes = size_of(done.shape)
            # Either form of a reduce-scatter: TPU's, a reduction that keeps its own share, is still
            # written as an all-reduce of the whole array; the other's result is that share.
            if kind == 'all-reduce' and computation.name.startswith('all-reduce-scatter'):
                kind = 'reduce-scatter'
            elif kind == 'reduce-scatter':
                array_bytes *= size
            names = i.name, (ended if done is part else done).name
            collective = Collective(
                kind, axes, size, array_bytes, count, plain(done.shape), part.origin, *names
            )
            # The steps of one collective share a chain and a channel, which others may have too.
            # Some of them may run in every turn of a loop: those that run least often run once
            # for each collective, and the last of them ends it.
            chain = re.search(r'chain_id="(\d+)"', part.rest)
            channel = re.search(r'channel_id=(\d+)', part.rest)
            key = (kind, f'{chain[1]} {channel and channel[1]}' if chain else part.name)
            row = by_chain.get(key)
            if row is None or row.count > count:
                by_chain[key] = collective
            elif row.count == count:
                by_chain[key] = dataclasses.replace(row, ends=collective.ends)
    return list(by_chain.values())


def added_up(collectives: Iterable[Collective]) -> list[dict[str, Any]]:
    """Return a row for each kind and mesh axes, most bytes first: count, bytes, bytes sent."""
    rows: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for c in collectives:
        names = {'kind': c.kind, 'axes': list(c.axes), 'chips': c.size}
        row = rows.setdefault((c.kind, c.axes), names | {'count': 0, 'bytes': 0, 'sent': 0.0})
        # count: how often it runs in a step; bytes are of one run.
        for name, each in (('count', 1), ('bytes', c.bytes), ('sent', c.sent)):
            row[name] += c.count * each
    return sorted(rows.values(), key=lambda row: -row['bytes'])


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
