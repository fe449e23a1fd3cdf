"""Records of several languages: their mixture, what is said of each, and what is refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.records import fields, shards
from bert_jax.input_pipeline.records.stream import RecordStream
from tests.helpers.jobs import digests, run, write_text
from tests.helpers.shards import split_frames

SPECIAL = 5  # ids below are [PAD], [UNK], [CLS], [SEP], [MASK]


@pytest.fixture
def texts(tmp_path, vocabulary):
    """(inputs by language, the ids of each language's words): de is five times ko."""
    names = {'de': vocabulary[2][:150], 'ko': vocabulary[2][150:180]}
    letters = {'de': 'abcdeabcde', 'ko': 'fghijfghij'}
    for seed, (language, documents) in enumerate(names.items()):
        # No word of one is a word of the other: the second letter tells them.
        file, own = tmp_path / language / 'a.txt', letters[language]
        file.parent.mkdir()
        write_text(file, documents, seed)
        spelled = re.sub(
            r'\bw([a-j])', lambda found: f'w{own["abcdefghij".index(found[1])]}', file.read_text()
        )
        file.write_text(spelled)
    inputs = tuple(f'{language}={tmp_path}/{language}/*.txt' for language in names)
    words = {
        language: {
            number
            for word, number in vocabulary[1].items()
            if word in names[language] or (word[0] == 'w' and word[1] in letters[language])
        }
        for language in names
    }
    return inputs, words


def restored(columns):
    """Rows of ids with the hidden tokens put back."""
    rows = columns['input_ids'].copy()
    row, rank = np.nonzero(columns['masked_lm_weights'])
    rows[row, columns['masked_lm_positions'][row, rank]] = columns['masked_lm_ids'][row, rank]
    return rows


def rows_of(folder, split):
    """The rows of a split with the hidden tokens put back, and their files' names."""
    manifest, names, payloads = shards.Manifest.load(folder), [], []
    for shard in manifest.shards(split):
        found = split_frames((Path(folder) / shard.file).read_bytes())
        payloads += found
        names += [shard.file] * len(found)
    return restored(fields.decode_numpy(manifest.spec_of(split), payloads)), names


def languages_in(row, words):
    """The languages that have words in a row."""
    return {language for language, ids in words.items() if ids & set(row.tolist())}


def counted(rows, words):
    """How many tokens of each language stand in rows, special ones left out.

    What is in both, as endings are, is of the word before it; at the front of what is behind it.
    """
    counts = dict.fromkeys(words, 0)
    for row in rows:
        tokens = row[row >= SPECIAL].tolist()
        of = [next((name for name in words if token in words[name]), None) for token in tokens]
        now = next(name for name in of if name)
        for name in of:
            now = name or now
            counts[now] += 1
    return counts


@pytest.mark.parametrize(
    'options',
    [
        {'language_repeats': ('ko=4', 'de=0.5')},
        {'language_exponent': 0.3},
        {'language_repeats': ('ko=3',), 'objective': 'sop'},
        {'language_repeats': ('ko=2',), 'packing': True},
        {'objective': 'full_sentences', 'across_documents': True, 'language_repeats': ('ko=2',)},
    ],
    ids=['repeats', 'exponent', 'sop', 'packed', 'across'],
)
def test_the_manifest_counts_what_the_records_have(tmp_path, vocabulary, texts, options, capsys):
    inputs, words = texts
    manifest = run(tmp_path, vocabulary, input=inputs, eval_fraction=0.2, dupe_factor=2, **options)
    assert not shards.verify(tmp_path / 'out').faults
    found = manifest.statistics['text']['train']['languages']
    rows, _ = rows_of(tmp_path / 'out', 'train')
    assert {name: of['example_tokens'] for name, of in found.items()} == counted(rows, words)
    assert all(of['unknown_rate'] == 0 and of['pieces_a_word'] > 1 for of in found.values())
    sums = manifest.statistics['records']['train']
    assert sum(of['examples'] for of in found.values()) == sums['examples']
    said = capsys.readouterr().out
    assert f'{found["ko"]["example_tokens"]:,} tokens in' in said and 'pieces a word' in said
    if 'language_repeats' in options:
        given = dict(text.split('=') for text in ('de=1', *options['language_repeats']))
        assert all(of['passes'] == 2 * float(given[name]) for name, of in found.items())
        assert manifest.options['language_repeats'] == list(options['language_repeats'])


def test_pieces_a_word_are_of_the_text(tmp_path, vocabulary, texts):
    inputs, _ = texts
    found = run(tmp_path, vocabulary, input=inputs, eval_fraction=0).statistics['text']['train']
    for language, of in found['languages'].items():
        text = (tmp_path / language / 'a.txt').read_text().split()
        pieces = sum(2 if word.endswith(('s', 'ing')) and word[0] == 'w' else 1 for word in text)
        assert of['tokens'] == pieces
        assert of['pieces_a_word'] == pytest.approx(pieces / len(text))


def test_a_mixture_is_the_same_bytes_for_any_workers(tmp_path, vocabulary, texts):
    options = {'input': texts[0], 'language_repeats': ('ko=2.5',), 'eval_fraction': 0.2}
    for workers in (1, 2):
        run(tmp_path, vocabulary, output=f'{tmp_path}/{workers}', workers=workers, **options)
    assert digests(tmp_path / '1') == digests(tmp_path / '2')
    given = (texts[0][1], texts[0][0])  # nor do they depend on the order of the flags
    run(tmp_path, vocabulary, output=f'{tmp_path}/3', **options | {'input': given})
    assert digests(tmp_path / '1') == digests(tmp_path / '3')


def test_held_out_records_lie_apart_by_language(tmp_path, vocabulary, texts):
    inputs, words = texts
    run(tmp_path, vocabulary, input=inputs, eval_fraction=0.2)
    rows, names = rows_of(tmp_path / 'out', 'eval')
    for row, name in zip(rows, names, strict=True):
        assert languages_in(row, words) == {name.split('-')[1]}
    stream = RecordStream(tmp_path / 'out', 'eval', 7, 0, 'numpy')
    assert stream.languages == ('de', 'ko') and stream.records == len(rows)
    for language in stream.languages:
        batches = list(stream.evaluation(0, language))
        weights = np.concatenate([batch['example_weights'] for batch in batches])
        mine = [name.split('-')[1] == language for name in names]
        assert weights.sum() == sum(mine)
        found = np.concatenate([restored(batch) for batch in batches])[weights > 0]
        assert all(languages_in(row, words) == {language} for row in found)
    assert RecordStream(tmp_path / 'out', 'train', 7, 0, 'numpy').languages == ('',)


def test_a_language_with_one_held_out_document_has_no_pairs_there(
    tmp_path, vocabulary, texts, capsys
):
    write_text(tmp_path / 'held.txt', vocabulary[2][200:210])
    write_text(tmp_path / 'one.txt', vocabulary[2][210:211])
    given = (f'de={tmp_path}/held.txt', f'ko={tmp_path}/one.txt')
    manifest = run(tmp_path, vocabulary, input=texts[0], eval_input=given)
    assert 'ko: 1 document held out, which is too few' in capsys.readouterr().err
    assert {shard.language for shard in manifest.shards('eval')} == {'de'}


def test_what_is_repeated_often_is_warned_of(tmp_path, vocabulary, texts, capsys):
    run(tmp_path, vocabulary, input=texts[0], language_repeats=('ko=4',))
    assert 'repeated' not in capsys.readouterr().err
    run(tmp_path, vocabulary, input=texts[0], language_repeats=('ko=4.5',), overwrite=True)
    assert 'ko: its text is repeated 4.50 times' in capsys.readouterr().err


def test_copies_and_pieces_a_word(tmp_path, vocabulary, texts):
    """Dropping copies leaves tokens alone: pieces a word are of the text as it was read."""
    options = {'input': texts[0], 'eval_fraction': 0}
    plain, unique = (
        run(tmp_path, vocabulary, output=f'{tmp_path}/{dedup}', dedup=dedup, **options)
        for dedup in ('none', 'lines')
    )
    rates = lambda manifest: {
        name: of['pieces_a_word']
        for name, of in manifest.statistics['text']['train']['languages'].items()
    }
    assert rates(plain) == rates(unique)


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ({'language_repeats': ('fr=2',)}, "no input is named 'fr': the languages are de, ko"),
        ({'language_repeats': ('ko=',)}, '--language_repeats=ko=: expected how often'),
        ({'language_repeats': ('ko=0',)}, '--language_repeats=ko=0: expected how often'),
        ({'language_repeats': ('ko=nan',)}, '--language_repeats=ko=nan: expected how often'),
        ({'language_repeats': ('ko=2', 'ko=3')}, 'names a language twice'),
        ({'language_repeats': ('ko=2',), 'language_exponent': 0.5}, 'both say how often'),
        ({'language_repeats': ('ko=2',), 'input': 'x.txt'}, 'is for text in several languages'),
    ],
    ids=['unknown', 'empty', 'zero', 'nan', 'twice', 'both', 'unnamed'],
)
def test_a_mixture_that_cannot_be(tmp_path, vocabulary, texts, options, said):
    with pytest.raises(UserError, match='--language_') as raised:
        run(tmp_path, vocabulary, **{'input': texts[0], **options})
    assert said in str(raised.value) and '\n' not in str(raised.value)
    assert not (tmp_path / 'out').exists()


