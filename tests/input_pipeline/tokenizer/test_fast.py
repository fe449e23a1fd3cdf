"""A tokenizer.json as it is: its rows, words and places, and what of it cannot be done."""

from __future__ import annotations

import pytest
import tokenizers

from bert_jax.inference.feature_extraction import make_row
from bert_jax.inference.pipelines import WithMasks, split_words
from bert_jax.input_pipeline.tasks.features import make_text_rows
from bert_jax.input_pipeline.tokenizer import extension, vocabulary
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


ROW_OF_64 = ['wordpiece', 'unigram', 'bpe']
TOWNS = ['The people of the town walk, talk and train it so; walking towns are trained.'] * 9
MASKED = [
    'The town is [MASK].',
    'The town is[MASK].',
    'The [MASK] town[MASK][MASK] [MASK], so',
    '[MASK]. [MASK] it',
]


@pytest.fixture(scope='module')
def trained():
    """{model: a vocabulary of BERT's layout, one of ModernBERT's, the lines about it}."""
    text = [*TOWNS, *tokenizer_folders.SCRIPTS * 3]
    made = {}
    for model in ROW_OF_64:
        plain, _ = vocabulary.train(text, VocabularyOptions(201, model, lower_case=False))
        options = VocabularyOptions(201, model, lower_case=False, layout='modernbert')
        made[model] = (plain, *vocabulary.train(text, options))
    return made


@pytest.mark.parametrize('model', ROW_OF_64)
class TestModernBertsLayoutOfAnyModel:
    """Pieces are those of the same vocabulary in BERT's layout, which another program cuts."""

    def test_pieces_are_those_of_berts_layout(self, trained, tmp_path, model):
        plain, ours, _ = trained[model]
        assert ours.entries == [*plain.entries[5:], '[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]']
        ours.save(tmp_path / 'a')
        engine = tokenizers.Tokenizer.from_file(str(tmp_path / 'a' / 'tokenizer.json'))
        for text in (*TOWNS[:1], *tokenizer_folders.SCRIPTS, '  two   spaces ', 'a\n\nb', '', ' '):
            assert ours.pieces(text) == plain.pieces(text), text
            assert engine.encode(text, add_special_tokens=False).ids == ours.encode(text), text
        assert Tokenizer.load(tmp_path / 'a').fingerprint == ours.fingerprint
        assert (*ours.layout,) == (1, 0, True, False)
        begins = [ours.entries[i] for i in ours.encode('trained towns, it') if ours.starts_word[i]]
        assert len(begins) == (4 if model == 'wordpiece' else 3)

    def test_rows_that_are_not_used_are_no_entries(self, trained, tmp_path, model):
        _, ours, report = trained[model]
        unused = -ours.vocab_size % 64
        assert (ours.unused, ours.known) == (unused, ours.vocab_size) and unused
        assert report.vocab_size == ours.vocab_size == len(ours.entries) == len(ours.starts_word)
        assert f'fill it up to {ours.vocab_size + unused}' in report.notes[-1]
        engine = tokenizers.Tokenizer.from_str(ours.tokenizer_json())
        assert engine.get_vocab_size() == ours.vocab_size + unused
        assert engine.token_to_id('[unused0]') == ours.vocab_size
        for text in ('[unused0]', 'the [CLS] town[unused1]', '[MASK]'):
            assert max(ours.encode(text)) < min(ours.special_ids[2:])
        # Markers take them one by one.
        marked = extension.mark(ours, ['[E1]', '[/E1]']).tokenizer
        assert (marked.vocab_size, marked.unused) == (ours.vocab_size + 2, unused - 2)
        assert marked.encode('[E1]')[-1] == ours.vocab_size
        marked.save(tmp_path / 'a')
        assert Tokenizer.load(tmp_path / 'a').fingerprint == marked.fingerprint
        with refused('cannot be one'):
            extension.mark(ours, ['[unused1]'])

    def test_what_stands_around_a_mask_is_as_in_running_text(self, trained, model):
        _, ours, _ = trained[model]
        engine = tokenizers.Tokenizer.from_str(ours.tokenizer_json())
        rows = WithMasks(ours).encode_batch(MASKED)
        for text, row in zip(MASKED, rows, strict=True):
            assert row.tolist() == engine.encode(text, add_special_tokens=False).ids
        assert rows[0].tolist() == rows[1].tolist()
        assert rows[0][-1] == ours.encode('town.')[-1]

    def test_names_of_rows_are_no_words(self, model):
        options = VocabularyOptions(80, model, layout='modernbert')
        for word in ('[CLS]', '[unused3]'):
            with refused('50.0% of the words are names of its rows'):
                vocabulary.train([f'town {word}'] * 9, options)


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'model': 'words', 'layout': 'modernbert'}, 'is for --model=byte_bpe or wordpiece or'),
        ({'model': 'unigram', 'add_prefix_space': True}, 'is for --model=byte_bpe: leave it out'),
        ({'known_words': 9}, 'is for --model=words: leave it out'),
    ],
)
def test_options_of_other_models_are_refused(options, words):
    with refused(words):
        VocabularyOptions(330, **options)
