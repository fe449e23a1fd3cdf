"""What is held out shares no sentence with what is learned from; a group lies on one side."""

from __future__ import annotations

import json
import random

import pytest

from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.reports.quickstart.text_split import (
    Document,
    iterate_own_text,
    list_files,
    write_split,
)
from tests.helpers.refusals import refused


@pytest.fixture
def documents():
    word = random.Random(0).randrange
    sentence = lambda i: f'm{i // 3} ' + ' '.join(f'w{word(999)}' for _ in range(6))
    return [Document(f'module{i // 3}', [sentence(i) for _ in range(4)]) for i in range(120)]


def test_a_text_is_split_by_groups_and_copies_are_dropped(tmp_path, documents):
    first = documents[0].sentences
    copies = [Document(f'copy{i}', [s.upper() for s in first]) for i in range(20)]
    partial = Document('partial', [first[0], 'One is new.', 'So is another.'])
    write_split([*documents, *copies, partial], tmp_path)
    sides = [(tmp_path / f'{name}.txt').read_text() for name in ('train', 'held_out')]
    read = [text.strip('\n').split('\n\n') for text in sides]
    assert sum(map(len, read)) == 121
    expected = {'\n'.join(document.sentences) for document in documents}
    assert {*read[0], *read[1]} == {*expected, 'One is new.\nSo is another.'}
    # The first word of a sentence names its group: 0.22 of 41 groups are held out.
    groups = [{line.split()[0] for line in text.splitlines() if line} for text in sides]
    assert not groups[0] & groups[1] and 2 <= len(groups[1]) <= 18


def test_long_sentences_are_cut_to_lines(tmp_path, documents):
    long = Document('module1', ['Twelve words of a sentence ' * 4, 'And a short one.'])
    write_split([*documents, long], tmp_path)
    texts = [(tmp_path / f'{name}.txt').read_text() for name in ('train', 'held_out')]
    lines = [line for text in texts for line in text.splitlines() if line]
    assert max(map(len, lines)) <= 55 and 'And a short one.' in lines


def test_too_few_documents(tmp_path, documents):
    with refused('0 documents to learn from and 0 to hold out'):
        write_split([], tmp_path)
    with refused('each needs 4'):
        write_split(documents[:3], tmp_path)
    assert not list(tmp_path.glob('*.txt'))


def test_parts_of_documents(tmp_path):
    """A part is of eight sentences, options of reading are obeyed, and so is the limit."""
    path = tmp_path / 'mine.jsonl'
    bodies = [
        '\n'.join(f'Sentence {i} of {name} has words.' for i in range(20)) for name in 'abcdef'
    ]
    path.write_text(''.join(json.dumps({'body': body}) + '\n' for body in bodies))
    options = TextOptions(segment=True, text_column='body')
    parts = list(iterate_own_text([f'{path}'], options, 10**6))
    assert [len(part.sentences) for part in parts] == [8, 8, 4] * 6
    assert len({part.group for part in parts}) == 18
    assert [part.sentences[0].split()[3] for part in parts[::3]] == list('abcdef')
    few = list(iterate_own_text([f'{path}'], options, 1300))
    assert len(few) == 6 and set(map(str, few)) < set(map(str, parts))

    # A file that is written again is another text.
    before = list_files([f'{path}'], options)
    path.write_text(path.read_text() + '\n')
    assert list_files([f'{path}'], options) != before
