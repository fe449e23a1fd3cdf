"""A BERT's parameters under another program's names: what both formats share.

Owns how our tree becomes arrays by name and arrays by name our tree, with nothing left out
silently: a name or shape that does not fit, on either side, is an error that lists it. Must not
know any program's names or files.

Theirs: one array for each block, word table of vocab_size rows. Ours: blocks stacked on a leading
axis, the vocabulary's axis padded to a multiple of 128 with rows of zeros, which leave here and
come back here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.families.family import ArrayName, Piece
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model.embeddings import pad_vocab
from bert_jax.train.head_base import PARTS
from bert_jax.train.state import init_params
from bert_jax.train.task_heads import HEADS

_VOCABULARY = ('encoder/embeddings/word', 'mlm/bias')  # arrays whose first axis is the vocabulary
_DEEPEST = 4096  # blocks of any model, also where they share their arrays
_LARGER = 8  # times the longest array: what differs by less is named array by array
_LAYERS = 'encoder/layers/'  # arrays whose first axis is the blocks
# Arrays by their names in another program, or by our paths.
Tensors = dict[str, np.ndarray]
# Our path -> the name of that array in another program.
NameOf = Callable[[str], ArrayName]


class Stored(NamedTuple):
    """How one of our leaves is stored by another program.

    blocks: of each block, or of all of the leaf, the pieces that make it; shape: that of all of
    them together; axis: along which they are joined; is_transposed: whether they lie [out, in].
    """

    blocks: tuple[tuple[Piece, ...], ...]
    shape: tuple[int, ...]
    axis: int
    is_transposed: bool

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return {name: shape} of the whole arrays that the pieces are of."""
        shapes = {}
        for piece in itertools.chain.from_iterable(self.blocks):
            shape = list(self.shape)
            shape[self.axis] = shape[self.axis] * piece.parts // len(self.blocks[0])
            shapes[piece.name] = tuple(shape)
        return shapes


