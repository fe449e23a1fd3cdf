"""Word vectors that are computed: the forward pass, and how small their models are.

What is trained of them is shown in tests/launch/test_hashed_embeddings.py.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.configs.load import load
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.costs import flops
from bert_jax.model import heads
from bert_jax.train import task_heads
from bert_jax.train.state import init_params, split
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward
from tests.helpers.tiny import tiny_config


# Counted from the shapes by hand: BERT-tiny with its pooler is 4,385,920, of which 30,522 x 128 are
# the table.
@pytest.mark.parametrize(
    ('preset', 'count'),
    [
        ('eelbert_tiny', 479_362),
        ('uno_eelbert', 281_986),
    ],
)
def test_a_classifier_is_as_small_as_its_shape_without_the_table(preset, count):
    config = load(preset).model
    model = task_heads.make_model('classifier', config, 2, 0.1, RuntimeConfig())
    trained, _ = jax.eval_shape(lambda: split(init_params(model, 0), config))
    assert sum(leaf.size for leaf in jax.tree.leaves(trained)) == count
    assert flops.parameter_count(config, pretraining=False) == count - 2 * config.hidden_size - 2


def test_the_forward_pass_is_berts_on_the_vectors_with_a_decoder_of_its_own():
    config = tiny_config(embedding='hashed')
    model, batch = heads.Pretraining(config), make_batch(config)
    params = noisy_params(model)
    assert params['mlm']['decoder'].shape == (128, 16)
    mlm, nsp = model.apply({'params': params}, batch)
    _, _, wanted, following = numpy_forward(params, config, batch)
    np.testing.assert_allclose(mlm[..., :100], wanted, atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(nsp, following, atol=2e-5, rtol=2e-5)
    assert np.isneginf(mlm[..., 100:]).all()
