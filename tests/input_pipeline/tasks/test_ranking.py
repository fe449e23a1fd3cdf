"""Tasks of rankings: rows by hand, scores by hand, what files and losses refuse."""

from __future__ import annotations

import math

import pytest

from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.input_pipeline.tasks.base import Predictions
from bert_jax.input_pipeline.tasks.load_task import load_task
from tests.helpers.files import write_task
from tests.helpers.refusals import refused
from tests.helpers.tokenizer_folders import wordpiece

PAIRS = {'query': 'q', 'document': 'd', 'label': 'l'}
SCORED = {'query': 'q', 'document': 'd', 'score': 's'}
LISTS = {'query': 'q', 'documents': 'ds', 'grades': 'gs'}
MINED = {'anchor': 'q', 'positive': 'd', 'negatives': 'no'}
ROW = {'q': 'a b', 'd': 'c', 'l': 1, 's': 3, 'ds': ['d', '', 'e'], 'gs': [2, 0, 1], 'no': ['f']}
ROW |= {'t': [3, -1, 0]}


@pytest.fixture
def task_of(tmp_path):
    """Makes a task of one split of records."""

    def make(columns, *records, split='dev', **entries):
        return load_task(write_task(tmp_path, 'ranking', {split: (columns, records)}, **entries))

    return make


def test_rows_by_hand(task_of):
    """A row for each document, of an absent one [CLS] alone; an empty one is there."""
    tokenizer = wordpiece('abcdefghij')
    task = task_of(
        LISTS | {'scores': 't'}, ROW, ROW | {'ds': ['a', 'g'], 'gs': [0, 1], 't': [4, 5]}
    )
    features = task.features(task.examples('dev'), tokenizer, 8)
    rows = [' '.join(tokenizer.tokens(ids)) for ids in features['input_ids'].reshape(-1, 8)]
    documents = ['d [SEP]', '[SEP]', 'e [SEP]', 'a [SEP]', 'g [SEP]']
    wanted = [*(f'[CLS] a b [SEP] {document}' for document in documents), '[CLS]']
    assert [row.replace(' [PAD]', '') for row in rows] == wanted
    assert features['input_mask'][:, :, 1].ravel().tolist() == [1] * 5 + [0]
    assert features['labels'][..., 0].tolist() == [[2, 0, 1], [0, 1, 0]]
    assert features['teacher_scores'][..., 0].tolist() == [[3, -1, 0], [4, 5, 0]]
    # An absent document is equal to nothing of another example.
    assert features['text_numbers'][..., 0].tolist() == [[0, 1, 2, 3], [0, 4, 5, 0]]


def test_scores_by_hand(task_of, tmp_path):
    """Of lists trec_eval's; of equal logits the last is first."""
    task = task_of(MINED, ROW | {'no': ['e', 'f']}, ROW | {'no': ['g']})
    examples = task.examples('dev')
    logits = {'0': (0.5, 40.25, -1.0), '1': (2.0, 2.0)}
    found = task.score(examples, Predictions(logits))
    assert found == pytest.approx({'ndcg@10': 1 / math.log2(3), 'mrr@10': 0.5, 'map@100': 0.5})
    task.write_predictions(str(tmp_path), examples, Predictions(logits))
    again = task.read_predictions(str(tmp_path / 'predictions.tsv'), examples)
    assert again.answers == logits
    with refused("1 predictions for the 3 documents of '0'"):
        task.score(examples, Predictions(logits | {'0': (1.0,)}))

    graded = task_of(LISTS, ROW)
    found = graded.score(graded.examples('dev'), Predictions({'0': (1.0, 3.0, 2.0)}))
    assert found['ndcg@10'] == pytest.approx(
        (1 / math.log2(3) + 2 / math.log2(4)) / (2 + 1 / math.log2(3))
    )
    # Logits that a sigmoid would make equal.
    pairs = task_of(PAIRS, ROW, ROW | {'l': 0})
    found = pairs.score(pairs.examples('dev'), Predictions({'0': (60.0,), '1': (50.0,)}))
    assert found['ap'] == found['accuracy'] == 1
    scored = task_of(SCORED, ROW, ROW | {'s': 5}, score_range=[1, 5])
    examples = scored.examples('dev')
    assert [example.grades for example in examples] == [(0.5,), (1.0,)]
    found = scored.score(examples, Predictions({'0': (2.0,), '1': (3.0,)}))
    assert found == pytest.approx({'spearman': 1, 'pearson': 1})
    test = task_of(PAIRS, {'q': 'a', 'd': 'b'}, split='test_blind')
    assert not test.labelled(test.examples('test_blind'))


