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
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.families.family import ArrayName, Piece
from bert_jax.configs.options import find_class
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model.blocks.positions import POSITIONS
from bert_jax.train.head_base import PARTS
from bert_jax.train.state import init_params
from bert_jax.train.task_heads import HEADS, list_parts

# Arrays whose first axis is the vocabulary.
VOCABULARY = ('encoder/embeddings/word', 'mlm/bias', 'mlm/decoder')
_DEEPEST = 4096  # blocks of any model, also where they share their arrays
_LARGER = 8  # times the longest array: what differs by less is named array by array
_LAYERS = 'encoder/layers/'  # arrays whose first axis is the blocks
# Arrays by their names in another program, or by our paths.
Tensors = dict[str, np.ndarray]
# Our path -> the name of that array in another program.
NameOf = Callable[[str], ArrayName]


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """How one of our arrays is stored by another program.

    Attributes:
      blocks: of each block, or of an array that is of none, the pieces that make it.
      first_block: the number of the first block that has it; None for an array of no block.
      shape: that of the pieces of a block together.
      is_transposed: whether they lie [out, in].
      padding: rows of zeros that ours has at its end and theirs lacks.
    """

    blocks: list[tuple[Piece, ...]]
    first_block: int | None
    shape: tuple[int, ...]
    is_transposed: bool
    padding: int

    @property
    def axis(self) -> int:
        """Return the axis of outputs, along which pieces are joined."""
        return 0 if self.is_transposed else -1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return {name: shape} of the whole arrays that the pieces are of."""
        shapes = {}
        for pieces in self.blocks:
            for piece in pieces:
                shape = list(self.shape)
                shape[self.axis] = shape[self.axis] * piece.parts // len(pieces)
                shapes[piece.name] = tuple(shape)
        return shapes

    def read(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return our array, float32, of theirs: transposed, blocks stacked, rows padded."""
        blocks = []
        for pieces in self.blocks:
            parts = []
            for piece in pieces:
                parts.append(np.split(tensors[piece.name], piece.parts, self.axis)[piece.part])
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)
            blocks.append(np.asarray(whole.T if self.is_transposed else whole, np.float32))
        if self.first_block is not None:
            return np.stack(blocks)
        (array,) = blocks
        if self.padding:
            return np.concatenate([array, np.zeros((self.padding, *array.shape[1:]), np.float32)])
        return np.ascontiguousarray(array)

    def write(self, array: np.ndarray, tensors: Tensors) -> None:
        """Put our array into theirs, which are there at full size: the inverse of `read`."""
        blocks = array
        if self.first_block is None:
            blocks = array[None, : len(array) - self.padding]
        for pieces, block in zip(self.blocks, blocks, strict=True):
            whole = block.T if self.is_transposed else block
            for piece, part in zip(pieces, np.split(whole, len(pieces), self.axis), strict=True):
                np.split(tensors[piece.name], piece.parts, self.axis)[piece.part][...] = part


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
        self.stored: dict[str, StoredArray] = {}
        for path, shape in find_shapes(config, parts, outputs).items():
            pieces, is_transposed = name_of(path)
            blocks, first_block, padding = [pieces], None, 0
            if path.startswith(_LAYERS):
                # What the first blocks lack has fewer rows.
                first_block, shape = config.own_blocks - shape[0], shape[1:]
                blocks = []
                for number in range(first_block, config.own_blocks):
                    blocks.append(tuple(p._replace(name=p.name.format(number)) for p in pieces))
            elif path in VOCABULARY:
                padding = shape[0] - config.vocab_size
                shape = (config.vocab_size, *shape[1:])
            shape = shape[::-1] if is_transposed else shape
            self.stored[path] = StoredArray(blocks, first_block, shape, is_transposed, padding)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return {their name: shape} of all arrays."""
        shapes: dict[str, tuple[int, ...]] = {}
        for stored in self.stored.values():
            shapes |= stored.shapes()
        return shapes

    def our_names(self) -> dict[str, str]:
        """Return {their name: our path}.

        The block's number stands in brackets where our leaf holds all of them; a fused array has
        several paths, with + between.
        """
        names: dict[str, str] = {}
        for path, stored in self.stored.items():
            for i, pieces in enumerate(stored.blocks):
                ours = path
                if stored.first_block is not None:
                    ours += f'[{i + stored.first_block}]'
                for name in dict.fromkeys(piece.name for piece in pieces):
                    names[name] = f'{names[name]} + {ours}' if name in names else ours
        return names

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
        bad = []
        for name in wanted:
            if not np.isfinite(tensors[name].astype(np.float32)).all():
                bad.append(spelled.get(name, name))
        if bad:
            raise UserError(
                f'{source}: {join_names(bad)}: NaN or infinite values: the file is damaged or its'
                ' training diverged'
            )
        leaves = {path: stored.read(tensors) for path, stored in self.stored.items()}
        return traverse_util.unflatten_dict(leaves, sep='/')

    def to_tensors(self, params: Mapping[str, Any]) -> Tensors:
        """Return {their name: float32 array} of our parameters: the inverse of `to_tree`.

        Those that are not in this layout are left out.
        """
        flat = traverse_util.flatten_dict(dict(params), sep='/')
        tensors = {name: np.empty(shape, np.float32) for name, shape in self.shapes().items()}
        for path, stored in self.stored.items():
            stored.write(np.asarray(flat[path]), tensors)
        return tensors


def find_shapes(config: ModelConfig, parts: Iterable[str], outputs: int) -> dict[str, tuple]:
    """Return {our path: shape} of an encoder with these parts."""
    # The blocks' shapes from an encoder of full depth; all else that stands on it from a model of
    # one. Blocks that share their weights once, however often a file says that they are gone
    # through.
    dtype, wanted = jnp.dtype(jnp.float32), set(parts)
    own_blocks = dataclasses.replace(config, num_layers=config.own_blocks)
    of_encoder = _trace_shapes(HEADS['encoder'].model(own_blocks, dtype, outputs))
    beside = tuple(part.path for part in PARTS.values())
    shapes = {path: shape for path, shape in of_encoder.items() if not path.startswith(beside)}
    # what stands on the blocks is the same on one block as on all, and that is sooner traced
    shallow = config.of_depth(1)
    for name, part in PARTS.items():
        heads = [head.of(config.family) for head in HEADS.values()]
        heads = [head for head in heads if name in head.parts]
        if name in wanted and heads:
            for path, shape in _trace_shapes(heads[0].model(shallow, dtype, outputs)).items():
                if path.startswith(part.path):
                    shapes[path] = shape
    return shapes


@functools.lru_cache(maxsize=16)
def _trace_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return {path: shape} of a model's parameters."""
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
    sizes = [c.vocab_size, c.hidden_size, c.type_vocab_size]
    if find_class('positions', c.positions, POSITIONS).has_rows:
        sizes.append(c.max_position)
    longest = max((size for array in tensors.values() for size in np.shape(array)), default=0)
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
    parts = dict.fromkeys(list_parts(config.family), False)
    for path, stored in Layout(config, parts, 2, name_of).stored.items():
        if names & stored.shapes().keys():
            for name in parts:
                parts[name] = parts[name] or path.startswith(PARTS[name].path)
    return tuple(name for name, is_there in parts.items() if is_there)


