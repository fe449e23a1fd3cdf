"""Which kernel computes attention, and that each sees the keys that it should."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.model.blocks.attend import AttentionMask, attend, choose
from bert_jax.model.dropout import DropoutRng, dropout

BASE = ModelConfig(attention_dropout=0.0)


def pick(
    name='auto', seq_len=512, packed=False, platform='cpu', dtype='bfloat16', model=BASE, **runtime
) -> str:
    return choose(
        RuntimeConfig(attention=name, compute_dtype=dtype, **runtime),
        model,
        seq_len,
        packed,
        platform,
    )


@pytest.mark.parametrize(
    ('case', 'want'),
    [
        ({}, 'xla'),
        ({'platform': 'gpu'}, 'cudnn'),
        ({'platform': 'tpu'}, 'tpu_flash'),
        ({'platform': 'gpu', 'seq_len': 127}, 'xla'),
        ({'platform': 'tpu', 'seq_len': 384}, 'xla'),
        ({'platform': 'gpu', 'packed': True}, 'xla'),
        ({'platform': 'tpu', 'packed': True}, 'tpu_flash'),
        ({'platform': 'tpu', 'fsdp': 2, 'shard_optimizer': True}, 'xla'),
        ({'platform': 'gpu', 'dtype': 'float32'}, 'xla'),
        ({'platform': 'gpu', 'model': ModelConfig()}, 'xla'),
        ({'platform': 'tpu', 'seq_len': 600}, 'xla'),
        ({'platform': 'tpu', 'model_parallel': 8}, 'xla'),
        (
            {'platform': 'tpu', 'name': 'tpu_fused', 'model': ModelConfig(), 'packed': True},
            'tpu_fused',
        ),
    ],
    ids=str,
)
def test_the_kernel_follows_shape_and_device_unless_named(case, want):
    assert pick(**case) == want


@pytest.mark.parametrize(
    ('case', 'message'),
    [
        (
            {'name': 'cudnn'},
            'attention=cudnn needs a GPU, and the devices here are of kind cpu; '
            'or use runtime.attention=auto',
        ),
        (
            {'name': 'cudnn', 'platform': 'gpu', 'model': ModelConfig()},
            r'set model.attention_dropout=0 \(it is 0.1\)',
        ),
        (
            {'name': 'cudnn', 'platform': 'gpu', 'dtype': 'float32'},
            'needs runtime.compute_dtype=bfloat16',
        ),
        ({'name': 'cudnn', 'platform': 'gpu', 'packed': True}, 'without --packing'),
        (
            {'name': 'cudnn', 'platform': 'gpu', 'model': dataclasses.replace(BASE, num_heads=3)},
            'not 256',
        ),
        (
            {'name': 'tpu_flash', 'platform': 'tpu', 'seq_len': 500},
            'multiple of 128 tokens, not 500',
        ),
        (
            {
                'name': 'cudnn',
                'platform': 'gpu',
                'model': dataclasses.replace(BASE, attention='left_to_right'),
            },
            'left_to_right',
        ),
        (
            {'name': 'tpu_flash', 'platform': 'tpu', 'model_parallel': 8},
            'num_heads=12 to divide by runtime.model_parallel=8',
        ),
        (
            {'name': 'tpu_flash', 'platform': 'tpu', 'model_parallel': 2, 'accumulation': 2},
            'set runtime.accumulation=1',
        ),
        (
            {'name': 'tpu_flash', 'platform': 'tpu', 'fsdp': 2, 'shard_optimizer': True},
            'and runtime.shard_optimizer=false',
        ),
        ({'name': 'tpu_fused', 'platform': 'tpu', 'seq_len': 640}, 'up to 512, not 640'),
        (
            {'name': 'tpu_fused', 'platform': 'tpu', 'model_parallel': 4},
            'fill 128 columns together on each device, not 3 of width 64',
        ),
        (
            {
                'name': 'tpu_fused',
                'platform': 'tpu',
                'model': ModelConfig(),
                'dropout_rng': 'rbg',
            },
            'set runtime.dropout_rng=threefry',
        ),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_in_one_line(case, message):
    with pytest.raises(UserError, match=message):
        pick(**case)


@pytest.mark.parametrize('packed', [False, True])
def test_the_tpu_kernel_sees_the_same_keys(packed, monkeypatch):
    """Pallas' own reference in place of the kernel, which needs a TPU.

    What we hand to it gives what xla gives.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as pallas

    def reference(q, k, v, segment_ids, sm_scale):
        return pallas.mha_reference(q, k, v, None, segment_ids, sm_scale=sm_scale)

    monkeypatch.setattr(pallas, 'flash_attention', reference)
    q, k, v = np.random.RandomState(0).normal(size=(3, 2, 128, 2, 4)).astype(np.float32)
    packs = np.repeat(
        np.array([[1, 1, 1, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]], np.int32), 16, axis=1
    )
    attention_mask = AttentionMask(np.minimum(packs, 1), packs if packed else None)
    run = jax.jit(
        lambda kernel: attend(q, k, v, attention_mask, 0.0, None, 0, kernel=kernel),
        static_argnums=0,
    )
    ours, theirs = run('xla'), run('tpu_flash')
    real = packs[..., None, None] > 0
    np.testing.assert_allclose(jnp.where(real, theirs, 0), jnp.where(real, ours, 0), atol=1e-5)


