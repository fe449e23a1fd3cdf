"""Tagging: column files, rows with and without context, entity scores against conlleval's rules."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks import conll
from bert_jax.input_pipeline.tasks.base import Predictions
from bert_jax.input_pipeline.tasks.load_task import load_task
from tests.helpers.refusals import refused
from tests.helpers.tokenizer_folders import wordpiece

LABELS = ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']


# Words of letters: `ab` is `a ##b`.
LETTERS = 'abcdefghijklmnopqrstuvwxyz'
TOKENIZER = wordpiece([*LETTERS, *(f'##{letter}' for letter in LETTERS)])


def task_file(tmp_path, text, name='train.txt', **changes):
    (tmp_path / name).write_text(text)
    settings = {'kind': 'tagging', 'files': {'train': name}, 'labels': LABELS} | changes
    (tmp_path / 'names.json').write_text(json.dumps(settings))
    return load_task(str(tmp_path / 'names.json'))


def read(task):
    return [
        (e.id, ' '.join(e.words), ' '.join(task.labels[t] for t in e.label or ()), e.document)
        for e in task.examples('train')
    ]


def test_column_files(tmp_path, caplog):
    """Blanks or tabs, -DOCSTART-, a BOM, CRLF, comments, odd words and tags.

    A word is a blank; tags are of IOB1, or BIO with errors.
    """
    caplog.set_level('INFO')
    text = (
        '\ufeff-DOCSTART- -X- O O\n\na NN I-PER\nb NN I-PER\r\nc NN B-PER\n\n\n# note\nd NN'
        ' O\n-DOCSTART- -X- O O\ne\tI-LOC\n \tO\n#\tI-PER\nf  X I-LOC'
    )
    task = task_file(tmp_path, text, comment='# ')
    assert read(task) == [
        ('0', 'a b c', 'B-PER I-PER B-PER', '0:1'),
        ('1', 'd', 'O', '0:1'),
        ('2', 'e   # f', 'B-LOC O B-PER B-LOC', '0:2'),
    ]
    assert '4 tags I-X that begin an entity are read as B-X' in caplog.text


def test_tables_of_sentences(tmp_path):
    columns = {'tokens': 'w', 'tags': 't', 'document': 'd'}
    rows = json.dumps([{'w': ['New York', 'is'], 't': ['B-LOC', 'O'], 'd': 7}])
    for name, text in (('train.json', rows), ('train.csv', 'w,t,d\nx y,B-LOC O,7\n')):
        task = task_file(tmp_path, text, name, columns=columns)
        assert len(task.examples('train')[0].words) == 2
        assert read(task)[0][2:] == ('B-LOC O', '0:7')


KAGGLE = """Sentence #,Word,POS,Tag
Sentence: 1,Paris,NNP,B-LOC
,"a
b",NN,O
Sentence: 2,c,NN,I-PER
,d,NN,I-PER
"""
WORDS = {'sentence': 'Sentence #', 'tokens': 'Word', 'tags': 'Tag'}


def test_tables_with_a_word_a_row(tmp_path):
    """The next sentence begins where the column holds another value; blank is as above."""
    text = KAGGLE.replace('\n,d', '\nnan,d')
    task = task_file(tmp_path, text, 'train.csv', columns=WORDS)
    assert [e.words for e in task.examples('train')] == [('Paris', 'a\nb'), ('c', 'd')]
    assert [tags for _, _, tags, _ in read(task)] == ['B-LOC O', 'B-PER I-PER']
    gold = Predictions({'0': ['B-LOC', 'O'], '1': ['B-PER', 'I-PER']})
    task.write_predictions(str(tmp_path), task.examples('train'), gold)
    assert task.read_predictions(str(tmp_path / 'predictions.txt'), task.examples('train')) == gold


SCHEMES = {
    'BILUO': 'B-PER L-PER O U-LOC B-LOC I-LOC L-LOC U-LOC U-PER',
    'BMEW': 'B-PER E-PER O W-LOC B-LOC M-LOC E-LOC W-LOC W-PER',
}


@pytest.mark.parametrize('scheme', SCHEMES)
def test_schemes_with_ends_and_singles_are_scored_by_entities(tmp_path, scheme, caplog):
    """Five entities, of which one single is missed; labels of the scheme, or of BIO."""
    caplog.set_level('INFO')
    tags = SCHEMES[scheme].split()
    text = ''.join(f'w {tag}\n' for tag in tags)
    missed = text.replace(f'w {tags[3]}\n', 'w O\n', 1)
    (tmp_path / 'gold.txt').write_text(text)
    (tmp_path / 'missed.txt').write_text(missed)
    for labels in (list(dict.fromkeys(tags)), LABELS):
        task = task_file(tmp_path, text, labels=labels)
        examples = task.examples('train')
        assert task.metric == 'entity_f1'
        score = lambda name: task.score(
            examples, task.read_predictions(str(tmp_path / name), examples)
        )
        assert score('gold.txt')['entity_f1'] == score('gold.txt')['accuracy'] == 1.0
        scores = score('missed.txt')
        assert scores['entity_precision'] == 1.0 and scores['entity_recall'] == 0.8
        assert scores['entity_f1'] == pytest.approx(0.8889, abs=5e-5)
        assert scores['accuracy'] == pytest.approx(8 / 9)
    assert [task.labels[i] for i in examples[0].label] == (
        'B-PER I-PER O B-LOC B-LOC I-LOC I-LOC B-LOC B-PER'.split()
    )
    assert f'train: {6 if scheme[1] == "M" else 5} tags of IOBES' in caplog.text


def test_rows_by_hand(tmp_path):
    text = 'ab O\nc B-PER\n\nd O\n\u200b O\nef B-LOC\n\n-DOCSTART- O\n\ng O\n'
    task = task_file(tmp_path, text)
    examples = task.examples('train')
    words = lambda features: [
        ' '.join(TOKENIZER.tokens(ids[mask > 0]))
        for ids, mask in zip(features['input_ids'], features['input_mask'], strict=True)
    ]
    features = task.features(examples, TOKENIZER, 8)
    assert words(features) == ['[CLS] a ##b c [SEP]', '[CLS] d e ##f [SEP]', '[CLS] g [SEP]']
    assert features['label_weights'].tolist()[0] == [0, 1, 0, 1, 0, 0, 0, 0]
    assert features['label_ids'].tolist()[0] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert features['word_index'].tolist()[1] == [-1, 0, 2, -1, -1, -1, -1, -1]
    around = task_file(tmp_path, text, document_context=True)
    features = around.features(examples, TOKENIZER, 8)
    assert words(features) == [*['[CLS] a ##b c d e ##f [SEP]'] * 2, '[CLS] g [SEP]']
    assert features['label_weights'].tolist()[1] == [0, 0, 0, 0, 1, 1, 0, 0]
    outputs = {'logits': np.zeros((3, 8, 5))}
    outputs['logits'][0, 3, 1] = outputs['logits'][1, 5, 3] = outputs['logits'][1, 6, 1] = 1.0
    predictions = around.decode(examples, features, outputs)
    assert predictions.answers == {'0': ['O', 'B-PER'], '1': ['O', 'O', 'B-LOC'], '2': ['O']}
    assert around.score(examples, predictions)['entity_f1'] == 1.0


def test_a_long_sentence_goes_on_in_another_row(tmp_path):
    task = task_file(tmp_path, 'ab O\nc O\ndef O\n' * 4)
    features = task.features(task.examples('train'), TOKENIZER, 6)
    words = features['word_index']
    assert sorted(words[words >= 0]) == list(range(12))
    assert (features['input_mask'].sum(axis=1) <= 6).all()


def test_entity_scores_are_those_of_conlleval():
    """Worked out by hand, by the rules of the shared task's script."""
    truth = ['B-PER I-PER O', 'B-LOC B-LOC I-LOC', 'O I-PER I-LOC', 'B-PER O O']
    # Right are the first and the fourth. Two neighbours are taken for one, an entity begins too
    # early, and one is of nothing.
    wrong = ['I-PER I-PER O', 'B-LOC I-LOC I-LOC', 'O B-LOC I-LOC', 'B-PER O B-PER']
    split = lambda lines: [line.split() for line in lines]
    scores = conll.score_entities(split(truth), split(wrong))
    figures = {'precision': 2 / 5, 'recall': 2 / 6, 'f1': 4 / 11, 'f1_PER': 4 / 6, 'f1_LOC': 0}
    assert scores == pytest.approx({f'entity_{name}': value for name, value in figures.items()})
    assert conll.score_entities([['O']], [['O']])['entity_f1'] == 0.0


