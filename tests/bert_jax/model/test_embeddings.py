"""Word vectors that are computed: how small their models are.

Their forward pass is shown in test_encoder.py, and what is trained of them in
tests/launch/test_hashed_embeddings.py.
"""

from __future__ import annotations

import jax
import pytest

from bert_jax.configs.load import load
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.costs import flops
from bert_jax.train import task_heads
from bert_jax.train.state import init_params, split


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
