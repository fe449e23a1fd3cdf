"""Tasks whose training sets cannot be had: 50 examples in each official layout are learnt by heart.

Shows that columns, labels, head, loss, decoding, score and predictions file fit each other.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import recipe
from bert_jax.input_pipeline.tasks import load_task
from bert_jax.runs.finetuning import finetuner, machine
from bert_jax.runs.finetuning.approach import Approach
from bert_jax.runs.finetuning.task_data import TaskData, task_identity
from bert_jax.runs.sources import source

ROWS = 50


pytestmark = pytest.mark.usefixtures('signal_handlers')


def tsv(path, header, rows):
    path.write_text(''.join('\t'.join(map(str, row)) + '\n' for row in [header, *rows]))


def write_swag(folder):
    header = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,'
    header += 'ending0,ending1,ending2,ending3,label'
    labels = [i % 4 for i in range(ROWS)]
    for name in ('train.csv', 'val.csv'):
        lines = [header]
        for i, label in enumerate(labels):
            wrong = ['is bad', '"is poor, a ""dull"" film"', 'is dull', 'is bad']
            endings = ['is good' if place == label else wrong[place] for place in range(4)]
            lines.append(f'{i},v,{i},x,the film was red,a dog,gold,{",".join(endings)},{label}')
        (folder / name).write_text('\n'.join(lines) + '\n')
    return [str(label) for label in labels]


def write_conll(folder):
    """A colour after `the` is a place, an animal a person of one or two words; the rest is O."""
    rng = np.random.default_rng(0)
    lines, tags = [], []
    for i in range(ROWS):
        words = [
            'the',
            ['red', 'blue', 'green'][rng.integers(3)],
            'was',
            *['fox', 'dog'][: 1 + i % 2],
            '.',
        ]
        tagged = ['O', 'B-LOC', 'O', *['B-PER', 'I-PER'][: 1 + i % 2], 'O']
        lines += ['-DOCSTART- -X- -X- O', ''] if i % 10 == 0 else []
        lines += [f'{word} NN B-NP {tag}' for word, tag in zip(words, tagged, strict=True)] + ['']
        tags.append(tagged)
    for name in ('train.txt', 'valid.txt'):
        (folder / name).write_text('\n'.join(lines))
    return tags


def write_squad(folder):
    answers, paragraphs = [], []
    for i in range(ROWS):
        colour = ['red', 'blue', 'green'][i % 3]
        context, answerable = f'the book was {colour} a fox is fine', i % 2 == 0
        entry = {
            'id': f'q{i}',
            'question': 'the book was ?' if answerable else 'who is dull ?',
            'is_impossible': not answerable,
        }
        entry['answers'] = [{'text': colour, 'answer_start': 13}] if answerable else []
        paragraphs.append({'context': context, 'qas': [entry]})
        answers.append(colour if answerable else '')
    for name in ('train-v2.0.json', 'dev-v2.0.json'):
        (folder / name).write_text(
            json.dumps({'version': 'v2.0', 'data': [{'title': 't', 'paragraphs': paragraphs}]})
        )
    return answers


# What is learnt is then no matter of how masks are drawn.
DROPOUT_OFF = [f'{place}_dropout=0' for place in ('hidden', 'attention', 'head')]


@pytest.mark.parametrize(
    ('name', 'write', 'changes'),
    [
        ('swag', write_swag, ['epochs=30']),
        ('conll2003', write_conll, ['epochs=30']),
        # with some other seeds so small a model stays where half of the answers are right
        ('squad_v2', write_squad, ['epochs=60', 'seed=2']),
    ],
)
@pytest.mark.slow
def test_fifty_examples_are_learnt_by_heart(tmp_path, encoder, name, write, changes):
    truth = write(tmp_path)
    task = load_task(name, str(tmp_path))
    settings = [
        'batch_size=16',
        'max_seq_length=32',
        'optimizer.peak_lr=5e-3',
        'optimizer.algorithm=adamw',
        *DROPOUT_OFF,
        *changes,
    ]
    config = apply(recipe(task.name, task.kind), settings)
    data = TaskData(task, source.load_source(encoder), task_identity(task, name, str(tmp_path)))
    ready = machine.ready(config.runtime, data.source.model)
    fine_tuner = finetuner.FineTuner(Approach(data, ready), ready)
    result, _ = fine_tuner.run(config, str(tmp_path / 'run'))
    full = 100.0 if name == 'squad_v2' else 1.0
    assert all(result['metrics'][metric] == full for metric in task.metrics), result['metrics']
    answers = task.read_predictions(
        str(next((tmp_path / 'run/predictions/dev').glob('predictions.*'))), task.examples('dev')
    ).answers
    assert list(answers.values()) == truth
