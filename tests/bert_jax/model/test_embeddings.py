"""Word vectors that are computed: the forward pass, what is trained of it, and how small it is."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.load import load
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, RuntimeConfig
from bert_jax.costs import flops
from bert_jax.input_pipeline.tokenizer import spelling
from bert_jax.mesh import construction
from bert_jax.model import heads
from bert_jax.train import losses, program, task_heads
from bert_jax.train.schedule import hparams_of
from bert_jax.train.state import init_params, joined, load_frozen, split
from bert_jax.train.step import make_train_step
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward

PLAIN = ModelConfig(
    vocab_size=100,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_position=32,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
SMALL = dataclasses.replace(PLAIN, embedding='hashed')
WORD = ('encoder', 'embeddings', 'word')


def table() -> np.ndarray:
    rows = np.zeros((128, 16), np.float32)
    rows[:100] = spelling.vectors([f'entry{i}' for i in range(100)], 16)
    return rows


def whole(model) -> dict:
    """Random parameters of a model around the computed table."""
    params = noisy_params(model)
    params['encoder']['embeddings']['word'] = table()
    return params


def sizes(params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_the_forward_pass_is_berts_on_the_vectors_with_a_decoder_of_its_own():
    model, batch = heads.Pretraining(SMALL), make_batch(SMALL)
    params = whole(model)
    assert params['mlm']['decoder'].shape == (128, 16)
    mlm, nsp = model.apply({'params': params}, batch)
    _, _, wanted, following = numpy_forward(params, SMALL, batch)
    np.testing.assert_allclose(mlm[..., :100], wanted, atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(nsp, following, atol=2e-5, rtol=2e-5)
    assert np.isneginf(mlm[..., 100:]).all()


def test_without_the_table_nothing_is_a_number():
    """Whoever forgets to put it in sees it at once."""
    model, batch = heads.EncoderOnly(SMALL), make_batch(SMALL)
    hidden, _ = model.apply({'params': init_params(model, 0)}, batch)
    assert np.isnan(hidden).all()


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
    assert np.array_equal(state.frozen['encoder']['embeddings']['word'], table())
    # Shapes as the program has them, which plans for chips that are not here are made of.
    planned = program.state_shapes(config, mesh)
    assert jax.tree.structure(planned) == jax.tree.structure(state)

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
    moved = lambda *names: not np.array_equal(leaf(after.params, names), leaf(state.params, names))
    assert moved('mlm', 'decoder') and moved('encoder', 'embeddings', 'position')
    assert 'word' not in after.params['encoder']['embeddings']
    assert not any('word' in str(path) for path, _ in jax.tree.leaves_with_path(after.opt_state))


def leaf(tree, names):
    for name in names:
        tree = tree[name]
    return tree


def test_every_method_of_tuning_leaves_the_vectors_alone():
    for options in ({'method': 'lora'}, {'method': 'bitfit'}, {'method': 'houlsby', 'width': 3}):
        config = SMALL.tuned(schema.TuningConfig(**options))
        model = task_heads.make_model('classifier', config, 2, 0.1, RuntimeConfig())
        trained, frozen = split(whole(model), config)
        assert 'word' not in trained['encoder'].get('embeddings', {})
        assert np.array_equal(leaf(frozen, WORD), table())


# Counted from the shapes by hand: BERT-tiny with its pooler is 4,385,920, of which 30,522 x 128 are
# the table; BERT-mini 11,170,560, of which 30,522 x 256 are.
@pytest.mark.parametrize(
    ('preset', 'count'),
    [
        ('bert_tiny', 4_386_178),
        ('eelbert_tiny', 479_362),
        ('eelbert_mini', 3_357_442),
        ('uno_eelbert', 281_986),
    ],
)
def test_a_classifier_is_as_small_as_its_shape_without_the_table(preset, count):
    config = load(preset).model
    model = task_heads.make_model('classifier', config, 2, 0.1, RuntimeConfig())
    trained, _ = jax.eval_shape(lambda: split(init_params(model, 0), config))
    padding = 0 if config.embedding == 'hashed' else (-30522 % 128) * config.hidden_size
    assert sizes(trained) - padding == count
    assert flops.parameter_count(config, pretraining=False) == count - 2 * config.hidden_size - 2


def test_in_pretraining_the_decoder_is_counted():
    """As many as of BERT-tiny, whose decoder is its table.

    The paper's 1.2 MB of UNO-EELBERT are 312,250 numbers of four bytes.
    """
    assert flops.parameter_count(load('eelbert_tiny').model) == 4_433_468
    uno = load('uno_eelbert').model
    assert flops.parameter_count(uno, pretraining=False) + uno.vocab_size == 312_250
    parts = flops.parameters(uno)
    assert parts['mlm_head'] == 128 * 128 + 128 + 2 * 128 + 30522 * 128 + 30522
    assert sum(parts.values()) == 4_236_092


def test_a_model_with_a_table_is_what_it_was():
    """Its settings are written and named as before there was a choice; its weights are the same."""
    assert not {'embedding', 'hash_ngrams'} & schema.to_dict(PLAIN).keys()
    assert 'embedding' not in repr(PLAIN)
    read = ModelConfig.from_json(schema.to_dict(PLAIN))
    assert read == PLAIN and read.embedding == 'table'
    params = jax.eval_shape(lambda: init_params(heads.Pretraining(PLAIN), 0))
    assert set(params['mlm']) == {'transform', 'norm', 'bias'}
    assert split(params, PLAIN) == (params, None)


def test_hashed_settings_are_kept_and_checked():
    written = schema.to_dict(dataclasses.replace(SMALL, hash_ngrams=4))
    assert (written['embedding'], written['hash_ngrams']) == ('hashed', 4)
    with pytest.raises(UserError, match='hash_ngrams=4: must be left alone with embedding=table'):
        dataclasses.replace(PLAIN, hash_ngrams=4)
    with pytest.raises(UserError, match='hidden_size=4: must be 6 or more, to have columns'):
        dataclasses.replace(SMALL, hidden_size=4)
