"""Sets of labels: how they lie in files, from which probability on they are given, their scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics, preprocessing

from bert_jax.input_pipeline.tasks.found import find
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.input_pipeline.tasks.task_metrics import best_thresholds
from tests.helpers.refusals import refused

SETS = [['a'], [], ['b', 'a'], ['b'], ['c'], ['a', 'b', 'c']] * 5
TEXTS = [f'some words of text {i}' for i in range(len(SETS))]
COLUMNS = [[int(label in each) for label in 'abc'] for each in SETS]
FILES = {
    'lists.jsonl': ''.join(
        json.dumps({'text': text, 'labels': each}) + '\n'
        for text, each in zip(TEXTS, SETS, strict=True)
    ),
    'parted.tsv': 'text\tlabels\n'
    + '\n'.join(f'{text}\t{"|".join(each)}' for text, each in zip(TEXTS, SETS, strict=True)),
    'parted.csv': 'text,labels\n'
    + '\n'.join(f'{text},"{", ".join(each)}"' for text, each in zip(TEXTS, SETS, strict=True)),
    'columns.csv': 'id,text,a,b,c\n'
    + '\n'.join(
        f'{i},{text},{",".join(map(str, row))}'
        for i, (text, row) in enumerate(zip(TEXTS, COLUMNS, strict=True))
    ),
}


@pytest.mark.parametrize('name', FILES)
def test_sets_are_found_and_read_as_scikit_learn_has_them(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name])
    found = find(str(path), str(path))
    task = found.task
    assert (task.kind, task.labels) == ('multilabel', ('a', 'b', 'c'))
    examples = task.examples('train')
    expected = preprocessing.MultiLabelBinarizer(classes=['a', 'b', 'c']).fit_transform(SETS)
    held = task._label_array(examples)
    np.testing.assert_array_equal(held[..., 0], expected)
    # A row of as many pieces as there are labels is not mixed up with them.
    assert held.shape == (30, 3, 1)


def test_lists_under_names_of_another_language_are_found(tmp_path):
    path = tmp_path / 'लेख.jsonl'
    lists = [['खेल', 'देश'], [], ['देश'], ['खेल']] * 10
    rows = [{'पाठ': f'पाठ {i} बहुत अच्छा है', 'विषय': row} for i, row in enumerate(lists)]
    path.write_text('\n'.join(json.dumps(row) for row in rows))
    task = find(str(path), str(path)).task
    assert (task.kind, task.labels) == ('multilabel', ('खेल', 'देश'))
    assert task.files['train'][0].columns == {'text': 'पाठ', 'label': 'विषय'}

    # Two columns of lists may be words and their tags: which is the label is asked.
    path.write_text('\n'.join(json.dumps({**row, 'शब्द': row['विषय']}) for row in rows))
    with refused('do not look like labels: say which'):
        find(str(path), str(path))


def logits(truth, noise):
    rng = np.random.default_rng(0)
    return (truth - 0.7) * 2 + noise * rng.standard_normal(truth.shape)


@pytest.fixture
def task(tmp_path):
    (tmp_path / 'train.jsonl').write_text(FILES['lists.jsonl'])
    (tmp_path / 'mine.json').write_text(
        json.dumps(
            {
                'kind': 'multilabel',
                'files': {'train': 'train.jsonl', 'dev': 'train.jsonl'},
                'columns': {'text': 'text', 'label': 'labels'},
                'labels': ['a', 'b', 'c'],
            }
        )
    )
    return load_task(str(tmp_path / 'mine.json'))


def test_thresholds_are_chosen_once_and_scores_are_scikit_learns(tmp_path, task):
    examples, truth = task.examples('dev'), np.array(COLUMNS)
    outputs = {'logits': logits(truth, 0.8).astype(np.float32)}
    predictions = task.decode(examples, {}, outputs)
    thresholds = predictions.chosen['thresholds']
    assert list(thresholds) == ['a', 'b', 'c']

    # Chosen, they hold for others, and nothing more is chosen.
    fixed = task.under(predictions.chosen)
    again = fixed.decode(examples, {}, outputs)
    assert (again.answers, again.chosen) == (predictions.answers, {})
    shares = 1 / (1 + np.exp(-outputs['logits'].astype(float)))
    given = shares > list(thresholds.values())
    scores = task.score(examples, predictions)
    assert scores == {
        **{f'{m}_f1': metrics.f1_score(truth, given, average=m) for m in ('micro', 'macro')},
        'subset_accuracy': metrics.accuracy_score(truth, given),
    }

    # There and back as a file, an empty set too.
    assert () in predictions.answers.values()
    task.write_predictions(str(tmp_path), examples, predictions)
    read = task.read_predictions(str(tmp_path / 'predictions.tsv'), examples)
    assert read.answers == predictions.answers


def test_guessing_is_the_best_constant_set(task):
    examples, truth = task.examples('dev'), np.array(COLUMNS)
    guess = task.constant_scores(examples)['micro_f1']
    every = [[(n >> i) & 1 for i in range(3)] for n in range(8)]
    tried = [
        metrics.f1_score(truth, np.tile(row, (30, 1)), average='micro', zero_division=0)
        for row in every
    ]
    assert guess == pytest.approx(max(tried))
    share = truth.mean(axis=0)
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    features = {'labels': truth[..., None].astype(np.float32)}
    assert task.constant_loss(features) == pytest.approx(entropy.mean())


def test_no_threshold_has_a_better_f1_than_the_chosen_one():
    rng = np.random.default_rng(0)
    for _ in range(100):
        truth, shares = rng.integers(0, 2, 60), rng.integers(1, 100, 60) / 100
        (chosen,) = best_thresholds(truth[:, None], shares[:, None])
        tried = [chosen, *np.arange(0.005, 1, 0.01)]
        scores = [metrics.f1_score(truth, shares > least, zero_division=0) for least in tried]
        assert scores[0] == pytest.approx(max(scores))


def test_a_label_that_nobody_has_keeps_one_half():
    assert best_thresholds(np.zeros((3, 1)), np.full((3, 1), 0.2)) == [0.5]
    assert best_thresholds(np.array([[1], [0]]), np.array([[0.3], [0.1]])) == [pytest.approx(0.2)]


@pytest.mark.parametrize(
    'record, message',
    [
        ({'text': 'x', 'labels': ['d']}, "train.jsonl:1: unknown label 'd'; task mine has a, b, c"),
        ({'text': 'x'}, "no 'labels' for 'label'; it has text"),
    ],
)
def test_bad_rows_are_one_line(tmp_path, task, record, message):
    (tmp_path / 'train.jsonl').write_text(json.dumps(record))
    with refused(message):
        task.examples('train')
