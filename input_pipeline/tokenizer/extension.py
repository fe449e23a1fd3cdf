"""New words and markers for a vocabulary that a trained model already has.

Owns which words of a text are worth an entry, where they go ([unused] slots first, then the end, so
that every old entry keeps its id), and which entries of a vocabulary are new against an older one.
A marker (`[E1]`) is found in a text as it is, before anything is split or lower-cased: it is an
added token, as transformers has them. Must not know models: what becomes of the new entries' rows
is bert_jax/runs/sources/fitting.py's.
"""

from __future__ import annotations

import json
import operator
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.directory import FLAGS
from bert_jax.input_pipeline.tokenizer.foreign_directories import get_pieces
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.tokenizer_json import UNUSED


class Extended(NamedTuple):
    """A tokenizer with its new words.

    Attributes:
      tokenizer: the one that has them.
      in_slots: how many of them took [unused] slots.
      appended: how many came behind the vocabulary.
      known: how many were there already.
    """

    tokenizer: Tokenizer
    in_slots: int
    appended: int
    known: int

    def __str__(self) -> str:
        before = ''
        if self.known:
            before = f', {self.known} were there already'
        return (
            f'{self.in_slots + self.appended} new words: {self.in_slots} in [unused] slots,'
            f' {self.appended} appended{before}; {self.tokenizer.vocab_size} entries'
        )


def extend(tokenizer: Tokenizer, words: Iterable[str]) -> Extended:
    """Give each word that is no entry yet one of its own; words are as `normalize` gives them."""
    if tokenizer.refusal:
        raise UserError(f'only a WordPiece vocabulary can take new words: {tokenizer.refusal}')

    entries, *counts = _add_words(tokenizer, words)
    extended = Tokenizer.of_kind(
        tokenizer.kind, '\n'.join(entries).encode(), *_get_rules(tokenizer)
    )
    return Extended(extended, *counts)


