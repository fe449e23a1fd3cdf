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

from bert_jax.mesh.sharding import BATCH, find_platform, list_free_axes
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

    def count_rows(self) -> int:
        """Count the rows B of a device."""
        B, mesh = len(self.x_BPE), jax.sharding.get_abstract_mesh()
        for axis in set(BATCH) & set(list_free_axes()):
            B = B // mesh.shape[axis]
        return B

    def are_large(self) -> bool:
        """Tell whether the logits of a device are so large that memory asks for blocks."""
        return 4 * self.count_rows() * self.x_BPE.shape[1] * self.bias_V.shape[0] > _LARGE

    def weighted_sums(self, labels_BP: Array, weights_BP: Array) -> Sums:
        """Return the sums over all rows of weight * loss and of weight * (is the label right?).

        They are computed in blocks. Where several logits are the largest, each counts as right.
        Nothing is differentiated by the weights.
        """
        read = jnp.dtype(self.matmul_dtype or self.x_BPE.dtype)
        arrays = _Arrays(self.x_BPE, self.table_VE, self.bias_V, labels_BP, weights_BP)
        return _sum_losses(read, arrays)


class _Arrays(NamedTuple):
    """What the sums are of.

    labels_BP: numbers of words; of a device's words -1 stands for words that are elsewhere, and for
    none. weights_BP: 0 for rows that count for nothing. Specs and gradients have the same form.
    """

    x_BPE: Any
    table_VE: Any
    bias_V: Any
    labels_BP: Any
    weights_BP: Any


