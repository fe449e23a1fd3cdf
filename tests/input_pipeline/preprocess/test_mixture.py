"""Records of several languages: their mixture, what is said of each, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.stream import RecordStream
from tests.helpers.jobs import read, run, write_text
from tests.helpers.refusals import refused

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
        {'language_repeats': ('ko=4', 'de=0.5'), 'packing': True},
        {'objective': 'full_sentences', 'across_documents': True, 'language_repeats': ('ko=2',)},
    ],
    ids=['packed', 'across'],
)
def test_the_manifest_counts_what_the_records_have(tmp_path, vocabulary, texts, options, capsys):
    inputs, words = texts
    manifest = run(tmp_path, vocabulary, input=inputs, eval_fraction=0.2, dupe_factor=2, **options)
    assert not shards.verify(tmp_path / 'out').faults
    found = manifest.statistics['text']['train']['languages']
    columns, rows, _ = read(tmp_path / 'out')
    assert {name: of['example_tokens'] for name, of in found.items()} == counted(rows, words)
    assert all(of['unknown_rate'] == 0 and of['pieces_a_word'] > 1 for of in found.values())
    sums = manifest.statistics['records']['train']
    assert sum(of['examples'] for of in found.values()) == sums['examples']
    said = capsys.readouterr().out
    assert f'{found["ko"]["example_tokens"]:,} tokens in' in said and 'pieces a word' in said
    given = dict(text.split('=') for text in ('de=1', *options['language_repeats']))
    assert all(of['passes'] == 2 * float(given[name]) for name, of in found.items())
    assert manifest.options['language_repeats'] == list(options['language_repeats'])
    # A random B of another language would give itself away.
    if 'packing' in options:
        packs = columns['pack_ids'][:, None] == np.arange(1, 9)[:, None]
        for row, places in zip(rows, packs, strict=True):
            assert all(len(languages_in(row[place], words)) < 2 for place in places)


def test_held_out_records_lie_apart_by_language(tmp_path, vocabulary, texts):
    inputs, words = texts
    run(tmp_path, vocabulary, input=inputs, eval_fraction=0.2)
    _, rows, names = read(tmp_path / 'out', 'eval')
    for row, name in zip(rows, names, strict=True):
        assert languages_in(row, words) == {name.split('-')[1]}
    stream = RecordStream(tmp_path / 'out', 'eval', 7, 0)
    assert stream.languages == ('de', 'ko') and stream.records == len(rows)
    for language in stream.languages:
        weights = sum(b['example_weights'].sum() for b in stream.evaluation(0, language))
        assert weights == sum(name.split('-')[1] == language for name in names)
    assert RecordStream(tmp_path / 'out', 'train', 7, 0).languages == ('',)


def test_a_language_that_no_input_has_is_refused(tmp_path, vocabulary, texts):
    with refused("--language_.* no input is named 'fr': the languages are de, ko"):
        run(tmp_path, vocabulary, input=texts[0], language_repeats=('fr=2',))
    assert not (tmp_path / 'out').exists()


def test_a_language_of_which_nothing_is_left(tmp_path, vocabulary, texts):
    (tmp_path / 'fr').mkdir()
    (tmp_path / 'fr' / 'a.txt').write_text('\u200b\n\n\u200b\n')
    blank = {'input': (*texts[0], f'fr={tmp_path}/fr/a.txt'), 'eval_fraction': 0}
    held_out = {'input': texts[0], 'eval_input': f'{tmp_path}/ko/a.txt'}
    for language, options in (('fr', blank), ('ko', held_out)):
        with refused(f'^--input={language}=.*: nothing is left of '):
            run(tmp_path, vocabulary, **options)
