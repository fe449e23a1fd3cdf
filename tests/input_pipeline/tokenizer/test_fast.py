"""A tokenizer.json as it is: its rows, words and places, and what of it cannot be done."""

from __future__ import annotations

import pytest
import tokenizers

from bert_jax.inference.feature_extraction import make_row
from bert_jax.inference.pipelines import WithMasks, split_words
from bert_jax.input_pipeline.tasks.features import make_text_rows
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions
from tests.helpers import tokenizer_folders
from tests.helpers.refusals import refused

FOLDERS = {
    'modernbert': tokenizer_folders.modernbert,
    'mmbert': tokenizer_folders.mmbert,
    'bos twice': lambda folder: tokenizer_folders.mmbert(folder, second_cls=True),
}


@pytest.mark.parametrize('name', FOLDERS)
def test_ids_and_rows_are_those_of_the_library(tmp_path, name):
    folder = FOLDERS[name](tmp_path / 'a')
    ours = Tokenizer.load(folder)
    engine = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
    assert (ours.kind, ours.vocab_size) == ('fast', engine.get_vocab_size())
    assert ours.special_ids == tuple(map(engine.token_to_id, ours.special_tokens))
    for text in (*tokenizer_folders.SCRIPTS, *tokenizer_folders.NASTY):
        expected = engine.encode(text, add_special_tokens=False)
        assert ours.encode(text) == expected.ids, repr(text)
        found = ours.encode_with_offsets(text)
        assert found.ids.tolist() == expected.ids
        for (start, end), a, b in zip(expected.offsets, found.starts, found.ends, strict=True):
            assert text[a:b] == text[start:end].strip() and start <= a <= b <= end

    # Rows of one text and of two, cut too; all of one segment.
    texts, pairs = ['the town', 'the people', 'of'], ['people', None, 'the people of the town']
    rows = make_text_rows(texts, pairs, ours, 16)
    engine.enable_truncation(16)
    for text, pair, ids, mask in zip(
        texts, pairs, rows['input_ids'], rows['input_mask'], strict=True
    ):
        expected = engine.encode(text, pair) if pair else engine.encode(text)
        assert ids.tolist() == [*expected.ids, *[ours.pad_id] * (16 - len(expected.ids))]
        assert mask.sum() == len(expected.ids)
        assert make_row(text, pair, ours, 16).input_ids.tolist() == expected.ids
    assert not rows['segment_ids'].any()

    # Written and read again it is the same tokenizer; a lone half of a character is U+FFFD.
    ours.save(tmp_path / 'b')
    assert Tokenizer.load(tmp_path / 'b').fingerprint == ours.fingerprint
    assert ours.encode('a\ud83db') == ours.encode('a\ufffdb')


@pytest.mark.parametrize('name', ['modernbert', 'mmbert'])
def test_words_are_those_of_running_text(tmp_path, name):
    ours = Tokenizer.load(FOLDERS[name](tmp_path / 'a'))
    before, *words = ours.encode_words(['people', 'of', 'the', 'town'])
    assert [*ours.encode('people'), *(i for word in words for i in word)] == ours.encode(
        'people of the town'
    )
    assert before.tolist() == ours.encode(' people')
    assert split_words('the  people 한국 in', ours) == ['the', 'people', '한국', 'in']
    assert ours.decode(ours.encode('the  people 한국')) == 'the  people 한국'
    begins = [ours.entries[i] for i in ours.encode(' the people') if ours.starts_word[i]]
    assert len(begins) == 2


def test_special_tokens_are_found_by_name_alone(tmp_path):
    """Not in text, where they are text; a mask that is asked for takes the space before it."""
    ours = Tokenizer.load(tokenizer_folders.modernbert(tmp_path / 'a'))
    assert not {*ours.encode('[CLS] the[MASK] <[PAD]> [UNK]')} & {*ours.special_ids}
    row = WithMasks(ours).encode_batch(['the [MASK] of'])[0].tolist()
    assert row == [*ours.encode('the'), ours.mask_id, *ours.encode(' of')]
    marked = ours.encode_words(['[unused3]', 'x[unused3]'])
    assert marked[0].tolist() == [ours.entries.index('[unused3]')] == marked[1][-1:].tolist()


def test_a_vocabulary_of_modernberts_layout_is_trained(tmp_path):
    text = tokenizer_folders.SCRIPTS * 3
    options = VocabularyOptions(330, 'byte_bpe', layout='modernbert')
    ours, report = vocabulary.train(text, options)
    assert (ours.kind, report.vocab_size, report.unknown) == ('fast', 330, 0)
    assert ours.entries[-5:] == ['[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]']
    assert (*ours.layout,) == (1, 0, True, False)
    ours.save(tmp_path / 'a')
    assert Tokenizer.load(tmp_path / 'a').fingerprint == ours.fingerprint

    with refused('--layout=modernbert is for --model=byte_bpe'):
        VocabularyOptions(330, layout='modernbert')
