"""Scaled dot-product attention: one function, whatever computes it, and the choice of what does.

`xla` is plain jax, on every device; of long rows with a window it computes blocks alone
(local_attention.py). The others are fused kernels that never write the scores to memory, `cudnn`
(GPU) and `tpu_splash` (TPU, Pallas'). They have no dropout on probabilities. `tpu_splash` alone has
a window: a layer with one is computed by `xla` in place of `cudnn`, which takes no keys to be
hidden on the right.

Dims: B batch, T query position, S key position, N heads, D width of a head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh.exchange import is_by_parts
from bert_jax.mesh.sharding import BATCH, free_axes
from bert_jax.model.blocks.local_attention import Blocks, near
from bert_jax.model.dropout import DropoutRng, dropout

MASKED = -10000.0  # added to the scores of masked keys (google-research/bert modeling.py:712)
# The fused kernel that `auto` takes on a platform, and the tokens from which it does. cudnn was
# timed on an H200: 1.09 times as fast a step at 128, 1.41 times at 512 (docs/performance.md).
# tpu_splash was not timed: below 512 the scores are small beside the layers' activations.
_FUSED = {'gpu': ('cudnn', 128), 'tpu': ('tpu_splash', 512)}
_RENAMED = {'tpu_flash': 'tpu_splash'}  # what older configurations name
_TPU_BLOCK = 128  # tpu_splash cuts a sequence into blocks of so many, by Pallas' defaults


class AttentionMask(NamedTuple):
    """Which keys a query sees.

    keys_BS is 1 where there is a token and 0 for padding, which comes last. Where rows hold several
    examples, packs_BS are their numbers, and a query sees the keys of its own example alone.
    """

    keys_BS: Array
    packs_BS: Array | None = None

    def bias(self, blocks: Blocks | None = None) -> Array:
        """Return what is added to the scores: [B, 1, 1, S], or [B, 1, T, S] with packs, float32.

        In `blocks` it is [B, b, 1, 1, K], or [B, b, 1, C, K].
        """
        keys_BS, packs_BT, packs_BS = self.keys_BS, self.packs_BS, self.packs_BS
        if blocks:
            keys_BS = blocks.keys(keys_BS)
        # [B, 1, S] without packs: one line of keys for all queries of a row.
        seen_BTS = keys_BS[..., None, :] > 0
        if packs_BT is not None and packs_BS is not None:
            if blocks:
                packs_BT, packs_BS = blocks.queries(packs_BT), blocks.keys(packs_BS)
            seen_BTS = seen_BTS & (packs_BT[..., None] == packs_BS[..., None, :])
        return jnp.where(seen_BTS, 0.0, MASKED)[..., None, :, :]


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
    name = _RENAMED.get(runtime.attention, runtime.attention)

    # A named kernel is an order, and refused where it cannot be had; `auto` is a wish.
    case = runtime, model, seq_len, packed, platform
    if name == 'auto':
        fused, shortest = _FUSED.get(platform, ('xla', 0))
        return 'xla' if seq_len < shortest or _obstacle(fused, *case) else fused
    if obstacle := _obstacle(name, *case):
        named = f'runtime.attention={runtime.attention}'
        raise UserError(f'{named} {obstacle}; or use runtime.attention=auto')
    return name


def _obstacle(
    name: str, runtime: RuntimeConfig, model: ModelConfig, seq_len: int, packed: bool, platform: str
) -> str | None:
    """Why the kernel `name` cannot compute this, as the end of a sentence; None if it can."""
    if name == 'xla':
        return None

    # Device first, then the model, then what is one kernel's alone: the message names the first
    # obstacle, which is the one to be removed first.
    wanted = 'gpu' if name == 'cudnn' else 'tpu'
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
    if model.attention_dropout > 0:
        return (
            'has no dropout on probabilities: set model.attention_dropout=0 (it is'
            f' {model.attention_dropout:g})'
        )
    if name == 'cudnn':
        if model.is_causal:
            return 'lets every token see all others: it is not for model.attention=left_to_right'
        if runtime.compute_dtype != 'bfloat16':
            return 'needs runtime.compute_dtype=bfloat16'
        if packed:
            return 'cannot keep packed examples apart: use records without --packing'
        head = model.hidden_size // model.num_heads
        if head % 8 or head > 128:
            return f'needs heads of a multiple of 8 up to 128 wide, not {head}'
    return None


def _is_in_parts_of_data(runtime: RuntimeConfig) -> bool:
    """Whether a step sums by parts of `data` (mesh/exchange.py) that other axes split further."""
    mesh, shards = jax.sharding.get_abstract_mesh(), bool(runtime.shard_optimizer)
    split = runtime.fsdp > 1 or runtime.model_parallel > 1
    is_one_part = not mesh.empty and mesh.shape['data'] == 1
    by_parts = is_by_parts(runtime.accumulation, shards, runtime.dropout_rng)
    return by_parts and split and not is_one_part


def attend(
    q_BTND: Array,
    k_BSND: Array,
    v_BSND: Array,
    attention_mask: AttentionMask,
    rate: float,
    dropout_rng: DropoutRng | None,
    site: int | Array,
    causal: bool = False,
    kernel: str = 'xla',
    window: int | None = None,
) -> Array:
    """Attention's output [B, T, N, D]; scores and softmax are float32.

    Paper section 3; modeling.py:694-749. `rate` is the dropout on probabilities; with
    `causal` a query sees nothing right of it either; with `window` nothing that is more places away
    (in a packed row too, where what lies between is of the same example). `kernel` is one of
    `choose`; cudnn and tpu_splash have no dropout.
    """
    # Batches of short texts in fine-tuning may be narrower than a block: xla takes those.
    tokens = q_BTND.shape[1]
    if kernel == 'tpu_splash' and tokens >= _TPU_BLOCK:
        return _tpu_splash(q_BTND, k_BSND, v_BSND, attention_mask, causal, window)
    if kernel == 'cudnn' and window is None:
        # cuDNN takes lengths and no mask: right because padding always comes last.
        lengths_B = jnp.sum(attention_mask.keys_BS, axis=1, dtype=jnp.int32)
        return jax.nn.dot_product_attention(
            q_BTND, k_BSND, v_BSND, key_value_seq_lengths=lengths_B, implementation='cudnn'
        )

    # What the kernels fuse, step by step, of whole rows or of their blocks.
    drop = lambda probs: dropout(probs, rate, dropout_rng, site)
    if window is not None and (blocks := Blocks(tokens, window, causal)).pays:
        bias = jnp.where(blocks.near()[None], attention_mask.bias(blocks), -jnp.inf)

        def of_blocks(q_BTND, k_BSND, v_BSND):
            q, k, v = blocks.queries(q_BTND), blocks.keys(k_BSND), blocks.keys(v_BSND)
            return _by_scores(q, k, v, bias, drop)

        # Each key is in several neighbourhoods: kept for the backward pass they would be several.
        kept = jax.checkpoint_policies.save_only_these_names('kept')
        of_blocks = jax.checkpoint(of_blocks, policy=kept)
        return blocks.joined(of_blocks(q_BTND, k_BSND, v_BSND))

    # Padding gets a large negative number and not -inf: a row that is padding alone (the end of an
    # evaluation) would be NaN. Of a window each query sees itself at least.
    bias_B1TS = attention_mask.bias()
    if window is not None:
        t_T1, s_1S = jnp.arange(tokens)[:, None], jnp.arange(k_BSND.shape[1])[None]
        near_TS = near(t_T1, s_1S, window, causal)
        bias_B1TS = jnp.where(near_TS[None, None], bias_B1TS, -jnp.inf)
    elif causal:
        # tri is true at and left of the diagonal: key position at most query position.
        past_TS = jnp.tri(tokens, k_BSND.shape[1], dtype=bool)
        bias_B1TS = jnp.where(past_TS[None, None], bias_B1TS, MASKED)
    return _by_scores(q_BTND, k_BSND, v_BSND, bias_B1TS, drop)


def _by_scores(
    q_TND: Array,
    k_SND: Array,
    v_SND: Array,
    bias_1TS: Array,
    drop: Callable[[Array], Array],
) -> Array:
    """Attention's output [..., T, N, D]; what leads is the batch, and blocks of its rows."""
    # Scores come out of the product in float32: in bfloat16 a sum over D loses what softmax is to
    # compare.
    depth = q_TND.shape[-1]
    scores_NTS = jnp.einsum(
        '...TND,...SND->...NTS', q_TND, k_SND, preferred_element_type=jnp.float32
    ) * (depth**-0.5)
    probs_NTS = _softmax(scores_NTS + bias_1TS, v_SND.dtype)
    # Named 'kept': what REMAT_POLICIES in encoder.py keeps for the backward pass.
    out_TND = jnp.einsum('...NTS,...SND->...TND', drop(probs_NTS), v_SND)
    return checkpoint_name(out_TND, 'kept')


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(scores: Array, dtype: DTypeLike) -> Array:
    """Softmax over the last axis, computed in float32 and given back as `dtype`.

    The backward pass needs the result alone. Left to itself jax would keep it in float32 too: with
    bfloat16 that is 4 bytes a score beside the 2 that the product with the values needs, the
    largest thing that a layer keeps of long sequences.
    """
    return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _softmax_forward(scores: Array, dtype: DTypeLike) -> tuple[Array, Array]:
    probs = checkpoint_name(_softmax(scores, dtype), 'kept')
    return probs, probs