def test_a_file_that_is_named_twice(tmp_path, vocabulary, texts):
    (tmp_path / 'all.txt').write_text((tmp_path / 'ko' / 'a.txt').read_text())
    for given, said in (
        (('ko=all.txt', 'ko=all.txt'), '--input=ko=all.txt: is given twice'),
        ((f'de={tmp_path}/all.txt', f'ko={tmp_path}/*.txt'), 'is named as de and as ko'),
    ):
        with pytest.raises(UserError, match='--input') as raised:
            run(tmp_path, vocabulary, input=given)
        assert said in str(raised.value) and '--language_repeats' in str(raised.value)


def test_a_language_of_which_nothing_is_left(tmp_path, vocabulary, texts):
    (tmp_path / 'fr').mkdir()
    (tmp_path / 'fr' / 'a.txt').write_text('\u200b\n\n\u200b\n')
    blank = {'input': (*texts[0], f'fr={tmp_path}/fr/a.txt'), 'eval_fraction': 0}
    held_out = {'input': texts[0], 'eval_input': f'{tmp_path}/ko/a.txt'}
    for language, options in (('fr', blank), ('ko', held_out)):
        with pytest.raises(UserError, match=f'^--input={language}=.*: nothing is left of '):
            run(tmp_path, vocabulary, **options)


