"""RETVec's network against numpy, its loss against loops, and what an encoder trains of it."""

from __future__ import annotations

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs import schema
from bert_jax.configs.load import load
from bert_jax.configs.schema import OptimizerConfig, RuntimeConfig
from bert_jax.costs import flops
from bert_jax.mesh import construction
from bert_jax.model import heads, retvec
from bert_jax.train import losses, program, task_heads
from bert_jax.train.schedule import hparams_of
from bert_jax.train.state import init_params
from bert_jax.train.step import make_train_step
from tests.helpers.numpy_bert import dense, make_batch, noisy_params, numpy_forward
from tests.helpers.numpy_retvec import code_points, numpy_network
from tests.helpers.tiny import tiny_config

SMALL = tiny_config(num_layers=1, embedding='retvec', hidden_dropout=0.0, attention_dropout=0.0)


def sizes(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_the_network_is_the_published_one():
    """198,976 parameters, and 65,792 of the head that goes."""
    model = retvec.WordSimilarity()
    params = noisy_params(model)
    assert sizes(params['retvec']) == 198_976
    assert sizes(params['similarity']) == 65_792
    characters = code_points('hello', 'hallo', 'Straße', '한국어').reshape(2, 2, 16)
    found = model.apply({'params': params}, {'characters': characters})
    wanted = dense(numpy_network(params['retvec'], characters), params['similarity'])
    wanted /= np.linalg.norm(wanted, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_an_encoder_reads_the_vectors_through_a_projection():
    """Against the numpy BERT, whose word table holds the projected vectors of these very words."""
    model, batch = heads.Pretraining(SMALL), make_batch(SMALL)
    params = noisy_params(model)
    words = [''.join(letters) for letters in itertools.product('aä한z', 'bcdxy', 'eghij')]
    spelled = code_points(*words)
    batch['characters'] = spelled[batch['input_ids']]
    mlm, nsp = model.apply({'params': params}, batch)

    embeddings = params['encoder']['embeddings']
    vectors = numpy_network(embeddings['retvec'], spelled)
    table = dense(vectors, embeddings['projection'])
    whole = {**params['encoder'], 'embeddings': {**embeddings, 'word': table}}
    _, _, wanted, following = numpy_forward({**params, 'encoder': whole}, SMALL, batch)
    np.testing.assert_allclose(mlm[..., :100], wanted, atol=5e-5, rtol=5e-5)
    np.testing.assert_allclose(nsp, following, atol=5e-5, rtol=5e-5)
    assert params['mlm']['decoder'].shape == (128, 16)


@pytest.mark.parametrize('kind', ['frozen', 'trained'])
def test_a_step_moves_the_network_where_that_is_asked_for(kind):
    """Decay alone would move a frozen one, and its gradient counts in no norm."""
    config = schema.PretrainConfig(
        model=dataclasses.replace(SMALL, retvec=kind),
        phases=(schema.Phase(16, 5, 8),),
        optimizer=OptimizerConfig(peak_lr=1e-2, warmup_steps=0, weight_decay=0.1),
    )
    mesh = construction.make_mesh(config.runtime)
    state = program.fresh_state(config, mesh)
    batch = make_batch(config.model, rows=8)
    batch['characters'] = np.random.RandomState(1).randint(0, 1 << 20, (8, 16, 16))
    objective = losses.pretraining_objective(heads.Pretraining(config.model), nsp=True)
    step = jax.jit(make_train_step(objective, config.optimizer))
    with jax.set_mesh(mesh):
        after, _ = step(state, batch, hparams_of(config.optimizer, 0, 5))
    before, now = (tree.params['encoder']['embeddings'] for tree in (state, after))
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), now['retvec'], before['retvec'])
    assert set(jax.tree.leaves(moved)) == {kind == 'trained'}
    assert not np.array_equal(now['projection']['kernel'], before['projection']['kernel'])


def test_the_counts_of_the_preset():
    """BERT-tiny's 4,386,178 less 30,522 x 128, and 198,976 with 256 x 128 + 128 in their place."""
    config = load('retvec_tiny').model
    model = task_heads.make_model('classifier', config, 2, 0.1, RuntimeConfig())
    assert sizes(jax.eval_shape(lambda: init_params(model, 0))) == 711_234
    assert flops.parameter_count(config, pretraining=False) == 711_234 - 2 * 128 - 2
    assert flops.parameter_count(config) == 4_665_340
    like = dataclasses.replace(config, embedding='table')

    # A word is 2 FLOPs a weight forward; the projection's own gradient is as much again.
    weights = 16 * (24 * 32 + 32 * 32) + 512 * 256 + 256 * 256
    extra = lambda model: (
        flops.training_flops_per_sequence(model, 64, 10)
        - flops.training_flops_per_sequence(like, 64, 10)
    )
    assert extra(config) == 64 * (2 * weights + 4 * 256 * 128)


def looped_loss(cosines: np.ndarray, words: list[int]) -> list[float]:
    """Wang et al. 2019 with alpha 4, beta 40, base 0.5, margin 0.1, pair by pair."""
    found = []
    for i, word in enumerate(words):
        same = [cosines[i, j] for j, other in enumerate(words) if other == word and j != i]
        rest = [cosines[i, j] for j, other in enumerate(words) if other != word]
        far = [s for s in same if s < max(rest) + 0.1]
        near = [s for s in rest if s > min(same) - 0.1]
        pull = math.log(1 + sum(math.exp(-4 * (s - 0.5)) for s in far)) / 4
        push = math.log(1 + sum(math.exp(40 * (s - 0.5)) for s in near)) / 40
        found.append(pull + push)
    return found


class Given:
    """A model whose vectors are its parameters."""

    def apply(self, params, batch, rng=None):
        return params['params']


def test_the_loss_is_the_paper_s_and_counts_real_rows_alone():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4, 3, 8)) + rng.normal(size=(4, 1, 8))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    objective = losses.similarity_objective(Given())
    for real in (4, 3):
        batch = {
            'characters': np.zeros((4, 3, 16), np.int32),
            'example_weights': (np.arange(4) < real).astype(np.float32),
        }
        rows = vectors[:real].reshape(-1, 8)
        cosines, words = rows @ rows.T, [word for word in range(real) for _ in range(3)]
        wanted = looped_loss(cosines, words)
        nearest = np.where(np.eye(len(rows)), -1, cosines).argmax(1)
        found = objective.sums(jnp.asarray(vectors, jnp.float32), batch, None)
        total, weight = found['loss']
        assert weight == 3 * real == objective.weights(batch)['loss']
        assert float(total) == pytest.approx(sum(wanted), rel=1e-5)
        right = sum(words[place] == word for place, word in zip(nearest, words, strict=True))
        assert float(found['nearest_is_same'][0]) == right < 3 * real
