"""How the parameters of blocks lie: one stack for all of them, or arrays of their own for each.

At rest, in files and wherever parameters are walked by path, a leaf below `layers` is stacked, [L,
...] (of blocks that share their weights one for each group; what the first blocks lack has fewer
rows). A program that unrolls its blocks
reads an array of its own for each, `layers/0/query/kernel`: a slice of a stack costs it a copy.
Owns the way between both, for parameters and for what has their form, such as moments.
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

from bert_jax.mesh.sharding import by_path

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


def block(blocks: Blocks, number: int) -> Any:
    """Return the parameters of one block, whichever way they lie."""
    if is_separate(blocks):
        return blocks[str(number)]
    flat, count = traverse_util.flatten_dict(blocks), _count(blocks)
    lacking = {names: count - leaf.shape[0] for names, leaf in flat.items()}
    return traverse_util.unflatten_dict(
        {n: leaf[number - lacking[n]] for n, leaf in flat.items() if number >= lacking[n]}
    )


def cut(stack: Blocks, first: int, end: int | None) -> Any:
    """Return the blocks of a stack from `first` up to `end`, without it; None: up to the last."""
    count = _count(stack)

    def rows(leaf: Any) -> Any:
        lacking = count - leaf.shape[0]
        return leaf[max(first - lacking, 0) : max((end or count) - lacking, 0)]

    return _some_rows(jax.tree.map(rows, stack))


def without_first(stack: Blocks, number: int, leaves: Collection[str]) -> Any:
    """Return a stack whose first `number` blocks lack the leaves below these names."""
    flat = traverse_util.flatten_dict(stack)
    flat = {n: leaf[number:] if set(n) & set(leaves) else leaf for n, leaf in flat.items()}
    return _some_rows(traverse_util.unflatten_dict(flat))


def _some_rows(stack: Blocks) -> Any:
    """Return a stack without the leaves that no block has."""
    flat = traverse_util.flatten_dict(stack)
    return traverse_util.unflatten_dict({n: leaf for n, leaf in flat.items() if leaf.shape[0]})


def _count(stack: Blocks) -> int:
    """Return how many blocks a stack has: a leaf with fewer rows is of the last ones."""
    return max(leaf.shape[0] for leaf in jax.tree.leaves(stack))


def stacked(tree: Any) -> Any:
    """Return a tree with stacks in place of separate blocks.

    A leaf that some blocks lack is stacked of those that have it. Leaves may be arrays of numpy or
    on devices, traced, or ShapeDtypeStructs; what lay on a mesh stays split as it was.
    """
    return _converted(tree, lambda blocks: _stack(blocks) if is_separate(blocks) else blocks)


def separate(tree: Any) -> Any:
    """Return a tree with separate blocks in place of stacks."""

    def apart(blocks: Blocks) -> Blocks:
        if is_separate(blocks):
            return blocks
        return {str(number): block(blocks, number) for number in range(_count(blocks))}

    return _converted(tree, apart)


def for_program(tree: Any, is_scanned: bool) -> Any:
    """Return a tree as a program reads it, which has its blocks in a loop or one by one."""
    return stacked(tree) if is_scanned else separate(tree)


def for_model(tree: Any, model: Any) -> Any:
    """Return a tree as a model reads it; as it is where the model has no choice, `scan`."""
    scan = getattr(model, 'scan', None)
    return tree if scan is None else for_program(tree, scan)


def like(tree: Any, target: Any) -> Any:
    """Return a tree of stacks with its blocks separate where they are so in `target`.

    The leaves of `target` say which blocks have them, and on which devices they go.
    """
    # {path at rest: {number of a block, None of what is no block's: leaf}}.
    wanted = {parse(path): goal for path, goal in by_path(target).items()}
    goals: dict[str, dict[Any, Any]] = defaultdict(dict)
    for (at_rest, number), goal in wanted.items():
        goals[at_rest][number] = goal
    pieces: dict[tuple[str, Any], Any] = {}
    for path, leaf in by_path(tree).items():
        numbers = sorted(goals[path], key=lambda number: number or 0)
        cut: Sequence[Any] = [leaf] if numbers == [None] else leaf
        if isinstance(cut, Array):
            cut = _cut_to(tuple(goals[path][number].sharding for number in numbers))(leaf)
        pieces |= {(path, number): piece for number, piece in zip(numbers, cut, strict=True)}
    return jax.tree.unflatten(jax.tree.structure(target), [pieces[name] for name in wanted])


def origins(tree: Any) -> list[tuple[str, int]]:
    """Return (path at rest, number in the stack there) of each leaf in order; 0 of a whole leaf."""
    paths = [parse(path) for path in by_path(tree)]
    numbers: dict[str, list[int]] = defaultdict(list)
    for path, number in paths:
        numbers[path].append(number or 0)
    return [(path, sorted(numbers[path]).index(number or 0)) for path, number in paths]


def _converted(tree: Any, change: Callable[[Blocks], Blocks]) -> Any:
    """Return a tree with `change` of all that is below a name of STACKS."""

    def convert(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        return {
            name: change(below) if name in STACKS and isinstance(below, Mapping) else convert(below)
            for name, below in node.items()
        }

    return jax.tree.map(convert, tree, is_leaf=lambda node: isinstance(node, Mapping))


def _stack(blocks: Blocks) -> Any:
    leaves = defaultdict(list)
    for name in sorted(blocks, key=int):
        for names, leaf in traverse_util.flatten_dict(blocks[name]).items():
            leaves[names].append(leaf)
    return traverse_util.unflatten_dict({names: _joined(of) for names, of in leaves.items()})


def _joined(leaves: Sequence[Any]) -> Any:
    """Return arrays of one shape as one, [n, ...]."""
    first = leaves[0]
    sharding = None if isinstance(first, jax.core.Tracer) else getattr(first, 'sharding', None)
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, P(None, *sharding.spec))
    if isinstance(first, jax.ShapeDtypeStruct):
        shape = (len(leaves), *first.shape)
        return jax.ShapeDtypeStruct(shape, first.dtype, sharding=sharding)
    if isinstance(first, np.ndarray):
        return np.stack(leaves)
    if sharding is None:
        return jnp.stack(leaves)
    return _stack_to(sharding)(*leaves)


@functools.cache
def _stack_to(sharding: Any) -> Callable[..., Array]:
    """Return the function that stacks arrays so that the result is split as `sharding` says."""
    return jax.jit(lambda *leaves: jnp.stack(leaves), out_shardings=sharding)


@functools.cache
def _cut_to(places: tuple[Any, ...]) -> Callable[[Array], list[Array]]:
    """Return the function that gives the slices of a stack, which lie as `places` say."""
    return jax.jit(list, out_shardings=list(places))
