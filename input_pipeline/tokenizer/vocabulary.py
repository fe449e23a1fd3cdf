"""Vocabularies from text: WordPiece, SentencePiece unigram and BPE, byte-level BPE, whole words.

Owns counting the words of a corpus and training on the counts; knows nothing of files of text
(corpus.py gives the lines) or of tokenizer files (tokenizer.py writes them). All kinds
train on the same table of words and counts, made with the same `Normalizer` that the tokenizer
then uses, so memory does not grow with the corpus and the result depends on the text alone.

The WordPiece trainer is the `tokenizers` library's: merges by pair frequency, as BPE. Google never
published its own.
"""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer import byte_bpe as bytewise
from bert_jax.input_pipeline.tokenizer import words as words_file
from bert_jax.input_pipeline.tokenizer.directories import byte_bpe_files
from bert_jax.input_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, words
from bert_jax.input_pipeline.tokenizer.wordpiece import Normalizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.input_pipeline.wire import fields

# words as they stand in the text, before they are normalised and added to the table
_RAW_WORDS = 1 << 20
_TABLE_WORDS = 1 << 22  # normalised words; when there are more, the rarest go (about 500 MB)
_SPECIALS = tuple(SPECIAL_TOKENS.values())
# Of the words, from which on such as are longer than what is read of one are no exception.
_LONG_SHARE = 0.02
# SentencePiece passes over a longer word without a word: such a one is cut into stretches.
_LONGEST_BYTES, _STRETCH = 4192, 100  # the former of UTF-8, the latter characters
# And over words with the sign by which it marks rare characters. What is to be rare stands as
# [UNK] in the words that it is given: to it that is one rare character.
_RESERVED = '\u2585'
_LEAST_COVERAGE = 0.98  # that SentencePiece takes
_HANGUL_SHARE = 0.01  # of the words, from which on Hangul is more than a quotation
_HANGUL = re.compile('[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]')


@dataclass(frozen=True)
class Report:
    """How a vocabulary fits the text it was trained on; shares are of running text."""

    vocab_size: int
    words: int  # whitespace words read
    characters_covered: float  # share of characters that have an entry
    unknown: float  # share of pieces that are [UNK]
    fertility: float  # pieces a whitespace word
    warnings: tuple[str, ...]
    # Of whole words: the share of pieces that are in the list, and how many more are known.
    listed: float = 1.0
    more: int = 0

    def __str__(self) -> str:
        return (
            f'{self.vocab_size} entries from {self.words} words: {self.characters_covered:.4%} of'
            f' characters covered, {self.unknown:.4%} of pieces unknown, {self.fertility:.3f}'
            ' pieces a word'
            + (
                f'; {self.listed:.2%} of the pieces are in the list, {self.more} more are known'
                if self.more
                else ''
            )
        )


class WordTable:
    """Counts of normalised words; bounded."""

    def __init__(
        self,
        normalize: Callable[[str], list[str]],
        cut: Callable[[str], list[str]] = words,
    ):
        """`normalize` gives the words to count of a whitespace word: basic tokens for WordPiece.

        `cut` gives the whitespace words of a line.
        """
        self._normalize, self._cut = normalize, cut

        # Words as they stand are counted first and normalised once each, when the table is folded:
        # normalising every word of running text would be most of the work.
        self._raw: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.words = 0
        self.hangul = 0  # words with Hangul in them
        self.pruned = 0

    def add(self, text: str) -> None:
        """Counts the words of one line."""
        self._raw.update(self._cut(text))
        if len(self._raw) > _RAW_WORDS:
            self.fold()

    @classmethod
    def mixed(cls, tables: Sequence[tuple[WordTable, float]]) -> WordTable:
        """The counts of several folded tables, each taken as often as the number beside it says.

        Rounded to the next whole number, a half upwards: what is below is not there.
        """
        times = lambda count, often: int(count * often + 0.5)
        mixture = cls(tables[0][0]._normalize, tables[0][0]._cut)
        for table, often in tables:
            mixture.words += times(table.words, often)
            mixture.hangul += times(table.hangul, often)
            mixture.pruned = max(mixture.pruned, table.pruned)
            mixture.counts.update({w: times(count, often) for w, count in table.counts.items()})
        mixture.counts = +mixture.counts  # without zeros
        return mixture

    def fold(self) -> None:
        """Moves what was counted as it stands into the table."""
        for word, count in self._raw.items():
            self.words += count
            self.hangul += count * bool(_HANGUL.search(word))
            for token in self._normalize(word):
                self.counts[token] += count
        self._raw.clear()
        # rare words hardly move the pieces; frequent ones are never lost
        while len(self.counts) > _TABLE_WORDS:
            self.pruned += 1
            self.counts = Counter(
                {word: count for word, count in self.counts.items() if count > self.pruned}
            )