@pytest.mark.parametrize(
    'columns, change, message',
    [
        (LISTS, {'ds': ['a']}, '1 documents, and not as many grades'),
        (LISTS, {'gs': []}, '3 documents, and not as many grades'),
        (LISTS, {'ds': [], 'gs': []}, 'no documents'),
        (LISTS, {'gs': [1, 0, -1]}, 'grades -1 is none of 0 to 100'),
        (LISTS, {'gs': [1, 0, 'nan']}, "'nan' is not finite"),
        (LISTS, {'gs': [1, 1, 0]}, 'an empty document, which only grade 0 may have'),
        (LISTS, {'ds': ['a', 'b'], 'gs': [1, 1]}, '2 documents of one grade have no order'),
        (LISTS | {'scores': 't'}, {'t': [1, 2]}, '2 scores of a teacher for 3 documents'),
        (MINED, {'no': []}, '1 documents of one grade'),
        (MINED, {'no': ['a', ' ']}, 'an empty negative: mend or delete the row'),
        (PAIRS, {'q': ''}, 'an empty query'),
        (PAIRS, {'l': 2}, 'label 2 is none of 0 to 1: .* classes are of kind pair'),
        (PAIRS, {'l': 0.5}, 'label 0.5 is none'),
        (SCORED, {'s': 6}, 'score 6 is none of 1 to 5: .* within "score_range"'),
    ],
)
def test_a_bad_row_is_refused_with_its_line(task_of, columns, change, message):
    entries = {'score_range': [1, 5]} if columns is SCORED else {}
    task = task_of(columns, {**ROW, 'gs': [1, 0, 2]}, ROW | change, **entries)
    with refused(f'dev.jsonl:2: {message}'):
        task.examples('dev')


def test_columns_that_are_no_task(task_of):
    with refused('"columns" must be query document label, or .*; and scores and id'):
        task_of({'query': 'q', 'positive': 'd'}, ROW)
    with refused('pairs without negatives have no score: give files.dev negatives'):
        task_of({'anchor': 'q', 'positive': 'd'}, ROW)


@pytest.mark.parametrize(
    'settings, columns, message',
    [
        ({'loss': 'lambda'}, PAIRS, 'loss=lambda reads lists and triplets, .* labelled pairs'),
        ({'loss': 'lambda'}, LISTS, 'train.jsonl:2: 2 documents of one grade have no order'),
        ({}, LISTS, 'train.jsonl:1: .*entropy reads no grade above 1'),
        ({'loss': 'margin_mse'}, MINED, 'train.jsonl:1: .*which margin_mse alone reads'),
    ],
)
def test_a_loss_refuses_what_it_cannot_learn_from(task_of, settings, columns, message):
    tied = ROW | {'ds': ['a', 'b'], 'gs': [1, 1], 't': [1, 2]}
    task = task_of(columns, ROW, tied, split='train')
    with refused(message):
        task.check_loss(RankingConfig(**settings), task.examples('train'))


def test_settings_that_do_not_go_together():
    with refused('RankingConfig.k=3: must be left out: loss=margin_mse has none'):
        RankingConfig(loss='margin_mse', k=3)
    with refused('batch_size=1: .* draws documents of other examples of the batch: raise it'):
        RankingConfig(loss='multiple_negatives').check_batch(1, 1)
    with refused('accumulation=2 cuts the batch that ranking.k=3 counts in'):
        RankingConfig(loss='lambda', k=3).check_batch(4, 2)
