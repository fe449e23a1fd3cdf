"""Word vectors that are computed: the forward pass, what is trained of it, and how small it is."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.configs import schema
from bert_jax.configs.load import load
from bert_jax.configs.schema import OptimizerConfig, RuntimeConfig
from bert_jax.costs import flops
from bert_jax.input_pipeline.tokenizer import spelling
from bert_jax.mesh import construction
from bert_jax.model import heads
from bert_jax.train import losses, program, task_heads
from bert_jax.train.schedule import hparams_of
from bert_jax.train.state import init_params, joined, load_frozen, split
from bert_jax.train.step import make_train_step
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward
from tests.helpers.tiny import tiny_config

SMALL = tiny_config(embedding='hashed', hidden_dropout=0.0, attention_dropout=0.0)


def table() -> np.ndarray:
    rows = np.zeros((128, 16), np.float32)
    rows[:100] = spelling.vectors([f'entry{i}' for i in range(100)], 16)
    return rows


def whole(model) -> dict:
    """Random parameters of a model around the computed table."""
    params = noisy_params(model)
    params['encoder']['embeddings']['word'] = table()
    return params


def test_the_forward_pass_is_berts_on_the_vectors_with_a_decoder_of_its_own():
    model, batch = heads.Pretraining(SMALL), make_batch(SMALL)
    params = whole(model)
    assert params['mlm']['decoder'].shape == (128, 16)
    mlm, nsp = model.apply({'params': params}, batch)
    _, _, wanted, following = numpy_forward(params, SMALL, batch)
    np.testing.assert_allclose(mlm[..., :100], wanted, atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(nsp, following, atol=2e-5, rtol=2e-5)
    assert np.isneginf(mlm[..., 100:]).all()


def test_a_step_trains_the_decoder_and_leaves_the_vectors_alone():
    """The vectors have no gradient and no moments; they are read as they were put in."""
    config = schema.PretrainConfig(
        model=SMALL,
        phases=(schema.Phase(16, 5, 8),),
        optimizer=OptimizerConfig(peak_lr=1e-2, warmup_steps=0),
    )
    mesh = construction.make_mesh(config.runtime)
    state = program.fresh_state(config, mesh)
    assert jax.tree.map(lambda leaf: leaf.shape, state.frozen) == {
        'encoder': {'embeddings': {'word': (128, 16)}}
    }
    given = {'encoder': {'embeddings': {'word': table()}}}
    state = load_frozen(state, given, 'test')

    objective = losses.pretraining_objective(heads.Pretraining(SMALL), nsp=True)
    step = make_train_step(objective, config.optimizer)
    batch = make_batch(SMALL, rows=8)
    with jax.set_mesh(mesh):
        after, metrics = jax.jit(step)(state, batch, hparams_of(config.optimizer, 0, 5))
    # The loss of the first step is that of the numpy model on the same weights.
    mlm = numpy_forward(joined(state.params, state.frozen), SMALL, batch)[2]
    logs = mlm - np.log(np.exp(mlm).sum(-1, keepdims=True))
    wanted = -np.take_along_axis(logs, batch['masked_lm_ids'][..., None], -1).mean()
    total, weight = metrics['mlm_loss']
    assert float(total / weight) == pytest.approx(wanted, abs=1e-4)

    assert np.array_equal(after.frozen['encoder']['embeddings']['word'], table())
    assert not np.array_equal(after.params['mlm']['decoder'], state.params['mlm']['decoder'])
    assert 'word' not in after.params['encoder']['embeddings']
    assert not any('word' in str(path) for path, _ in jax.tree.leaves_with_path(after.opt_state))


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
