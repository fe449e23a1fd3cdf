"""New words for a vocabulary that a model has: which, and where they go.

Also what counts as the same vocabulary.
"""

from __future__ import annotations

import pathlib

from bert_jax.input_pipeline.tokenizer import extension, vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from tests.helpers.files import write_lines
from tests.helpers.refusals import refused

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
    write_lines(folder / 'vocab.txt', entries)
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
    slots = {'[unused0]': 'genome', '[unused1]': 'protein', '[unused2]': 'exon'}
    wanted = [slots.get(entry, entry) for entry in ENTRIES]
    assert new.tokens(range(new.vocab_size)) == [*wanted, 'ω']
    assert new.encode('Genome genomes ω') == [1, 1, 9, 17]
    # Nothing spells exon: there is no head e.
    assert extension.find_new_entries(old, new) == {1: [7, 8], 2: [10, 11], 14: [], 17: []}
    new.save(tmp_path / 'new')
    assert Tokenizer.load(tmp_path / 'new').fingerprint == new.fingerprint
    assert extension.find_new_entries(new, new) == {}
    other = tokenizer(tmp_path / 'other', [e.replace('cell', 'sell') for e in ENTRIES])
    with refused("entry 13 is 'cell' there and 'sell' here .1 differ"):
        extension.find_new_entries(old, other)


def test_the_words_that_save_most_pieces(tmp_path):
    old = tokenizer(tmp_path / 'old', ENTRIES)
    counts = {
        'genomes': 3, 'protein': 5, 'cell': 90, 'ω': 5, 'gens': 2, '1x': 50, 'genx': 1, '+': 80
    }  # fmt: skip
    # saved: genomes 3 x 2, protein 5 x 1, ω and 1x cannot be spelled at all, gens 2 x 1; cell is
    # there; + has no letter
    best = ['1x', 'genomes', 'protein', 'ω', 'gens', 'genx']
    assert extension.choose_new_words(old, counts, 4, min_frequency=2) == best[:4]
    assert extension.choose_new_words(old, counts, 99, min_frequency=1) == best


def test_lists_of_words(tmp_path):
    old = tokenizer(tmp_path / 'old', ENTRIES)
    assert extension.normalize(old, ['Genome\n', '\n', ' Éxon '], 'f.txt') == ['genome', 'exon']
    with refused(r"f\.txt:2: 'covid-19' is 3 words to this tokenizer \(covid, -, 19\)"):
        extension.normalize(old, ['a', 'covid-19'], 'f.txt')


def test_markers_are_found_in_text_as_it_stands(tmp_path):
    """In [unused] slots first; an entry that is there is only looked for from now on."""
    old = tokenizer(tmp_path / 'old', [*ENTRIES, '[', ']', 'e1', 'mask'])
    markers = ['[E1]', '[/E1]', '[unused1]', '[E2]']
    extended = extension.mark(extension.extend(old, ['exon']).tokenizer, markers)
    assert str(extended).startswith('3 new words: 1 in [unused] slots, 2 appended, 1 were there')
    new = extended.tokenizer
    text = '[E1]Cell[/E1] [e1] exon[unused1] [E2] [MASK]'
    wanted = '[E1] cell [/E1] [ e1 ] exon [unused1] [E2] [ mask ]'
    assert new.tokens(new.encode(text)) == wanted.split()
    found = new.encode_with_offsets(text)
    assert found.ids.tolist() == new.encode(text) and (found.starts[0], found.ends[0]) == (0, 4)

    # A row begins as the mean of the pieces that spelled it; nothing spelled exon and /.
    assert extension.find_new_entries(old, new) == {1: [], 14: [17, 19, 18], 21: [], 22: []}
    new.save(tmp_path / 'new')
    again = Tokenizer.load(tmp_path / 'new')
    assert again.fingerprint == new.fingerprint and again.encode(text) == new.encode(text)

    # A word would be cut out of others; what no entry spells is in none.
    for word in ('cell', 'Cell'):
        with refused(f"'{word}' is a word .* as .{word}]"):
            extension.mark(old, ['[E1]', word])


def test_markers_of_other_kinds():
    text = ['we walk and walks are walked'] * 9
    merged = vocabulary.train(text, VocabularyOptions(270, 'byte_bpe'))[0]
    marked = extension.mark(merged, ['<e1>', '</e1>']).tokenizer
    ids = marked.encode('we <e1>walk</e1>')
    assert marked.tokens(ids)[-1] == '</e1>' and '<e1>' in marked.tokens(ids)
    rows = extension.find_new_entries(merged, marked)
    assert rows == {
        merged.vocab_size + i: merged.encode(m) for i, m in enumerate(('<e1>', '</e1>'))
    }
    assert marked.encode('we walk') == merged.encode('we walk')
    with refused('can take markers'):
        extension.mark(vocabulary.train(text, VocabularyOptions(30, 'unigram'))[0], ['[E1]'])
    with refused("'walk' is a word"):
        extension.mark(merged, ['walk'])
    for marker in ('', '[E 1]', '<mask>'):
        with refused('--markers: .* cannot be one'):
            extension.mark(merged, [marker])
