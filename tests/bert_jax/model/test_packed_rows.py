"""Rows of several examples: losses as with one example a row, and no way from one to another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import heads
from bert_jax.model.encoder import Encoder, Packing
from bert_jax.train import losses
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.packed import S, pack
from tests.helpers.tiny import tiny_config

CONFIG = tiny_config(vocab_size=300)


def test_packed_losses_and_gradients_equal_unpacked_ones():
    single = make_batch(CONFIG, rows=5, length=12)
    single['masked_lm_weights'][2, 1] = 0
    model = heads.Pretraining(CONFIG, remat='dots', scan=True)
    objective, params = losses.pretraining_objective(model, nsp=True), noisy_params(model)

    @jax.jit
    def measure(params, batch):
        def loss(params):
            sums = objective.sums(params, batch, None)
            return (
                sum(sums[name][0] / weight for name, weight in objective.weights(batch).items()),
                sums,
            )

        return jax.value_and_grad(loss, has_aux=True)(params)

    (want, sums), gradient = measure(params, single)
    (got, packed_sums), packed_gradient = measure(params, pack(single))
    assert float(got) == pytest.approx(float(want), rel=1e-5)
    for name, pair in sums.items():
        np.testing.assert_allclose(packed_sums[name], pair, rtol=1e-5, err_msg=name)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(packed_gradient), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_no_gradient_flows_from_one_example_of_a_row_to_another():
    """Places have ids of their own, so the table's gradient tells which an output depends on."""
    lengths = (9, 6, 5)  # and four places of padding
    packs = np.repeat([1, 2, 3, 0], [*lengths, S - sum(lengths)])
    positions = np.concatenate([np.arange(n) for n in (*lengths, S - sum(lengths))])
    ids = np.arange(1, S + 1)[None]
    packing = Packing(*(jnp.asarray(x, jnp.int32)[None] for x in (packs, positions, [0, 9, 15])))
    encoder = Encoder(CONFIG)
    mask, direction = (
        (packs > 0).astype(np.int32)[None],
        np.random.RandomState(0).normal(size=(1, S, 16)),
    )
    params = jax.jit(encoder.init)(jax.random.key(0), ids, mask, ids * 0)['params']

    @jax.jit
    def depends_on(number):
        def output(params):
            hidden, pooled, _ = encoder.apply({'params': params}, ids, mask, ids * 0, None, packing)
            return jnp.sum(
                jnp.where(packs[None, :, None] == number, hidden, 0) * direction
            ) + jnp.sum(pooled[0, number - 1])

        return jnp.abs(jax.grad(output)(params)['embeddings']['word'][1 : S + 1]).max(axis=1) > 0

    for number in (1, 2, 3):
        np.testing.assert_array_equal(depends_on(number), packs == number)