def _add_words(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[list[str], int, int, int]:
    """Return the entries with new ones; how many took slots, were appended, were there."""
    entries, given = list(tokenizer.entries), list(dict.fromkeys(words))
    old = set(entries)
    new = [word for word in given if word not in old]
    # Slots first: the model's table of embeddings need not grow for these. Then the end. Old
    # entries keep their ids either way, or every trained row would mean another word.
    slots: list[int] = []
    if not tokenizer.refusal:
        slots = [i for i, e in enumerate(entries) if UNUSED.fullmatch(e) and e not in given]
    for slot, word in zip(slots, new, strict=False):
        entries[slot] = word
    in_slots = min(len(slots), len(new))
    appended = new[in_slots:]
    return [*entries, *appended], in_slots, len(appended), len(given) - len(new)


def mark(tokenizer: Tokenizer, markers: Iterable[str]) -> Extended:
    """Give each marker an entry of its own, and have it found in text as it is."""
    kind, special = tokenizer.marked_kind, tokenizer.special_tokens
    if kind is None:
        raise UserError(
            'only vocabularies of WordPiece, byte-level BPE and tokenizer.json can take markers'
        )
    given = list(dict.fromkeys(markers))
    for marker in given:
        is_row = marker in special or (tokenizer.unused and UNUSED.fullmatch(marker))
        if not marker or marker.split() != [marker] or is_row:
            raise UserError(
                f'--markers: {marker!r} cannot be one: a marker has no white space in it, and is no'
                ' special token'
            )

    # What is an entry already keeps its id, and is only looked for from now on.
    entries, *counts = _add_words(tokenizer, given)
    ids = {entry: i for i, entry in enumerate(entries)}

    # Our own rules as a tokenizer.json, which has a list of such tokens, as other kinds have.
    content = tokenizer.vocabulary
    if kind != tokenizer.kind:
        inside = '\n'.join(entries[: tokenizer.vocab_size]).encode()
        base = Tokenizer.of_kind(tokenizer.kind, inside, *_get_rules(tokenizer))
        content = base.tokenizer_json().encode()
    parts = json.loads(content)
    # In place of rows that are not used, where there are some behind the entries.
    appended = set(range(tokenizer.vocab_size, len(entries)))
    parts['added_tokens'] = [t for t in parts['added_tokens'] if t['id'] not in appended]
    there = {token['content'] for token in parts['added_tokens']}
    plain = dict.fromkeys(FLAGS, False)
    for marker in given:
        if marker in there:
            continue
        if _is_word(tokenizer, marker):
            raise UserError(
                f'--markers: {marker!r} is a word that the vocabulary has, and would be cut out of'
                f' longer words from now on: take a marker that no text holds, as [{marker}]'
            )
        parts['added_tokens'].append({'id': ids[marker], 'content': marker, **plain})
    # Special tokens first, then by id: as in a directory that is read. But by id alone those that
    # come behind the entries, for their ids are their order.
    first = get_pieces(parts).intersection(special)
    is_first = [token for token in parts['added_tokens'] if token['content'] in first]
    others = [token for token in parts['added_tokens'] if token['content'] not in first]
    parts['added_tokens'] = is_first + sorted(others, key=operator.itemgetter('id'))
    content = json.dumps(parts, ensure_ascii=False, sort_keys=True).encode()
    return Extended(Tokenizer.of_kind(kind, content, *_get_rules(tokenizer)), *counts)


def _is_word(tokenizer: Tokenizer, marker: str) -> bool:
    """Tell whether a marker is letters, marks and digits that are one known piece already."""
    if any(unicodedata.category(char)[0] not in 'LMN' for char in marker):
        return False
    # byte-level BPE has most words with the space before them alone
    spelled = [tokenizer.encode(text) for text in (marker, f' {marker}')]
    return any(len(ids) == 1 and ids[0] != tokenizer.unk_id for ids in spelled)


def _get_rules(tokenizer: Tokenizer) -> tuple[Normalizer, list[str]]:
    return tokenizer.normalizer, tokenizer.special_tokens


def normalize(tokenizer: Tokenizer, lines: Iterable[str], file: str) -> list[str]:
    """Return the words of a file, one a line, as the tokenizer sees them.

    Raises:
      UserError: it splits a line into several, or there is none.
    """
    # Cased and cut as text will be: an entry that no text is cut into would never be found.
    words = []
    for number, line in enumerate(lines, 1):
        pieces: list[str] = []
        for word in line.split():
            pieces += tokenizer.normalizer.split(word)
        if len(pieces) > 1:
            raise UserError(
                f'{file}:{number}: {line.strip()!r} is {len(pieces)} words to this tokenizer'
                f' ({", ".join(pieces)}), so an entry for it would never be used: give them one a'
                ' line, or give what marks a place in a text to --markers'
            )
        words += pieces
    if not words:
        raise UserError(f'{file}: no words in it')
    return words


def choose_new_words(
    tokenizer: Tokenizer, counts: Mapping[str, int], number: int, min_frequency: int
) -> list[str]:
    """Return the `number` words whose entries would save most pieces in a text of these words.

    Only words with a letter count. What the vocabulary cannot spell counts as one piece saved. Ties
    go by the alphabet.
    """
    # A word of n pieces would be one: n - 1 saved at each of its places.
    gains: dict[str, int] = {}
    for word, count in counts.items():
        if count >= min_frequency and any(char.isalpha() for char in word):
            ids = tokenizer.encode(word)
            saved = 1 if tokenizer.unk_id in ids else len(ids) - 1
            if saved:
                gains[word] = count * saved
    return sorted(gains, key=lambda word: (-gains[word], word))[:number]


def find_new_entries(old: Tokenizer, new: Tokenizer) -> dict[int, list[int]]:
    """Return {id in `new` of an entry that `old` lacks: the old ids that spell it, or none}.

    Raises:
      UserError: `new` is anything but `old` with its [unused] slots taken and entries appended.
    """
    # From "the same" to "an extension", refused at the first thing that differs.
    if new.fingerprint == old.fingerprint:
        return {}
    takes_words = new.kind == old.kind and not old.refusal
    if not takes_words and not _is_marked(old, new):
        raise UserError(
            'they are two tokenizers, and only a WordPiece vocabulary can take new words'
        )
    if _get_rules(new) != _get_rules(old):
        raise UserError(
            f'their casing or special tokens differ: {_word_casing(old)} there,'
            f' {_word_casing(new)} here'
        )

    # Entry by entry: only [unused] slots may have changed, and only at the end may there be more.
    before, after = old.entries, new.entries
    if len(after) < len(before):
        raise UserError(f'{len(before)} entries there, but only {len(after)} here')
    changed = [i for i, entry in enumerate(before) if entry != after[i]]
    other = [i for i in changed if not UNUSED.fullmatch(before[i])]
    if other:
        raise UserError(
            f'entry {other[0]} is {before[other[0]]!r} there and {after[other[0]]!r} here'
            f' ({len(other)} differ in all)'
        )
    return {i: _spell(old, after[i]) for i in (*changed, *range(len(before), len(after)))}


def _spell(old: Tokenizer, entry: str) -> list[int]:
    """Return the ids that spell an entry, or a marker, that a vocabulary lacks; [] for none."""
    ids = old.spell(entry)
    if ids or entry.startswith('##'):
        return ids
    ids = old.encode(entry)
    if old.unk_id in ids:
        return []
    return ids


def _is_marked(old: Tokenizer, new: Tokenizer) -> bool:
    """Tell whether two tokenizers have the same rules but for entries and markers."""
    if None in (old.marked_kind, new.marked_kind):
        return False
    rules = [json.loads(tokenizer.tokenizer_json()) for tokenizer in (old, new)]
    for parts in rules:
        del parts['added_tokens'], parts['model']['vocab']
    return rules[0] == rules[1]


def _word_casing(tokenizer: Tokenizer) -> str:
    lower = '' if tokenizer.lower_case else 'not '
    accents = '' if tokenizer.strip_accents else 'not '
    return f'{lower}lower-cased, accents {accents}stripped'
