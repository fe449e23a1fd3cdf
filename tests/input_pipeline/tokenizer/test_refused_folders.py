"""Tokenizer folders that cannot be obeyed: each mistake is refused in one line, by name."""

from __future__ import annotations

import json
import pathlib

import pytest
from tokenizers import pre_tokenizers, processors

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions
from tests.helpers import tokenizer_folders
from tests.helpers.files import read_json
from tests.helpers.refusals import refused
from tests.helpers.vocabularies import SPECIAL
from tests.input_pipeline.tokenizer import test_albert_directories

CONFIG, JSON = 'tokenizer_config.json', 'tokenizer.json'


def write_foreign(folder: pathlib.Path) -> None:
    tokenizer_folders.write(folder)


def write_byte_bpe(folder: pathlib.Path) -> None:
    vocabulary.train(['the people'], VocabularyOptions(270, 'byte_bpe'))[0].save(folder)


def vocab(*words: str) -> str:
    return '\n'.join((*SPECIAL, *words))


CASED = {'do_lower_case': False}
BERT = {'tokenizer_class': 'BertTokenizer'}
SPLIT = json.loads(pre_tokenizers.WhitespaceSplit().__getstate__())
ROBERTA = json.loads(processors.RobertaProcessing(('[SEP]', 3), ('[CLS]', 2)).__getstate__())
# What writes the folder, then what of each of its files is another: a text, entries of its JSON, or
# None where it is gone; and the words of the refusal.
REFUSED = (
    (None, {CONFIG: '{', 'vocab.txt': vocab('a')}, f'{CONFIG}: not valid JSON'),
    (None, {}, 'neither vocab.txt nor spm.model'),
    (None, {'vocab.txt': vocab('中')}, 'nothing says whether it is lower-cased.*do_lower_case'),
    (
        None,
        {'vocab.txt': vocab('The', 'A'), CONFIG: {'do_lower_case': True}},
        'capitals.*set it to false',
    ),
    (
        None,
        {'vocab.txt': '[PAD]\na'},
        r'no \[UNK\] \[CLS\] \[SEP\] \[MASK\] among its 2 entries',
    ),
    (
        None,
        {'vocab.txt': vocab('a'), CONFIG: {'tokenizer_class': 'BertJapaneseTokenizer'}},
        'tokenizer_class=BertJapaneseTokenizer is not built here',
    ),
    (
        None,
        {
            'vocab.txt': vocab('a'),
            CONFIG: {'do_lower_case': True},
            'added_tokens.json': {'qqq': 9},
        },
        'do not follow its',
    ),
    (
        None,
        {'words.txt': '[PAD]\n[UNK]\nthe\n', CONFIG: CASED},
        'no blank line in it, which ends the list',
    ),
    (None, {'words.txt': vocab('the\n\nthe\n'), CONFIG: CASED}, 'a word stands in it twice'),
    (
        None,
        {'words.txt': '[PAD]\n[UNK]\n\nthe\n', CONFIG: CASED},
        r'no \[CLS\] \[SEP\] \[MASK\] among its 2 entries',
    ),
    (
        write_foreign,
        {CONFIG: {'do_basic_tokenize': False}},
        'do_basic_tokenize=False is not built here',
    ),
    (
        write_foreign,
        {CONFIG: {'do_lower_case': True}},
        f'in {CONFIG}, but .* in {JSON}: make them agree',
    ),
    (
        write_foreign,
        {CONFIG: BERT, JSON: {'pre_tokenizer': SPLIT}},
        'pre_tokenizer WhitespaceSplit is not as in BERT.*PreTrainedTokenizerFast',
    ),
    (
        write_foreign,
        {CONFIG: BERT, JSON: {'post_processor': ROBERTA}},
        r'post_processor \(RobertaProcessing\) does not make rows',
    ),
    (write_byte_bpe, {JSON: None, 'merges.txt': None}, 'no merges.txt beside vocab.json'),
    (
        write_byte_bpe,
        {CONFIG: BERT},
        'tokenizer_class=BertTokenizer, but the files beside it are of byte-level BPE',
    ),
    (write_byte_bpe, {CONFIG: {'do_lower_case': True}}, 'do_lower_case is not built for'),
    (
        write_byte_bpe,
        {JSON: {'normalizer': {'type': 'NFC'}}},
        'normalizer NFC is not as in the byte-level BPE of RoBERTa',
    ),
    (tokenizer_folders.modernbert, {CONFIG: {'mask_token': '<m>'}}, 'no mask_token in it that'),
    (
        tokenizer_folders.modernbert,
        {CONFIG: {'tokenizer_class': 'RobertaTokenizer'}},
        'normalizer NFC is not',
    ),
    (
        tokenizer_folders.modernbert,
        {'added_tokens.json': {'[E1]': 500}},
        r"lacks the added token '\[E1\]'",
    ),
    (
        tokenizer_folders.modernbert,
        {JSON: {'post_processor': {'type': 'Other'}}},
        'post_processor cannot be read',
    ),
    (
        test_albert_directories.train,
        {CONFIG: {'tokenizer_class': 'T5Tokenizer'}},
        'tokenizer_class=T5Tokenizer is not built here',
    ),
    (
        test_albert_directories.train,
        {CONFIG: {'remove_space': False}},
        'remove_space=False is not built here: only True is',
    ),
    (
        test_albert_directories.train,
        {CONFIG: {'mask_token': '<mask>'}},
        'no <mask> among its 100 entries: not the vocabulary of an AL',
    ),
)


@pytest.mark.parametrize('write, files, said', REFUSED, ids=[said for _, _, said in REFUSED])
def test_what_cannot_be_obeyed_is_one_line(tmp_path, write, files, said):
    folder = tmp_path / 'a'
    if write is None:
        folder.mkdir()
    else:
        write(folder)
    for name, content in files.items():
        file = folder / name
        if content is None:
            file.unlink()
        elif isinstance(content, dict):
            there = read_json(file) if file.exists() else {}
            file.write_text(json.dumps(there | content))
        else:
            file.write_text(content)
    with refused(said):
        Tokenizer.load(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with refused('no such tokenizer directory .*vocab.json or tokenizer.json'):
        Tokenizer.load(tmp_path / 'none')


def test_a_gap_in_the_ids_says_what_is_wrong(tmp_path):
    tokenizer_folders.modernbert(tmp_path / 'a')
    content = read_json(tmp_path / 'a' / JSON)
    content['model']['vocab']['z'] = 2**31
    (tmp_path / 'a' / JSON).write_text(json.dumps(content))
    with refused('entries have ids up to 2147483648: ids are missing'):
        Tokenizer.load(tmp_path / 'a')


def test_a_pattern_that_never_ends_is_refused_when_a_text_meets_it(tmp_path):
    tokenizer_folders.modernbert(tmp_path / 'a')
    content = read_json(tmp_path / 'a' / JSON)
    split = {'type': 'Split', 'pattern': {'Regex': '(?:(a|aa)+)+\\1z'}}
    in_bytes = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True}
    steps = [
        split | {'behavior': 'Isolated', 'invert': False},
        in_bytes | {'use_regex': False},
    ]
    content['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': steps}
    (tmp_path / 'a' / JSON).write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path / 'a')
    for ask in (tokenizer.ids, tokenizer.encode_with_offsets):
        with pytest.raises(UserError, match='tokenizers library cannot encode it .*retry-limit'):
            ask('a' * 5000 + 'b')