def check_fit(
    wanted: Mapping[str, tuple],
    actual: Mapping[str, tuple],
    spelled: Mapping[str, str],
    source: str,
    settings: str,
) -> None:
    """Raise UserError unless the arrays, {name: shape}, are those wanted; see `Layout.to_tree`."""
    if set(wanted) != set(actual):
        missing = set(wanted) - set(actual)
        unknown = {spelled.get(n, n) for n in set(actual) - set(wanted)}
        raise UserError(
            f'{source}: its weights are not those of {settings}: missing {join_names(missing)}; not'
            f' known here {join_names(unknown)}: weights and settings must be of one model'
        )
    wrong = []
    for name, shape in wanted.items():
        if actual[name] != shape:
            ours = f'{actual[name]} in the file, {shape} by {settings}'
            wrong.append(f'{spelled.get(name, name)}: {ours}')
    if wrong:
        raise UserError(
            f'{source}: {"; ".join(wrong[:4])} ({len(wrong)} wrong shapes in all): {settings} is of'
            ' another model'
        )


def join_names(names: Iterable[str]) -> str:
    """Return all of `names` in one line, blocks drawn together; 'nothing' for none.

    As in 'encoder.layer.{3,4}.output.dense.bias'.
    """
    # Names that differ in the block's number alone are one group.
    groups: dict[str, list[int]] = {}
    for name in sorted(names):
        number = re.search(r'(?:(?<=[./]layer[._])|(?<=layers\.))\d+(?=[./])', name)
        if number is None:
            groups[name] = []
        else:
            key = f'{name[: number.start()]}{{}}{name[number.end() :]}'
            groups.setdefault(key, []).append(int(number[0]))
    merged = []
    for key, blocks in groups.items():
        listed = ','.join(str(number) for number in sorted(blocks))
        if len(blocks) > 1:
            listed = f'{{{listed}}}'
        merged.append(key.replace('{}', listed))
    return ', '.join(merged) or 'nothing'