def _softmax_backward(dtype: DTypeLike, probs: Array, gradient: Array) -> tuple[Array]:
    probs, gradient = probs.astype(jnp.float32), gradient.astype(jnp.float32)
    # d softmax: p * (g - sum(p g)), of the result alone.
    return (probs * (gradient - jnp.sum(probs * gradient, axis=-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def _tpu_splash(
    q_BTND: Array,
    k_BTND: Array,
    v_BTND: Array,
    attention_mask: AttentionMask,
    causal: bool,
    window: int | None,
) -> Array:
    """Attention's output [B, T, N, D] by Pallas' kernel, each device with its own rows and heads.

    XLA cannot split a kernel by itself. It skips blocks of keys that no query of a block sees.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    T = q_BTND.shape[1]
    filled = -(-T // _TPU_BLOCK) * _TPU_BLOCK
    if window is None and not causal:
        mask: splash.Mask = splash.FullMask((filled, filled))
    else:
        mask = splash.LocalMask((filled, filled), (window, 0 if causal else window), 0)

    def local(q_BTND, k_BTND, v_BTND, numbers_BT):
        kernel = splash.make_splash_mha(
            splash.MultiHeadMask([mask] * q_BTND.shape[2]),
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name='kept',
        )
        # Pallas' kernel has heads before positions, and whole blocks.
        add = ((0, 0), (0, 0), (0, filled - T), (0, 0))
        q, k, v = (jnp.pad(jnp.swapaxes(x, 1, 2), add) for x in (q_BTND, k_BTND, v_BTND))
        numbers_BT = jnp.pad(numbers_BT, ((0, 0), (0, filled - T)))
        out_BNTD = jax.vmap(kernel)(
            q * q.shape[-1] ** -0.5, k, v, splash.SegmentIds(numbers_BT, numbers_BT)
        )
        return jnp.swapaxes(out_BNTD, 1, 2)[:, :T]

    # A query sees keys of its number. None may see nothing: padding sees padding.
    numbers_BT = attention_mask.packs_BS
    if numbers_BT is None:
        numbers_BT = attention_mask.keys_BS
    axes = free_axes()
    if not axes:
        return local(q_BTND, k_BTND, v_BTND, numbers_BT)
    rows = tuple(axis for axis in BATCH if axis in axes)
    heads = P(rows, None, 'model')
    on_each_device = jax.shard_map(
        local,
        in_specs=(heads, heads, heads, P(rows)),
        out_specs=heads,
        axis_names=set(axes),
        check_vma=False,
    )
    return on_each_device(q_BTND, k_BTND, v_BTND, numbers_BT)
