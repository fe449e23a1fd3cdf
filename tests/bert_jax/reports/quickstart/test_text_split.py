"""What is held out shares no sentence with what is learned from; a group lies on one side."""

from __future__ import annotations

import random

import pytest

from bert_jax.reports.quickstart import text_split
from bert_jax.reports.quickstart.text_split import Document
from tests.helpers.files import read_json
from tests.helpers.refusals import refused


@pytest.fixture
def documents():
    word = random.Random(0).randrange
    sentence = lambda: ' '.join(f'Word{word(999)}' for _ in range(20))
    sentences = lambda: tuple(sentence() for _ in range(4))
    return [Document('a', f'module{i // 3}', f'f{i}', sentences()) for i in range(120)]


def test_a_text_is_split_by_groups_and_copies_are_dropped(tmp_path, documents):
    first = documents[0].sentences
    copies = [Document('b', f'copy{i}', 'f', tuple(map(str.upper, first))) for i in range(20)]
    partial = Document('b', 'partial', 'f', (first[0], 'One is new.', 'So is another.'))
    counts = text_split.split([*documents, *copies, partial], tmp_path)
    read = list(text_split.read(tmp_path))
    assert [(d.group, d.name, d.sentences) for d in read[:-1]] == [
        (d.group, d.name, d.sentences) for d in documents
    ]
    assert read[-1].sentences == partial.sentences[1:]
    assert counts['dropped'] == {'documents': 20, 'sentences': 1}

    groups = {side: {d.group for d in read if d.held_out is side} for side in (True, False)}
    assert not groups[True] & groups[False]
    assert 2 <= len(groups[True]) <= 18  # 0.22 of 41 groups
    for outside, name in ((False, 'train'), (True, 'held_out')):
        text = ''.join('\n'.join(d.sentences) + '\n\n' for d in read if d.held_out is outside)
        assert (tmp_path / f'{name}.txt').read_text() == text
        assert counts[name]['bytes'] == len(text)
    assert read_json(tmp_path / 'counts.json') == counts


def test_too_few_documents(tmp_path, documents):
    with refused('0 documents to learn from and 0 to hold out'):
        text_split.split([], tmp_path)
    with refused('each needs 4'):
        text_split.split(documents[:3], tmp_path)
    assert not list(tmp_path.glob('*.txt'))
