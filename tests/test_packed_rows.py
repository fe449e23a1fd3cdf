"""Rows of several examples: the same losses as one example a row, and no way from one to another."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_model import make_batch, noisy_params

from bert_jax import heads, losses
from bert_jax.model import Encoder, Packing
from configs.schema import ModelConfig

CONFIG = ModelConfig(vocab_size=300, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_position=24)
S, K, P = 24, 3, 7
ROWS = ((0, 3), (1, 2), (4,))  # which of five examples of at most 12 tokens lie in which row


def pack(single: dict[str, np.ndarray], rows: Sequence[Sequence[int]] = ROWS) -> dict[str, np.ndarray]:
    """The examples of `single` in rows of S places, K examples and P predictions; `rows`: which ones lie in each."""
    names = ('input_ids', 'segment_ids', 'pack_ids', 'position_ids')
    packed = {name: np.zeros((len(rows), S), np.int32) for name in names}
    packed |= {name: np.zeros((len(rows), P), np.int32) for name in ('masked_lm_positions', 'masked_lm_ids')}
    packed |= {name: np.zeros((len(rows), K), np.int32) for name in ('cls_positions', 'next_sentence_labels')}
    packed |= {'masked_lm_weights': np.zeros((len(rows), P), np.float32), 'next_sentence_weights': np.zeros((len(rows), K), np.float32)}
    for row, members in enumerate(rows):
        at = predictions = 0
        for number, i in enumerate(members):
            length, masked = single['input_mask'][i].sum(), single['masked_lm_ids'].shape[1]
            here, there = slice(at, at + length), slice(predictions, predictions + masked)
            for name in ('input_ids', 'segment_ids'):
                packed[name][row, here] = single[name][i, :length]
            packed['pack_ids'][row, here], packed['position_ids'][row, here] = number + 1, np.arange(length)
            packed['masked_lm_positions'][row, there] = single['masked_lm_positions'][i] + at
            packed['masked_lm_ids'][row, there] = single['masked_lm_ids'][i]
            packed['masked_lm_weights'][row, there] = single['masked_lm_weights'][i]
            packed['cls_positions'][row, number] = at
            packed['next_sentence_labels'][row, number] = single['next_sentence_labels'][i]
            packed['next_sentence_weights'][row, number] = 1
            at, predictions = at + length, predictions + masked
    return packed | {'example_weights': np.ones(len(rows), np.float32)}


def test_packed_losses_and_gradients_equal_unpacked_ones():
    single = make_batch(CONFIG, rows=5, length=12)
    single['masked_lm_weights'][2, 1] = 0
    model = heads.Pretraining(CONFIG, remat='dots', scan=True)
    objective, params = losses.pretraining_objective(model, nsp=True), noisy_params(model)

    @jax.jit
    def measure(params, batch):
        def loss(params):
            sums = objective.sums(params, batch, None)
            return sum(sums[name][0] / weight for name, weight in objective.weights(batch).items()), sums

        return jax.value_and_grad(loss, has_aux=True)(params)

    (want, sums), gradient = measure(params, single)
    (got, packed_sums), packed_gradient = measure(params, pack(single))
    assert float(got) == pytest.approx(float(want), rel=1e-5)
    for name, pair in sums.items():
        np.testing.assert_allclose(packed_sums[name], pair, rtol=1e-5, err_msg=name)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(packed_gradient), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_no_gradient_flows_from_one_example_of_a_row_to_another():
    """Every place has an id of its own, so the table's gradient tells which places an output depends on."""
    lengths = (9, 6, 5)  # and four places of padding
    packs = np.repeat([1, 2, 3, 0], [*lengths, S - sum(lengths)])
    positions = np.concatenate([np.arange(n) for n in (*lengths, S - sum(lengths))])
    ids = np.arange(1, S + 1)[None]
    packing = Packing(*(jnp.asarray(x, jnp.int32)[None] for x in (packs, positions, [0, 9, 15])))
    encoder = Encoder(CONFIG)
    mask, direction = (packs > 0).astype(np.int32)[None], np.random.RandomState(0).normal(size=(1, S, 16))
    params = jax.jit(encoder.init)(jax.random.key(0), ids, mask, ids * 0)['params']

    @jax.jit
    def depends_on(number):
        def output(params):
            hidden, pooled, _ = encoder.apply({'params': params}, ids, mask, ids * 0, None, packing)
            return jnp.sum(jnp.where(packs[None, :, None] == number, hidden, 0) * direction) + jnp.sum(pooled[0, number - 1])

        return jnp.abs(jax.grad(output)(params)['embeddings']['word'][1 : S + 1]).max(axis=1) > 0

    for number in (1, 2, 3):
        np.testing.assert_array_equal(depends_on(number), packs == number)