class Layout:
    """Which arrays of another program hold an encoder with some parts, blocks in order.

    Attribute `stored`: {our path: how it is stored there}.
    """

    def __init__(self, config: ModelConfig, parts: Iterable[str], outputs: int, name_of: NameOf):
        """Lay out every array that the model has.

        Args:
          config: the shape of the encoder.
          parts: names of train/head_base.py's PARTS.
          outputs: how many a task's own part has, if it is one of them.
          name_of: the names there.
        """
        self._config = config
        self.stored: dict[str, Stored] = {}
        # From our shape to theirs: an array a block, the vocabulary's real size, transposed or not.
        for path, shape in find_shapes(config, parts, outputs).items():
            pieces, is_transposed = name_of(path)
            is_stacked = '{}' in pieces[0].name
            # What the first blocks lack has fewer rows.
            L = config.own_blocks
            numbers, shape = (range(L - shape[0], L), shape[1:]) if is_stacked else ([0], shape)
            shape = (config.vocab_size, *shape[1:]) if path in _VOCABULARY else shape
            self.stored[path] = Stored(
                tuple(tuple(p._replace(name=p.name.format(i)) for p in pieces) for i in numbers),
                shape[::-1] if is_transposed else shape,
                0 if is_transposed else -1,
                is_transposed,
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return {their name: shape} of all arrays."""
        return {name: s for stored in self.stored.values() for name, s in stored.shapes().items()}

    def our_names(self) -> dict[str, str]:
        """Return {their name: our path}.

        The block's number stands in brackets where our leaf holds all of them; a fused array has
        several paths, with + between.
        """
        paths: dict[str, list[str]] = {}
        for path, stored in self.stored.items():
            first = self._config.own_blocks - len(stored.blocks)
            for i, pieces in enumerate(stored.blocks):
                ours = f'{path}[{i + first}]' if path.startswith(_LAYERS) else path
                for name in dict.fromkeys(piece.name for piece in pieces):
                    paths.setdefault(name, []).append(ours)
        return {name: ' + '.join(ours) for name, ours in paths.items()}

    def to_tree(
        self,
        tensors: Mapping[str, np.ndarray],
        spelled: Mapping[str, str],
        source: str,
        settings: str,
    ) -> dict[str, Any]:
        """Return our parameters of arrays by name.

        Args:
          tensors: {their name: array}.
          spelled: the names as the file has them, where those are others.
          source: the model, in errors.
          settings: the file of settings, in errors.

        Raises:
          UserError: the arrays are not just those of this layout.
        """
        # Three checks before anything is converted, in the order in which they explain each other:
        # the names, the shapes, the values.
        wanted = self.shapes()
        shapes = {name: array.shape for name, array in tensors.items()}
        check_fit(wanted, shapes, spelled, source, settings)
        finite = lambda array: np.isfinite(array.astype(np.float32)).all()
        if bad := [spelled.get(n, n) for n in wanted if not finite(tensors[n])]:
            raise UserError(
                f'{source}: {join_names(bad)}: NaN or infinite values: the file is damaged or its'
                ' training diverged'
            )

        # From here on everything fits: transposed, float32, blocks stacked, vocabulary padded.
        leaves: Tensors = {}
        for path, stored in self.stored.items():
            arrays = []
            for pieces in stored.blocks:
                parts = [np.split(tensors[p.name], p.parts, stored.axis)[p.part] for p in pieces]
                array = parts[0] if len(parts) == 1 else np.concatenate(parts, stored.axis)
                arrays.append(np.asarray(array.T if stored.is_transposed else array, np.float32))
            if path in _VOCABULARY:
                # Rows that no word has: zero here, and left out again on the way back.
                rows = pad_vocab(self._config.vocab_size) - self._config.vocab_size
                leaves[path] = np.pad(arrays[0], ((0, rows), *((0, 0),) * (arrays[0].ndim - 1)))
            else:
                is_stacked = path.startswith(_LAYERS)
                leaves[path] = np.stack(arrays) if is_stacked else np.ascontiguousarray(arrays[0])
        return traverse_util.unflatten_dict(leaves, sep='/')

    def to_tensors(self, params: Mapping[str, Any]) -> Tensors:
        """Return {their name: float32 array} of our parameters.

        Those that are not in this layout are left out.
        """
        # The inverse of to_tree; a fused array is whole when all that it is made of came by.
        flat = traverse_util.flatten_dict(dict(params), sep='/')
        parts: dict[str, dict[int, np.ndarray]] = {}
        axes = {}
        for path, stored in self.stored.items():
            array = np.asarray(flat[path])
            array = array[: self._config.vocab_size] if path in _VOCABULARY else array
            arrays = array if path.startswith(_LAYERS) else [array]
            for pieces, block in zip(stored.blocks, arrays, strict=True):
                whole = block.T if stored.is_transposed else block
                for piece, part in zip(pieces, np.split(whole, len(pieces), stored.axis)):
                    parts.setdefault(piece.name, {})[piece.part] = part
                    axes[piece.name] = stored.axis
        joined = lambda name, of: np.concatenate([of[i] for i in sorted(of)], axes[name])
        return {
            name: np.ascontiguousarray(joined(name, of) if len(of) > 1 else of[0], np.float32)
            for name, of in parts.items()
        }


def find_shapes(config: ModelConfig, parts: Iterable[str], outputs: int) -> dict[str, tuple]:
    """{our path: shape} of an encoder with these parts."""
    # The blocks' shapes from an encoder of full depth; all else that stands on it from a model of
    # one.
    dtype, wanted = jnp.dtype(jnp.float32), set(parts)
    beside = tuple(part.path for part in PARTS.values())
    # Blocks that share their weights once, however often a file says that they are gone through.
    shallow_config = dataclasses.replace(config, num_layers=config.own_blocks)
    encoder = _trace_shapes(HEADS['encoder'].model(shallow_config, dtype, outputs))
    shapes = {path: shape for path, shape in encoder.items() if not path.startswith(beside)}
    # what stands on the blocks is the same on one block as on all, and that is sooner traced
    shallow = config.of_depth(1)
    of_family = [head.of(config.family) for head in HEADS.values()]
    for name, part in PARTS.items():
        head = next((head for head in of_family if name in head.parts), None)
        if name in wanted and head:
            of_head = _trace_shapes(head.model(shallow, dtype, outputs))
            shapes |= {path: of_head[path] for path in of_head if path.startswith(part.path)}
    return shapes


@functools.lru_cache(maxsize=16)
def _trace_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """{path: shape} of a model's parameters."""
    tree = jax.eval_shape(lambda: init_params(model, 0))
    return {path: leaf.shape for path, leaf in group_by_path(tree).items()}


def find_parts(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, name_of: NameOf, settings: str
) -> tuple[str, ...]:
    """Return what stands on the encoder, by the names of the arrays.

    Raises:
      UserError: there cannot be so many blocks; it names `settings`, the file of settings.
    """
    # Settings bound the work that follows: damaged ones would ask for arrays of any size.
    names, c = set(tensors), config
    positions = c.max_position if c.positions == 'learned' else 0
    sizes = (c.vocab_size, c.hidden_size, c.type_vocab_size, positions)
    longest = max((max(np.shape(array), default=0) for array in tensors.values()), default=0)
    largest = max(*sizes, c.intermediate_size, c.max_position)
    if max(sizes) > _LARGER * longest or largest >= 2**30 or c.num_layers > _DEEPEST:
        raise UserError(
            f'{settings}: {c.num_layers} blocks and a size of {largest}, but the longest array has'
            f' {longest} rows: it is damaged, or of another model'
        )
    if config.own_blocks > len(names):  # before a name is made for each array of each
        raise UserError(
            f'{settings}: {config.own_blocks} blocks, {len(names)} arrays: it is of another model'
        )

    # A part is there if any of its arrays is; that all of them are is checked with the shapes.
    stored = Layout(config, PARTS, 2, name_of).stored
    there = [path for path, array in stored.items() if names & array.shapes().keys()]
    return tuple(
        name for name, part in PARTS.items() if any(path.startswith(part.path) for path in there)
    )


def check_fit(
    wanted: Mapping[str, tuple],
    actual: Mapping[str, tuple],
    spelled: Mapping[str, str],
    source: str,
    settings: str,
) -> None:
    """UserError unless the arrays found, {name: shape}, are those wanted; see `to_tree`."""
    if set(wanted) != set(actual):
        missing = set(wanted) - set(actual)
        unknown = {spelled.get(n, n) for n in set(actual) - set(wanted)}
        raise UserError(
            f'{source}: its weights are not those of {settings}: missing {join_names(missing)}; not'
            f' known here {join_names(unknown)}: weights and settings must be of one model'
        )
    if wrong := [
        f'{spelled.get(n, n)}: {actual[n]} in the file, {s} by {settings}'
        for n, s in wanted.items()
        if actual[n] != s
    ]:
        raise UserError(
            f'{source}: {"; ".join(wrong[:4])} ({len(wrong)} wrong shapes in all): {settings} is of'
            ' another model'
        )


def join_names(names: Iterable[str]) -> str:
    """All of `names` in one line, blocks drawn together; 'nothing' for none.

    As in 'encoder.layer.{3,4}.output.dense.bias'.
    """
    # Names that differ in the block's number alone are one group.
    groups: dict[str, list[int]] = {}
    for name in sorted(names):
        number = re.search(r'(?:(?<=[./]layer[._])|(?<=layers\.))\d+(?=[./])', name)
        key = name if number is None else f'{name[: number.start()]}{{}}{name[number.end() :]}'
        groups.setdefault(key, []).extend([int(number.group())] if number else [])
    merged = []
    for key, blocks in groups.items():
        listed = ','.join(map(str, sorted(blocks)))
        merged.append(key.replace('{}', listed if len(blocks) == 1 else f'{{{listed}}}'))
    return ', '.join(merged) or 'nothing'
