"""Scaled dot-product attention: one function, whatever computes it, and the choice of what does.

`xla` is plain jax, on every device. The others are fused kernels that never write the scores to
memory: `cudnn` (GPU) and `tpu_flash` (TPU) are others' and have no dropout on probabilities,
`tpu_fused` is our own and has (tpu_fused.py).

Dims: B batch, T query position, S key position, N heads, D width of a head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh.exchange import is_by_parts
from bert_jax.mesh.sharding import BATCH, free_axes
from bert_jax.model.dropout import DropoutRng, Generator, dropout

MASKED = -10000.0  # added to the scores of masked keys (google-research/bert modeling.py:712)
# The fused kernel that `auto` takes on a platform, and the tokens from which it does. cudnn was
# timed on an H200: 1.09 times as fast a step at 128, 1.41 times at 512 (docs/performance.md).
# tpu_flash was not timed: below 512 the scores are small beside the layers' activations.
_FUSED = {'gpu': ('cudnn', 128), 'tpu': ('tpu_flash', 512)}
_TPU_BLOCK = 128  # the flash kernel cuts a sequence into blocks of so many


class AttentionMask(NamedTuple):
    """Which keys a query sees.

    keys_BS is 1 where there is a token and 0 for padding, which comes last. Where rows hold several
    examples, packs_BS are their numbers, and a query sees the keys of its own example alone.
    """

    keys_BS: jax.Array
    packs_BS: jax.Array | None = None

    def bias(self) -> jax.Array:
        """Return what is added to the scores: [B, 1, 1, S], or [B, 1, T, S] with packs, float32."""
        # [B, 1, S] without packs: one line of keys for all queries of a row.
        seen_BTS = self.keys_BS[:, None, :] > 0
        if self.packs_BS is not None:
            seen_BTS = seen_BTS & (self.packs_BS[:, :, None] == self.packs_BS[:, None, :])
        return jnp.where(seen_BTS, 0.0, MASKED)[:, None]

    def numbers(self) -> tuple[jax.Array, jax.Array]:
        """Return numbers of queries and of keys [B, S]: a query sees keys of its number.

        Without packs every query sees what is no padding.
        """
        if self.packs_BS is not None:
            return self.packs_BS, self.packs_BS
        return jnp.ones_like(self.keys_BS), self.keys_BS


def choose(
    runtime: RuntimeConfig,
    model: ModelConfig,
    seq_len: int,
    packed: bool = False,
    platform: str | None = None,
) -> str:
    """Return what computes attention of `seq_len` tokens, as runtime.attention names it.

    The one that runtime.attention names; for 'auto' a fused kernel where one can be had and
    sequences are long. UserError where the named one cannot be had. platform: 'cpu', 'gpu' or
    'tpu', by default that of the devices here.
    """
    platform = platform or jax.default_backend()
    name = runtime.attention

    # A named kernel is an order, and refused where it cannot be had; `auto` is a wish. It never
    # takes tpu_fused: by a price list of ours, which is gone, BERT-large's step for v5e was 17 %
    # shorter with it at 512 tokens, and 15 % longer at 128. No chip has confirmed either.
    if name == 'auto':
        fused, shortest = _FUSED.get(platform, ('xla', 0))
        if seq_len < shortest or _obstacle(fused, runtime, model, seq_len, packed, platform):
            return 'xla'
        return fused
    if obstacle := _obstacle(name, runtime, model, seq_len, packed, platform):
        raise UserError(f'runtime.attention={name} {obstacle}; or use runtime.attention=auto')
    return name


def _obstacle(
    name: str, runtime: RuntimeConfig, model: ModelConfig, seq_len: int, packed: bool, platform: str
) -> str | None:
    """Why the kernel `name` cannot compute this, as the end of a sentence; None if it can."""
    if name == 'xla':
        return None

    # Device first, then the model, then what is one kernel's alone: the message names the first
    # obstacle, which is the one to be removed first.
    wanted = {'cudnn': 'gpu', 'tpu_flash': 'tpu', 'tpu_fused': 'tpu'}[name]
    if platform != wanted:
        return f'needs a {wanted.upper()}, and the devices here are of kind {platform}'
    if model.num_heads % runtime.model_parallel:
        # A kernel is split over the devices by whole heads.
        return (
            f'needs model.num_heads={model.num_heads} to divide by'
            f' runtime.model_parallel={runtime.model_parallel}'
        )
    if wanted == 'tpu' and _is_in_parts_of_data(runtime):
        return (
            'cannot be split over `fsdp` or `model` inside a step that sums gradients by parts of'
            ' `data` (XLA ends the process): set runtime.accumulation=1 and'
            ' runtime.shard_optimizer=false'
        )
    if name == 'tpu_fused':
        from bert_jax.model.blocks import tpu_fused

        if runtime.dropout_rng == 'rbg' and model.attention_dropout > 0:
            return 'draws masks by their names: set runtime.dropout_rng=threefry'
        parts = runtime.model_parallel
        return tpu_fused.obstacle(seq_len, model.hidden_size // parts, model.num_heads // parts)
    if model.is_causal:
        return 'lets every token see all others: it is not for model.attention=left_to_right'
    if model.attention_dropout > 0:
        return (
            'has no dropout on probabilities: set model.attention_dropout=0 (it is'
            f' {model.attention_dropout:g})'
        )
    if name == 'cudnn':
        if runtime.compute_dtype != 'bfloat16':
            return 'needs runtime.compute_dtype=bfloat16'
        if packed:
            return 'cannot keep packed examples apart: use records without --packing'
        head = model.hidden_size // model.num_heads
        if head % 8 or head > 128:
            return f'needs heads of a multiple of 8 up to 128 wide, not {head}'
    elif seq_len % _TPU_BLOCK:
        return f'needs sequences of a multiple of {_TPU_BLOCK} tokens, not {seq_len}'
    return None


def _is_in_parts_of_data(runtime: RuntimeConfig) -> bool:
    """Whether a step sums by parts of `data` (mesh/exchange.py) that other axes split further."""
    mesh, shards = jax.sharding.get_abstract_mesh(), bool(runtime.shard_optimizer)
    split = runtime.fsdp > 1 or runtime.model_parallel > 1
    one_part = not mesh.empty and mesh.shape['data'] == 1
    by_parts = is_by_parts(runtime.accumulation, shards, runtime.dropout_rng)
    return by_parts and split and not one_part


def attend(
    q_BTND: jax.Array,
    k_BSND: jax.Array,
    v_BSND: jax.Array,
    attention_mask: AttentionMask,
    rate: float,
    dropout_rng: DropoutRng | None,
    site: int | jax.Array,
    causal: bool = False,
    kernel: str = 'xla',
) -> jax.Array:
    """Attention's output [B, T, N, D]; scores and softmax are float32.

    Paper section 3; modeling.py:694-749. `rate` is the dropout on probabilities; with
    `causal` a query sees nothing right of it either. `kernel` is one of `choose`; cudnn and
    tpu_flash have neither.
    """
    if kernel == 'cudnn':
        # cuDNN takes lengths and no mask: right because padding always comes last.
        lengths_B = jnp.sum(attention_mask.keys_BS, axis=1, dtype=jnp.int32)
        return jax.nn.dot_product_attention(
            q_BTND, k_BSND, v_BSND, key_value_seq_lengths=lengths_B, implementation='cudnn'
        )
    # Batches of short texts in fine-tuning may be narrower than a block: xla takes those.
    if kernel == 'tpu_flash' and q_BTND.shape[1] % _TPU_BLOCK == 0:
        return _tpu_flash(q_BTND, k_BSND, v_BSND, attention_mask)
    if kernel == 'tpu_fused' and q_BTND.shape[1] % _TPU_BLOCK == 0:
        rng = dropout_rng if rate else None
        return _tpu_fused(q_BTND, k_BSND, v_BSND, attention_mask, rate, rng, site, causal)

    # What the kernels fuse, step by step. Scores come out of the product in float32: in bfloat16 a
    # sum over D loses what softmax is to compare.
    depth = q_BTND.shape[-1]
    scores_BNTS = jnp.einsum(
        'BTND,BSND->BNTS', q_BTND, k_BSND, preferred_element_type=jnp.float32
    ) * (depth**-0.5)

    # Padding gets a large negative number and not -inf: a row that is padding alone (the end of an
    # evaluation) would be NaN.
    bias_B1TS = attention_mask.bias()
    if causal:
        # tri is true at and left of the diagonal: key position at most query position.
        past_TS = jnp.tri(q_BTND.shape[1], k_BSND.shape[1], dtype=bool)
        bias_B1TS = jnp.where(past_TS[None, None], bias_B1TS, MASKED)
    probs_BNTS = _softmax(scores_BNTS + bias_B1TS, v_BSND.dtype)
    # Named 'kept': what REMAT_POLICIES in encoder.py keeps for the backward pass.
    return checkpoint_name(
        jnp.einsum('BNTS,BSND->BTND', dropout(probs_BNTS, rate, dropout_rng, site), v_BSND), 'kept'
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(scores: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Softmax over the last axis, computed in float32 and given back as `dtype`.

    The backward pass needs the result alone. Left to itself jax would keep it in float32 too: with
    bfloat16 that is 4 bytes a score beside the 2 that the product with the values needs, the
    largest thing that a layer keeps of long sequences.
    """
    return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _softmax_forward(scores: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    probs = checkpoint_name(_softmax(scores, dtype), 'kept')
    return probs, probs


def _softmax_backward(dtype: DTypeLike, probs: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    probs, gradient = probs.astype(jnp.float32), gradient.astype(jnp.float32)
    # d softmax: p * (g - sum(p g)), of the result alone.
    return (probs * (gradient - jnp.sum(probs * gradient, axis=-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def _tpu_flash(
    q_BTND: jax.Array, k_BSND: jax.Array, v_BSND: jax.Array, attention_mask: AttentionMask
) -> jax.Array:
    """Attention's output [B, T, N, D] by Pallas' kernel, each device with its own rows and heads.

    XLA cannot split a kernel by itself.
    """
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

    def local(q_BTND, k_BSND, v_BSND, queries_BT, keys_BS):
        # Pallas' kernel has heads before positions.
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q_BTND, k_BSND, v_BSND))
        out_BNTD = flash_attention(
            q, k, v, segment_ids=SegmentIds(queries_BT, keys_BS), sm_scale=q.shape[-1] ** -0.5
        )
        return jnp.swapaxes(out_BNTD, 1, 2)

    return _on_each_device(local)(q_BTND, k_BSND, v_BSND, *attention_mask.numbers())


def _tpu_fused(
    q_BTND: jax.Array,
    k_BSND: jax.Array,
    v_BSND: jax.Array,
    attention_mask: AttentionMask,
    rate: float,
    dropout_rng: DropoutRng | None,
    site: int | jax.Array,
    causal: bool,
) -> jax.Array:
    """Attention's output [B, T, N, D] by our own kernel, each device with its own rows and heads.

    There is dropout where there is a `dropout_rng`.
    """
    from bert_jax.model.blocks.tpu_fused import Fused, Names, fused_attention

    # Where nothing is dropped the names are zeros that nothing reads.
    key_2, rows_B = jnp.zeros(2, jnp.uint32), jnp.zeros(len(q_BTND), jnp.uint32)
    if dropout_rng is not None:
        key_2 = jax.random.key_data(jax.random.fold_in(dropout_rng.key, site))
        rows_B = dropout_rng.rows_B
    rate, generator = (rate, dropout_rng.generator) if dropout_rng else (0.0, Generator())

    heads_are_split = 'model' in free_axes()

    def local(q_BTND, k_BSND, v_BSND, queries_BT, keys_BS, rows_B, key_2):
        B, T, N, D = q_BTND.shape
        # Masks are named by the number of a head among all, wherever it is computed.
        here = jax.lax.axis_index('model') if heads_are_split else 0
        names = Names(key_2, rows_B, jnp.full(1, here * N, jnp.int32))
        q, k, v = (x.reshape(B, T, N * D) for x in (q_BTND, k_BSND, v_BSND))
        fused = Fused(N, MASKED, rate, generator, causal)
        return fused_attention(fused, q, k, v, queries_BT, keys_BS, names).reshape(B, T, N, D)

    run = _on_each_device(local, rows=3)
    numbers = attention_mask.numbers()
    return checkpoint_name(run(q_BTND, k_BSND, v_BSND, *numbers, rows_B, key_2), 'kept')


def _on_each_device(local: Callable[..., jax.Array], rows: int = 2) -> Callable[..., jax.Array]:
    """`local` on each device's own rows (batch axes) and heads (`model`); nothing moves.

    local: of query, key and value [B, T, N, D], of arrays [B, ...], so many as `rows` says, and of
    what is whole everywhere; gives back [B, T, N, D].
    """
    axes = free_axes()
    if not axes:
        return local
    batch = tuple(axis for axis in BATCH if axis in axes)
    heads = P(batch, None, 'model')

    def run(*arrays: jax.Array) -> jax.Array:
        whole = len(arrays) - 3 - rows
        return jax.shard_map(
            local,
            in_specs=(heads,) * 3 + (P(batch),) * rows + (P(),) * whole,
            out_specs=heads,
            axis_names=set(axes),
            check_vma=False,
        )(*arrays)

    return run
