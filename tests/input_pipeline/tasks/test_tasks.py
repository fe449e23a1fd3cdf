"""Text tasks: files, features, scores and batches, against hand-written oracles.

Also on the real GLUE files.
"""

from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks.base import Predictions
from bert_jax.input_pipeline.tasks.features import count_cut, say_cut, truncate_lengths
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.input_pipeline.tasks.task_metrics import LABEL_METRICS, NUMBER_METRICS
from tests.helpers.refusals import refused
from tests.helpers.tokenizer_folders import wordpiece

# Letters and a few words.
TOKENIZER = wordpiece([*'abcdefghijklmnopqrstuvwxyz', 'good', 'bad', 'film', *'",.'])


def task_file(tmp_path, name='mine.json', **changes):
    """A JSON task file for train.tsv and dev.tsv beside it; an entry set to None is left out."""
    settings = {
        'kind': 'classification',
        'files': {'train': 'train.tsv', 'dev': 'dev.tsv'},
        'columns': {'text': 'text', 'label': 'label'},
        'labels': ['neg', 'pos'],
        'metrics': ['accuracy', 'f1'],
    } | changes
    (tmp_path / name).write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return str(tmp_path / name)


def write(tmp_path, text, name='train.tsv'):
    (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    'name, text, entries',
    [
        (
            'all.jsonl',
            '{"text": "a", "label": "pos", "of": {"no": 1}}\n'
            '{"text": "b", "label": "neg", "of": {"no": 2}}\n'
            '{"text": "c", "label": "pos", "of": {"no": 2}}\n',
            {'only': {'of.no': 2}},
        ),
        (
            'bare.csv',
            'en,a,pos\nde,b,neg\nde,c,pos\n',
            {'header': False, 'columns': {'text': 1, 'label': -1}, 'only': {'0': 'de'}},
        ),
    ],
)
def test_only_some_rows_of_a_file_are_read(tmp_path, name, text, entries):
    write(tmp_path, text, name)
    shared = load_task(task_file(tmp_path, files={'train': name}, **entries))
    own = load_task(task_file(tmp_path, files={'train': {'file': name, **entries}}))
    for task in (shared, own):
        read = [(e.id, e.text, task.labels[e.label]) for e in task.examples('train')]
        assert read == [('0', 'b', 'neg'), ('1', 'c', 'pos')]


@pytest.mark.parametrize(
    ('name', 'split', 'message'),
    [
        ('mrcp', 'train', r'mrcp: unknown; use one of cola.*\(did you mean mrpc\?\)'),
        ('mrpc', 'train', 'no such file'),
        ('mrpc', 'validation', "no split 'validation': it has train, dev, test"),
        ('mine.json', 'train', r"train.tsv:3: id '7' again, it was at .*train.tsv:2"),
    ],
)
def test_other_mistakes(tmp_path, name, split, message):
    write(tmp_path, 'id\ttext\tlabel\n7\ta\tpos\n7\tb\tneg\n', 'train.tsv')
    own = task_file(tmp_path, columns={'id': 'id', 'text': 'text', 'label': 'label'})
    (tmp_path / 'glue').mkdir()
    with refused(message):
        task = load_task(own) if name == 'mine.json' else load_task(name, str(tmp_path / 'glue'))
        task.examples(split)


def test_a_task_of_glue_needs_a_folder():
    with refused('needs --data_dir'):
        load_task('mrpc')


def test_mnli_reads_both_layouts(tmp_path):
    """The training file has one label column, the dev files six.

    The gold label is the last of either.
    """
    rows = {
        'train.tsv': [*'01234567', 'A', 'B', 'neutral', 'entailment'],
        'dev_mismatched.tsv': ['i9', *'1234567', 'A', 'B', *'lllll', 'contradiction'],
    }
    for name, row in rows.items():
        write(tmp_path, '\t'.join(['h'] * len(row)) + '\n' + '\t'.join(row) + '\n', name)
    task = load_task('mnli', str(tmp_path))
    (train,), (dev,) = task.examples('train'), task.examples('dev_mismatched')
    assert (train.text, train.text_b, task.labels[train.label]) == ('A', 'B', 'entailment')
    assert (dev.id, task.labels[dev.label]) == ('i9', 'contradiction')