def test_a_language_that_is_only_held_out(tmp_path, vocabulary, texts):
    """Held-out text of a language that is not trained on: what transfer is measured on."""
    write_text(tmp_path / 'held.txt', vocabulary[2][200:210])
    given = (f'fr={tmp_path}/held.txt',)
    manifest = run(tmp_path, vocabulary, input=texts[0], eval_input=given)
    assert {shard.language for shard in manifest.files} == {'', 'fr'}


def test_sizes_that_are_taken_in_proportion(tmp_path, vocabulary, texts):
    """S=0 makes the tokens of both alike: ko, a fifth of the text, is gone through more often."""
    manifest = run(
        tmp_path, vocabulary, input=texts[0], language_exponent=0.0, eval_fraction=0, dupe_factor=4
    )
    found = manifest.statistics['text']['train']['languages']
    ratio = found['ko']['example_tokens'] / found['de']['example_tokens']
    assert ratio == pytest.approx(1, rel=0.1)
    pairs = itertools.pairwise(sorted(found))
    assert all(found[a]['passes'] < found[b]['passes'] for a, b in pairs)


def test_a_sentence_and_its_translation_stand_in_one_row(tmp_path, vocabulary, texts):
    """A document of two lines, by a code of its own: half of the rows are pairs, half are not."""
    pairs = list(zip(vocabulary[2][200:260], vocabulary[2][300:360], strict=True))
    (tmp_path / 'pairs.txt').write_text(
        '\n\n'.join(f'{one} waa wab\n{other} wff wgg' for one, other in pairs) + '\n'
    )
    given = (*texts[0], f'de-ko={tmp_path}/pairs.txt')
    manifest = run(
        tmp_path, vocabulary, input=given, eval_fraction=0, language_repeats=('de-ko=1',)
    )
    assert manifest.statistics['text']['train']['languages']['de-ko']['documents'] == 60
    ids = [(vocabulary[1][one], vocabulary[1][other]) for one, other in pairs]
    rows, _ = rows_of(tmp_path / 'out', 'train')
    whole = {pair for row in rows.tolist() for pair in ids if row[1] == pair[0] and pair[1] in row}
    seen = {pair for row in rows.tolist() for pair in ids if row[1] == pair[0]}
    assert len(seen) == 60 and 45 < len(whole) < 60  # of three passes, at least one keeps the pair


def test_held_out_records_do_not_depend_on_the_other_languages(tmp_path, vocabulary, texts):
    """So a model of one language and one of several are measured on the same masked words."""
    options = {'eval_fraction': 0.2, 'language_repeats': ('ko=2',)}
    run(tmp_path, vocabulary, input=texts[0], output=f'{tmp_path}/both', **options)
    run(tmp_path, vocabulary, input=texts[0][1:], output=f'{tmp_path}/alone', **options)
    both, alone = digests(tmp_path / 'both'), digests(tmp_path / 'alone')
    name = 'eval-ko-00000-of-00001.tfrecord'
    assert both[name] == alone[name]