def normalizer_of(options: VocabularyOptions) -> Normalizer:
    """The normaliser that the tokenizer will have; byte-level BPE has none.

    NFC unless accents go (stripping decomposes), so that Hangul typed in parts meets its entries.
    """
    if options.model == 'byte_bpe':
        return Normalizer(False, False)
    strip_accents = options.lower_case if options.strip_accents is None else options.strip_accents
    return Normalizer(options.lower_case, strip_accents, nfc=not strip_accents)


def train(texts: Iterable[str], options: VocabularyOptions) -> tuple[Tokenizer, Report]:
    """Trains on lines of text and returns the tokenizer and how well it fits them.

    The result depends only on the text, not on the machine or the order of the lines (unless the
    corpus has over 4 million different words, when rare ones may be forgotten). Raises UserError
    where the text has no words, or vocab_size cannot even hold its characters.
    """
    return train_on(counted(texts, options), options)


def counted(texts: Iterable[str], options: VocabularyOptions) -> WordTable:
    """The words of lines of text, by the normaliser that the tokenizer will have."""
    normalizer = normalizer_of(options)
    if options.model == 'byte_bpe':
        table = WordTable(bytewise.words_of, bytewise.stretches)
    else:  # whole words are those that WordPiece would cut
        by_piece = options.model in ('wordpiece', 'words')
        table = WordTable(
            normalizer.split if by_piece else lambda word: _composed(word, normalizer)
        )
    for text in texts:
        table.add(text)
    table.fold()
    return table


def _composed(word: str, normalizer: Normalizer) -> list[str]:
    """What SentencePiece is trained on of a word: the word, or stretches of a very long one.

    Stretches of the word as it stands, so that they are those of a text in lines of that length.
    """
    composed = normalizer.compose(word)
    if len(composed.encode()) > _LONGEST_BYTES:
        parts = (word[i : i + _STRETCH] for i in range(0, len(word), _STRETCH))
        composed = ' '.join(map(normalizer.compose, parts))
    return composed.split()


def train_on(table: WordTable, options: VocabularyOptions) -> tuple[Tokenizer, Report]:
    """`train` on words that are counted already."""
    if not table.counts:
        raise UserError('no words in the text: nothing to train a vocabulary on')
    normalizer = normalizer_of(options)
    wordpiece, byte_bpe = options.model in ('wordpiece', 'words'), options.model == 'byte_bpe'

    # What the user should hear of before a model is trained on it.
    warnings = []
    if wordpiece and normalizer.strip_accents and table.hangul > _HANGUL_SHARE * table.words:
        warnings.append(
            'the text has Hangul, and stripping accents takes its syllables apart (a word of 3'
            ' characters becomes 8): train with --nolower_case or --nostrip_accents'
        )
    if table.pruned:
        warnings.append(
            f'over {_TABLE_WORDS} different words: those seen at most {table.pruned} times may have'
            ' been left out'
        )
    # sorted: the trainers break ties by the order in which they see words
    counts = dict(sorted(table.counts.items()))
    if options.model == 'words':
        # Closed: what is measured is what records will hold.
        tokenizer = Tokenizer('words', _choose_words(counts, options), normalizer).close()
        warnings += _long_words(counts)
    elif wordpiece:
        tokenizer = Tokenizer('wordpiece', _train_wordpiece(counts, options), normalizer)
    elif byte_bpe:
        special = tuple(byte_bpe_files.SPECIAL_TOKENS.values())
        tokenizer = Tokenizer('byte_bpe', _train_byte_bpe(counts, options), normalizer, special)
    else:
        tokenizer = Tokenizer('sentencepiece', _train_sentencepiece(counts, options), normalizer)

    # Fewer entries than were asked for make a smaller model, which is worth a word, but no mistake.
    if tokenizer.vocab_size < options.vocab_size:
        warnings.append(
            f'the text is too small for --vocab_size={options.vocab_size}: it gives'
            f' {tokenizer.vocab_size} entries, and that many were made'
        )
    return tokenizer, measure(tokenizer, counts, table.words, warnings)


