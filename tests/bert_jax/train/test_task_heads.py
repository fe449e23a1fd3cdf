"""Task heads and their losses against numpy, and that neither depends on where a batch is computed.

The encoder under them is compared in tests/bert_jax/model, and the heads with transformers' in
tests/parity.
"""

from __future__ import annotations

import types

import jax
import numpy as np
import pytest
from scipy import special
from sklearn.metrics import log_loss, mean_squared_error

from bert_jax.configs.schema import RuntimeConfig
from bert_jax.model.dropout import DropoutRng
from bert_jax.train import task_heads
from bert_jax.train.losses import masked_lm, task_losses
from bert_jax.train.losses.objective import Objective
from tests.helpers.numpy_bert import dense, make_batch, noisy_params, numpy_encode
from tests.helpers.tiny import tiny_config

CONFIG = tiny_config(num_layers=1, num_heads=4)
KEYS = ('input_ids', 'input_mask', 'segment_ids')
ROWS, CHOICES, LABELS = 8, 3, 5


def task_batch(head: str) -> dict[str, np.ndarray]:
    """A batch as a task with that head gives it.

    The last example has weight 0, as at the tail of an evaluation.
    """
    rng = np.random.RandomState(1)
    found = make_batch(CONFIG, ROWS * CHOICES if head == 'choice' else ROWS)
    rows = {
        name: found[name].reshape(ROWS, CHOICES, -1) if head == 'choice' else found[name]
        for name in KEYS
    }
    weights = {'example_weights': np.append(np.ones(ROWS - 1), 0).astype(np.float32)}
    if head == 'choice':
        return rows | weights | {'labels': rng.randint(0, CHOICES, ROWS).astype(np.int32)}
    length = rows['input_ids'].shape[1]
    labelled = rows['input_mask'] * (rng.rand(ROWS, length) < 0.6)
    return (
        rows
        | weights
        | {
            'label_ids': rng.randint(0, LABELS, (ROWS, length)).astype(np.int32),
            'label_weights': labelled.astype(np.float32),
        }
    )


def make(head: str, dropout: float = 0.1):
    """-> (the model with that head, parameters in which every term shows)."""
    model = task_heads.make_model(head, CONFIG, LABELS, dropout, RuntimeConfig())
    return model, noisy_params(model)


def numpy_logits(head: str, params, batch) -> np.ndarray:
    """From the hidden states of the numpy encoder; each choice is a row of its own."""
    rows = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in KEYS}
    hidden, pooled = numpy_encode(params['encoder'], CONFIG, rows)
    logits = dense(hidden if head == 'tokens' else pooled, params['classifier'])
    return logits.reshape(ROWS, CHOICES) if head == 'choice' else logits


@pytest.mark.parametrize('head', ['tokens', 'choice'])
def test_logits_and_losses_equal_numpy(head):
    model, params = make(head)
    batch = task_batch(head)
    wanted = numpy_logits(head, params, batch)
    logits = jax.jit(task_heads.make_predict(head, model, 1))(params, batch)['logits']
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
    log_p = wanted - np.log(np.exp(wanted).sum(-1, keepdims=True))
    labels = batch['labels' if head == 'choice' else 'label_ids']
    weights = (
        batch['example_weights']
        if head == 'choice'
        else batch['label_weights'] * batch['example_weights'][:, None]
    )
    losses = -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    objective = task_heads.make_objective(head, model)
    sums = jax.jit(lambda params, batch: objective.sums(params, batch, None))(params, batch)
    assert float(sums['loss'][0] / objective.weights(batch)['loss']) == pytest.approx(
        (losses * weights).sum() / weights.sum(), rel=1e-5
    )
    right = ((wanted.argmax(-1) == labels) * weights).sum() / weights.sum()
    assert float(sums['accuracy'][0] / sums['accuracy'][1]) == pytest.approx(right)
    assert 0 < right < 1


# A model whose outputs are in the batch, and whose last row only fills it up.
SAYS = types.SimpleNamespace(apply=lambda variables, batch, rng: batch['outputs'])
COUNTS = np.array([1, 1, 1, 1, 1, 1, 1, 0], np.float32)


