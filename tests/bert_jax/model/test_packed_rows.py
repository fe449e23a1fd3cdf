"""Rows of several examples: losses as with one example a row, and no way from one to another."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.model import heads
from bert_jax.train.losses import masked_lm
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.packed import pack
from tests.helpers.tiny import tiny_config

CONFIG = tiny_config()


def test_packed_losses_and_gradients_equal_unpacked_ones():
    single = make_batch(CONFIG, rows=5, length=12)
    single['masked_lm_weights'][2, 1] = 0
    model = heads.Pretraining(CONFIG, remat='dots', scan=True)
    objective, params = masked_lm.make_pretraining_objective(model, nsp=True), noisy_params(model)

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