def test_rbg_drops_the_same_share_and_other_places_in_every_micro_batch():
    x, rows = jnp.ones((8, 4096)), jnp.arange(8, dtype=jnp.uint32)
    draw = jax.jit(
        lambda rows, site: dropout(x, 0.25, DropoutRng(jax.random.key(0, impl='rbg'), rows), site)
    )
    first, again, other_rows, other_site = (
        draw(rows, 1),
        draw(rows, 1),
        draw(rows + 8, 1),
        draw(rows, 2),
    )
    np.testing.assert_array_equal(first, again)
    assert float((first == 0).mean()) == pytest.approx(0.25, abs=0.01)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.02)
    for other in (other_rows, other_site):
        assert float((first == other).mean()) == pytest.approx(0.25**2 + 0.75**2, abs=0.02)


def scored(dtype: str):
    """(attention's output as a function of q, k and v, random ones of that type).

    2 rows, 8 tokens, 2 heads.
    """
    qkv = jnp.asarray(np.random.RandomState(0).normal(size=(3, 2, 8, 2, 4)), dtype)
    attention_mask = AttentionMask(np.array([[1] * 8, [1] * 5 + [0] * 3], np.int32))
    return lambda q, k, v: attend(q, k, v, attention_mask, 0.0, None, 0), qkv


@pytest.mark.parametrize(('dtype', 'tolerance'), [('float32', 1e-5), ('bfloat16', 3e-2)])
def test_gradients_are_those_of_attention_written_out(dtype, tolerance):
    """Against the formulas in numpy with float64: of softmax, dS = P * (dP - sum(P * dP))."""
    run, qkv = scored(dtype)
    weights = np.asarray(
        jnp.asarray(np.random.RandomState(1).normal(size=(2, 8, 2, 4)), dtype), np.float64
    )
    ours = jax.grad(lambda qkv: jnp.sum(run(*qkv).astype(jnp.float32) * weights))(qkv)
    q, k, v = np.asarray(qkv, np.float64)
    scores = (
        np.einsum('btnd,bsnd->bnts', q, k) / 2
        + np.array([[0] * 8, [0] * 5 + [-10000] * 3])[:, None, None]
    )
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    d_probs = np.einsum('btnd,bsnd->bnts', weights, v)
    d_scores = probs * (d_probs - (probs * d_probs).sum(-1, keepdims=True)) / 2
    want = [
        np.einsum('bnts,bsnd->btnd', d_scores, k),
        np.einsum('bnts,btnd->bsnd', d_scores, q),
        np.einsum('bnts,btnd->bsnd', probs, weights),
    ]
    np.testing.assert_allclose(np.asarray(ours, np.float64), want, atol=tolerance)


def test_no_float32_scores_are_kept_for_the_backward_pass_of_bfloat16():
    run, qkv = scored('bfloat16')
    kept = jax.tree.leaves(jax.vjp(run, *qkv)[1])
    of_scores = [leaf.dtype for leaf in kept if leaf.shape == (2, 2, 8, 8)]
    assert of_scores and set(of_scores) == {jnp.dtype('bfloat16')}, of_scores
