"""Byte-level BPE against the library on whole texts, its files, rows and words."""

from __future__ import annotations

import json
import pathlib
import random
import shutil

import pytest
import tokenizers

from bert_jax.inference.feature_extraction import make_row
from bert_jax.inference.pipelines import WithMasks, split_words
from bert_jax.input_pipeline.tasks.features import make_text_rows
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions
from tests.helpers.files import read_json
from tests.helpers.refusals import refused

TEXT = [
    "The people of the town don't think it's theirs; they'll say we've 1990 of them.",
    'Über Zürich, naïve cafés - 한국어 사전을 학습합니다. 😀 the the the town people',
] * 4
NASTY = [
    '',
    ' ',
    '  two  spaces ',
    '\n\n tab\t\x0b\x1c\x85\xa0x\u3000 end  \n',
    "don't WE'LL  's",
    '\x00\x1f\ufeff\u200b\u180e\ufffd',
    '中国 😀\U0010ffff e\u0301 ١٢ x' + 'y' * 90,
]


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
    return vocabulary.train(TEXT, VocabularyOptions(340, 'byte_bpe'))[0]


@pytest.fixture
def folder(tokenizer, tmp_path) -> pathlib.Path:
    tokenizer.save(tmp_path / 'a')
    return tmp_path / 'a'


def test_ids_are_those_of_the_library_on_the_whole_text(tokenizer, folder):
    """A text is cut before white space and remembered in parts; the library takes it as a whole."""
    engine = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
    assert len((folder / 'merges.txt').read_text().split('\n')[1:-1]) == 340 - 261
    with refused('takes 261 or more'):  # room for all bytes
        vocabulary.train(TEXT, VocabularyOptions(260, 'byte_bpe'))
    rng = random.Random(0)
    chars = "ab \t\n\r\x1c\x85\xa0\u3000'stl.?é\u0301한中😀1٣"
    for text in [*TEXT[:2], *NASTY, *(''.join(rng.choices(chars, k=12)) for _ in range(200))]:
        expected = engine.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == expected, repr(text)
        assert tokenizer.encode_with_offsets(text).ids.tolist() == expected
        assert tokenizer.decode(expected) == text
    assert not {0, 2} & set(tokenizer.encode('<s> a</s>'))  # as text, not as special tokens


def test_words_of_running_text_have_a_space_in_front(tokenizer):
    in_text = tokenizer.encode_words(['people'])[0].tolist()
    assert [*tokenizer.encode('the'), *in_text] == tokenizer.encode('the people')
    assert split_words("the  people's town, 12", tokenizer) == [
        'the', 'people', "'s", 'town', ',', '12'
    ]  # fmt: skip


def test_a_mask_takes_the_space_before_it(tokenizer):
    for text in ('the <mask> town', 'the<mask> town'):
        ids = WithMasks(tokenizer).encode_batch([text])[0].tolist()
        before, behind = tokenizer.encode('the'), tokenizer.encode(' town')
        assert ids == [*before, tokenizer.mask_id, *behind]


def test_a_prefix_space_is_that_of_the_first_word(tokenizer, folder):
    settings = folder / 'tokenizer_config.json'
    settings.write_text(json.dumps(read_json(settings) | {'add_prefix_space': True}))
    spaced = Tokenizer.load(folder)
    assert spaced.fingerprint != tokenizer.fingerprint
    for text in ('the people', '\tthe', ' the', ''):
        expected = tokenizer.encode(text if text[:1] in (' ', '') else f' {text}')
        assert spaced.encode(text) == expected
    found = spaced.encode_with_offsets('the people')
    assert (found.starts[0], found.ends[-1]) == (0, 10)


def test_either_form_of_a_directory_is_the_same_tokenizer(tokenizer, folder, tmp_path):
    shutil.copytree(folder, tmp_path / 'two')
    (tmp_path / 'two' / 'tokenizer.json').unlink()
    (tmp_path / 'two' / 'tokenizer_config.json').unlink()
    (folder / 'merges.txt').unlink()
    (folder / 'vocab.json').unlink()
    for one in (folder, tmp_path / 'two'):
        assert Tokenizer.load(one).fingerprint == tokenizer.fingerprint


def test_added_tokens_are_found_in_text(folder):
    file = folder / 'tokenizer.json'
    fast = read_json(file)
    flags = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized', 'special'), False)
    fast['added_tokens'].append({'id': 340, 'content': 'Zürich', **flags})
    file.write_text(json.dumps(fast))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == 341
    ids = tokenizer.encode('the Zürich town, people')
    assert 340 in ids and tokenizer.decode(ids) == 'the Zürich town, people'
    tokenizer.save(folder.parent / 'b')
    assert Tokenizer.load(folder.parent / 'b').fingerprint == tokenizer.fingerprint


def test_rows_have_two_separators_and_one_segment(tokenizer):
    a, b = tokenizer.encode('the town'), tokenizer.encode('people')
    pair = [0, *a, 2, 2, *b, 2]
    rows = make_text_rows(['the town', 'the town'], ['people', None], tokenizer, 24)
    assert rows['input_ids'][0].tolist() == [*pair, *[1] * (24 - len(pair))]
    assert rows['input_mask'][0].sum() == len(pair)
    assert rows['input_ids'][1].tolist() == [0, *a, 2, *[1] * (22 - len(a))]
    assert not rows['segment_ids'].any()
    one = make_row('the town', 'people', tokenizer, 24)
    assert one.input_ids.tolist() == pair and not one.segment_ids.any()

    # Cut to fit: of 11 places 4 are special, and the longer gives first.
    cut = make_text_rows(['the town of them'], ['people people'], tokenizer, 11)['input_ids'][0]
    assert (cut == tokenizer.sep_id).sum() == 3 and cut[-1] == tokenizer.sep_id
