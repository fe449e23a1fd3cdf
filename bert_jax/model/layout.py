"""How the parameters of blocks lie: one stack for all of them, or arrays of their own for each.

At rest, in files and wherever parameters are walked by path, a leaf below `layers` is stacked, [L,
...] (of blocks that share their weights one for each group; what the first blocks lack has fewer
rows). A program that unrolls its blocks reads an array of its own for each,
`layers/0/query/kernel`: a slice of a stack costs it a copy. Owns the way between both, for
parameters and for what has their form, such as moments.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.mesh.sharding import group_by_path

# The lowest blocks lie apart where tuning leaves them alone (model/encoder.py).
BELOW = 'below_layers'
STACKS = (BELOW, 'layers')
_NUMBERED = re.compile(r'(?<=layers/)(\d+)/')

Blocks = Mapping[str, Any]


def parse(path: str) -> tuple[str, int | None]:
    """Return (a leaf's path at rest, the number of its block in the stack, None of a stack)."""
    number = _NUMBERED.search(path)
    return _NUMBERED.sub('', path), int(number[1]) if number else None


def is_separate(blocks: Any) -> bool:
    """Tell whether the tree below a name of STACKS has a block for each number."""
    return isinstance(blocks, Mapping) and bool(blocks) and all(name.isdigit() for name in blocks)


def take_block(blocks: Blocks, number: int) -> Any:
    """Return the parameters of one block, whichever way they lie."""
    if is_separate(blocks):
        return blocks[str(number)]
    count, leaves = count_blocks(blocks), {}
    for names, leaf in traverse_util.flatten_dict(blocks).items():
        row = number - (count - leaf.shape[0])
        if row >= 0:  # else the block lacks it
            leaves[names] = leaf[row]
    return traverse_util.unflatten_dict(leaves)


def cut(stack: Blocks, first: int, end: int | None) -> Any:
    """Return the blocks of a stack from `first` up to `end`, without it; None: up to the last."""
    count = count_blocks(stack)

    def cut_leaf(leaf: Any) -> Any:
        lacking = count - leaf.shape[0]
        return leaf[max(first - lacking, 0) : max((end or count) - lacking, 0)]

    return _drop_empty(jax.tree.map(cut_leaf, stack))


def drop_from_first(stack: Blocks, number: int, leaves: Collection[str]) -> Any:
    """Return a stack whose first `number` blocks lack the leaves below these names."""
    flat = traverse_util.flatten_dict(stack)
    for names, leaf in flat.items():
        if set(names) & set(leaves):
            flat[names] = leaf[number:]
    return _drop_empty(traverse_util.unflatten_dict(flat))


def _drop_empty(stack: Blocks) -> Any:
    """Return a stack without the leaves that no block has."""
    flat = traverse_util.flatten_dict(stack)
    return traverse_util.unflatten_dict({n: leaf for n, leaf in flat.items() if leaf.shape[0]})


def count_blocks(stack: Blocks) -> int:
    """Return how many blocks a stack has: a leaf with fewer rows is of the last ones."""
    return max(leaf.shape[0] for leaf in jax.tree.leaves(stack))


def stack_blocks(tree: Any) -> Any:
    """Return a tree with stacks in place of separate blocks.

    A leaf that some blocks lack is stacked of those that have it. Leaves may be arrays of numpy or
    on devices, traced, or ShapeDtypeStructs; what lay on a mesh stays split as it was.
    """

    def stack_blocks(blocks: Blocks) -> Blocks:
        if not is_separate(blocks):
            return blocks
        leaves = defaultdict(list)
        for name in sorted(blocks, key=int):
            for names, leaf in traverse_util.flatten_dict(blocks[name]).items():
                leaves[names].append(leaf)
        stack = {names: _stack_leaves(of_blocks) for names, of_blocks in leaves.items()}
        return traverse_util.unflatten_dict(stack)

    return _change_stacks(tree, stack_blocks)


def separate_blocks(tree: Any) -> Any:
    """Return a tree with separate blocks in place of stacks."""

    def separate_blocks(blocks: Blocks) -> Blocks:
        if is_separate(blocks):
            return blocks
        return {str(number): take_block(blocks, number) for number in range(count_blocks(blocks))}

    return _change_stacks(tree, separate_blocks)


def arrange_for_program(tree: Any, is_scanned: bool) -> Any:
    """Return a tree as a program reads it, which has its blocks in a loop or one by one."""
    return stack_blocks(tree) if is_scanned else separate_blocks(tree)


def arrange_for_model(tree: Any, model: Any) -> Any:
    """Return a tree as a model reads it; as it is where the model has no choice, `scan`."""
    scan = getattr(model, 'scan', None)
    return tree if scan is None else arrange_for_program(tree, scan)


def arrange_like(tree: Any, target: Any) -> Any:
    """Return a tree of stacks with its blocks separate where they are so in `target`.

    The leaves of `target` say which blocks have them, and on which devices they go.
    """
    # Of each path at rest: {number of a block, None of what is no block's: leaf of `target`}.
    goals: dict[str, dict[Any, Any]] = defaultdict(dict)
    wanted = []
    for path, goal in group_by_path(target).items():
        at_rest, number = parse(path)
        goals[at_rest][number] = goal
        wanted.append((at_rest, number))

    pieces: dict[tuple[str, int | None], Any] = {}
    for path, leaf in group_by_path(tree).items():
        if None in goals[path]:
            pieces[path, None] = leaf
            continue
        numbers, slices = sorted(goals[path]), leaf
        if isinstance(leaf, Array):
            slices = _cut_to(tuple(goals[path][number].sharding for number in numbers))(leaf)
        for number, piece in zip(numbers, slices, strict=True):
            pieces[path, number] = piece
    return jax.tree.unflatten(jax.tree.structure(target), [pieces[leaf] for leaf in wanted])


def find_origins(tree: Any) -> list[tuple[str, int]]:
    """Return (path at rest, number in the stack there) of each leaf in order; 0 of a whole leaf."""
    paths = [parse(path) for path in group_by_path(tree)]
    numbers: dict[str, list[int]] = defaultdict(list)
    for path, number in paths:
        numbers[path].append(number or 0)
    return [(path, sorted(numbers[path]).index(number or 0)) for path, number in paths]


def _change_stacks(tree: Any, change: Callable[[Blocks], Blocks]) -> Any:
    """Return a tree with `change` of all that is below a name of STACKS."""

    def convert(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        changed = {}
        for name, below in node.items():
            is_stack = name in STACKS and isinstance(below, Mapping)
            changed[name] = change(below) if is_stack else convert(below)
        return changed

    return jax.tree.map(convert, tree, is_leaf=lambda node: isinstance(node, Mapping))


def _stack_leaves(leaves: Sequence[Any]) -> Any:
    """Return arrays of one shape as one, [n, ...]."""
    first = leaves[0]
    if isinstance(first, np.ndarray):
        return np.stack(leaves)
    if isinstance(first, jax.core.Tracer):
        return jnp.stack(leaves)
    # What lies on a mesh stays split as it is.
    sharding = getattr(first, 'sharding', None)
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, P(None, *sharding.spec))
    if isinstance(first, jax.ShapeDtypeStruct):
        shape = (len(leaves), *first.shape)
        return jax.ShapeDtypeStruct(shape, first.dtype, sharding=sharding)
    return jnp.stack(leaves) if sharding is None else _stack_to(sharding)(*leaves)


@functools.cache
def _stack_to(sharding: Any) -> Callable[..., Array]:
    """Return the function that stacks arrays so that the result is split as `sharding` says."""
    return jax.jit(lambda *leaves: jnp.stack(leaves), out_shardings=sharding)


@functools.cache
def _cut_to(places: tuple[Any, ...]) -> Callable[[Array], list[Array]]:
    """Return the function that gives the slices of a stack, which lie as `places` say."""
    return jax.jit(list, out_shardings=list(places))
