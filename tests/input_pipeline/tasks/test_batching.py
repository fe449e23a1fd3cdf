"""Length-aware batches: lengths, rows, the order of training, features on disk, chance."""

from __future__ import annotations

import dataclasses
import itertools
import types

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks.batching import (
    group_by_length,
    iterate_batches,
    iterate_bucketed_batches,
)
from bert_jax.input_pipeline.tasks.classification import TextExample, make_text_task
from bert_jax.input_pipeline.tasks.features import load_features
from bert_jax.input_pipeline.tasks.squad import SpanTask
from bert_jax.input_pipeline.tasks.tagging import TaggingTask


def features_with(lengths, S=160):
    mask = (np.arange(S)[None] < np.asarray(lengths)[:, None]).astype(np.int32)
    return {
        'input_ids': mask * np.arange(1, len(lengths) + 1)[:, None],
        'input_mask': mask,
        'labels': np.arange(len(lengths)),
    }


def test_lengths_pad_as_little_as_so_many_can():
    """Against every choice of lengths."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        lengths = rng.integers(1, 161, 100)
        rounded = -(-lengths // 8) * 8
        for buckets in (1, 3):
            groups = group_by_length(features_with(lengths), buckets)
            assert sorted(np.concatenate([rows for _, rows in groups])) == list(range(100))
            assert len(groups) <= buckets
            assert all((lengths[rows] <= length).all() for length, rows in groups)
            cost = lambda tops: sum(min(top for top in tops if top >= n) for n in rounded)
            tops = [c for k in range(buckets) for c in itertools.combinations(range(8, 160, 8), k)]
            assert sum(length * len(rows) for length, rows in groups) == min(
                cost((*c, 160)) for c in tops if len(c) < buckets
            )


def test_bucketed_training_sees_every_row_and_resumes_anywhere():
    lengths = [20] * 40 + [60] * 24 + [150] * 16
    features = features_with(lengths)
    take = lambda start, count: list(
        itertools.islice(iterate_bucketed_batches(features, list(features), 8, 3, 3, start), count)
    )
    batches = take(0, 100)
    assert {batch['input_ids'].shape for batch in batches} == {(8, 24), (8, 64), (8, 152)}
    for batch in batches:  # whole rows, and their own labels
        assert (batch['input_mask'].sum(1) == np.array(lengths)[batch['labels']]).all()
        assert (batch['input_ids'].max(1) == batch['labels'] + 1).all() and batch[
            'example_weights'
        ].sum() == 8
    seen = np.bincount(np.concatenate([batch['labels'] for batch in batches]), minlength=80)
    # 10 epochs of each row, whatever its length.
    assert seen.sum() == 800 and (abs(seen - 10) <= 1).all()
    for later, batch in zip(take(37, 5), batches[37:42], strict=True):
        assert all(np.array_equal(later[name], batch[name]) for name in batch)
    other = next(iterate_bucketed_batches(features, list(features), 8, 4, 3))
    assert other['labels'].tolist() != batches[0]['labels'].tolist()


def test_slow_features_are_made_once(tmp_path, monkeypatch, caplog):
    task, tokenizer, made = SpanTask('x', {}), types.SimpleNamespace(fingerprint='x'), []

    def features(self, examples, tokenizer, length):
        made.append(examples)
        return features_with(examples) | {'flags': np.ones((2, 3), bool)}

    monkeypatch.setattr(SpanTask, 'features', features)
    get = lambda task=task, examples=(5, 160, 33): load_features(
        task, examples, tokenizer, 160, str(tmp_path / 'cache')
    )
    first, again = get(), get()
    assert len(made) == 1
    assert {name: a.tolist() for name, a in first.items()} == {
        name: a.tolist() for name, a in again.items()
    }
    get(dataclasses.replace(task, doc_stride=64)), get(examples=(5, 160, 34))
    assert len(made) == 3
    for path in (tmp_path / 'cache').iterdir():
        path.write_bytes(path.read_bytes()[:200])
    assert get()['labels'].tolist() == [0, 1, 2] and len(made) == 4
    assert 'is damaged' in caplog.text


@pytest.mark.parametrize(
    'task, features, expected',
    [
        (
            make_text_task('x', 'classification', ('no', 'yes'), ('accuracy',), {}),
            {'labels': np.array([0, 0, 0, 1])},
            -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)),
        ),
        (
            make_text_task('x', 'regression', (), ('pearson',), {}),
            {'labels': np.array([1.0, 3.0])},
            1.0,
        ),
        (
            SpanTask('x', {}),
            {'start_positions': np.array([0, 3]), 'end_positions': np.array([0, 0])},
            np.log(2) / 2,
        ),
        (
            TaggingTask('x', ('O', 'B-X', 'I-X'), ('accuracy',), {}),
            {'label_ids': np.array([[1, 2, 0]]), 'label_weights': np.array([[1.0, 1.0, 0.0]])},
            np.log(2),
        ),
    ],
)
def test_chance(task, features, expected):
    assert task.constant_loss(features) == pytest.approx(expected)


@pytest.mark.parametrize(
    'kind, labels, truth, expected',
    [
        # Always 'b', which two of three are: precision 2/3, recall 1, so F1 is 0.8.
        ('classification', ('a', 'b'), [1, 0, 1], {'accuracy': 2 / 3, 'f1': 0.8}),
        ('regression', (), [1.0, 2.0, 6.0], {'pearson': 0.0}),
    ],
)
def test_a_constant_answer_scores_as_its_share(kind, labels, truth, expected):
    task = make_text_task('x', kind, labels, tuple(expected), {})
    examples = [TextExample(str(n), 'text', None, label) for n, label in enumerate(truth)]
    assert task.constant_scores(examples) == pytest.approx(expected)


def test_every_epoch_has_all_rows_in_an_order_of_its_own():
    """Batches that the rows do not fill go on with the next epoch's."""
    batches = iterate_batches({'labels': np.arange(50)}, ['labels'], 20, seed=3)
    rows = np.concatenate([next(batches)['labels'] for _ in range(5)]).reshape(2, 50)
    assert [sorted(epoch) for epoch in rows.tolist()] == [list(range(50))] * 2
    # By chance one row is at the same place in both.
    assert (rows[0] == rows[1]).sum() < 8 and (rows[0] == np.arange(50)).sum() < 8