def test_predictions_of_anyone(tmp_path):
    task = task_file(tmp_path, 'a B-PER\nb I-PER\n\nc B-LOC\n')
    examples = task.examples('train')
    (tmp_path / 'p.txt').write_text('a I-PER\nb I-PER\n\nc O\n')
    predictions = task.read_predictions(str(tmp_path / 'p.txt'), examples)
    scores = task.score(examples, predictions)
    assert scores.pop('entity_recall') == 0.5 and scores.pop('entity_f1_LOC') == 0
    expected = {'entity_f1': 2 / 3, 'accuracy': 2 / 3, 'entity_precision': 1, 'entity_f1_PER': 1}
    assert scores == pytest.approx(expected)
    assert next(iter(scores)) == task.metric == 'entity_f1'
    task.write_predictions(str(tmp_path / 'out'), examples, predictions)
    written = (tmp_path / 'out/predictions.txt').read_text()
    assert written == 'a B-PER I-PER\nb I-PER I-PER\n\nc B-LOC O\n\n'
    for text, message in {
        'a O\n': '1 sentences where the split has 2',
        'a O\n\nc O\n': '1 words where sentence 0 has 2',
        'a O\nb X\n\nc O\n': "unknown label 'X'",
    }.items():
        (tmp_path / 'p.txt').write_text(text)
        with refused(message):
            task.read_predictions(str(tmp_path / 'p.txt'), examples)