def test_features_by_hand(tmp_path):
    rows = 'good film\tbad\tpos\na b c d e f\tg h i j\tneg\n\tz\tneg\n'
    write(tmp_path, f'text\tother\tlabel\n{rows}')
    columns = {'text': 'text', 'text_b': 'other', 'label': 'label'}
    task = load_task(task_file(tmp_path, kind='pair', columns=columns))
    features = task.features(task.examples('train'), TOKENIZER, 10)
    words = lambda row: ' '.join(TOKENIZER.tokens(features['input_ids'][row]))
    assert words(0) == '[CLS] good film [SEP] bad [SEP] [PAD] [PAD] [PAD] [PAD]'
    assert words(1) == '[CLS] a b c d [SEP] g h i [SEP]'
    assert words(2).startswith('[CLS] [SEP] z [SEP] [PAD]')
    assert features['input_mask'].tolist() == [[1] * 6 + [0] * 4, [1] * 10, [1] * 4 + [0] * 6]
    assert features['segment_ids'].tolist()[:2] == [[0] * 4 + [1] * 2 + [0] * 4, [0] * 6 + [1] * 4]
    assert features['labels'].tolist() == [1, 0, 0]
    assert {value.dtype for value in features.values()} == {np.dtype(np.int32)}


def test_what_does_not_fit_is_counted(tmp_path, caplog):
    """Of 4 examples 2 are cut, and lose 3 + 2 of 21 pieces."""
    texts = ['a b c', 'a b c d e f g h', 'a b c d e f g', 'a b c']
    write(tmp_path, 'text\tlabel\n' + ''.join(f'{text}\tneg\n' for text in texts))
    task = load_task(task_file(tmp_path))
    say_cut('mine train', count_cut(task.features(task.examples('train'), TOKENIZER, 7)), 'a row')
    assert caplog.messages == [
        'mine train: 2 of 4 texts are longer than a row and cut: 23.81% of all word pieces are lost'
    ]


def test_truncation_is_the_loop_of_the_reference():
    for a in range(8):
        for b in range(8):
            for budget in range(8):
                kept = [a, b]
                while sum(kept) > budget:
                    kept[0 if kept[0] > kept[1] else 1] -= 1
                assert truncate_lengths(a, b, budget) == tuple(kept)


def test_decode_score_and_file_round_trip(tmp_path):
    labels = ['pos', 'neg', 'pos', 'pos', 'neg', 'neg']
    write(tmp_path, 'text\tlabel\n' + ''.join(f'a\t{label}\n' for label in labels))
    task = load_task(task_file(tmp_path, metrics=['f1', 'accuracy', 'matthews', 'macro_f1']))
    examples = task.examples('train')
    logits = np.array([[0, 1], [1, 0], [0, 2], [3, 1], [0, 1], [1, 0]], np.float32)
    predictions = task.decode(examples, {}, {'logits': logits})
    # true: P N P P N N, said: P N P N P N -> 2 true, 1 false positive, 1 false negative, 2 true
    # negative
    expected = {'f1': 2 / 3, 'accuracy': 4 / 6, 'matthews': (2 * 2 - 1 * 1) / 9, 'macro_f1': 2 / 3}
    assert task.score(examples, predictions) == pytest.approx(expected) and task.metric == 'f1'
    task.write_predictions(str(tmp_path / 'out'), examples, predictions)
    lines = (tmp_path / 'out/predictions.tsv').read_text().splitlines()
    assert lines[:3] == ['index\tprediction', '0\tpos', '1\tneg']
    assert task.read_predictions(str(tmp_path / 'out/predictions.tsv'), examples) == predictions
    write(tmp_path, 'index\tprediction\n0\tpos\n', 'few.tsv')
    with refused("no prediction for 5 of 6 examples, the first is '1'"):
        task.score(examples, task.read_predictions(str(tmp_path / 'few.tsv'), examples))


def test_regression(tmp_path):
    write(tmp_path, 'text\tlabel\n' + ''.join(f'a\t{x}\n' for x in (1.0, 2.5, 4.0, 0.0)))
    task = load_task(task_file(tmp_path, kind='regression', labels=None, metrics=None))
    examples = task.examples('train')
    features = task.features(examples, TOKENIZER, 8)
    assert task.num_outputs == 1 and features['labels'].dtype == np.float32
    predicted = np.array([0.5, 3.0, 2.0, 1.0])
    scores = task.score(examples, task.decode(examples, features, {'logits': predicted[:, None]}))
    ranks = np.array([1.0, 2, 3, 0]), np.array([0.0, 3, 2, 1])
    pearson = np.corrcoef(features['labels'], predicted)[0, 1]
    assert scores == pytest.approx({'pearson': pearson, 'spearman': np.corrcoef(*ranks)[0, 1]})
    for label, said in (
        ('lots', "'lots' is not a number"),
        ('1e39', "'1e39' is not finite in 32 bits"),
    ):
        write(tmp_path, f'text\tlabel\na\t{label}\n')
        with refused(said):
            task.examples('train')


def test_undefined_scores_are_zero_without_a_warning():
    truth, same = np.array([0, 1, 1, 0]), np.zeros(4, np.int64)
    metrics = [LABEL_METRICS['f1'], LABEL_METRICS['matthews'], *NUMBER_METRICS.values()]
    assert [metric(truth, same) for metric in metrics] == [0.0] * 4
    for one in (same + 1, same[:1]):  # of one class throughout
        assert LABEL_METRICS['matthews'](one, one) == 0.0


