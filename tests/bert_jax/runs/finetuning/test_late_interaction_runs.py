"""Runs that train late interaction: what they learn, and that search and scores use the model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.inference import Bert
from bert_jax.runs.finetuning import evaluation
from tests.helpers import finetuning
from tests.helpers.encoder import ENCODER_WORDS

pytestmark = pytest.mark.usefixtures('signal_handlers')
KINDS, COLOURS = ENCODER_WORDS[:6], ENCODER_WORDS[-6:]
SETTINGS = (
    'batch_size=4 max_seq_length=16 steps=100 optimizer.peak_lr=3e-3 optimizer.algorithm=adamw'
    ' runtime.log_every=10 runtime.model_parallel=2 hidden_dropout=0 attention_dropout=0'
    ' late_interaction.width=8 late_interaction.query_expansion=fixed'
    ' late_interaction.expansion_length=9 late_interaction.skip=a'
).split()


@pytest.fixture
def task_file(tmp_path):
    """A task in which each word has a colour that is its own."""
    rng = np.random.default_rng(0)
    for split, count in {'train': 40, 'dev': 12}.items():
        lines = []
        for number in rng.integers(6, size=count):
            lines.append({'anchor': f'the {KINDS[number]}', 'positive': COLOURS[number]})
        (tmp_path / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    task = {
        'kind': 'late_interaction',
        'files': {'train': 'train.jsonl', 'dev': 'dev.jsonl'},
        'columns': {'anchor': 'anchor', 'positive': 'positive'},
        'prompts': {'query': 'who ', 'document': 'a '},
    }
    (tmp_path / 'task.json').write_text(json.dumps(task))
    return tmp_path / 'task.json'


def configuration(*changes):
    return apply(choose_recipe('alike', 'late_interaction'), [*SETTINGS, *changes])


def test_a_run_learns_and_is_used(task_file, encoder, tmp_path):
    run = str(tmp_path / 'run')
    tuner = finetuning.tuner_of(task_file, encoder, configuration().runtime)
    result, _ = tuner.run(configuration(), run)
    assert result['metrics']['accuracy'] > 0.9 and not result['failed']
    assert evaluation.evaluate(run)['metrics'] == result['metrics']

    bert = Bert.load(run, 'float32')
    queries = bert.embed([f'the {word}' for word in KINDS], prompt='query')
    documents = bert.embed(COLOURS, prompt='document')
    assert [vectors.shape for vectors in queries] == [(9, 8)] * 6
    # [CLS], the colour and [SEP]: the prompt is skipped.
    assert [vectors.shape for vectors in documents] == [(3, 8)] * 6
    np.testing.assert_allclose(np.linalg.norm(queries[0], axis=1), 1, rtol=1e-5)
    scores = [[(q @ d.T).max(1).sum() for d in documents] for q in queries]
    assert (np.argmax(scores, axis=1) == np.arange(6)).all()
