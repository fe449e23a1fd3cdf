"""Which kernel computes attention, and that each sees the keys that it should."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh import construction
from bert_jax.model.blocks.attention import AttentionMask, attend
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.model.dropout import GENERATORS, DropoutRng, dropout

BASE = ModelConfig(attention_dropout=0.0)
CAUSAL = dataclasses.replace(BASE, attention='left_to_right')


def pick(
    name='auto', seq_len=512, packed=False, platform='cpu', dtype='bfloat16', model=BASE, **runtime
) -> str:
    settings = RuntimeConfig(attention=name, compute_dtype=dtype, **runtime)
    return choose_kernel(settings, model, seq_len, packed, platform)


@pytest.mark.parametrize(
    ('case', 'want'),
    [
        ({}, 'xla'),
        ({'platform': 'gpu'}, 'cudnn'),
        ({'platform': 'tpu'}, 'tpu_splash'),
        ({'platform': 'gpu', 'seq_len': 127}, 'xla'),
        ({'platform': 'gpu', 'packed': True}, 'xla'),
        ({'platform': 'gpu', 'model': ModelConfig()}, 'xla'),
        ({'platform': 'tpu', 'name': 'tpu_flash', 'seq_len': 128}, 'tpu_splash'),
    ],
    ids=str,
)
def test_the_kernel_follows_shape_and_device_unless_named(case, want):
    assert pick(**case) == want


@pytest.mark.parametrize(
    ('case', 'message'),
    [
        ({'name': 'cudnn'}, 'attention=cudnn needs a GPU'),
        ({'name': 'cudnn', 'platform': 'gpu', 'model': ModelConfig()}, 'attention_dropout=0'),
        ({'name': 'cudnn', 'platform': 'gpu', 'model': CAUSAL}, 'left_to_right'),
        ({'name': 'tpu_flash', 'platform': 'tpu', 'model_parallel': 8}, 'num_heads=12 to divide'),
        (
            {'name': 'tpu_splash', 'platform': 'tpu', 'model_parallel': 2, 'accumulation': 2},
            'set runtime.accumulation=1',
        ),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_in_one_line(case, message):
    with pytest.raises(UserError, match=message):
        pick(**case)


def written_out(q, k, v, bias_BTS, weights):
    """Attention in numpy: [output, gradients of sum(output * weights) by q, k and v].

    Of softmax, dS = P * (dP - sum(P * dP)).
    """
    depth = q.shape[-1] ** 0.5
    scores = np.einsum('btnd,bsnd->bnts', q, k) / depth + bias_BTS[:, None]
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    d_probs = np.einsum('btnd,bsnd->bnts', weights, v)
    d_scores = probs * (d_probs - (probs * d_probs).sum(-1, keepdims=True)) / depth
    return [
        np.einsum('bnts,bsnd->btnd', probs, v),
        np.einsum('bnts,bsnd->btnd', d_scores, k),
        np.einsum('bnts,btnd->bsnd', d_scores, q),
        np.einsum('bnts,btnd->bsnd', probs, weights),
    ]


def test_no_float32_scores_are_kept_for_the_backward_pass_of_bfloat16():
    qkv = jnp.ones((3, 2, 8, 2, 4), 'bfloat16')
    run = functools.partial(attend, mask=AttentionMask(jnp.ones((2, 8), 'int32')))
    kept = jax.tree.leaves(jax.vjp(run, *qkv)[1])
    of_scores = [leaf.dtype for leaf in kept if leaf.shape == (2, 2, 8, 8)]
    assert of_scores and set(of_scores) == {jnp.dtype('bfloat16')}, of_scores


# Of the rows in the global batch: masks are named by them.
ROWS = np.array([5, 0, 2**31], np.uint32)


class Row(NamedTuple):
    """What a query of a row sees, and how it is computed."""

    tokens: int
    window: int | None = None
    packed: bool = False
    causal: bool = False
    kernel: str = 'xla'
    dtype: str = 'float32'
    tolerance: float = 1e-5
    heads: int = 2
    width: int = 16
    rate: float = 0.0


def arrays(row: Row):
    """(q, k and v, weights of the output, the mask): rows full, short and of padding alone."""
    T = row.tokens
    random = np.random.RandomState(0)
    qkv = jnp.asarray(random.normal(size=(3, 3, T, row.heads, row.width)), row.dtype)
    keys = np.array([np.arange(T) < n for n in (T, 2 * T // 3, 0)], np.int32)
    packs = keys * (1 + (np.arange(T) >= T // 5) + (np.arange(T) > T // 2)).astype(np.int32)
    weights = np.asarray(jnp.asarray(random.normal(size=qkv.shape[1:]), row.dtype), np.float32)
    # Queries of padding are zeros, so that scores of -10000 are exact. What a kernel gives of them
    # is its own affair: nothing reads it.
    qkv = qkv.at[0].multiply(jnp.asarray(keys[..., None, None], row.dtype))
    weights = weights * keys[..., None, None]
    mask = AttentionMask(keys, packs if row.packed else None, row.window, row.causal)
    return qkv, weights, mask


def outputs_and_gradients(row: Row):
    """[output, gradients of q, k and v]; of what is no padding."""
    qkv, weights, mask = arrays(row)

    @jax.jit
    def run(qkv, rows):
        rng = DropoutRng(jax.random.key(3), rows, GENERATORS['threefry'])
        drop = functools.partial(dropout, rate=row.rate, dropout_rng=rng, site=7)

        def total(qkv):
            out = attend(*qkv, mask, drop, row.kernel)
            return jnp.sum(out.astype(jnp.float32) * weights), out

        gradients, out = jax.grad(total, has_aux=True)(qkv)
        return [out, *gradients]

    found = [np.asarray(x, np.float64) for x in run(qkv, ROWS)]
    assert all(np.isfinite(x).all() for x in found)
    return [np.where(weights != 0, found[0], 0), *found[1:]]


def assert_near(found, wanted, tolerance: float):
    for name, ours, theirs in zip('oqkv', found, wanted, strict=True):
        largest = np.abs(theirs).max()
        assert largest > 0.1, name
        np.testing.assert_allclose(ours, theirs, atol=tolerance * largest, err_msg=name)


@pytest.fixture
def interpreted(monkeypatch):
    """Pallas' kernel computed on a CPU.

    Its interpreter of TPUs, force_tpu_interpret_mode, fails on a vmapped kernel.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    make = functools.partial(splash_attention.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash_attention, 'make_splash_mha', make)


