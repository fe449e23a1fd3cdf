"""New words for a vocabulary that a model has: which, and where they go.

Also what counts as the same vocabulary.
"""

from __future__ import annotations

import pathlib

import pytest

from configs.errors import UserError
from input_pipeline.tokenizer import Tokenizer, extension

SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
ENTRIES = [
    '[PAD]',
    '[unused0]',
    '[unused1]',
    *SPECIALS[1:],
    'gen',
    '##ome',
    '##s',
    'pro',
    '##tein',
    'a',
    'cell',
    '[unused2]',
    '##e',
    '##x',
]


def tokenizer(
    folder: pathlib.Path, entries: list[str], config: str = '{"do_lower_case": true}'
) -> Tokenizer:
    folder.mkdir()
    (folder / 'vocab.txt').write_text('\n'.join(entries) + '\n')
    (folder / 'tokenizer_config.json').write_text(config)
    return Tokenizer.load(folder)


def test_unused_slots_come_first_and_every_old_entry_keeps_its_id(tmp_path):
    old = tokenizer(tmp_path / 'old', ENTRIES)
    extended = extension.extend(old, ['genome', 'protein', 'cell', 'exon', 'genome', 'ω'])
    new = extended.tokenizer
    assert (
        str(extended)
        == '4 new words: 3 in [unused] slots, 1 appended, 1 were there already; 18 entries'
    )
    wanted = [
        (
            'genome'
            if e == '[unused0]'
            else 'protein'
            if e == '[unused1]'
            else 'exon'
            if e == '[unused2]'
            else e
        )
        for e in ENTRIES
    ]
    assert new.tokens(range(new.vocab_size)) == [*wanted, 'ω']
    assert new.encode('Genome genomes ω') == [1, 1, 9, 17]
    # Nothing spells exon: there is no head e.
    assert extension.new_entries(old, new) == {1: [7, 8], 2: [10, 11], 14: [], 17: []}
    new.save(tmp_path / 'new')
    assert Tokenizer.load(tmp_path / 'new').fingerprint == new.fingerprint
    assert extension.new_entries(new, new) == {}


def test_an_entry_that_continues_a_word_is_spelled_by_such_entries(tmp_path):
    old, new = (
        tokenizer(tmp_path / 'old', ENTRIES),
        tokenizer(tmp_path / 'new', [*ENTRIES, '##omes', 'ome']),
    )
    assert extension.new_entries(old, new) == {17: [8, 9], 18: []}


def test_the_words_that_save_most_pieces(tmp_path):
    old = tokenizer(tmp_path / 'old', ENTRIES)
    counts = {
        'genomes': 3,
        'protein': 5,
        'cell': 90,
        'ω': 5,
        'gens': 2,
        '1x': 50,
        'genx': 1,
        '+': 80,
    }
    # saved: genomes 3 x 2, protein 5 x 1, ω and 1x cannot be spelled at all, gens 2 x 1; cell is
    # there; + has no letter
    assert extension.worthwhile(old, counts, 4, min_frequency=2) == [
        '1x',
        'genomes',
        'protein',
        'ω',
    ]
    assert extension.worthwhile(old, counts, 99, min_frequency=1) == [
        '1x',
        'genomes',
        'protein',
        'ω',
        'gens',
        'genx',
    ]


def test_lists_of_words(tmp_path):
    old = tokenizer(tmp_path / 'old', ENTRIES)
    assert extension.normalize(old, ['Genome\n', '\n', ' Éxon '], 'f.txt') == ['genome', 'exon']
    with pytest.raises(
        UserError, match=r"f\.txt:2: 'covid-19' is 3 words to this tokenizer \(covid, -, 19\)"
    ):
        extension.normalize(old, ['a', 'covid-19'], 'f.txt')
    with pytest.raises(UserError, match='no words in it'):
        extension.normalize(old, ['', ' '], 'f.txt')


@pytest.mark.parametrize(
    ('entries', 'config', 'message'),
    [
        (
            [e.replace('cell', 'sell') for e in ENTRIES],
            '{"do_lower_case": true}',
            "entry 13 is 'cell' there and 'sell' here \\(1 differ",
        ),
        (ENTRIES[:-1], '{"do_lower_case": true}', '17 entries there, but only 16 here'),
        (
            ENTRIES,
            '{"do_lower_case": false}',
            'lower-cased, accents stripped there, not lower-cased, accents not stripped here',
        ),
    ],
)
def test_another_vocabulary_is_not_an_extension(tmp_path, entries, config, message):
    with pytest.raises(UserError, match=message):
        extension.new_entries(
            tokenizer(tmp_path / 'old', ENTRIES), tokenizer(tmp_path / 'new', entries, config)
        )