def choose_block_rows(width: int) -> int:
    """Return the rows of a block.

    Each block reads and writes the table's gradient, V x E, besides its own logits, R x V: with at
    least E rows that is the smaller part. On a CPU (AMD EPYC, one core, float32, 640 rows, V =
    30,592) blocks of 64 rows took 1.06 (E=128) and 1.22 times (E=768) the plain form's time, larger
    ones about the same. An accelerator wants larger products.
    """
    is_cpu = find_platform(jax.sharding.get_abstract_mesh()) == 'cpu'
    return max(128, width) if is_cpu else max(2048, 2 * width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_losses(read: DTypeLike, arrays: _Arrays) -> Sums:
    """Return the sums; all products read `read`."""
    sums, _ = _compute_on_mesh(arrays, read, with_gradients=False)
    return sums


def _sum_losses_forward(read: DTypeLike, arrays: _Arrays) -> tuple[Sums, Gradients | None]:
    return _compute_on_mesh(arrays, read, with_gradients=True)


def _sum_losses_backward(read: DTypeLike, gradients: Gradients, of_sums: Sums) -> tuple[_Arrays]:
    # The gradients were computed with the loss, while the logits were there: they are those of the
    # sum, whose own gradient is a number. The accuracy has none.
    of_loss, _ = of_sums
    of_x, of_table, of_bias = ((of_loss * g).astype(g.dtype) for g in gradients)
    return (_Arrays(of_x, of_table, of_bias, None, None),)


_sum_losses.defvjp(_sum_losses_forward, _sum_losses_backward)


def _compute_on_mesh(
    arrays: _Arrays, read: DTypeLike, with_gradients: bool
) -> tuple[Sums, Gradients | None]:
    """Return the sums and their gradients, each device computing its own rows and words.

    Rows are split over `data` and `fsdp`, the table over `fsdp` and `model` (model/partition.py).
    Each device gathers the table over `fsdp`, and is left with its share of the gradient.
    """
    mesh = jax.sharding.get_abstract_mesh()
    size = {axis: mesh.shape[axis] for axis in list_free_axes() if mesh.shape[axis] > 1}
    rows = tuple(axis for axis in BATCH if axis in size)
    words = tuple(axis for axis in ('fsdp', 'model') if axis in size)
    B, V = len(arrays.x_BPE), len(arrays.bias_V)
    fsdp, model = size.get('fsdp', 1), size.get('model', 1)
    # One row (a model's first shapes) is not split; nor is a table that does not divide.
    if V % (fsdp * model):
        words = ()
    if not size or B % (size.get('data', 1) * fsdp):
        return _compute_in_blocks(arrays, read, with_gradients)
    across = ('model',) if 'model' in words else ()

    def compute_here(here: _Arrays) -> tuple[Sums, Gradients | None]:
        here = here._replace(table_VE=here.table_VE.astype(read))
        if words:
            labels = _find_local_labels(here.labels_BP, V // (fsdp * model), model)
            here = here._replace(labels_BP=labels)
        if 'fsdp' in words:
            table = jax.lax.all_gather(here.table_VE, 'fsdp', tiled=True)
            bias = jax.lax.all_gather(here.bias_V, 'fsdp', tiled=True)
            here = here._replace(table_VE=table, bias_V=bias)
        sums, gradients = _compute_in_blocks(here, read, with_gradients, across)
        sums = jax.lax.psum(sums, rows)
        if gradients is None:
            return sums, None
        of_x, of_table, of_bias = gradients
        if 'fsdp' in words:
            of_table = jax.lax.psum_scatter(of_table, 'fsdp', tiled=True)
            of_bias = jax.lax.psum_scatter(of_bias, 'fsdp', tiled=True)
        of_x = jax.lax.psum(of_x, across)
        others = tuple(axis for axis in rows if axis not in words)
        of_table, of_bias = jax.lax.psum((of_table, of_bias), others)
        return sums, (of_x, of_table, of_bias)

    by_rows, by_words = P(rows or None), P(words or None)
    mapped = jax.shard_map(
        compute_here,
        in_specs=(_Arrays(by_rows, by_words, by_words, by_rows, by_rows),),
        out_specs=(P(), (by_rows, by_words, by_words) if with_gradients else None),
        axis_names=set(size),
        check_vma=False,
    )
    return mapped(arrays)


def _find_local_labels(labels: Array, part: int, model: int) -> Array:
    """Return where the labels' words are among those that a device has gathered; -1: elsewhere.

    part: the words of each piece of the table. Piece i is of part i // model of `fsdp` and of part
    i % model of `model`; a device has gathered all pieces of its own part of `model`.
    """
    piece, offset = labels // part, labels % part
    mine = jax.lax.axis_index('model') if model > 1 else 0
    return jnp.where(piece % model == mine, piece // model * part + offset, -1)


def _compute_in_blocks(
    arrays: _Arrays, read: DTypeLike, with_gradients: bool, across: tuple[str, ...] = ()
) -> tuple[Sums, Gradients | None]:
    """Return the sums, and their gradients, of these rows and words.

    across: the mesh axes over which the words are split.
    """
    (V, E), N = arrays.table_VE.shape, arrays.labels_BP.size
    blocks = -(-N // choose_block_rows(E))
    R = -(-N // blocks)
    table_VE = arrays.table_VE.astype(read)
    dot = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)

    def cut(x: Array, filling: int, *shape: int) -> Array:
        """Return rows of `shape` as [blocks, R, *shape], filled up."""
        x = x.reshape(-1, *shape)
        padding = ((0, blocks * R - len(x)), *((0, 0) for _ in shape))
        return jnp.pad(x, padding, constant_values=filling).reshape(blocks, R, *shape)

    def compute_block(carry: Any, block_rows: tuple[Array, ...]) -> tuple[Any, Any]:
        (loss, right), gradients = carry
        x_RE, labels_R, weights_R = block_rows
        logits_RV = dot(x_RE, table_VE, (((1,), (1,)), ((), ()))) + arrays.bias_V[None]
        largest_R = jax.lax.pmax(logits_RV.max(-1), across)
        at_label_R1 = jnp.take_along_axis(logits_RV, jnp.maximum(labels_R, 0)[:, None], -1)
        chosen_R = jax.lax.psum(jnp.where(labels_R < 0, 0.0, at_label_R1[:, 0]), across)
        exponentials_RV = jnp.exp(logits_RV - largest_R[:, None])
        total_R = jax.lax.psum(exponentials_RV.sum(-1), across)
        loss += jnp.sum((jnp.log(total_R) + largest_R - chosen_R) * weights_R)
        right += jnp.sum((chosen_R >= largest_R) * weights_R)
        if not with_gradients:
            return ((loss, right), None), None
        # Softmax minus one at the label, times the weight.
        is_label_RV = labels_R[:, None] == jnp.arange(V)[None]
        of_logits_RV = exponentials_RV * (weights_R / total_R)[:, None]
        of_logits_RV = of_logits_RV - jnp.where(is_label_RV, weights_R[:, None], 0.0)
        read_RV = of_logits_RV.astype(read)
        of_x_RE = dot(read_RV, table_VE, (((1,), (0,)), ((), ())))
        of_table_VE = gradients[0] + dot(read_RV, x_RE, (((0,), (0,)), ((), ())))
        of_bias_V = gradients[1] + of_logits_RV.sum(0)
        return ((loss, right), (of_table_VE, of_bias_V)), of_x_RE

    # Filling rows have weight 0, and no word as their label: a device's first may have logit -inf.
    cuts = (
        cut(arrays.x_BPE.astype(read), 0, E),
        cut(arrays.labels_BP, -1),
        cut(arrays.weights_BP, 0),
    )
    zero = jnp.zeros(())
    start = (jnp.zeros((V, E)), jnp.zeros(V)) if with_gradients else None
    (sums, gradients), of_x = jax.lax.scan(compute_block, ((zero, zero), start), cuts)
    if gradients is None:
        return sums, None
    of_x_BPE = of_x.reshape(-1, E)[:N].reshape(arrays.x_BPE.shape)
    return sums, (of_x_BPE.astype(arrays.x_BPE.dtype), *gradients)