@pytest.mark.oldest
@pytest.mark.parametrize(
    'row',
    [
        # Whole rows, and rows in blocks whose size does not divide them.
        Row(100, 64),
        Row(100, dtype='bfloat16', tolerance=3e-2),
        Row(450, 64, packed=True),
        Row(400, 65, causal=True),
        Row(384, packed=True, kernel='tpu_splash'),
        pytest.param(
            Row(200, 65, packed=True, causal=True, kernel='tpu_splash'), marks=pytest.mark.slow
        ),
    ],
    ids=lambda row: '-'.join(map(str, row)),
)
def test_a_window_is_a_mask(row, interpreted):
    """Against numpy with float64: keys at most `window` places away, of the query's example."""
    qkv, weights, mask = arrays(row)
    places = np.arange(row.tokens)
    away = places[:, None] - places
    seen = np.asarray(mask.keys_BS)[:, None] > 0
    if row.packed:
        seen = seen & (mask.packs_BS[:, :, None] == mask.packs_BS[:, None])
    bias = np.where(seen, 0.0, -10000.0)
    if row.causal:
        bias = np.where(away >= 0, bias, -10000.0)
    if row.window is not None:
        near = (np.abs(away) <= row.window) & (away >= 0 if row.causal else True)
        bias = np.where(near, bias, -np.inf)
    want = written_out(*np.asarray(qkv, np.float64), bias, weights)
    got = outputs_and_gradients(row)
    want[0] = np.where(weights != 0, want[0], 0)
    assert_near(got, want, row.tolerance)


@pytest.mark.parametrize(
    'row',
    [Row(450, 64, packed=True, rate=0.3), Row(384, packed=True, kernel='tpu_splash')],
    ids=lambda r: r.kernel,
)
def test_rows_and_heads_on_devices_of_their_own_give_the_same(row, interpreted):
    runtime = RuntimeConfig(data_parallel=3, model_parallel=2)
    mesh = construction.make_mesh(runtime, jax.devices()[:6])
    with jax.set_mesh(mesh):
        split = outputs_and_gradients(row)
    assert_near(split, outputs_and_gradients(row), 1e-6)


def test_the_memory_of_local_attention_grows_with_the_row():
    def temporary(tokens: int) -> int:
        like = jax.ShapeDtypeStruct((3, 1, tokens, 2, 16), 'float32')
        mask = AttentionMask(jnp.ones((1, tokens), jnp.int32), window=64)
        squares = lambda qkv: jnp.sum(attend(*qkv, mask) ** 2)
        compiled = jax.jit(jax.grad(squares)).lower(like).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Whole scores would be 4 times as much for twice the tokens.
    assert temporary(4096) < 2.1 * temporary(2048)
