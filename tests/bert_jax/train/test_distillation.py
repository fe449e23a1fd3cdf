"""What a student of pre-training minimises, beside numpy's figures of the same papers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from bert_jax.configs.model.tuning_config import DistillationConfig
from bert_jax.model import heads
from bert_jax.train.losses.distillation import METHODS, Outputs
from tests.helpers.numpy_bert import noisy_params
from tests.helpers.tiny import tiny_config

B, T, P = 3, 8, 2
MODERN = {
    'family': 'modernbert', 'norm': 'pre', 'positions': 'rotary', 'use_bias': False,
    'type_vocab_size': 0, 'feed_forward': 'geglu',
}  # fmt: skip


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = np.array([8, 5, 7])
    return {
        'input_ids': rng.integers(5, 100, (B, T), dtype=np.int32),
        'input_mask': (np.arange(T) < lengths[:, None]).astype(np.int32),
        'segment_ids': np.zeros((B, T), np.int32),
        'masked_lm_positions': np.array([[1, 3], [2, 0], [4, 5]], np.int32),
        'masked_lm_ids': rng.integers(5, 100, (B, P), dtype=np.int32),
        'masked_lm_weights': np.array([[1, 1], [1, 0], [1, 1]], np.float32),
        'example_weights': np.array([1, 1, 0], np.float32),  # the last row only fills up
    }


def model_of(seed: int, **changes):
    """A model whose states and answers differ much from those of another seed."""
    model = heads.Pretraining(tiny_config(**changes))
    return model, jax.tree.map(lambda leaf: 3 * leaf, noisy_params(model, seed))


def learnt(method: str, student, teacher, rows, **settings):
    """(loss, sums), and those with the gradient, as functions of the student's weights."""
    of = METHODS[method](DistillationConfig(teacher='there', method=method, **settings))
    rows = rows | of.columns(*teacher, rows)
    objective = of.objective(student)

    def loss(params):
        sums, weights = objective.sums(params, rows, None), objective.weights(rows)
        return sum(sums[name][0] / weights[name] for name in weights), sums

    return jax.jit(loss), jax.jit(jax.value_and_grad(loss, has_aux=True))


def test_distilbert_is_its_three_losses():
    rows, student, teacher = batch(), model_of(0, num_layers=1), model_of(1, num_layers=1)
    value, sums = learnt('distilbert', student[0], teacher, rows)[0](student[1])
    ours, theirs = (Outputs(*each, rows) for each in (student, teacher))
    kept = (rows['masked_lm_weights'] * rows['example_weights'][:, None]) > 0
    p, q = (special.log_softmax(np.asarray(o.logits_BPV)[kept] / 2, -1) for o in (theirs, ours))
    soft = 4 * (np.exp(p) * (p - q)).sum(-1).mean()
    mlm = -special.log_softmax(np.asarray(ours.logits_BPV), -1)[kept]
    mlm = mlm[np.arange(kept.sum()), rows['masked_lm_ids'][kept]].mean()
    real = (rows['input_mask'] * rows['example_weights'][:, None]) > 0
    a, b = (np.asarray(o.hidden[-1])[real] for o in (ours, theirs))
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    wanted = {'soft_loss': soft, 'cosine_loss': (1 - cosine).mean(), 'mlm_loss': mlm}
    for name, number in wanted.items():
        total, weight = sums[name]
        np.testing.assert_allclose(total / weight, number, rtol=1e-5, err_msg=name)
    whole = 5 * soft + 2 * mlm + (1 - cosine).mean()
    np.testing.assert_allclose(value, whole, rtol=1e-4)


def test_minilm_is_the_divergence_of_three_relations():
    rows, teacher, student = batch(), model_of(1, hidden_size=32), model_of(0, num_layers=1)
    settings = {'relation_heads': 4, 'teacher_block': 0}
    _, slopes = learnt('minilm', student[0], teacher, rows, **settings)
    (loss, _), gradient = slopes(student[1])
    real = rows['input_mask'] > 0

    def relations(model, params, number, row):
        """[3, R, T, T] of one row, from the states that the block reads."""
        states = np.asarray(Outputs(model, params, rows).hidden[number])[row, real[row]]
        block = jax.tree.map(lambda leaf: np.asarray(leaf)[number], params['encoder']['layers'])
        for name in ('query', 'key', 'value'):
            x = states @ block[name]['kernel'] + block[name]['bias']
            x = x.reshape(len(states), 4, -1).swapaxes(0, 1)
            yield special.log_softmax(x @ x.swapaxes(1, 2) / np.sqrt(x.shape[-1]), -1)

    total, tokens = 0.0, 0
    for row in (0, 1):
        both = zip(relations(*teacher, 0, row), relations(*student, 0, row), strict=True)
        total += sum((np.exp(p) * (p - q)).sum(-1).mean(0).sum() for p, q in both)
        tokens += real[row].sum()
    np.testing.assert_allclose(loss, total / tokens, rtol=1e-4)
    # The head over the vocabulary learns nothing: no masked-LM loss is in the sum.
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient['mlm']))


def test_a_copy_of_the_teacher_has_nothing_to_learn_from_it():
    """Also in another family's blocks."""
    rows, (model, params), other = batch(), model_of(1, **MODERN), model_of(2, **MODERN)[1]
    settings = {'masked_lm_weight': 0.0, 'relation_heads': 2}
    _, slopes = learnt('minilm', model, (model, params), rows, **settings)
    ((loss, _), gradient), ((far, _), far_gradient) = slopes(params), slopes(other)
    assert far > 0.01
    # Sums of float32 are exact to their length times its precision, of what a stranger's are. The
    # longest has 32 terms, and a gradient comes through 13 products and as many backwards.
    rounding = 26 * 32 * float(np.finfo(np.float32).eps)
    largest = lambda tree: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))
    assert abs(float(loss)) < rounding * float(far)
    assert largest(gradient) < rounding * largest(far_gradient)
