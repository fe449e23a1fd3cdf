"""Tasks cut from text: labels are not given away, test rows are from held-out text alone."""

from __future__ import annotations

import collections
import json
import random

import pytest

from configs.errors import UserError
from input_pipeline.tasks import load_task
from launch.demo import tasks
from launch.demo.text_split import Document


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('Use np.array or jax.numpy.sum with a jaxpr.', 'Use array or sum with a .'),
        ('A KerasTensor, TFRecord; plt.plot of is_tf', 'A , ; plot of'),
        ('In TensorFlow and NumPy-like scikit-learn code', 'In and like learn code'),
        ('see tf.keras.layers.Dense.', 'see layers.Dense.'),
        (
            'The platform and the input of an FFT are x-axis values.',
            'The platform and the input of an FFT are x-axis values.',
        ),
    ],
)
def test_names_are_removed(text, expected):
    assert (
        tasks.NameRemover(['jax', 'numpy', 'tensorflow', 'keras', 'matplotlib', 'sklearn'])(text)
        == expected
    )


@pytest.fixture
def docstrings():
    """Three packages of 60 documents and one of 8, one in four held out.

    Their sentences name their own package in every way.
    """
    found = []
    for label in ('numpy', 'jax', 'keras', 'tensorflow'):
        for i in range(60 if label != 'tensorflow' else 8):
            sentences = (
                f'Number {i} of {label} does things to np.array and tf.Tensor.',
                f'Call {label.capitalize()}Thing {i} twice.',
                f'First import {label} as it is.',
            )
            found.append(Document(label, f'{label}/m{i}.py', 'f', sentences, held_out=i % 4 == 0))
    return found


def test_library_task(tmp_path, docstrings):
    task_file = tasks.library_task(docstrings, tmp_path, min_train=20, min_held_out=5)
    task = json.loads(task_file.read_text())
    assert task['kind'] == 'classification' and task['labels'] == ['jax', 'keras', 'numpy']
    outside = {f'{d.group}:{d.name}' for d in docstrings if d.held_out}
    for split in ('train', 'dev'):
        rows = [
            json.loads(line) for line in (tmp_path / task['files'][split]).read_text().splitlines()
        ]
        assert len(set(collections.Counter(row['label'] for row in rows).values())) == 1
        assert {row['source'] in outside for row in rows} == {split == 'dev'}
        for row in rows:
            assert not any(
                name in row['text'].lower()
                for name in ('numpy', 'jax', 'keras', 'np', 'tf', 'import')
            ), row
            assert 'does things to array and Tensor.' in row['text']
        assert len({row['label'] for row in rows[:12]}) > 1  # shuffled, not sorted by label
    with pytest.raises(UserError, match='1 of the installed packages'):
        tasks.library_task([d for d in docstrings if d.label == 'jax'], tmp_path, 20, 5)


def test_task_files_load_as_tasks(tmp_path, docstrings, articles):
    """The JSON files are what launch.finetune reads."""
    task = load_task(str(tasks.library_task(docstrings, tmp_path / 'library', 20, 5)))
    assert (task.kind, len(task.examples('train')), len(task.examples('dev'))) == (
        'classification',
        3 * 45,
        3 * 15,
    )
    task = load_task(str(tasks.pair_task(articles, tmp_path / 'pair')))
    assert task.kind == 'pair' and all(example.text_b for example in task.examples('dev'))


@pytest.fixture
def articles():
    source = random.Random(3)
    words = [f'w{i}' for i in range(500)]

    def passage() -> str:
        return ' '.join(source.choice(words) for _ in range(source.randrange(40, 60)))

    return [
        Document(
            '',
            f'doc{i}',
            '',
            tuple(f'{i}: {passage()}' for _ in range(source.randrange(2, 14))),
            held_out=i % 4 == 0,
        )
        for i in range(200)
    ]


def test_pair_task(tmp_path, articles):
    """Passages begin with their document's number here, by which labels can be checked."""
    task = json.loads(tasks.pair_task(articles, tmp_path).read_text())
    assert task['kind'] == 'pair' and task['columns']['text_b'] == 'text_b'
    for split in ('train', 'dev'):
        rows = [
            json.loads(line) for line in (tmp_path / task['files'][split]).read_text().splitlines()
        ]
        by_label = {
            label: [row for row in rows if row['label'] == label] for label in task['labels']
        }
        assert len(by_label['same']) == len(by_label['different']) > 50
        for row in rows:
            first, second = (int(row[side].split(':')[0]) for side in ('text', 'text_b'))
            assert (first == second) == (row['label'] == 'same')
            assert {first % 4 == 0, second % 4 == 0} == {split == 'dev'}
        # Neither passage alone says anything: both labels have the same first and the same second
        # passages.
        for side in ('text', 'text_b'):
            assert sorted(row[side] for row in by_label['same']) == sorted(
                row[side] for row in by_label['different']
            )
        of_first = {row['text']: len(row['text_b']) for row in by_label['same']}
        differences = sorted(
            abs(of_first[row['text']] - len(row['text_b'])) for row in by_label['different']
        )
        assert differences[len(differences) // 2] <= 8  # characters, of about 170
        assert (
            max(collections.Counter(row['text'].split(':')[0] for row in by_label['same']).values())
            <= tasks.MAX_PAIRS_OF_DOCUMENT
        )


def test_pair_task_needs_documents(tmp_path, articles):
    with pytest.raises(UserError, match='pairs for the'):
        tasks.pair_task(articles[:5], tmp_path)
