"""Vocabularies from text: words are counted, cased, made entries of, and the fit is measured.

Owns counting the words of a corpus, which casing a text wants (English is told by its words), and
which different words a casing makes equal. Knows nothing of files of text (corpus.py gives the
lines), of tokenizer files (tokenizer.py writes them), or of how each kind is trained (trainers.py).
All kinds train on the same table of words and counts, made with the same `Normalizer` that the
tokenizer then uses, so memory does not grow with the corpus and the result depends on the text
alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer, split_words
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.trainers import count_characters, make_trainer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions

# words as they stand in the text, before they are normalised and added to the table
_RAW_WORDS = 1 << 20
_TABLE_WORDS = 1 << 22  # normalised words; when there are more, the rarest go (about 500 MB)
_FORMS = 1 << 20  # words as they are spelt, of a text that is lower-cased; the rarest go
_HANGUL_SHARE = 0.01  # of the words, from which on Hangul is more than a quotation
_ROW = re.compile(r'\[(CLS|SEP|PAD|UNK|MASK|unused\d+)\]')
_ROW_SHARE = 0.001  # of the words, from which on names of rows are more than a quotation
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
    notes: tuple[str, ...] = ()  # how it is cased, and what that does to words
    # Of whole words: the share of pieces that are in the list, and how many more are known.
    listed: float = 1.0
    more: int = 0

    def __str__(self) -> str:
        text = (
            f'{self.vocab_size} entries from {self.words} words: {self.characters_covered:.4%} of'
            f' characters covered, {self.unknown:.4%} of pieces unknown, {self.fertility:.3f}'
            ' pieces a word'
        )
        if self.more:
            text += f'; {self.listed:.2%} of the pieces are in the list, {self.more} more are known'
        return text


class WordCounts:
    """Counts of normalised words; bounded.

    Attributes:
      counts: normalised words, and how often they are in the text.
      forms: of a text that is lower-cased the words with capitals and accents; else empty.
      casing: what the first words have decided, where that was left to them.
    """

    def __init__(
        self,
        normalize: Callable[[str], list[str]],
        cut: Callable[[str], list[str]] = split_words,
        options: VocabularyOptions | None = None,
    ):
        """Count nothing yet.

        Args:
          normalize: gives the words to count of a whitespace word: basic tokens for WordPiece.
          cut: gives the whitespace words of a line.
          options: of a vocabulary, whose casing the first words decide where it is left to them;
            `normalize` is then that of its trainer.
        """
        self.normalize, self._cut, self._options = normalize, cut, options
        self.spelt: Callable[[str], list[str]] | None = None
        self.forms: Counter[str] = Counter()
        self.casing: Casing | None = None

        # Words as they stand are counted first and normalised once each, when the table is folded:
        # normalising every word of running text would be most of the work.
        self._raw: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.words = 0
        self.hangul = 0  # words with Hangul in them
        self.rows = 0  # words with the name of a special or unused token in them
        self.pruned = 0

    def count(self, lines: Iterable[str]) -> WordCounts:
        """Return itself, with the words of these lines counted and folded."""
        for line in lines:
            self._raw.update(self._cut(line))
            if len(self._raw) > _RAW_WORDS:
                self.fold()
        self.fold()
        return self

    @classmethod
    def mixed(cls, tables: Sequence[tuple[WordCounts, float]]) -> WordCounts:
        """Return the counts of several folded tables, each taken as often as its number says.

        They are rounded to the next whole number, a half upwards; what is below is left out.
        """
        mixture = cls(tables[0][0].normalize, tables[0][0]._cut)
        mixture.casing = tables[0][0].casing
        for table, often in tables:
            mixture.words += int(table.words * often + 0.5)
            mixture.hangul += int(table.hangul * often + 0.5)
            mixture.rows += int(table.rows * often + 0.5)
            mixture.pruned = max(mixture.pruned, table.pruned)
            for word, count in table.counts.items():
                mixture.counts[word] += int(count * often + 0.5)
            for word, count in table.forms.items():
                mixture.forms[word] += int(count * often + 0.5)
        mixture.counts = +mixture.counts  # without zeros
        return mixture

    def fold(self) -> None:
        """Move what was counted as it is in the text into the table."""
        if self._options is not None:
            self._decide_casing(self._options)
            self._options = None
        for word, count in self._raw.items():
            self.words += count
            self.hangul += count * bool(_HANGUL.search(word))
            self.rows += count * bool(_ROW.search(word))
            for token in self.normalize(word):
                self.counts[token] += count
            if self.spelt:
                for form in self.spelt(word):
                    self.forms[form] += count
        self._raw.clear()
        # rare words hardly move the pieces; frequent ones are never lost
        while len(self.counts) > _TABLE_WORDS:
            self.pruned += 1
            for word, count in list(self.counts.items()):
                if count <= self.pruned:
                    del self.counts[word]
        if len(self.forms) > _FORMS:
            self.forms = Counter(dict(self.forms.most_common(_FORMS // 2)))

    def _decide_casing(self, options: VocabularyOptions) -> None:
        """Choose the casing by the words so far, as they stand, before the first is normalised."""
        trainer = make_trainer(options)
        if options.lower_case is None and trainer.has_casing:
            self.casing = detect_casing(self._raw)
            trainer = make_trainer(self.casing.applied(options))
        self.normalize = trainer.normalize
        if trainer.normalizer.lower_case or trainer.normalizer.strip_accents:
            self.spelt = Normalizer(lower_case=False, strip_accents=False, nfc=True).split


def train(texts: Iterable[str], options: VocabularyOptions) -> tuple[Tokenizer, Report]:
    """Train on lines of text; return the tokenizer and how well it fits them.

    The result depends only on the text, not on the machine or the order of the lines (unless the
    corpus has over 4 million different words, when rare ones may be forgotten).

    Raises:
      UserError: the text has no words, or vocab_size cannot even hold its characters.
    """
    return train_on(count_words(texts, options), options)


def count_words(texts: Iterable[str], options: VocabularyOptions) -> WordCounts:
    """Count the words of lines of text, by the normaliser that the tokenizer will have."""
    trainer = make_trainer(options)
    return WordCounts(trainer.normalize, trainer.split, options).count(texts)


def train_on(table: WordCounts, options: VocabularyOptions) -> tuple[Tokenizer, Report]:
    """Train as `train` does, on words that are counted already."""
    if not table.counts:
        raise UserError('no words in the text: nothing to train a vocabulary on')
    if options.layout == 'modernbert' and table.rows > _ROW_SHARE * table.words:
        raise UserError(
            f'--layout=modernbert: {table.rows / table.words:.1%} of the words are names of its'
            ' rows, as [CLS] or [unused0], which no text gives: take them out of the text; --extend'
            ' with --markers adds tokens that are found in text'
        )
    options = table.casing.applied(options) if table.casing else options
    trainer = make_trainer(options)

    # What the user should hear of before a model is trained on it.
    notes, warnings = find_losses(table.forms, trainer.normalizer)
    if table.casing:
        notes = [str(table.casing), *notes]
    strips = trainer.decomposes and trainer.normalizer.strip_accents
    if strips and table.hangul > _HANGUL_SHARE * table.words:
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
    content, special = trainer.train(counts), tuple(trainer.special_tokens.values())
    warnings += trainer.warnings(counts)
    # Closed: what is measured is what records will hold.
    tokenizer = Tokenizer.of_kind(trainer.kind, content, trainer.normalizer, special).close()

    # Fewer entries than were asked for make a smaller model, which is worth a word, but no mistake.
    if tokenizer.vocab_size < options.vocab_size:
        warnings.append(
            f'the text is too small for --vocab_size={options.vocab_size}: it gives'
            f' {tokenizer.vocab_size} entries, and that many were made'
        )
    report = measure(tokenizer, counts, table.words, warnings)
    if options.layout == 'modernbert' and tokenizer.kind != 'fast':
        from bert_jax.input_pipeline.tokenizer.fast import make_modernbert_json

        content = make_modernbert_json(tokenizer.tokenizer_json())
        tokenizer = Tokenizer.of_kind('fast', content, Normalizer(False, False))
        if tokenizer.unused:
            size = tokenizer.vocab_size + tokenizer.unused
            notes.append(f'{tokenizer.unused} rows that are never predicted fill it up to {size}')
    return tokenizer, dataclasses.replace(report, notes=tuple(notes))


def measure(
    tokenizer: Tokenizer, counts: dict[str, int], total_words: int, warnings: list[str]
) -> Report:
    """Measure `tokenizer` on a text of these words."""
    # Weighted by how often words occur, so that the figures are those of running text.
    characters = count_characters(counts)
    covered = sum(characters[char] for char in tokenizer.covered(characters))
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


# A tenth of English text, and next to nothing of any other language.
_ENGLISH_WORDS = ('the', 'of', 'and')
_ENGLISH_SHARE = 0.03
# Of the letters: English has them in names alone, and text with more is not English only.
_FOREIGN_SHARE = 0.01
_DOTLESS_SHARE = 0.01  # of the letters; Turkish and Azeri have five times as many
_LOSS = 0.01  # of the running words, from which lost accents are worth a warning
_EXAMPLES = 3


class Casing(NamedTuple):
    """Whether a vocabulary is lower-cased, and why, in words."""

    lower_case: bool
    why: str

    def applied(self, options: VocabularyOptions) -> VocabularyOptions:
        """Return the options with this casing."""
        return dataclasses.replace(options, lower_case=self.lower_case)

    def __str__(self) -> str:
        if self.lower_case:
            return f'{self.why}: lower case without accents, as BERT; --nolower_case keeps both'
        return f'{self.why}: capitals and accents stay; --lower_case takes them away'


def name_casing(languages: Iterable[str]) -> Casing:
    """Return the casing of text in languages that the user has named."""
    codes = sorted(languages)
    english = all(code.split('-')[0] == 'en' for code in codes)
    return Casing(english, f'language: {", ".join(codes)}, as named')


def detect_casing(words: Mapping[str, int]) -> Casing:
    """Return the casing of a text by its words, as they stand in it, and their counts."""
    common = sum(count for word, count in words.items() if word.lower() in _ENGLISH_WORDS)
    letters = _count_letters(words)
    common_share = common / max(1, sum(words.values()))
    foreign = sum(count for char, count in letters.items() if not char.isascii())
    foreign_share = foreign / max(1, letters.total())
    english = common_share >= _ENGLISH_SHARE and foreign_share <= _FOREIGN_SHARE
    return Casing(
        english,
        f'language: {"English" if english else "not English alone"}, by its words'
        f' ({", ".join(_ENGLISH_WORDS)}: {common_share:.1%}) and letters (beyond a to z:'
        f' {foreign_share:.1%}); --language names it',
    )


def find_losses(forms: Mapping[str, int], normalizer: Normalizer) -> tuple[list[str], list[str]]:
    """Return (notes, warnings) on different words that the casing makes equal.

    Args:
      forms: words with capitals and accents, and their counts.
      normalizer: the casing.
    """
    notes: list[str] = []
    warnings: list[str] = []
    letters = _count_letters(forms)
    if normalizer.lower_case:
        # Capitals at the beginning of sentences are no other words: it is no warning.
        lower = dataclasses.replace(normalizer, strip_accents=False)
        forms, _, pairs, message = _merge(forms, lower.case, 'lower-casing')
        if pairs:
            notes.append(f'{message} ({", ".join(pairs)})')
    if normalizer.strip_accents:
        name = 'stripping accents and vowel signs'
        forms, share, pairs, message = _merge(forms, normalizer.case, name)
        if share > _LOSS:
            warnings.append(f'{message} ({", ".join(pairs)}): train with --nostrip_accents')
        elif pairs:
            notes.append(f'{message} ({", ".join(pairs)})')

    if normalizer.lower_case and letters['ı'] > _DOTLESS_SHARE * letters.total():
        warnings.append(
            f'{letters["ı"] / letters.total():.1%} of the letters are ı, as in Turkish and Azeri,'
            ' of which lower-casing makes other words (SINIR becomes sinir): train with'
            ' --nolower_case'
        )
    return notes, warnings


def _merge(
    forms: Mapping[str, int], rule: Callable[[str], str], name: str
) -> tuple[Counter[str], float, list[str], str]:
    """Return the words by a rule, the share that became a more frequent word, examples, words."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for form in forms:
        groups[rule(form)].append(form)
    merged, lost = Counter[str](), Counter[tuple[str, str]]()
    for word, members in groups.items():
        merged[word] = sum(forms[member] for member in members)
        commonest = max(members, key=lambda member: (forms[member], member))
        for member in members:
            if member != commonest:
                lost[member, commonest] = forms[member]
    pairs = sorted(lost, key=lambda pair: (-lost[pair], pair))[:_EXAMPLES]
    share = lost.total() / max(1, merged.total())
    message = f'{name} makes {share:.2%} of the running words equal to more frequent other ones'
    return merged, share, [' = '.join(pair) for pair in pairs], message


def _count_letters(words: Mapping[str, int]) -> Counter[str]:
    """Count the letters and the marks on them in running text."""
    characters = count_characters(words)
    return Counter({char: count for char, count in characters.items() if char.isalpha()})
