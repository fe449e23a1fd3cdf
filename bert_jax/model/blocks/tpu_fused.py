"""Attention with dropout on its probabilities as one TPU kernel, forward and backward.

Neither scores nor probabilities are written to memory: a program of the kernel holds the scores of
whole rows, head by head, in the chip's vector memory. Masks are those of dropout.py bit for bit,
being named by (site, example, place), so that the kernel gives what plain attention gives, on any
mesh. The backward pass makes the scores again of query, key and value. To draw the masks again
would take most of its time: it keeps them, a bit a place.

Dims: B batch, T query position, S key position (as many), H width of all heads here, N heads, D
width of a head, W words that hold the masks of a key.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.model.dropout import Generator, parts_kept

# Arrays in a chip's memory are tiles of 8 times 128: programs take whole ones.
_LANES, _SUBLANES = 128, 8
_WORD = 32  # places whose masks a word holds
# A longer row's scores, a few arrays of T times S float32, leave no room in vector memory.
MOST_TOKENS = 512
# Short rows: so many tokens of different heads in a program, which costs some time to start. No
# chip has confirmed that this number is a good one.
_TOKENS = 2048


class Fused(NamedTuple):
    """What the kernel is compiled for.

    heads: how many there are here. masked: what is added to the scores of keys that are not seen.
    rate: of dropout, 0 for none; generator: of its bits. causal: a query sees nothing right
    of it.
    """

    heads: int
    masked: float
    rate: float
    generator: Generator
    causal: bool


class Names(NamedTuple):
    """The random names of a call.

    Attributes:
      key_2: the key of the site, uint32.
      rows_B: the rows of the examples in the global batch, uint32.
      first_head_1: the number of the first head here among all, int32.
    """

    key_2: Array
    rows_B: Array
    first_head_1: Array


def obstacle(tokens: int, heads: int, width: int) -> str | None:
    """Why the kernel cannot take rows of so many tokens, as the end of a sentence; None if it can.

    heads: those of one device; width: of each.
    """
    if tokens % _LANES or tokens > MOST_TOKENS:
        return f'needs sequences of a multiple of {_LANES} tokens up to {MOST_TOKENS}, not {tokens}'
    if heads % _fewest(width):
        return (
            f'needs heads that fill {_LANES} columns together on each device, not {heads} of width'
            f' {width}'
        )
    return None


def _fewest(width: int) -> int:
    """How many heads of such a width fill whole tiles together."""
    return _LANES // math.gcd(_LANES, width)


def _together(heads: int, width: int, tokens: int) -> int:
    """How many heads a program has: those that fill whole tiles, and more of them of short rows."""
    fewest = _fewest(width)
    fits = [n for n in range(fewest, heads + 1, fewest) if heads % n == 0 and n * tokens <= _TOKENS]
    return max(fits, default=fewest)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_attention(
    fused: Fused,
    q_BTH: Array,
    k_BSH: Array,
    v_BSH: Array,
    queries_BT: Array,
    keys_BS: Array,
    names: Names,
) -> Array:
    """Attention's output [B, T, H], heads side by side as in q, k and v.

    A query sees the keys whose number in keys_BS, int32, is its own in queries_BT. Paper section 3;
    scores and softmax are float32 whatever the inputs are.
    """
    return _forward(fused, q_BTH, k_BSH, v_BSH, queries_BT, keys_BS, names)[0]


def _forward(fused, q_BTH, k_BSH, v_BSH, queries_BT, keys_BS, names):
    call = _call(_forward_program, fused, q_BTH, backward=False)
    sides = queries_BT[..., None], keys_BS[:, None]  # as they stand beside scores [T, S]
    out_BTH, *masks = call(*names, q_BTH, k_BSH, v_BSH, *sides)
    # Kept where a model's blocks are computed again in the backward pass, as the output is.
    masks = [checkpoint_name(masks_BNWS, 'kept') for masks_BNWS in masks]
    return out_BTH, (q_BTH, k_BSH, v_BSH, *sides, masks)


def _backward(fused, kept, gradient_BTH):
    *arrays, masks = kept
    call = _call(_backward_program, fused, arrays[0], backward=True)
    gradients = call(*arrays, gradient_BTH, *masks)
    return *gradients, None, None, Names(None, None, None)


fused_attention.defvjp(_forward, _backward)


def _call(program: Any, fused: Fused, like_BTH: Array, backward: bool) -> Any:
    """`program` over a grid of (rows, groups of heads), as a function of names and arrays."""
    B, T, H = like_BTH.shape
    width = H // fused.heads
    together = _together(fused.heads, width, T)
    W = -(-T // (_WORD * _SUBLANES)) * _SUBLANES

    # A program sees one row, of its group's columns; names lie where numbers lie, not arrays.
    group = pl.BlockSpec((1, T, together * width), lambda row, group, *_: (row, 0, group))
    queries = pl.BlockSpec((1, T, 1), lambda row, *_: (row, 0, 0))
    keys = pl.BlockSpec((1, 1, T), lambda row, *_: (row, 0, 0))
    masks = pl.BlockSpec((1, together, W, T), lambda row, group, *_: (row, group, 0, 0))
    like = jax.ShapeDtypeStruct(like_BTH.shape, like_BTH.dtype)
    like_masks = jax.ShapeDtypeStruct((B, fused.heads, W, T), jnp.uint32)
    dropped = fused.rate > 0
    scores = B * fused.heads * T * T
    return pl.pallas_call(
        functools.partial(program, fused=fused, together=together),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3 * (not backward),
            grid=(B, fused.heads // together),
            in_specs=[group, group, group, queries, keys]
            + ([group] + [masks] * dropped) * backward,
            out_specs=[group] * 3 if backward else [group] + [masks] * dropped,
            scratch_shapes=[pltpu.VMEM((T, T), jnp.float32)] * dropped,
        ),
        out_shape=[like] * 3 if backward else [like] + [like_masks] * dropped,
        # For the compiler, which cannot look into a kernel and puts other work beside it.
        cost_estimate=pl.CostEstimate(
            flops=2 * (5 if backward else 2) * scores * width,
            transcendentals=scores,
            bytes_accessed=(7 if backward else 4) * like_BTH.size * like_BTH.dtype.itemsize
            + like_masks.size * like_masks.dtype.itemsize * dropped,
        ),
        name='fused_attention_backward' if backward else 'fused_attention',
    )


def _forward_program(
    key, rows, first_head, q, k, v, queries, keys, out, masks=None, kept=None, *, fused, together
):
    """One row, the heads of one group: out = dropout(softmax(scores)) v, and the masks of that."""
    bias_TS, width = _bias(queries, keys, fused), q.shape[-1] // together
    for head in range(together):
        at = slice(head * width, (head + 1) * width)
        probs_TS = _probs(q[0, :, at], k[0, :, at], bias_TS)
        if fused.rate:
            number = first_head[0] + pl.program_id(1) * together + head
            row = rows[pl.program_id(0)]
            _draw(kept, masks.at[0, head], (key[0], key[1]), row, number, fused)
            probs_TS = probs_TS * kept[...]
        out[0, :, at] = _product(probs_TS, v[0, :, at]).astype(out.dtype)


def _backward_program(q, k, v, queries, keys, gradient, *refs, fused, together):
    """One row, the heads of one group: gradients of q, k and v.

    refs: the masks, where there is dropout; dq, dk and dv; and what dropout multiplies by.
    """
    masks, dq, dk, dv, kept = refs if fused.rate else (None, *refs, None)
    bias_TS, width = _bias(queries, keys, fused), q.shape[-1] // together
    for head in range(together):
        at = slice(head * width, (head + 1) * width)
        q_TD, k_SD, v_SD, g_TD = (ref[0, :, at] for ref in (q, k, v, gradient))
        probs_TS = _probs(q_TD, k_SD, bias_TS)

        # Through the product with the values, and dropout.
        d_TS = _product(g_TD, v_SD, (1, 1))
        dropped_TS = probs_TS
        if fused.rate:
            _unpack(kept, masks.at[0, head], fused)
            dropped_TS, d_TS = probs_TS * kept[...], d_TS * kept[...]
        dv[0, :, at] = _product(dropped_TS, g_TD, (0, 0)).astype(dv.dtype)

        # Through the softmax: p * (d - sum(p d)); then the product of queries and keys.
        d_TS = probs_TS * (d_TS - jnp.sum(probs_TS * d_TS, axis=-1, keepdims=True))
        d_TS = d_TS * width**-0.5
        dq[0, :, at] = _product(d_TS, k_SD).astype(dq.dtype)
        dk[0, :, at] = _product(d_TS, q_TD, (0, 0)).astype(dk.dtype)


def _product(a: Array, b: Array, axes: tuple[int, int] = (1, 0)) -> Array:
    """Products of matrices over an axis of each, summed in float32; in the type of b."""
    precision = jax.lax.Precision.HIGHEST if b.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        a.astype(b.dtype),
        b,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def _bias(queries: Any, keys: Any, fused: Fused) -> Array:
    """Return what is added to the scores of a row [T, S]: 0 where a query sees a key."""
    seen_TS = queries[0] == keys[0]
    if fused.causal:
        query, key = (jax.lax.broadcasted_iota(jnp.int32, seen_TS.shape, i) for i in (0, 1))
        seen_TS = seen_TS & (key <= query)
    return jnp.where(seen_TS, 0.0, fused.masked)


def _probs(q_TD: Array, k_SD: Array, bias_TS: Array) -> Array:
    """Softmax of the scores [T, S], float32."""
    scores_TS = _product(q_TD, k_SD, (1, 1)) * q_TD.shape[-1] ** -0.5 + bias_TS
    over_TS = jnp.exp(scores_TS - jnp.max(scores_TS, axis=-1, keepdims=True))
    return over_TS / jnp.sum(over_TS, axis=-1, keepdims=True)


def _draw(kept: Any, masks: Any, key: Any, row: Any, head: Any, fused: Fused) -> None:
    """Write into `kept` [T, S] what dropout multiplies by: 0, or the inverse of the share kept.

    And into `masks` [W, S] the same, a bit a place. The numbers are those of dropout.py for heads
    [B, N, T, S]; key: two words, row: of the global batch, head: its number among all. An
    evaluation of the generator serves one place in each part of the rows; eight rows at a time, so
    that all of it stays in registers.
    """
    generator, tokens = fused.generator, kept.shape[0]
    part = tokens // generator.parts
    keep, scale = generator.keeps(fused.rate), jnp.float32(generator.scale(fused.rate))
    # Places within eight rows; the first of them is added where it is known.
    places = [jax.lax.broadcasted_iota(jnp.int32, (_SUBLANES, tokens), i) for i in (0, 1)]
    position = places[0] * tokens + places[1]
    masks[...] = jnp.zeros(masks.shape, masks.dtype)

    def some(i: Array, _: None) -> None:
        first = i * _SUBLANES
        at_place = (position + (head * part + first) * tokens).astype(jnp.uint32)
        bits = jnp.zeros(position.shape, jnp.uint32)
        for n, mask in enumerate(parts_kept(key, at_place, row, keep, generator)):
            kept[pl.ds(n * part + first, _SUBLANES), :] = jnp.where(mask, scale, jnp.float32(0))
            bits = bits | jnp.where(mask, jnp.uint32(1 << n), jnp.uint32(0))
        words, bit = _place_of(i, generator.parts)
        masks[words, :] = masks[words, :] | bits << bit

    _each_eight_rows(part, some)


def _unpack(kept: Any, masks: Any, fused: Fused) -> None:
    """Write into `kept` [T, S] what `_draw` did, from the masks that it left."""
    parts, tokens = fused.generator.parts, kept.shape[0]
    part, scale = tokens // parts, jnp.float32(fused.generator.scale(fused.rate))

    def some(i: Array, _: None) -> None:
        words, bit = _place_of(i, parts)
        bits = masks[words, :] >> bit
        for n in range(parts):
            mask = bits & jnp.uint32(1 << n) != 0
            at = pl.ds(n * part + i * _SUBLANES, _SUBLANES)
            kept[at, :] = jnp.where(mask, scale, jnp.float32(0))

    _each_eight_rows(part, some)


def _each_eight_rows(part: int, some: Callable[..., None]) -> None:
    """Call `some` with 0, 1, ...: the number of each eight rows of a part.

    Four turns of the loop as one: their work fills each other's gaps. As libtpu packs its code
    that is a quarter less time; no chip has confirmed it.
    """
    turns = part // _SUBLANES
    jax.lax.fori_loop(0, turns, some, None, unroll=math.gcd(turns, 4))


def _place_of(i: Array, parts: int) -> tuple[Any, Array]:
    """Where the masks of eight rows of each part lie: (rows of words, the first part's bit)."""
    turns = _WORD // parts
    words, bit = jax.lax.div(i, turns) * _SUBLANES, jax.lax.rem(i, turns) * parts
    return pl.ds(words, _SUBLANES), bit.astype(jnp.uint32)
