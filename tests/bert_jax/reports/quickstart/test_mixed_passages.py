"""The task of whole and mixed passages: nothing gives the label away, both sides are apart."""

from __future__ import annotations

import collections
import random

import pytest

from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.reports.quickstart.mixed_passages import mix_passages, write_task
from bert_jax.reports.quickstart.text_split import cut_text, split_words
from tests.helpers.files import read_jsonl
from tests.helpers.refusals import refused


@pytest.fixture
def text(tmp_path):
    """A text of 100 documents to learn from and 20 held out; no word is on both sides."""
    source = random.Random(3)
    for name, letters, documents in (('train', 'bcdfgh', 100), ('held_out', 'klmnpr', 20)):
        words = [a + b + c for a in letters for b in 'aeiou' for c in letters]
        lines = [' '.join(source.sample(words, 60)) + '\n\n' for _ in range(documents)]
        (tmp_path / f'{name}.txt').write_text(''.join(lines))
    return tmp_path


def test_a_task_is_cut_from_both_sides(text):
    write_task(text)
    task = load_task(f'{text}/task.json')
    assert (task.kind, list(task.labels)) == ('classification', ['whole', 'mixed'])
    for name in ('train', 'held_out'):
        rows = read_jsonl(text / f'{name}.jsonl')
        labels = [row['label'] for row in rows]
        assert labels[:6] == ['whole', 'whole', 'mixed', 'mixed', 'whole', 'whole']
        counts = collections.Counter(labels)
        assert counts['whole'] == counts['mixed'] >= 16
        read = (text / f'{name}.txt').read_text()
        for row in rows:
            assert 57 <= len(row['text']) <= 135
            assert set(row['text'].split()) <= set(read.split())
            assert (row['text'] in read) == (row['label'] == 'whole')


def test_mixed_passages_have_exchanged_every_second_word():
    passages = [' '.join(f'{name}{i}' for i in range(9)) for name in 'abcd']
    rows = mix_passages(passages, 10)
    assert [label for _, label in rows] == ['whole', 'whole', 'mixed', 'mixed']
    assert {row for row, _ in rows[:2]} <= set(passages)
    first, second = (row.split() for row, _ in rows[2:])
    for i in (1, 3, 5, 7):
        first[i], second[i] = second[i], first[i]
    assert {' '.join(first), ' '.join(second)} == set(passages) - {row for row, _ in rows[:2]}
    # Of too few words nothing could be exchanged; what makes no four is left out.
    assert mix_passages(['a b c', 'd e f', *passages[:2]], 10) == []


def test_too_few_passages(text):
    (text / 'held_out.txt').write_text('one two three four five six seven\n')
    with refused('held_out.txt gives 0 passages'):
        write_task(text)


def test_text_is_cut_between_words_where_it_has_them():
    assert cut_text('ab cd ef gh', 6) == ['ab cd', 'ef gh']
    assert cut_text('ab cd', 45) == ['ab cd'] and cut_text('', 45) == []
    chinese = '一二三四五六七八九十' * 5
    parts = cut_text(chinese, 45)
    assert ''.join(parts) == chinese and {len(part) for part in parts} == {12, 14}
    assert split_words('ab cde  fghijklmnopqrstu v', 12) == [
        'ab ', 'cde  ', 'fghijklmnopq', 'rstu ', 'v',
    ]  # fmt: skip