def documented(name: str) -> str:
    """The task file of that name in docs/task_files.md or docs/your_task.md."""
    docs = pathlib.Path(__file__).parents[3] / 'docs'
    text = ''.join((docs / page).read_text() for page in ('task_files.md', 'your_task.md'))
    return re.search(rf'`{name}`[^\n]*\n```json\n(.*?)```', text, re.DOTALL)[1]


def test_documented_task_files_read_their_layouts(tmp_path):
    """A few rows as each data set has them; quotes and tabs of a JSON text stay in it."""
    span = {'id': 'q', 'question': '수도는?', 'answers': [{'text': '서울', 'answer_start': 0}]}
    squad = {
        'version': 'KorQuAD_v1.0_dev',
        'data': [{'title': 't', 'paragraphs': [{'context': '서울은 수도다', 'qas': [span]}]}],
    }
    files = {
        'nsmc': ('ratings_test.txt', 'id\tdocument\tlabel\n9\t"재밌다\t1\n8\t\t0\n'),
        'korsts': (
            'sts-dev.tsv',
            'genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\nm\tM\t2012\t1\t3.8\t"가"\t나\n',
        ),
        'xnli': (
            'xnli.dev.en.tsv',
            'genre\tsentence1\tsentence2\tgold_label\nf\tA.\tB.\tneutral\n',
        ),
        'korquad': ('KorQuAD_v1.0_dev.json', json.dumps(squad)),
        'names': ('dev.tsv', '## klue-ner-0\t<서울:LC> a\n서\tB-LC\n울\tI-LC\n \tO\n'),
        'exam': (
            'dev.jsonl',
            '{"question": "a\\tb", "options": ["c", "d", "e", "f"], "answer": "B"}\n',
        ),
    }
    found = {}
    for name, (file, text) in files.items():
        write(tmp_path, text, file)
        write(tmp_path, documented(f'{name}.json'), f'{name}.json')
        found[name] = load_task(str(tmp_path / f'{name}.json')).examples('dev')
    assert [(e.id, e.text, e.label) for e in found['nsmc']] == [('9', '"재밌다', 1), ('8', '', 0)]
    assert [(e.text, e.text_b, e.label) for e in found['korsts'] + found['xnli']] == [
        ('"가"', '나', 3.8),
        ('A.', 'B.', 2),
    ]
    task = load_task(str(tmp_path / 'korquad.json'))
    report = task.score(found['korquad'], Predictions({'q': '서울은'}))
    assert report == pytest.approx({'exact_match': 0.0, 'f1': 80.0})  # 2 of 3 and of 2 characters
    assert [(e.words, e.label) for e in found['names']] == [(('서', '울', ' '), (3, 4, 0))]
    assert [(e.context, e.label) for e in found['exam']] == [('a\tb', 1)]


@pytest.mark.slow
def test_tensorflow_datasets(tmp_path):
    """A data set with class labels, lists and nested answers, as the library stores it on disk."""
    tf = pytest.importorskip('tensorflow')
    tfds = pytest.importorskip('tensorflow_datasets')

    features = tfds.features.FeaturesDict({
        'text': tfds.features.Text(),
        'label': tfds.features.ClassLabel(names=['bad', 'good']),
        'answers': tfds.features.Sequence({'text': tfds.features.Text(), 'start': tf.int32}),
    })  # fmt: skip
    answers = {'text': [['é']] * 4, 'start': [[0]] * 4}
    rows = {'text': [f'é {i}' for i in range(4)], 'label': [0, 1, 0, 1], 'answers': answers}
    tfds.dataset_builders.store_as_tfds_dataset(
        'mini',
        version='1.0.0',
        features=features,
        split_datasets={'train': tf.data.Dataset.from_tensor_slices(rows)},
        data_dir=str(tmp_path / 'store'),
    )
    source = {'tfds': 'mini', 'split': 'train', 'data_dir': 'store'}
    task = load_task(task_file(tmp_path, files={'train': source}, labels=['bad', 'good']))
    assert sorted((e.text, e.label) for e in task.examples('train')) == [
        (f'é {i}', i % 2) for i in range(4)
    ]
    # The named tasks ask for columns that their data sets have (which cannot be downloaded here).
    for name in ('cola', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'ax', 'squad_v1', 'squad_v2'):
        for split, (table,) in load_task(name, 'tfds:').files.items():
            known = tfds.builder(table.tfds, data_dir=str(tmp_path / 'none')).info.features
            assert all(column.split('.')[0] in known for column in table.columns.values()), (
                name,
                split,
            )
    for wrong in ({'tfds': 'no_such_set_of_data'}, {'split': 'testing'}):
        with refused('tensorflow-datasets .*cannot be read'):
            load_task(task_file(tmp_path, files={'train': source | wrong})).examples('train')
