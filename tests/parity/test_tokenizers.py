"""Ids against transformers' AutoTokenizer, for every kind of tokenizer directory.

Those that are written here, and those that are read.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import unicodedata

import pytest

from bert_jax.inference.pipelines import WithMasks
from bert_jax.input_pipeline.tasks import features
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from tests.helpers import tokenizer_folders

transformers = pytest.importorskip(
    'transformers', reason='transformers is not installed: bash launch/test.sh --parity'
)

# No words that Google's rules and the library's are known to part differently.
PLAIN = [
    'The naïve café of Zürich, 1990!',
    '한국어 사전을 학습합니다.',
    '中国 is written 中国語 there',
    'learned\tteaching  walks words-and-signs (so) É',
]
TEXTS = [*PLAIN, *(unicodedata.normalize('NFD', text) for text in PLAIN), *tokenizer_folders.TEXTS]


def same_ids(folder, texts=TEXTS) -> None:
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    for text in texts:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
        if text:  # transformers takes an empty second text for none
            both = [*ours.encode(text), ours.sep_id] * 2
            assert theirs(text, text)['input_ids'] == [ours.cls_id, *both]


def same_rows(theirs, ours, length: int, text: str, pair: str) -> None:
    """Asserts the rows of a pair and of a text."""
    rows = features.make_text_rows([text] * 2, [pair, None], ours, length)
    for row, texts in enumerate([(text, pair), (text,)]):
        real = rows['input_mask'][row].sum()
        assert rows['input_ids'][row, :real].tolist() == theirs(*texts)['input_ids']


@pytest.mark.parametrize(
    ('lower', 'accents', 'nfc', 'ideographs'), [*itertools.product([False, True], repeat=4)]
)
def test_wordpiece_that_is_written(tmp_path, lower, accents, nfc, ideographs):
    entries = [
        token
        for token in tokenizer_folders.ENTRIES
        if not lower or token in tokenizer_folders.SPECIAL or token == token.lower()
    ]
    normalizer = Normalizer(lower, accents, nfc, ideographs)
    Tokenizer.of_kind('wordpiece', '\n'.join(entries).encode(), normalizer).save(tmp_path / 'a')
    assert Tokenizer.load(tmp_path / 'a').normalizer == normalizer
    same_ids(tmp_path / 'a')


@pytest.mark.parametrize('lower', [True, False])
@pytest.mark.parametrize('model', ['wordpiece', 'unigram', 'bpe'])
def test_a_trained_vocabulary_that_is_written(tmp_path, model, lower):
    options = vocabulary.VocabularyOptions(200, model, lower_case=lower, character_coverage=1.0)
    vocabulary.train(PLAIN * 5, options)[0].save(tmp_path / 'a')
    same_ids(tmp_path / 'a', TEXTS[: 2 * len(PLAIN)])


# Where RoBERTa's pattern ends words: after signs, before white space of each kind, at contractions.
BYTES = [
    "don't WE'LL  x's\x1c\x85\u3000y \n",
    ' 한국어 😀 \U0010ffff ᄒ\u1161\u11ab',
    '\u180e a\u200b b\ufeff 1٣x_-',
]


@pytest.mark.parametrize('prefix', [False, True])
def test_byte_level_bpe_there_and_back(tmp_path, prefix):
    options = vocabulary.VocabularyOptions(340, 'byte_bpe', add_prefix_space=prefix)
    ours, _ = vocabulary.train([*PLAIN, *BYTES] * 5, options)
    ours.save(tmp_path / 'ours')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'ours')
    assert isinstance(theirs, transformers.RobertaTokenizer)

    # What they write of ours is the same again; with words of their own they are found in text.
    theirs.save_pretrained(tmp_path / 'theirs')
    assert Tokenizer.load(tmp_path / 'theirs').fingerprint == ours.fingerprint
    theirs.add_tokens(['naïve café', 'words'])
    theirs.save_pretrained(tmp_path / 'added')
    for name in ('ours', 'theirs', 'added'):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        ours = Tokenizer.load(tmp_path / name)
        for text in (*TEXTS, *BYTES):
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
        same_rows(theirs, ours, 64, TEXTS[0], 'pair')


@pytest.mark.parametrize('name', tokenizer_folders.FOREIGN)
def test_directories_that_are_read_and_written_again(tmp_path, name):
    folder = tokenizer_folders.write(tmp_path / 'a', **tokenizer_folders.FOREIGN[name])
    same_ids(folder)
    Tokenizer.load(folder).save(tmp_path / 'b')
    same_ids(tmp_path / 'b')


@pytest.mark.parametrize(
    'setting',
    [{}, {'tokenize_chinese_chars': False}, {'strip_accents': True}, {'do_lower_case': True}],
)
def test_a_directory_of_settings_and_vocabulary_alone(tmp_path, setting):
    config = {'tokenizer_class': 'BertTokenizer', 'do_lower_case': False} | setting
    (tmp_path / 'vocab.txt').write_text('\n'.join(tokenizer_folders.ENTRIES) + '\n')
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
    same_ids(tmp_path)


@pytest.mark.parametrize(
    'kind',
    ['modernbert', 'trained', 'mmbert', 'bos twice', 'unigram', 'llama', 'mpnet', 'mt5'],
)
def test_a_tokenizer_json_as_it_is(tmp_path, kind):
    """Read and written again, on text of several scripts; words that come parted, with a space."""
    makers = {
        'modernbert': tokenizer_folders.modernbert,
        'trained': _trained,
        'mmbert': tokenizer_folders.mmbert,
        'bos twice': lambda folder: tokenizer_folders.mmbert(folder, second_cls=True),
        'unigram': tokenizer_folders.xlm_roberta,
        'llama': tokenizer_folders.llama,
        'mpnet': tokenizer_folders.mpnet,
        'mt5': tokenizer_folders.mt5,
    }
    folder = makers[kind](tmp_path / 'a')
    Tokenizer.load(folder).save(tmp_path / 'b')
    texts = [*tokenizer_folders.SCRIPTS, *tokenizer_folders.NASTY, *TEXTS, *_real()]
    for name in ('a', 'b'):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        ours = Tokenizer.load(tmp_path / name)
        for text in texts:
            found = theirs(text, add_special_tokens=False)
            assert ours.encode(text) == found['input_ids'], text
        unknown = theirs.pad_token_id if theirs.unk_token_id is None else theirs.unk_token_id
        named = [theirs.pad_token_id, unknown, theirs.mask_token_id]
        assert [ours.pad_id, ours.unk_id, ours.mask_id] == named
        same_rows(theirs, ours, 32, 'the town', 'people')

        # transformers 5 has no longer a way to say it but in the file.
        words = ['the', "town's", '한국어', 'x[unused1]y', '[unused1]', '']
        if kind in ('modernbert', 'trained'):
            theirs.backend_tokenizer.pre_tokenizer.add_prefix_space = True
            expected = [theirs([word], is_split_into_words=True)['input_ids'] for word in words]
            for ids, row in zip(ours.encode_words(words), expected, strict=True):
                assert [ours.cls_id, *ids, ours.sep_id] == row


@pytest.mark.parametrize('name', tokenizer_folders.UNIGRAM)
def test_a_sentencepiece_model_alone_and_what_is_saved_of_it(tmp_path, name):
    """Its ids, special ids and rows; as transformers saves it, and as it is saved here."""
    folder = tokenizer_folders.unigram(tmp_path / 'alone', name, PLAIN)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(theirs).__name__ == name
    theirs.add_tokens(['naïve café'])
    theirs.save_pretrained(tmp_path / 'theirs')
    Tokenizer.load(folder).save(tmp_path / 'ours')
    texts = ['x <ent>y<ent>', 'it\n is\t  so ', *tokenizer_folders.SCRIPTS]
    for each in ('alone', 'theirs', 'ours'):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / each)
        ours = Tokenizer.load(tmp_path / each)
        assert (ours.kind, ours.vocab_size) == ('fast', len(theirs)), each
        for text in [*texts, *tokenizer_folders.NASTY, *TEXTS, *_real()]:
            found = theirs(text, add_special_tokens=False)['input_ids']
            assert ours.encode(text) == found, (each, text)
        special = ('pad', 'unk', 'cls', 'sep', 'mask')
        if each != 'ours':
            assert [*ours.special_ids] == [getattr(theirs, f'{n}_token_id') for n in special]
        same_rows(theirs, ours, 32, 'the town', 'people')
        words = WithMasks(ours).encode_batch([f'the {theirs.mask_token}.'])[0].tolist()
        assert words == theirs(f'the {theirs.mask_token}.', add_special_tokens=False)['input_ids']


def _trained(folder: pathlib.Path) -> pathlib.Path:
    options = vocabulary.VocabularyOptions(340, 'byte_bpe', layout='modernbert')
    vocabulary.train(tokenizer_folders.SCRIPTS * 5, options)[0].save(folder)
    return folder


def _real() -> list[str]:
    """Lines of Wikipedia in two scripts, where the real data is at hand."""
    root = os.environ.get('BERT_JAX_TEST_DATA')
    if not root:
        return []
    lines = []
    for name in ('wiki_en_small.txt', 'wiki_ko.txt'):
        with open(os.path.join(root, 'corpora', name), encoding='utf-8') as file:
            lines += list(itertools.islice(file, 300))
    return lines
