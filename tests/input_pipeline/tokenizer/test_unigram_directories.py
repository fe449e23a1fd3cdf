"""Directories of XLM-R's, CamemBERT's and DeBERTa's pieces: which class reads one, and places."""

from __future__ import annotations

import io
import json

import pytest
import sentencepiece

from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from tests.helpers import tokenizer_folders
from tests.helpers.refusals import refused

# A class, the model_type of its models, what its entries begin with, and where the mask is.
CLASSES = {
    'XLMRobertaTokenizer': ('xlm-roberta', ['<s>', '<pad>', '</s>', '<unk>']),
    'CamembertTokenizer': (
        'camembert',
        ['<s>NOTUSED', '<pad>', '</s>NOTUSED', '<unk>', '<unk>NOTUSED', '<s>', '</s>'],
    ),
    'DebertaV2Tokenizer': ('deberta-v2', ['[PAD]', '[CLS]', '[SEP]', '[UNK]']),
}


@pytest.fixture(scope='module', params=CLASSES)
def name(request) -> str:
    return request.param


@pytest.fixture
def folder(tmp_path, name):
    return tokenizer_folders.unigram(tmp_path / 'a', name)


def state(folder, file: str, **settings) -> None:
    (folder / file).write_text(json.dumps(settings))


def test_entries_are_fairseqs_or_the_models_own(folder, name):
    tokenizer = Tokenizer.load(folder)
    first = CLASSES[name][1]
    assert tokenizer.entries[: len(first)] == first
    assert tokenizer.mask_id == tokenizer.vocab_size - 1
    text = '  The  people\tof Zürich '
    found = tokenizer.encode_with_offsets(text)
    words = [text[start:] for start, begins in zip(found.starts, found.word_starts) if begins]
    assert [word.split()[0] for word in words if word] == ['The', 'people', 'of', 'Zürich']
    rows = (1, 1, False) if name == 'DebertaV2Tokenizer' else (2, 0, False)
    assert (*tokenizer.layout,)[:3] == rows


def test_the_class_is_found_where_only_the_model_tells(folder, name):
    wanted = Tokenizer.load(folder).fingerprint
    (folder / 'tokenizer_config.json').unlink()
    for settings in ({'model_type': CLASSES[name][0]}, {'tokenizer_class': f'{name}Fast'}):
        state(folder, 'config.json', **settings)
        assert Tokenizer.load(folder).fingerprint == wanted


@pytest.mark.parametrize('name', ['XLMRobertaTokenizer'])
def test_what_cannot_be_told_or_obeyed_is_one_line(folder, name):
    def ask(said: str, **config) -> None:
        state(folder, 'tokenizer_config.json', **config)
        with refused(said):
            Tokenizer.load(folder)

    ask('tokenizer_class=None does not read it here, and ids depend on it: name XLMRobertaTok')
    ask('tokenizer_class=MBartTokenizer does not read it', tokenizer_class='MBartTokenizer')
    ask('add_prefix_space=False is not built', tokenizer_class=name, add_prefix_space=False)
    ask('no <x> among its .* entries: not the vocab', tokenizer_class=name, cls_token='<x>')
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tokenizer_folders.SCRIPTS), model_writer=model, model_type='bpe',
        vocab_size=120, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    for content in (b'x', b'', model.getvalue()):
        (folder / 'sentencepiece.bpe.model').write_bytes(content)
        ask('not a SentencePiece model of unigram pieces', tokenizer_class=name)
