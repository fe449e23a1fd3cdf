"""What `Bert` says of itself, and the states and attentions of all its layers."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.inference import Bert, Predictor
from tests.helpers.numpy_bert import dense
from tests.helpers.tiny import tiny_config
from tests.helpers.tiny_models import tokenizer

TEXTS = ['the film was good .', 'a book']


def fresh(**changes) -> Bert:
    entries = tokenizer()
    return Bert.fresh(tiny_config(vocab_size=entries.vocab_size, **changes), entries, seed=3)


@pytest.mark.parametrize(
    'changes',
    [
        {'attention': 'left_to_right'},
        {'norm': 'pre', 'positions': 'rotary', 'local_window': 2, 'global_every': 2},
        {'family': 'electra'},  # of which the bare encoder has no pooler
    ],
)
def test_states_and_attentions_of_all_layers(changes):
    bert = fresh(**changes)
    rows = bert.tokenize(TEXTS)
    plain, asked = bert(rows), bert(rows, hidden_states=True, attentions=True)
    np.testing.assert_allclose(asked.hidden, plain.hidden, atol=1e-5)
    np.testing.assert_allclose(asked.pooled, plain.pooled, atol=1e-5)
    assert plain._fields == ('hidden', 'pooled')
    (B, T), c = rows['input_ids'].shape, bert.config
    assert asked.hidden_states.shape == (c.num_layers + 1, B, T, c.hidden_size)
    np.testing.assert_array_equal(asked.hidden_states[-1], asked.hidden)
    assert asked.attentions.shape == (c.num_layers, B, c.num_heads, T, T)
    np.testing.assert_allclose(asked.attentions.sum(-1), 1, rtol=1e-5)
    # Nobody looks at padding, and each layer has its own.
    real = rows['input_mask'][1] > 0
    assert not real.all() and not asked.attentions[:, 1][:, :, real][..., ~real].any()
    assert np.abs(asked.attentions[0] - asked.attentions[1]).max() > 1e-3
    if changes.get('attention'):
        assert not np.triu(asked.attentions, 1).any()
        assert bert(rows, hidden_states=True).attentions is None


def test_attentions_are_those_of_the_textbook():
    bert = fresh()
    rows = bert.tokenize(TEXTS[:1])
    outputs = bert(rows, hidden_states=True, attentions=True)
    states, c = outputs.hidden_states[0], bert.config
    layers = bert.params['encoder']['layers']
    q, k = (
        dense(states, {name: leaf[0] for name, leaf in layers[part].items()})
        for part in ('query', 'key')
    )
    heads = lambda x: x.reshape(*x.shape[:2], c.num_heads, -1).swapaxes(1, 2)
    scores = heads(q) @ heads(k).swapaxes(2, 3) / np.sqrt(c.hidden_size // c.num_heads)
    wanted = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(outputs.attentions[0], wanted, atol=1e-5)


def test_what_is_printed_is_short(encoder):
    bert = Bert.load(encoder)
    printed = [repr(bert), repr(bert.tokenizer), repr(Predictor.from_workdir(encoder))]
    assert max(map(len, [*printed, str(bert.config)])) < 200
    assert encoder in printed[0] and f'{bert.config.num_layers} layers' in printed[0]


def test_no_texts_have_no_states():
    bert = fresh()
    assert bert(bert.tokenize([])).hidden.shape == (0, 1, bert.config.hidden_size)