def _characters(counts: dict[str, int]) -> Counter[str]:
    """How often each character occurs in running text."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    return characters


def _by_frequency(characters: Counter[str]) -> list[tuple[str, int]]:
    """Characters with their counts, the most frequent first."""
    # Ties by the character itself, so that it is the same every time.
    return sorted(characters.items(), key=lambda item: (-item[1], item[0]))


def _alphabet(
    characters: Counter[str], options: VocabularyOptions, entries: dict[str, int], most: int
) -> tuple[set[str], float]:
    """The most frequent characters, and the share of the text that they cover.

    As many as the wanted coverage takes, or `most` places hold, half of the vocabulary's at first,
    so that scripts of thousands of characters leave room for words. `entries`: how many places
    a character takes.
    """
    kept, covered, places = set(), 0, 0
    for char, count in _by_frequency(characters):
        places += entries[char]
        if covered >= options.character_coverage * characters.total() or places > most:
            break
        kept.add(char)
        covered += count
    return kept, covered / characters.total()


def _half(options: VocabularyOptions) -> int:
    """Half of the places, or what special tokens and SentencePiece's space leave of very few."""
    return min(options.vocab_size // 2, options.vocab_size - len(_SPECIALS) - 1)


def _train_wordpiece(counts: dict[str, int], options: VocabularyOptions) -> bytes:
    """The content of a vocab.txt.

    Special tokens, single characters, then merged pieces by falling frequency.
    """
    from tokenizers import Tokenizer as Pipeline
    from tokenizers import models, pre_tokenizers, trainers

    entries = Counter(set().union(*counts))  # one as a head, one more as a tail
    entries.update(set().union(*(word[1:] for word in counts)))

    # Which characters get entries comes first, for it decides which words may be learnt from.
    characters = _characters(counts)
    kept, coverage = _alphabet(characters, options, entries, _half(options))
    # a word with a character outside is [UNK] as a whole, so nothing is to be learnt from it
    usable = {word: count for word, count in counts.items() if kept.issuperset(word)}
    inside = {char for word in usable for char in word[1:]}
    # listed beforehand, because the trainer numbers `##x` in the order of a hash map, differently
    # at every run
    first = [*_SPECIALS, *sorted(kept), *(f'##{char}' for char in sorted(inside))]
    trainer = trainers.WordPieceTrainer(
        vocab_size=options.vocab_size,
        min_frequency=options.min_frequency,
        special_tokens=first,
        continuing_subword_prefix='##',
        show_progress=False,
    )
    pipeline = Pipeline(models.WordPiece(unk_token='[UNK]'))
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.train_from_iterator(_running_text(usable), trainer)

    # The line is the id.
    ids = pipeline.get_vocab()
    tokens = sorted(ids, key=lambda token: ids[token])
    if coverage < options.character_coverage:
        tokens = _filled_up(tokens, characters, entries, options)
    return '\n'.join(tokens).encode()


def _filled_up(
    tokens: list[str], characters: Counter[str], entries: dict[str, int], options: VocabularyOptions
) -> list[str]:
    """The entries, and behind them further characters by falling frequency.

    Until the coverage that is wanted is reached, or the vocabulary is full: of ideographs, each of
    which is a word, there are no pieces to fill it with. `entries`: as for `_alphabet`.
    """
    filled, known, covered = list(tokens), set(tokens), 0
    for char, count in _by_frequency(characters):
        if covered >= options.character_coverage * characters.total():
            break
        filled += [e for e in (char, f'##{char}')[: entries[char]] if e not in known]
        covered += count
    return filled[: options.vocab_size]


def _running_text(counts: dict[str, int]) -> Iterator[str]:
    """Text in which every word occurs as often as counted: the trainer takes no counts."""
    # A frequent word comes in stretches, or one string would be as large as the text itself.
    chunk, size = [], 0
    for word, count in counts.items():
        while count:
            times = min(count, 10_000)
            chunk.append(f'{word} ' * times)
            count, size = count - times, size + times * (len(word) + 1)
            if size > 1 << 16:
                yield ''.join(chunk)
                chunk, size = [], 0
    yield ''.join(chunk)


def _train_byte_bpe(counts: dict[str, int], options: VocabularyOptions) -> bytes:
    """What byte_bpe_files.content makes of the entries.

    Special tokens, the 256 bytes, merged pieces by falling frequency, and the mask at the end.
    """
    from tokenizers import Tokenizer as Pipeline
    from tokenizers import models, pre_tokenizers, trainers

    # Every byte has an entry, so that there is a spelling for any text.
    mask = byte_bpe_files.SPECIAL_TOKENS['mask_token']
    least = len(byte_bpe_files.FIRST_TOKENS) + 256 + 1
    if options.vocab_size < least:
        raise UserError(
            f'--vocab_size={options.vocab_size}: --model=byte_bpe takes {least} or more, for the'
            ' bytes and the special tokens'
        )
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size - 1,
        min_frequency=options.min_frequency,
        special_tokens=list(byte_bpe_files.FIRST_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pipeline = Pipeline(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    spelled = {bytewise.spelled_in_bytes(word): count for word, count in counts.items()}
    pipeline.train_from_iterator(_running_text(spelled), trainer)

    # Its own file is the only place where the library tells the merges.
    model = json.loads(pipeline.to_str())['model']
    entries = [*sorted(model['vocab'], key=model['vocab'].__getitem__), mask]
    return byte_bpe_files.content(entries, model['merges'], options.add_prefix_space)


def _choose_words(counts: dict[str, int], options: VocabularyOptions) -> bytes:
    """The content of a words.txt."""
    # No more than that is looked at of a long word, and words that are alike so far are one.
    first: Counter[str] = Counter()
    for word, count in counts.items():
        first[word[: words_file.CHARACTERS]] += count
    room = options.vocab_size - len(_SPECIALS)
    most = max(room, options.known_words)
    order = sorted(first, key=lambda word: (-first[word], word))[:most]
    return words_file.content([*_SPECIALS, *order[:room]], order[room:])


def _long_words(counts: dict[str, int]) -> list[str]:
    """A warning where words are so long that the text seems to have no spaces between them."""
    most = words_file.CHARACTERS
    long = sum(count for word, count in counts.items() if len(word) > most)
    share = long / sum(counts.values())
    if share <= _LONG_SHARE:
        return []
    return [
        f'{share:.1%} of the words are longer than {most} characters, and only the first {most} are'
        ' read: where a language has no spaces between words, a stretch without any is one word:'
        ' divide the text into words before'
    ]


def _train_sentencepiece(counts: dict[str, int], options: VocabularyOptions) -> bytes:
    """The content of an spm.model with the five special tokens first."""
    from bert_jax.input_pipeline.tokenizer.spm import with_exact_sums

    characters, half = _characters(counts), _half(options)
    kept, coverage = _alphabet(characters, options, dict.fromkeys(characters, 1), half)
    if coverage >= _LEAST_COVERAGE:  # the library finds such an alphabet by its share
        model = _sentencepiece(counts, {_RESERVED}, coverage, options)
    else:
        model = _sentencepiece(counts, characters.keys() - kept, 1.0, options)
        free = options.vocab_size - sum(1 for _ in fields(model, 1))
        if free and coverage < options.character_coverage:
            # No pieces to fill it with: more characters, each by what normalisation makes of it.
            entries = {char: len(unicodedata.normalize('NFKC', char)) for char in characters}
            kept, _ = _alphabet(characters, options, entries, half + free)
            model = _sentencepiece(counts, characters.keys() - kept, 1.0, options)
    return with_exact_sums(model) if options.model == 'unigram' else model


def _sentencepiece(
    counts: dict[str, int], left_out: Set[str], coverage: float, options: VocabularyOptions
) -> bytes:
    """A model of the words without some characters; of the others so large a share is kept."""
    import sentencepiece

    # The same ids as in a WordPiece vocabulary: [PAD] is 0, then [UNK] [CLS] [SEP], and [MASK]
    # next.
    pad, unk, cls, sep, mask = _SPECIALS
    characters = set().union(*counts)
    left_out = characters & {_RESERVED, *left_out}
    table = str.maketrans(dict.fromkeys(left_out, unk))
    # As long as a word can become by that; only then, for it is written into the model.
    longest: dict[str, Any] = {'max_sentence_length': len(unk) * _LONGEST_BYTES} if left_out else {}
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(
                f'{word.translate(table)}\t{count}' for word, count in counts.items()
            ),
            input_format='tsv',
            model_writer=model,
            model_type=options.model,
            vocab_size=options.vocab_size,
            hard_vocab_limit=False,
            character_coverage=coverage,
            normalization_rule_name='nmt_nfkc',
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=pad,
            unk_piece=unk,
            bos_piece=cls,
            eos_piece=sep,
            control_symbols=[mask],
            # The sums, and with them the model, depend on it: the same on every machine
            num_threads=4,
            minloglevel=2,
            **longest,
        )
    except RuntimeError as error:
        if 'required_chars' not in str(error):  # nothing is left of what its normalisation deletes
            raise UserError(
                f'--model={options.model}: SentencePiece finds no words in the text ({error})'
            ) from error

        # The library's own words speak of internals; the cure is one of two flags.
        raise UserError(
            f'--vocab_size={options.vocab_size}: less than the characters of the text: raise it, or'
            ' lower --character_coverage'
        ) from error
    return model.getvalue()


def measure(
    tokenizer: Tokenizer, counts: dict[str, int], total_words: int, warnings: list[str]
) -> Report:
    """Measures `tokenizer` on a text of these words."""
    # Weighted by how often words occur, so that the figures are those of running text.
    entries = tokenizer.tokens(range(len(_SPECIALS), tokenizer.known))
    known = set(''.join(entry.removeprefix('##') for entry in entries))
    characters, bytes_alone = _characters(counts), tokenizer.kind == 'byte_bpe'
    if tokenizer.kind == 'sentencepiece':  # it has other forms of some: a comma for a wide one
        known = {char for char in characters if tokenizer.unk_id not in tokenizer.encode(char)}
    covered = sum(n for char, n in characters.items() if bytes_alone or char in known)
    pieces = unknown = listed = 0
    for word, count in counts.items():
        ids = tokenizer.encode(word)
        pieces += count * len(ids)
        unknown += count * ids.count(tokenizer.unk_id)
        listed += count * sum(i < tokenizer.vocab_size for i in ids)
    return Report(
        vocab_size=tokenizer.vocab_size,
        words=total_words,
        characters_covered=covered / characters.total(),
        unknown=unknown / pieces,
        fertility=pieces / total_words,
        warnings=tuple(warnings),
        listed=(listed - unknown) / pieces,
        more=tokenizer.known - tokenizer.vocab_size,
    )
