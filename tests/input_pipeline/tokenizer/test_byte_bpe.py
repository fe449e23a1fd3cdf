"""Byte-level BPE against its rules written out anew (openai/gpt-2 encoder.py), and its files."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import shutil
import unicodedata

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.inference.extractor import row_of
from bert_jax.inference.pipelines import WithMasks, words_of
from bert_jax.input_pipeline.tasks.features import text_rows
from bert_jax.input_pipeline.tokenizer import Tokenizer, vocabulary
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions

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
    '<s> a</s> [MASK]',
]


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
    return vocabulary.train(TEXT, VocabularyOptions(340, 'byte_bpe'))[0]


@pytest.fixture
def folder(tokenizer, tmp_path) -> pathlib.Path:
    tokenizer.save(tmp_path / 'a')
    return tmp_path / 'a'


def is_space(char: str) -> bool:
    """Unicode's white space, of which str.isspace() has four characters too many."""
    return char.isspace() and char not in '\x1c\x1d\x1e\x1f'


def kind(char: str) -> str:
    if is_space(char):
        return ' '
    category = unicodedata.category(char)[0]
    return category if category in 'LN' else 'sign'


def words(text: str) -> list[str]:
    """GPT-2's pattern: 's|'t|'re|'ve|'m|'ll|'d| ?letters| ?digits| ?signs|\\s+(?!\\S)|\\s+"""
    found, at = [], 0
    while at < len(text):
        end = next((at + len(s) for s in CONTRACTIONS if text.startswith(s, at)), None)
        first = at + 1 if text[at] == ' ' else at
        if end is None and first < len(text) and kind(text[first]) != ' ':
            end = first
            while end < len(text) and kind(text[end]) == kind(text[first]):
                end += 1
        if end is None:  # white space: all of it at the end of the text, else but the last one
            end = at
            while end < len(text) and is_space(text[end]):
                end += 1
            if end < len(text) and end > at + 1:
                end -= 1
        found.append(text[at:end])
        at = end
    return found


CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def letters_of_bytes() -> dict[int, str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def encoded(text: str, entries: list[str], merges: list[list[str]]) -> list[int]:
    """Each word's bytes, of which the pair that was merged first is merged, until there is none."""
    ids, letters = {entry: i for i, entry in enumerate(entries)}, letters_of_bytes()
    ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
    result = []
    for word in words(text):
        parts = [letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [''.join(best)]
        result += [ids[part] for part in parts]
    return result


def test_ids_are_those_of_the_rules(tokenizer, folder):
    entries = json.loads((folder / 'vocab.json').read_text())
    merges = [line.split() for line in (folder / 'merges.txt').read_text().split('\n')[1:-1]]
    assert len(merges) == 340 - 261
    rng = random.Random(0)
    chars = "ab \t\n\r\x1c\x85\xa0\u3000'stl.?é\u0301한中😀1٣"
    random_texts = [''.join(rng.choices(chars, k=12)) for _ in range(500)]
    for text in [*TEXT[:2], *NASTY, *random_texts]:
        expected = encoded(text, sorted(entries, key=entries.__getitem__), merges)
        assert tokenizer.encode(text) == expected, repr(text)
        assert tokenizer.encode_with_offsets(text).ids.tolist() == expected
        assert tokenizer.decode(expected) == text


def test_a_sign_that_python_takes_for_white_space_merges_with_others(folder):
    letter = letters_of_bytes()[0x1C]
    (folder / 'tokenizer.json').unlink()
    entries = json.loads((folder / 'vocab.json').read_text())
    (folder / 'vocab.json').write_text(json.dumps(entries | {f'?{letter}': 340}))
    with (folder / 'merges.txt').open('a') as file:
        file.write(f'? {letter}\n')
    assert Tokenizer.load(folder).encode('?\x1c?') == [340, entries['?']]


def test_half_a_character_is_the_sign_for_none(tokenizer):
    text = 'the \ud83d town'
    ids = tokenizer.encode('the \ufffd town')
    assert tokenizer.encode(text) == ids == tokenizer.encode_with_offsets(text).ids.tolist()


def test_places_are_the_text_without_its_spaces(tokenizer):
    text = 'the people  of Zürich, theirs'
    found = tokenizer.encode_with_offsets(text)
    for piece, start, end in zip(found.ids, found.starts, found.ends, strict=True):
        spelled = tokenizer.decode([piece])
        assert '\ufffd' in spelled or text[start:end] == spelled.strip()
    begins = [text[start] for start in found.starts[found.word_starts]]
    assert begins == ['t', 'p', 'o', 'Z', ',', 't']


def test_words_of_running_text_have_a_space_in_front(tokenizer):
    alone, in_text = tokenizer.encode('people'), tokenizer.encode_words(['people'])[0].tolist()
    assert alone != in_text
    assert [*tokenizer.encode('the'), *in_text] == tokenizer.encode('the people')


def test_words_are_told_by_the_pattern(tokenizer):
    assert words_of("the  people's town, 12", tokenizer) == [
        'the', 'people', "'s", 'town', ',', '12'
    ]  # fmt: skip


def test_a_prefix_space_is_that_of_the_first_word(tokenizer, folder):
    settings = folder / 'tokenizer_config.json'
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {'add_prefix_space': True}))
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
    fast = json.loads(file.read_text())
    flags = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized', 'special'), False)
    fast['added_tokens'].append({'id': 340, 'content': 'Zürich', **flags})
    file.write_text(json.dumps(fast))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == 341
    ids = tokenizer.encode('the Zürich town, people')
    assert 340 in ids and tokenizer.decode(ids) == 'the Zürich town, people'
    tokenizer.save(folder.parent / 'b')
    assert Tokenizer.load(folder.parent / 'b').fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ('no merges', 'no merges.txt beside vocab.json'),
        ('no vocabulary', 'no vocab.json beside merges.txt'),
        ('class', 'tokenizer_class=BertTokenizer, but the files beside it are of byte-level BPE'),
        ('lower case', 'do_lower_case is not built for byte-level BPE'),
        ('gpt-2', 'no <pad> <unk> <s> </s> <mask> among its'),
        ('broken merge', "['only-one'] is no merge of two entries"),
        ('normalizer', 'normalizer NFC is not as in the byte-level BPE of RoBERTa'),
        ('rows', 'its post_processor (ByteLevel) does not make rows of <s> A </s></s>'),
        ('other entries', 'its entries are not those of vocab.json beside it'),
        ('unknown merge', 'the tokenizers library cannot read it'),
    ],
)  # fmt: skip
def test_what_cannot_be_obeyed_is_one_line(folder, change, said):
    fast, config = folder / 'tokenizer.json', folder / 'tokenizer_config.json'
    parts = json.loads(fast.read_text())
    entries, merges = folder / 'vocab.json', folder / 'merges.txt'
    if change in ('no merges', 'no vocabulary', 'gpt-2', 'broken merge', 'unknown merge'):
        fast.unlink()
    if change == 'no merges':
        merges.unlink()
    elif change == 'no vocabulary':
        entries.unlink()
    elif change == 'class':
        config.write_text('{"tokenizer_class": "BertTokenizer"}')
    elif change == 'lower case':
        config.write_text('{"do_lower_case": true}')
    elif change == 'gpt-2':
        plain = [entry for entry in json.loads(entries.read_text()) if entry[0] != '<']
        entries.write_text(json.dumps({entry: i for i, entry in enumerate(plain)}))
    elif change == 'broken merge':
        merges.write_text('only-one\n')
    elif change == 'unknown merge':
        merges.write_text('q qqqq\n')
    elif change == 'normalizer':
        fast.write_text(json.dumps(parts | {'normalizer': {'type': 'NFC'}}))
    elif change == 'rows':
        fast.write_text(json.dumps(parts | {'post_processor': {'type': 'ByteLevel'}}))
    else:
        swapped = json.loads(entries.read_text())
        entries.write_text(json.dumps(swapped | {'a': swapped['b'], 'b': swapped['a']}))
    with pytest.raises(UserError) as error:
        Tokenizer.load(folder)
    assert said in str(error.value) and '\n' not in str(error.value)


def test_a_vocabulary_has_room_for_all_bytes():
    with pytest.raises(UserError, match='takes 261 or more'):
        vocabulary.train(TEXT, VocabularyOptions(260, 'byte_bpe'))


def test_rows_have_two_separators_and_one_segment(tokenizer):
    a, b = tokenizer.encode('the town'), tokenizer.encode('people')
    pair = [0, *a, 2, 2, *b, 2]
    rows = text_rows(['the town', 'the town'], ['people', None], tokenizer, 24)
    assert rows['input_ids'][0].tolist() == [*pair, *[1] * (24 - len(pair))]
    assert rows['input_mask'][0].sum() == len(pair)
    assert rows['input_ids'][1].tolist() == [0, *a, 2, *[1] * (22 - len(a))]
    assert not rows['segment_ids'].any()
    one = row_of('the town', 'people', tokenizer, 24)
    assert one.input_ids.tolist() == pair and not one.segment_ids.any()

    # Cut to fit: of 11 places 4 are special, and the longer gives first.
    cut = text_rows(['the town of them'], ['people people'], tokenizer, 11)['input_ids'][0]
    assert (cut == tokenizer.sep_id).sum() == 3 and cut[-1] == tokenizer.sep_id


def test_a_mask_takes_the_space_before_it(tokenizer):
    row = WithMasks(tokenizer).encode_batch(['the <mask> of them'])[0]
    expected = [*tokenizer.encode('the'), tokenizer.mask_id, *tokenizer.encode(' of them')]
    assert row.tolist() == expected
