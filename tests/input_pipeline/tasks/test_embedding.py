"""Tasks of sentence encoders: files, rows by hand, scores, batches without equal texts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks.batching import (
    count_left_over,
    iterate_batches,
    iterate_bucketed_batches,
)
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.model.text_vectors import read_vectors
from tests.helpers.files import write_task
from tests.helpers.refusals import refused
from tests.helpers.tokenizer_folders import wordpiece

PAIRS = {'anchor': 'q', 'positive': 'd'}
TRIPLETS = PAIRS | {'negatives': 'no'}
TAUGHT = TRIPLETS | {'scores': 't'}
SCORED = {'text_a': 'a', 'text_b': 'b', 'score': 's'}
RANGE = {'score_range': [1, 5]}


@pytest.fixture
def task_of(tmp_path):
    """Makes a task of records: {split: (columns, records)}, and entries of its own."""

    def make(splits, kind='embedding', **entries):
        return load_task(write_task(tmp_path, kind, splits, **entries))

    return make


def test_rows_by_hand(task_of):
    """Prompts go before texts, negatives are rows too, a plain text is there twice."""
    tokenizer = wordpiece('abcdefghij?:')
    task = task_of(
        {
            'train': (TRIPLETS, [{'q': 'a b', 'd': 'c', 'no': ['d', 'e']}]),
            'dev': (SCORED, [{'a': 'f', 'b': 'g', 's': 2}, {'a': 'g', 'b': 'f', 's': '5'}]),
            'plain': ({'text': 't'}, [{'t': 'a'}, {'t': 'h i'}]),
        },
        prompts={'query': 'j: ', 'document': '? '},
        **RANGE,
    )
    rows = lambda split: [
        [' '.join(tokenizer.tokens(ids)).removesuffix(' [PAD]') for ids in row]
        for row in task.features(task.examples(split), tokenizer, 7)['input_ids']
    ]
    assert [[row.replace(' [PAD]', '') for row in example] for example in rows('train')] == [
        [f'[CLS] {text} [SEP]' for text in ('j : a b', '? c', '? d', '? e')]
    ]
    assert {len(set(example)) for example in rows('plain')} == {1}
    assert rows('plain')[1][0].startswith('[CLS] ? h i')
    features = task.features(task.examples('dev'), tokenizer, 7)
    assert features['labels'].tolist() == [0.25, 1.0]
    assert features['text_numbers'][..., 0].tolist() == [[0, 1], [1, 0]]
    assert task.metrics == ('spearman', 'pearson') and task.label_keys == ()
    assert task.options == {'prompts': {'query': 'j: ', 'document': '? '}}
    assert not task.labelled(task.examples('plain'))


def test_scores_of_a_teacher_are_features(task_of):
    rows = [{'q': 'a', 'd': 'b', 'no': ['c', 'd'], 't': ['7', 2.5, -1]}] * 2
    task = task_of({'train': (TAUGHT, rows), 'dev': (TRIPLETS, rows)}, kind='sparse_embedding')
    assert (task.head, task.label_keys) == ('sparse_embedding', ('teacher_scores',))
    features = task.features(task.examples('train'), wordpiece('abcd'), 6)
    assert features['teacher_scores'].tolist() == [[[7], [2.5], [-1]]] * 2
    assert 'teacher_scores' not in task.features(task.examples('dev'), wordpiece('abcd'), 6)


def vectors(*examples):
    of_texts = np.array(examples, np.float32).reshape(-1, 2)
    return {'vectors': read_vectors(of_texts, 'cosine')}


def test_scores_by_hand(task_of, tmp_path):
    right, up, left = (1.0, 0.0), (0.0, 2.0), (-3.0, 0.0)
    scored = [{'a': 'x', 'b': 'y', 's': score} for score in (1, 3, 5)]
    task = task_of({'dev': (SCORED, scored)}, **RANGE)
    examples = task.examples('dev')
    found = task.decode(examples, {}, vectors((right, left), (right, up), (up, up)))
    assert found.answers == {'0': -1.0, '1': 0.0, '2': 1.0}
    assert task.score(examples, found) == pytest.approx({'spearman': 1, 'pearson': 1})
    task.write_predictions(str(tmp_path / 'out'), examples, found)
    assert task.read_predictions(str(tmp_path / 'out/predictions.tsv'), examples) == found

    # Among all documents of the split, but for other positives of the same query.
    pairs = [('p', 'd'), ('p', 'e'), ('r', 'f'), ('s', 'd')]
    task = task_of({'dev': (PAIRS, [{'q': q, 'd': d} for q, d in pairs])})
    examples = task.examples('dev')
    features = task.features(examples, wordpiece('pqrsdef'), 5)
    near, far = (1.0, 0.1), (1.0, 0.5)
    found = task.decode(
        examples, features, vectors((right, near), (right, far), (up, left), (right, near))
    )
    assert list(found.answers.values()) == [1, 1, 3, 1]
    assert task.score(examples, found) == pytest.approx(
        {'accuracy': 0.75, 'mrr': 0.25 * (3 + 1 / 3)}
    )
    (tmp_path / 'ranks').write_text('index\tprediction\n0\t0\n')
    with refused("ranks:2: the rank '0' is not a whole number from 1"):
        task.read_predictions(str(tmp_path / 'ranks'), examples)

    # A model that tells nothing apart ranks nothing first.
    alike = task.decode(examples, features, vectors(*[(right, right)] * 4))
    assert min(alike.answers.values()) > 1

    task = task_of({'dev': (TRIPLETS, [{'q': 'p', 'd': 'd', 'no': 'e'}] * 2)})
    examples = task.examples('dev')
    found = task.decode(examples, {}, vectors((up, right, left), (up, left, up)))
    assert list(found.answers.values()) == [2, 2] and task.metric == 'accuracy'


def test_equal_texts_share_no_batch():
    """Whatever the length of rows; every example comes, and any step can be the first."""
    rng = np.random.default_rng(0)
    numbers = np.stack([rng.integers(0, 40, 100), 40 + rng.integers(0, 60, 100)], 1)
    mask = (np.arange(32)[None] < rng.integers(3, 33, 100)[:, None]).astype(np.int32)
    features = {'row': np.arange(100), 'input_mask': mask[:, None].repeat(2, 1)}
    keys = ['row', 'input_mask']
    for batches in (
        lambda start: iterate_batches(features, keys, 8, 3, start, numbers),
        lambda start: iterate_bucketed_batches(features, keys, 8, 3, 2, start, numbers),
    ):
        rows = [batch['row'] for batch in itertools.islice(batches(0), 60)]
        assert all(len(np.unique(numbers[row])) == 16 for row in rows)
        times = np.bincount(np.concatenate(rows), minlength=100)
        assert times.min() > 0 and times.max() <= 9
        assert np.array_equal(next(batches(37))['row'], rows[37])
    plain = next(iterate_batches(features, keys, 100, 3))['row']
    assert len(np.unique(numbers[plain])) < 200  # there are some

    some = np.stack([np.arange(100) % 5, np.arange(100)], 1)
    for few, message in (
        (some, '5 examples .*: lower it'),
        (some * 0, '1 .*: add examples of oth'),
    ):
        with refused(f'batch_size=8: texts .* no more than about {message}'):
            list(itertools.islice(iterate_batches(features, keys, 8, 0, 0, few), 1))


ROW = {'q': 'a', 'd': 'b', 'no': ['c'], 'a': 'a', 'b': 'b', 's': 2}


@pytest.mark.parametrize(
    'columns, records, entries, message',
    [
        (SCORED, [ROW | {'s': 6}], RANGE, r'dev.jsonl:1: the score 6 is not within .* \[1, 5\]'),
        (SCORED, [ROW], {}, '"score_range" must be the least and the greatest score'),
        (PAIRS, [ROW], RANGE, '"score_range" is for scored pairs'),
        (TRIPLETS, [ROW, ROW | {'no': ['c', 'd']}], {}, 'jsonl:2: 2 negatives, .* first .* has 1'),
        (TAUGHT, [ROW | {'t': [1]}], {}, 'jsonl:1: 1 scores of a teacher for 2 documents'),
        (TAUGHT, [ROW | {'t': [1, float('nan')]}], {}, "jsonl:1: 'nan' is not finite"),
        (TAUGHT, [ROW], {}, 'jsonl:1: .*t'),
        (PAIRS | {'scores': 's'}, [ROW], {}, '"columns" must be .* and perhaps scores'),
        (PAIRS | {'text_a': 'a'}, [ROW], {}, '"columns" must be anchor and positive, these'),
        ({'text': 'a'}, [ROW], {}, 'plain texts cannot be scored: give files.dev columns of'),
    ],
)
def test_what_cannot_be(task_of, columns, records, entries, message):
    with refused(message):
        task_of({'dev': (columns, records)}, **entries).examples('dev')


def test_rows_whose_text_is_common_take_turns_over_the_epochs():
    """One of 1,000 alike fits in a batch: each comes once before any comes twice."""
    alike = np.where(np.arange(5000) < 1000, 5000, 5001 + np.arange(5000))
    numbers = np.stack([np.arange(5000), alike], 1)
    features = {'row': np.arange(5000)}

    def times(steps, start=0):
        batches = iterate_batches(features, ['row'], 32, 0, start, numbers)
        rows = [batch['row'] for batch in itertools.islice(batches, steps)]
        return np.bincount(np.concatenate(rows), minlength=5000)

    seen = times(3 * 5000 // 32)
    assert (seen[:1000].sum(), seen[:1000].max(), seen[1000:].min()) == (468, 1, 3)
    assert np.array_equal(times(300) + times(168, 300), times(468))
    assert sorted(np.unique(times(1100)[:1000])) == [1, 2]
    assert count_left_over(numbers, 32, 0) == 843
    assert count_left_over(np.arange(99)[:, None], 32, 0) == 0


def test_rows_apart_without_equal_texts_come_as_in_any_shuffle():
    for count, size in ((100, 8), (9, 8), (101, 60), (64, 64)):
        features = {'row': np.arange(count)}
        plain, apart = (
            [
                b['row']
                for b in itertools.islice(iterate_batches(features, ['row'], size, 3, 0, d), 1)
            ]
            for d in (None, np.arange(2 * count).reshape(count, 2))
        )
        assert np.array_equal(plain, apart)