def measured(objective: Objective, outputs: np.ndarray, **labels) -> dict[str, float]:
    """The mean of each metric, the loss over its own denominator."""
    batch = {'outputs': outputs.astype(np.float32), 'example_weights': COUNTS, **labels}
    sums, weights = objective.sums({}, batch, None), objective.weights(batch)
    return {
        name: float(total / weights.get(name, weight)) for name, (total, weight) in sums.items()
    }


def test_an_answer_is_right_where_both_of_its_ends_are():
    """And its loss is the mean of theirs."""
    rng = np.random.default_rng(0)
    outputs, ends = rng.normal(size=(ROWS, 6, 2)), rng.integers(0, 6, (2, ROWS), dtype=np.int32)
    # Of the first rows both ends, or one of them, are the likeliest.
    for row, sides in enumerate(((0, 1), (0,), (1,), (0, 1))):
        for side in sides:
            outputs[row, ends[side, row], side] = 9
    log_p = special.log_softmax(outputs[:-1], axis=1)
    chosen = [log_p[np.arange(ROWS - 1), ends[i, :-1], i] for i in (0, 1)]
    right = [log_p[..., i].argmax(1) == ends[i, :-1] for i in (0, 1)]
    assert not np.array_equal(*right)
    found = measured(
        task_losses.make_span_objective(SAYS),
        outputs,
        start_positions=ends[0],
        end_positions=ends[1],
    )
    assert found['loss'] == pytest.approx(-np.mean(chosen), rel=1e-5)
    assert found['accuracy'] == pytest.approx((right[0] & right[1]).mean())


def test_losses_of_numbers_and_of_sets_of_labels_are_sklearns():
    rng = np.random.default_rng(0)
    outputs, held = 3 * rng.normal(size=(ROWS, LABELS)), rng.integers(0, 2, (ROWS, LABELS))
    numbers = rng.normal(size=ROWS).astype(np.float32)
    found = measured(task_losses.make_regression_objective(SAYS), outputs[:, :1], labels=numbers)
    wanted = mean_squared_error(numbers[:-1], outputs[:-1, 0])
    assert found['loss'] == pytest.approx(wanted, rel=1e-5)
    labels = held[..., None].astype(np.float32)
    found = measured(task_losses.make_multi_label_objective(SAYS), outputs, labels=labels)
    wanted = log_loss(held[:-1].ravel(), special.expit(outputs[:-1]).ravel())
    assert found['loss'] == pytest.approx(wanted, rel=1e-5)


def test_pairs_that_follow_and_those_that_do_not_have_a_share_of_right_answers_each():
    logits = np.eye(2)[[0, 0, 1, 0, 1, 0, 0, 1]]
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1], np.int32)
    masked = {'masked_lm_ids': np.zeros((ROWS, 1), np.int32)}
    masked['masked_lm_weights'] = np.ones((ROWS, 1), np.float32)
    both = types.SimpleNamespace(
        apply=lambda variables, batch, rng: (batch['outputs'][:, None], batch['outputs'])
    )
    found = measured(
        masked_lm.make_pretraining_objective(both, nsp=True),
        logits,
        next_sentence_labels=labels,
        **masked,
    )
    shares = {'nsp_accuracy': 3 / 7, 'nsp_accuracy_is_next': 2 / 3, 'nsp_accuracy_random': 1 / 4}
    assert {name: found[name] for name in shares} == pytest.approx(shares)


def test_every_choice_has_dropout_of_its_own():
    """Equal inputs score alike without dropout, and differ with it.

    The masks of an example do not depend on its batch.
    """
    model, params = make('choice')
    batch = {
        name: np.repeat(task_batch('choice')[name][:1, :1], 6, 0).repeat(CHOICES, 1)
        for name in KEYS
    }
    variables = {'params': jax.device_put(params)}
    apply = jax.jit(lambda batch, dropout_rng: model.apply(variables, batch, dropout_rng))
    plain = np.asarray(apply(batch, None))
    np.testing.assert_allclose(plain, plain[0, 0], atol=1e-6)
    key = jax.random.key(3)
    noisy = np.asarray(apply(batch, DropoutRng(key, np.arange(6, dtype=np.uint32))))
    assert len(np.unique(noisy)) == noisy.size
    part = apply(
        {name: batch[name][2:4] for name in KEYS}, DropoutRng(key, np.arange(2, 4, dtype=np.uint32))
    )
    np.testing.assert_allclose(part, noisy[2:4], atol=1e-6)
