"""The loss over the vocabulary: whole logits, or blocks of rows with a gradient of their own.

Whole, the logits [N, V] are written, read and copied about ten times, and their gradient is as
large. In blocks, the logits of some rows are computed, and their loss and gradients follow at once:
no product is computed twice, and no more than a block is in memory. Owns that computation, on one
device and where rows and vocabulary are split over the mesh. What the loss is for is
bert_jax/train/losses'.

Dims: B batch, P masked positions, N = B P rows, R rows of a block, V vocabulary, E width.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.mesh.sharding import BATCH, free_axes, platform_of
from bert_jax.model.blocks.matmul import dot_general

# Bytes of logits from which on `auto` takes blocks. Below, blocks save memory that nobody lacks,
# and were no faster (docs/notes/pretraining.md): bert_tiny's step took 1.02 times as long on a
# CPU. Of one layer of bert_base with 5,120 masked positions a chip the compiler for v5e takes
# 1,275 MiB of temporary memory in place of 1,644.
_LARGE = 2**30
# The weighted sums of loss and accuracy.
Sums = tuple[Array, Array]
# Of x, table and bias.
Gradients = tuple[Array, Array, Array]


class Factors(NamedTuple):
    """Logits over the vocabulary before they are multiplied: x table^T + bias.

    x_BPE: what the masked-LM head makes of each masked position; table_VE: float32, as trained;
    bias_V: -inf for rows of the table that are no words; matmul_dtype: what the product reads,
    where that is not x's dtype.
    """

    x_BPE: Array
    table_VE: Array
    bias_V: Array
    matmul_dtype: str | None

    def logits(self) -> Array:
        """Return the logits [B, P, V], float32."""
        product = dot_general(self.matmul_dtype)(
            self.x_BPE,
            self.table_VE.astype(self.x_BPE.dtype),
            (((2,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        return product + self.bias_V[None, None]

    def are_large(self) -> bool:
        """Tell whether the logits of a device are so large that memory asks for blocks."""
        B, P, _ = self.x_BPE.shape
        mesh = jax.sharding.get_abstract_mesh()
        for axis in set(BATCH) & set(free_axes()):
            B = B // mesh.shape[axis]
        return 4 * B * P * self.bias_V.shape[0] > _LARGE

    def weighted_sums(self, labels_BP: Array, weights_BP: Array) -> Sums:
        """Return the sums over all rows of weight * loss and of weight * (is the label right?).

        They are computed in blocks. Where several logits are the largest, each counts as right.
        Nothing is differentiated by the weights.
        """
        read = jnp.dtype(self.matmul_dtype or self.x_BPE.dtype)
        return _sums(read, self.x_BPE, self.table_VE, self.bias_V, labels_BP, weights_BP)


def _block_rows(width: int) -> int:
    """Return the rows of a block.

    Each block reads and writes the table's gradient, V x E, besides its own logits, R x V: with at
    least E rows that is the smaller part. On a CPU (AMD EPYC, one core, float32, 640 rows, V =
    30,592) blocks of 64 rows took 1.06 (E=128) and 1.22 times (E=768) the plain form's time, larger
    ones about the same. An accelerator wants larger products.
    """
    is_cpu = platform_of(jax.sharding.get_abstract_mesh()) == 'cpu'
    return max(128, width) if is_cpu else max(2048, 2 * width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(read: DTypeLike, *arrays: Array) -> Sums:
    return _on_mesh(read, False, *arrays)[0]


def _backward(read: DTypeLike, gradients: Gradients, of_sums: Sums) -> tuple[Any, ...]:
    # The gradients were computed with the loss, while the logits were there: they are those of the
    # sum, whose own gradient is a number. The accuracy has none.
    return (*((of_sums[0] * x).astype(x.dtype) for x in gradients), None, None)


_sums.defvjp(lambda read, *arrays: _on_mesh(read, True, *arrays), _backward)


def _on_mesh(
    read: DTypeLike, with_gradients: bool, *arrays: Array
) -> tuple[Sums, Gradients | None]:
    """Return the sums and their gradients, each device computing its own rows and words.

    The arrays are those of `_in_blocks`, whole. Rows are split over `data` and `fsdp`, the table
    over `fsdp` and `model` (model/partition.py). Each device gathers the table over `fsdp`, and is
    left with its share of the gradient.
    """
    mesh = jax.sharding.get_abstract_mesh()
    size = {axis: mesh.shape[axis] for axis in free_axes() if mesh.shape[axis] > 1}
    rows = tuple(axis for axis in BATCH if axis in size)
    words = tuple(axis for axis in ('fsdp', 'model') if axis in size)
    B, V = len(arrays[0]), len(arrays[2])
    fsdp, model = size.get('fsdp', 1), size.get('model', 1)
    # One row (a model's first shapes) is not split; nor is a table that does not divide.
    if V % (fsdp * model):
        words = ()
    if not size or B % (size.get('data', 1) * fsdp):
        return _in_blocks(read, with_gradients, (), *arrays)

    def local(x, table, bias, labels, weights):
        table = table.astype(read)
        if words:
            labels = _local_labels(labels, V // (fsdp * model), model)
        if 'fsdp' in words:
            table, bias = (jax.lax.all_gather(a, 'fsdp', tiled=True) for a in (table, bias))
        across = ('model',) if 'model' in words else ()
        sums, gradients = _in_blocks(read, with_gradients, across, x, table, bias, labels, weights)
        sums = jax.lax.psum(sums, rows)
        if gradients is None:
            return sums, None
        of_x, *of_words = gradients
        if 'fsdp' in words:
            of_words = [jax.lax.psum_scatter(g, 'fsdp', tiled=True) for g in of_words]
        others = tuple(axis for axis in rows if axis not in words)
        return sums, (jax.lax.psum(of_x, across), *jax.lax.psum(of_words, others))

    by_rows, by_words = P(rows or None), P(words or None)
    in_specs = (by_rows, by_words, by_words, by_rows, by_rows)
    of_gradients = (by_rows, by_words, by_words) if with_gradients else None
    mapped = jax.shard_map(
        local, in_specs=in_specs, out_specs=(P(), of_gradients), axis_names=set(size),
        check_vma=False,
    )  # fmt: skip
    return mapped(*arrays)


def _local_labels(labels: Array, part: int, model: int) -> Array:
    """Return where the labels' words are among those that a device has gathered; -1: elsewhere.

    part: the words of each piece of the table. Piece i is of part i // model of `fsdp` and of part
    i % model of `model`; a device has gathered all pieces of its own part of `model`.
    """
    piece, offset = labels // part, labels % part
    mine = jax.lax.axis_index('model') if model > 1 else 0
    return jnp.where(piece % model == mine, piece // model * part + offset, -1)


def _cut(blocks: int, R: int, a: Array, filling: int, *shape: int) -> Array:
    """Return rows of `shape` as [blocks, R, *shape], filled up.

    Filling rows have weight 0, and no word as their label: a device's first may have logit -inf.
    """
    a = a.reshape(-1, *shape)
    padding = ((0, blocks * R - len(a)), *((0, 0) for _ in shape))
    return jnp.pad(a, padding, constant_values=filling).reshape(blocks, R, *shape)


def _in_blocks(
    read: DTypeLike,
    with_gradients: bool,
    across: tuple[str, ...],
    x_BPE: Array,
    table_VE: Array,
    bias_V: Array,
    labels_BP: Array,
    weights_BP: Array,
) -> tuple[Sums, Gradients | None]:
    """Return the sums, and their gradients, of these rows.

    Args:
      read: what all products read; their sums are float32.
      with_gradients: whether there are gradients.
      across: the mesh axes over which the words are split.
      x_BPE: of these rows.
      table_VE: the words that are here.
      bias_V: theirs.
      labels_BP: their numbers among these words, -1 of words that are elsewhere.
      weights_BP: 0 for rows that count for nothing.
    """
    (V, E), N = table_VE.shape, labels_BP.size
    blocks = -(-N // _block_rows(E))
    R = -(-N // blocks)

    table = table_VE.astype(read)
    dot = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)

    def block(carry, block_rows):
        (loss, right), gradients = carry
        x_RE, labels_R, weights_R = block_rows
        logits = dot(x_RE, table, (((1,), (1,)), ((), ()))) + bias_V[None]
        largest = jax.lax.pmax(logits.max(-1), across)
        at_label = jnp.take_along_axis(logits, jnp.maximum(labels_R, 0)[:, None], -1)[:, 0]
        chosen = jax.lax.psum(jnp.where(labels_R < 0, 0.0, at_label), across)
        exponentials = jnp.exp(logits - largest[:, None])
        total = jax.lax.psum(exponentials.sum(-1), across)
        loss += jnp.sum((jnp.log(total) + largest - chosen) * weights_R)
        right += jnp.sum((chosen >= largest) * weights_R)
        if not with_gradients:
            return ((loss, right), None), None
        # Softmax minus one at the label, times the weight.
        is_label = labels_R[:, None] == jnp.arange(V)[None]
        of_logits = exponentials * (weights_R / total)[:, None]
        of_logits = of_logits - jnp.where(is_label, weights_R[:, None], 0.0)
        g = of_logits.astype(read)
        of_x = dot(g, table, (((1,), (0,)), ((), ())))
        of_table = gradients[0] + dot(g, x_RE, (((0,), (0,)), ((), ())))
        return ((loss, right), (of_table, gradients[1] + of_logits.sum(0))), of_x

    zero = jnp.zeros(())
    start = (jnp.zeros((V, E)), jnp.zeros(V)) if with_gradients else None
    cut = functools.partial(_cut, blocks, R)
    cuts = (cut(x_BPE.astype(read), 0, E), cut(labels_BP, -1), cut(weights_BP, 0))
    (sums, gradients), of_x = jax.lax.scan(block, ((zero, zero), start), cuts)
    if gradients is None:
        return sums, None
    of_x = of_x.reshape(-1, E)[:N].reshape(x_BPE.shape).astype(x_BPE.dtype)
    return sums, (of_x, *gradients)
