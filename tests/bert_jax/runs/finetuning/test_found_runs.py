"""A table to a trained model of sets of labels, and out again by every way that there is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.inference import Predictor
from bert_jax.inference.export import export
from bert_jax.input_pipeline.tasks.found import find
from bert_jax.runs.finetuning import evaluation
from bert_jax.runs.finetuning.finetune import finetune
from bert_jax.runs.sources import source
from tests.helpers.encoder import ENCODER_WORDS
from tests.helpers.files import read_json, write_jsonl
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures('signal_handlers')
SETTINGS = [
    'batch_size=16', 'max_seq_length=16', 'epochs=40', 'optimizer.peak_lr=3e-3',
    'optimizer.algorithm=adamw', 'hidden_dropout=0', 'attention_dropout=0',
]  # fmt: skip


def write(path, rows):
    """Colours and animals that a text names are its labels; many have none."""
    rng, labels = np.random.default_rng(len(rows)), ('red', 'blue', 'fox')
    lines = []
    for _ in rows:
        words = rng.choice([*labels, *ENCODER_WORDS[6:9]], 2)
        lines.append({'text': ' '.join(words), 'topics': [w for w in labels if w in words]})
    write_jsonl(path, lines)
    return str(path)


@pytest.fixture(scope='module')
def trained(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp('found')
    train, dev = (write(folder / f'{name}.jsonl', range(n)) for name, n in (('t', 96), ('d', 40)))
    found = find(train, dev, columns='label=topics')
    config = apply(choose_recipe('mine', 'multilabel'), SETTINGS)
    result = finetune(found, '', encoder, str(folder / 'run'), config)
    return folder, found, config, result


def test_a_run_keeps_its_task_and_its_thresholds(trained, encoder):
    folder, found, config, result = trained
    [run] = result.runs
    assert run['metrics']['micro_f1'] > 0.8
    assert not run['failed']
    guess = read_json(folder / 'run/guessing.json')['entries'][0]['scores']
    assert guess['micro_f1'] < run['metrics']['micro_f1']

    # The file says what was found; the same call is the same run, and another one is refused.
    kept = folder / f'run/task/{found.name}.json'
    assert read_json(kept) == found.description
    again = finetune(found, '', encoder, str(folder / 'run'), config)
    assert again.runs == result.runs
    train = found.description['files']['train']
    other = find(train, train, columns='label=topics')
    with refused('another task: .*json differs in files; use another'):
        finetune(other, '', encoder, str(folder / 'run'), config)

    # Evaluated again by its task file, with the thresholds that were chosen, on more splits too.
    assert evaluation.evaluate(str(folder / 'run'))['metrics'] == run['metrics']
    more = read_json(kept)
    more['files']['test'] = write(folder / 'test.jsonl', range(30))
    kept.write_text(json.dumps(more))
    assert evaluation.evaluate(str(folder / 'run'), split='test')['metrics']['micro_f1'] > 0.8
    assert finetune(found, '', encoder, str(folder / 'run'), config).runs == result.runs


def test_answers_are_the_same_from_a_run_and_from_an_export(trained):
    folder, found, _, _ = trained
    thresholds = read_json(folder / 'run/chosen.json')['thresholds']
    predictor = Predictor.from_workdir(str(folder / 'run'))
    answers = predictor(['red fox', 'the book'])
    assert answers[0]['labels'] == ['fox', 'red']
    assert answers[1]['labels'] == []
    assert set(answers[0]['probabilities']) == set(found.task.labels)

    # The thresholds decide, not one half: moved above a probability, the label is gone.
    moved = {**thresholds, 'red': answers[0]['probabilities']['red'] + 1e-6}
    other = Predictor(predictor.source.changed(chosen={'thresholds': moved}), 16, {'texts': 1})
    assert other('red fox')['labels'] == ['fox']

    export(str(folder / 'run'), 'huggingface', str(folder / 'hf'))
    settings = read_json(folder / 'hf/config.json')
    assert settings['problem_type'] == 'multi_label_classification'
    read = source.read_source(str(folder / 'hf'))
    assert read.bert.chosen == {'thresholds': thresholds}
    assert read.bert.head == 'multi_label'
    exported = Predictor.from_workdir(str(folder / 'hf'))(['red fox', 'the book'])
    assert [a['labels'] for a in exported] == [a['labels'] for a in answers]
    card = (folder / 'hf/README.md').read_text()
    assert 'top_k=None' in card
    assert '| thresholds | {' in card
    assert 'micro_f1' in card
