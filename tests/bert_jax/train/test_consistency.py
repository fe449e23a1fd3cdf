"""AdaMix's consistency loss, against its formula written in numpy."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.model.dropout import DropoutRng
from bert_jax.train import task_heads
from bert_jax.train.losses import task_losses
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.tiny import tiny_config

# One block, and no dropout: with two experts a pass has one of two answers.
ONE_BLOCK = tiny_config(num_layers=1, hidden_dropout=0.0, attention_dropout=0.0)


def make(**options):
    config = ONE_BLOCK.tuned(TuningConfig(method='adamix', width=5, experts=2, **options))
    return task_heads.make_model('classifier', config, 3, 0.0, RuntimeConfig())


def params_of(model):
    """Of experts that answer very differently."""
    far = lambda path, leaf: leaf * 10 if 'adapter' in str(path) else leaf
    return jax.tree_util.tree_map_with_path(far, noisy_params(model))


def labelled():
    batch = make_batch(ONE_BLOCK) | {'labels': np.array([0, 2, 1, 0], np.int32)}
    return batch | {'example_weights': np.array([1, 1, 1, 0], np.float32)}


@functools.cache  # one program for all seeds
def compiled(model, head: str):
    objective = task_heads.make_objective(head, model)
    return jax.jit(objective.sums), objective.weights


def train_sums(model, params, batch, seed: int = 0, head: str = 'classifier'):
    """(sums, denominators) of a pass in training."""
    sums, weights = compiled(model, head)
    rng = DropoutRng(jax.random.key(seed), jnp.arange(4, dtype=jnp.uint32))
    return sums(params, batch, rng), weights(batch)


def softmax(x):
    e = np.exp(np.asarray(x, np.float64))
    return e / e.sum(-1, keepdims=True)


def test_disagreement_is_half_of_both_divergences_and_pulls_each_side_to_the_other():
    rng = np.random.RandomState(0)
    a, b = rng.normal(0, 2, (2, 5, 3)).astype(np.float32)
    p, q = softmax(a), softmax(b)
    want = ((p - q) * np.log(p / q)).sum(-1) / 2
    np.testing.assert_allclose(task_losses.measure_disagreement(a, b), want, rtol=1e-5)

    # Of a target that stays where it is the cross-entropy's own slope: the difference of softmaxes.
    to_a, to_b = jax.grad(lambda a, b: task_losses.measure_disagreement(a, b).sum(), (0, 1))(a, b)
    np.testing.assert_allclose(to_a, (p - q) / 2, atol=1e-6)
    np.testing.assert_allclose(to_b, (q - p) / 2, atol=1e-6)


def test_a_step_compares_two_draws_and_labels_the_first():
    model = make()
    params, batch = params_of(model), labelled()
    rows = batch['example_weights']

    # The answer of each expert by itself: those of a model that has no other.
    single = make_single(model)
    answers = [
        np.asarray(single.apply({'params': only(params, expert)}, batch), np.float64)
        for expert in range(2)
    ]
    assert np.abs(answers[0] - answers[1]).max() > 0.01

    seen = set()
    for seed in range(12):
        sums, weights = train_sums(model, params, batch, seed)
        assert {name: float(weight) for name, weight in weights.items()} == {
            'loss': 3.0,
            'consistency_loss': 3.0,
        }
        for first, second in itertools.product(range(2), repeat=2):
            p, q = softmax(answers[first]), softmax(answers[second])
            entropy = -np.log(p[np.arange(4), batch['labels']])
            apart = ((p - q) * np.log(p / q)).sum(-1) / 2
            if np.allclose(
                [sums['loss'][0], sums['consistency_loss'][0]],
                [(entropy * rows).sum(), (apart * rows).sum()],
                atol=1e-5,
            ):
                seen.add((first, second))
                break
        else:
            pytest.fail(f'seed {seed}: {sums} is of no pair of experts')
    # Both draws are their own: equal ones and either order of different ones.
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


def make_single(model):
    tuning = dataclasses.replace(model.config.tuning, experts=1)
    return model.clone(config=model.config.tuned(tuning))


def only(params, expert: int):
    """The parameters of a model of this one expert."""
    layers = dict(params['encoder']['layers'])
    layers['output_adapter_down'] = {
        name: leaf[:, expert : expert + 1] for name, leaf in layers['output_adapter_down'].items()
    }
    return {**params, 'encoder': {**params['encoder'], 'layers': layers}}
