"""Multiple choice: the official layouts, the user's own, rows by hand and predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks.load_task import load_task
from tests.helpers.refusals import refused
from tests.helpers.tokenizer_folders import wordpiece

SWAG = (
    ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n'
)


def test_swag_rows_by_hand(tmp_path):
    tokenizer = wordpiece('abcdefghijklmnop')
    (tmp_path / 'train.csv').write_text(SWAG + '7,v,1,A b. C,a b,c,gold,d e,"f, g",h,,2\n')
    (tmp_path / 'test.csv').write_text(SWAG.replace(',label', '') + '0,v,1,A,a,,gold,d,e,f,g\n')
    task = load_task('swag', str(tmp_path))
    examples = task.examples('train')
    assert [(e.id, e.context, e.start, e.choices, e.label) for e in examples] == [
        ('7', 'a b', 'c', ('d e', 'f, g', 'h', ''), 2)
    ]
    features = task.features(examples, tokenizer, 9)
    rows = [' '.join(tokenizer.tokens(ids)) for ids in features['input_ids'][0]]
    assert rows[:2] == ['[CLS] a b [SEP] c d e [SEP] [PAD]', '[CLS] a b [SEP] c f [UNK] g [SEP]']
    assert rows[3].startswith('[CLS] a b [SEP] c [SEP]')
    assert features['segment_ids'][0, 2].tolist() == [0] * 4 + [1] * 3 + [0] * 2
    assert features['labels'].tolist() == [2] and task.num_outputs == 1 and task.head == 'choice'
    unlabelled = task.examples('test')
    assert unlabelled[0].label is None
    with refused('no labels'):
        task.score(unlabelled, task.decode(unlabelled, {}, {'logits': np.zeros((1, 4))}))
    predictions = task.decode(examples, features, {'logits': np.array([[0, 1, 2, 1.5]])})
    assert predictions.answers == {'7': '2'}
    assert task.score(examples, predictions) == {'accuracy': 1.0}
    task.write_predictions(str(tmp_path / 'out'), examples, predictions)
    assert task.read_predictions(str(tmp_path / 'out/predictions.tsv'), examples) == predictions


def test_examples_of_one_file_may_have_any_number_of_choices(tmp_path):
    rows = ['q,a,b,,,1', 'q,a,b,c,d,3', 'q,a,b,c,,0']
    (tmp_path / 'train.csv').write_text('\n'.join(['text,w,x,y,z,label', *rows]))
    columns = {'text': 'text', 'choices': ['w', 'x', 'y', 'z'], 'label': 'label'}
    description = {'kind': 'choice', 'files': {'train': 'train.csv'}, 'columns': columns}
    (tmp_path / 'mine.json').write_text(json.dumps(description))
    task = load_task(str(tmp_path / 'mine.json'))
    examples = task.examples('train')
    assert [len(example.choices) for example in examples] == [2, 4, 3]
    features = task.features(examples, wordpiece('abcdq'), 12)
    assert features['input_ids'].shape == (3, 4, 12)
    assert features['input_mask'].sum(axis=-1).tolist() == [[5, 5, 1, 1], [5] * 4, [5, 5, 5, 1]]
    assert task.constant_loss(features) == pytest.approx(np.log([2, 4, 3]).mean())

    (tmp_path / 'train.csv').write_text('text,w,x,y,z,label\nq,a,b,,,2')
    with refused("train.csv:2: the label '2' is beyond its 2 choices"):
        task.examples('train')
