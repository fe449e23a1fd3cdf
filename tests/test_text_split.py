"""What is held out shares no sentence, nor nearly one, with what is learned from; a group lies on one side."""

from __future__ import annotations

import difflib
import json
import random

import pytest

from configs.errors import UserError
from input_pipeline import text_split
from input_pipeline.near_copies import NearCopies


def sentence(source: random.Random, words: int = 20) -> str:
    return ' '.join(f'{source.choice(("red", "green", "small", "large", "old", "new"))}{source.randrange(99)}' for _ in range(words))


@pytest.fixture
def documents():
    source = random.Random(0)
    return [text_split.Document('a', f'module{i // 3}', f'f{i}', tuple(sentence(source) for _ in range(4))) for i in range(120)]


def test_split_by_group(tmp_path, documents):
    counts = text_split.split(documents, tmp_path)
    read = list(text_split.read(tmp_path))
    assert [(d.group, d.name, d.sentences) for d in read] == [(d.group, d.name, d.sentences) for d in documents]
    sides = {outside: {d.group for d in read if d.held_out is outside} for outside in (True, False)}
    assert not sides[True] & sides[False]
    assert 2 <= len(sides[True]) <= 18  # 0.22 of 40 groups
    text = {outside: (tmp_path / name).read_text() for outside, name in ((False, 'train.txt'), (True, 'held_out.txt'))}
    for outside in (True, False):
        assert text[outside] == ''.join('\n'.join(d.sentences) + '\n\n' for d in read if d.held_out is outside)
    assert counts['train']['bytes'] == len(text[False]) and counts['held_out']['sentences'] == text[True].count('.\n') + sum(
        bool(line) for line in text[True].split('\n')
    )
    assert json.loads((tmp_path / 'counts.json').read_text()) == counts


def test_near_copies_do_not_straddle(tmp_path, documents):
    """A document copied into modules on both sides with a word changed here and there is kept once, by difflib's measure."""
    original = documents[0].sentences
    edited = [tuple(s.replace(s.split()[3 + i % 3], f'word{i}') for s in original) for i in range(20)]
    copies = [text_split.Document('b', f'copy{i}', 'f', sentences) for i, sentences in enumerate(edited)]
    assert len({text_split.is_held_out(d.group) for d in copies}) == 2
    partial = text_split.Document('b', 'partial', 'f', (*documents[1].sentences[:1], *sentence_list(5)))
    counts = text_split.split([*documents, *copies, partial], tmp_path)
    assert counts['dropped'] == {'near_copy_documents': 20, 'near_copy_sentences': 1}
    train, test = ((tmp_path / name).read_text().split('\n') for name in ('train.txt', 'held_out.txt'))
    assert sum(difflib.SequenceMatcher(None, original[0], s).ratio() > 0.8 for s in train + test if s) == 1


def sentence_list(n: int) -> list[str]:
    source = random.Random(1)
    return [sentence(source) for _ in range(n)]


def test_too_few_documents(tmp_path, documents):
    with pytest.raises(UserError, match='0 documents to learn from and 0 to hold out'):
        text_split.split([], tmp_path)
    with pytest.raises(UserError, match='each needs 4'):
        text_split.split(documents[:3], tmp_path)
    assert not list(tmp_path.glob('*.txt'))


def test_scripts_without_spaces():
    copies = NearCopies()
    first = ['これは日本語の文章であり、空白がありません。', '別の文もここにあります、とても短いです。']
    assert copies.unseen(first) == first
    assert copies.unseen([first[0].replace('文章', '文書'), first[1]]) == []
    korean = ['이것은 한국어 문장이며 띄어쓰기가 있습니다.', '다른 문장도 여기에 조금 더 있습니다.']
    assert copies.unseen(korean) == korean