def conllu(*words):
    """A sentence: (number, form, part of speech, tag of the treebank) a line."""
    lines = ['\t'.join([n, form, '_', part, tag, *'_____']) for n, form, part, tag in words]
    return '\n'.join(lines) + '\n\n'


def test_conllu_files_are_read_as_their_syntactic_words(tmp_path):
    text = (
        '# newdoc id = one\n# sent_id = 1\n'
        + conllu(
            ('1-2', 'du', '_', '_'),
            ('1', 'de', 'ADP', 'P'),
            ('2', 'le', 'DET', 'D'),
            ('2.1', 'dropped', 'VERB', 'V'),
            ('3', '#', 'SYM', 'S'),
        )
        + '# newdoc id = two\n'
        + conllu(('1', 'ab cd', 'NOUN', 'N')).rstrip('\n')
    )
    task = task_file(tmp_path, text, 'train.conllu', labels=[])
    assert read(task) == [('0', 'de le #', 'ADP DET SYM', '0:1'), ('1', 'ab cd', 'NOUN', '0:2')]
    # The 17 of universaldependencies.org, by accuracy of words.
    assert len(task.labels) == 17 and task.metric == 'accuracy' and 'X' in task.labels

    own = task_file(tmp_path, text, 'train.conllu', labels=[*'PDSN'], columns={'tags': 4})
    assert [tags for _, _, tags, _ in read(own)] == ['P D S', 'N']


WORDS_IN_CSV = {'format': 'csv', 'header': False, 'columns': {'tokens': 0, 'tags': 1}}
CONLLU = {'name': 'train.conllu', 'labels': []}


@pytest.mark.parametrize(
    'text, changes, message',
    [
        ('a O\n\nb O\nc 3\n', {}, 'train.txt:4: unknown label .3.*given names by "labels": {"0"'),
        ('a O\n', {'columns': {'tokens': 'w'}}, 'a table with names is "format": "tsv"'),
        ('a O\nb\n', {}, 'train.txt:2: 1 columns; expected a word in column 0 and its tag in'),
        ('a O\n', {'labels': ['O', 'PER'], 'metrics': ['entity_f1']}, 'needs labels O, B'),
        ('x y,O\n', WORDS_IN_CSV, '2 tokens but 1 tags'),
        ('1\ta\tb\n', CONLLU, 'train.conllu:1: 3 columns'),
        (conllu(('1', 'a', '_', 'N')), CONLLU, 'conllu:1: no word of the sentence has a tag'),
        (conllu(('1', 'a', 'X', 'N')), CONLLU | {'columns': {'tags': 5}}, '{"tags": 3}'),
    ],
)
def test_bad_input_is_refused(tmp_path, text, changes, message):
    with refused(message):
        task_file(tmp_path, text, **changes).examples('train')
