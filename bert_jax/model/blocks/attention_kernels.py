"""Fused kernels of attention, which never write the scores to memory, and the choice of one.

`cudnn` is for GPUs, `tpu_splash` (Pallas') for TPUs; `xla` is none: plain jax (attention.py). They
have no dropout on probabilities. `tpu_splash` alone has a window: a layer with one is computed by
`xla` in place of `cudnn`.

Dims: as in attention.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import find_class
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh.exchange import is_by_parts
from bert_jax.mesh.sharding import BATCH, list_free_axes
from bert_jax.model.blocks.positions import POSITIONS

# The fused kernel that `auto` takes on a platform, and the tokens from which it does. cudnn was
# timed on an H200: 1.09 times as fast a step at 128, 1.41 times at 512 (docs/performance.md).
# tpu_splash was not timed: below 512 the scores are small beside the layers' activations.
_FUSED = {'gpu': ('cudnn', 128), 'tpu': ('tpu_splash', 512)}
_RENAMED = {'tpu_flash': 'tpu_splash'}  # what older configurations name
TPU_BLOCK = 128  # tpu_splash cuts a sequence into blocks of so many, by Pallas' defaults


def choose_kernel(
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

    # A named kernel is an order, and refused where it cannot be had; `auto` is a wish.
    if runtime.attention == 'auto':
        fused, shortest = _FUSED.get(platform, ('xla', 0))
        if seq_len < shortest or _find_obstacle(fused, runtime, model, packed, platform):
            return 'xla'
        return fused
    name = _RENAMED.get(runtime.attention, runtime.attention)
    obstacle = _find_obstacle(name, runtime, model, packed, platform)
    if obstacle is not None:
        named = f'runtime.attention={runtime.attention}'
        raise UserError(f'{named} {obstacle}; or use runtime.attention=auto')
    return name


def _find_obstacle(
    name: str, runtime: RuntimeConfig, model: ModelConfig, packed: bool, platform: str
) -> str | None:
    """Return why the kernel `name` cannot be had, as the end of a sentence; None if it can."""
    if name == 'xla':
        return None

    # Device first, then the model, then what is one kernel's alone: the message names the first
    # obstacle, which is the one to be removed first.
    wanted = 'gpu' if name == 'cudnn' else 'tpu'
    if platform != wanted:
        return f'needs a {wanted.upper()}, and the devices here are of kind {platform}'
    if find_class('positions', model.positions, POSITIONS).shared is not None:
        return f'adds nothing to scores, as model.positions={model.positions} does'
    if model.num_heads % runtime.model_parallel:
        # A kernel is split over the devices by whole heads.
        return (
            f'needs model.num_heads={model.num_heads} to divide by'
            f' runtime.model_parallel={runtime.model_parallel}'
        )
    if wanted == 'tpu' and _splits_parts_of_data(runtime):
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


def _splits_parts_of_data(runtime: RuntimeConfig) -> bool:
    """Tell whether a step sums by parts of `data` (mesh/exchange.py) that other axes split."""
    if runtime.fsdp == 1 and runtime.model_parallel == 1:
        return False
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.shape['data'] == 1:
        return False
    return is_by_parts(runtime.accumulation, bool(runtime.shard_optimizer), runtime.dropout_rng)


def run_cudnn(q_BTND: Array, k_BSND: Array, v_BSND: Array, keys_BS: Array) -> Array:
    """Return attention's output [B, T, N, D] by cuDNN; keys_BS is 1 where there is a token."""
    # cuDNN takes lengths and no mask: right because padding always comes last.
    lengths_B = jnp.sum(keys_BS, axis=1, dtype=jnp.int32)
    return jax.nn.dot_product_attention(
        q_BTND, k_BSND, v_BSND, key_value_seq_lengths=lengths_B, implementation='cudnn'
    )


def run_tpu_splash(
    q_BTND: Array,
    k_BTND: Array,
    v_BTND: Array,
    numbers_BT: Array,
    window: int | None,
    causal: bool,
) -> Array:
    """Return attention's output [B, T, N, D] by Pallas' kernel.

    Each device has its own rows and heads, for XLA cannot split a kernel by itself. The kernel
    skips blocks of keys that no query of a block sees. numbers_BT: a query sees keys of its number.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    T = q_BTND.shape[1]
    filled = -(-T // TPU_BLOCK) * TPU_BLOCK
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
        q_BNTD = jnp.pad(jnp.swapaxes(q_BTND, 1, 2), add)
        k_BNTD = jnp.pad(jnp.swapaxes(k_BTND, 1, 2), add)
        v_BNTD = jnp.pad(jnp.swapaxes(v_BTND, 1, 2), add)
        numbers_BT = jnp.pad(numbers_BT, ((0, 0), (0, filled - T)))
        out_BNTD = jax.vmap(kernel)(
            q_BNTD * q_BNTD.shape[-1] ** -0.5,
            k_BNTD,
            v_BNTD,
            splash.SegmentIds(numbers_BT, numbers_BT),
        )
        return jnp.swapaxes(out_BNTD, 1, 2)[:, :T]

    axes = list_free_axes()
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
