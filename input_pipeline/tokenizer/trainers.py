"""Trainers of vocabularies on counted words: one class for each `--model`, all with one interface.

Owns which words and characters get entries. The WordPiece trainer is the `tokenizers` library's:
merges by pair frequency, as BPE. Google never published its own. Knows nothing of texts
(vocabulary.py counts their words) or of how text is encoded.
"""

from __future__ import annotations

import abc
import io
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer import byte_bpe
from bert_jax.input_pipeline.tokenizer.directory import SPECIAL_TOKENS, Kind
from bert_jax.input_pipeline.tokenizer.foreign_directories import (
    ROBERTA_FIRST_TOKENS,
    ROBERTA_TOKENS,
    format_byte_bpe,
)
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer, split_passages, split_words
from bert_jax.input_pipeline.tokenizer.wordpiece import CHARACTERS, format_words
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.input_pipeline.wire import fields

# Of the words, from which on such as are longer than what is read of one are no exception.
_LONG_SHARE = 0.02
# SentencePiece passes over a longer word without a word: such a one is cut into stretches.
_LONGEST_BYTES, _STRETCH = 4192, 100  # the former of UTF-8, the latter characters
# And over words with the sign by which it marks rare characters. What is to be rare is written as
# [UNK] in the words that it is given: to it that is one rare character.
_RESERVED = '\u2585'
_LEAST_COVERAGE = 0.98  # that SentencePiece takes


class Trainer(abc.ABC):
    """How a kind of vocabulary is trained.

    Attributes:
      kind: of the tokenizer that is made.
      special_tokens: its special tokens, in the order of SPECIAL_TOKENS.
      decomposes: whether stripped accents take Hangul syllables apart in its entries.
      has_casing: whether text may be lower-cased.
      normalizer: the casing that the tokenizer will have.
    """

    kind: ClassVar[Kind]
    special_tokens = SPECIAL_TOKENS
    decomposes = False
    has_casing = True

    def __init__(self, options: VocabularyOptions):
        self._options = options
        # NFC unless accents go (stripping decomposes), so that Hangul typed in parts meets its
        # entries.
        lower_case, strips = bool(options.lower_case), options.strip_accents
        if strips is None:
            strips = lower_case
        self.normalizer = Normalizer(lower_case, strips, nfc=not strips)

    def split(self, text: str) -> list[str]:
        """Return the words of a line as they stand in it."""
        return split_words(text)

    def lines(self, sentences: list[str], spaces: list[str], lined: bool) -> Iterable[str]:
        """Return the texts to split of a document; as for `Tokenizer.encode_document`."""
        return sentences

    def normalize(self, word: str) -> list[str]:
        """Return the words to count of a word as it is in the text."""
        return self.normalizer.split(word)

    @abc.abstractmethod
    def train(self, counts: dict[str, int]) -> bytes:
        """Return the content of the vocabulary's file, trained on words and their counts."""

    def warnings(self, counts: dict[str, int]) -> list[str]:
        """Return what the user should hear of such a text."""
        return []

    def _choose_characters(
        self, characters: Counter[str], entries: Mapping[str, int], limit: int
    ) -> tuple[set[str], float]:
        """Return the most frequent characters, and the share of the text that they cover.

        Args:
          characters: how often each occurs.
          entries: how many entries a character takes.
          limit: how many entries there are for characters, unless fewer reach the wanted coverage:
            half of the vocabulary's at first, so that scripts of thousands of characters leave
            room for words.
        """
        kept, covered, taken = set(), 0, 0
        for char, count in _sort_by_frequency(characters):
            taken += entries[char]
            if covered >= self._count_wanted(characters) or taken > limit:
                break
            kept.add(char)
            covered += count
        return kept, covered / characters.total()

    def _count_wanted(self, characters: Counter[str]) -> float:
        return self._options.character_coverage * characters.total()

    @property
    def _half(self) -> int:
        """Half of the entries, or what special tokens and SentencePiece's space leave of few."""
        size = self._options.vocab_size
        return min(size // 2, size - len(SPECIAL_TOKENS) - 1)


class WordPieceTrainer(Trainer):
    """Makes a vocab.txt: special tokens, characters, then merged pieces by falling frequency."""

    kind = 'wordpiece'
    decomposes = True

    def train(self, counts: dict[str, int]) -> bytes:
        """Return the content of a vocab.txt."""
        from tokenizers import models, trainers

        entries = Counter(set().union(*counts))  # one as a head, one more as a tail
        entries.update(set().union(*(word[1:] for word in counts)))

        # Which characters get entries comes first, for it decides which words may be learnt from.
        characters = count_characters(counts)
        kept, coverage = self._choose_characters(characters, entries, self._half)
        # a word with a character outside is [UNK] as a whole, so nothing is to be learnt from it
        usable = {word: count for word, count in counts.items() if kept.issuperset(word)}
        inside = {char for word in usable for char in word[1:]}
        # listed beforehand, because the trainer numbers `##x` in the order of a hash map,
        # differently at every run
        first = [*SPECIAL_TOKENS.values(), *sorted(kept), *(f'##{c}' for c in sorted(inside))]
        trainer = trainers.WordPieceTrainer(
            vocab_size=self._options.vocab_size,
            min_frequency=self._options.min_frequency,
            special_tokens=first,
            continuing_subword_prefix='##',
            show_progress=False,
        )
        # The line is the id.
        tokens = _sort_by_id(_train_model(models.WordPiece(unk_token='[UNK]'), trainer, usable))
        if coverage < self._options.character_coverage:
            tokens = self._fill_up(tokens, characters, entries)
        return '\n'.join(tokens).encode()

    def _fill_up(
        self, tokens: list[str], characters: Counter[str], entries: Mapping[str, int]
    ) -> list[str]:
        """Return the tokens, and behind them further characters by falling frequency.

        Until the coverage that is wanted is reached, or the vocabulary is full: of ideographs, each
        of which is a word, there are no pieces to fill it with. `entries`: as for
        `_choose_characters`.
        """
        filled, covered = dict.fromkeys(tokens), 0
        for char, count in _sort_by_frequency(characters):
            if covered >= self._count_wanted(characters):
                break
            filled |= dict.fromkeys((char, f'##{char}')[: entries[char]])
            covered += count
        return list(filled)[: self._options.vocab_size]


class WordsTrainer(Trainer):
    """Makes a words.txt of the most frequent words, which are those that WordPiece would cut."""

    kind = 'words'
    decomposes = True

    def train(self, counts: dict[str, int]) -> bytes:
        """Return the content of a words.txt."""
        # No more than that is looked at of a long word, and words that are alike so far are one.
        first: Counter[str] = Counter()
        for word, count in counts.items():
            first[word[:CHARACTERS]] += count
        room = self._options.vocab_size - len(SPECIAL_TOKENS)
        order = [
            word for word, _ in _sort_by_frequency(first)[: max(room, self._options.known_words)]
        ]
        return format_words([*SPECIAL_TOKENS.values(), *order[:room]], order[room:])

    def warnings(self, counts: dict[str, int]) -> list[str]:
        """Return a warning where words are so long that the text seems to have no spaces."""
        long = sum(count for word, count in counts.items() if len(word) > CHARACTERS)
        share = long / sum(counts.values())
        if share <= _LONG_SHARE:
            return []
        return [
            f'{share:.1%} of the words are longer than {CHARACTERS} characters, and only the'
            f' first {CHARACTERS} are read: where a language has no spaces between words, a stretch'
            ' without any is one word: divide the text into words before'
        ]


class ByteBpeTrainer(Trainer):
    """Makes special tokens, the 256 bytes, merged pieces by falling frequency, and the mask."""

    kind: ClassVar[Kind] = 'byte_bpe'
    special_tokens = ROBERTA_TOKENS
    has_casing = False

    def __init__(self, options: VocabularyOptions):
        super().__init__(options)
        self.normalizer = Normalizer(False, False)  # bytes have no casing

    def split(self, text: str) -> list[str]:
        """Return the stretches of a line."""
        return byte_bpe.cut_stretches(text)

    def lines(self, sentences: list[str], spaces: list[str], lined: bool) -> Iterable[str]:
        """Return the lines of a file, or the text with all that is between its sentences."""
        return sentences if lined else map(''.join, split_passages(sentences, spaces))

    def normalize(self, word: str) -> list[str]:
        """Return what merges stay within of a stretch."""
        return byte_bpe.cut_words(word)

    def train(self, counts: dict[str, int]) -> bytes:
        """Return what format_byte_bpe makes of the entries."""
        entries, merges = self._train_entries(counts, ROBERTA_FIRST_TOKENS, 1)
        entries = [*entries, self.special_tokens['mask_token']]
        return format_byte_bpe(entries, merges, self._options.add_prefix_space)

    def _train_entries(
        self, counts: dict[str, int], first: Sequence[str], behind: int
    ) -> tuple[list[str], list[list[str]]]:
        """Return entries and merges; `first` come first, and `behind` more are to follow."""
        from tokenizers import models, pre_tokenizers, trainers

        # Every byte has an entry, so that there is a spelling for any text.
        options = self._options
        least = len(first) + 256 + behind
        if options.vocab_size < least:
            raise UserError(
                f'--vocab_size={options.vocab_size}: --model=byte_bpe takes {least} or more, for'
                ' the bytes and the special tokens'
            )
        trainer = trainers.BpeTrainer(
            vocab_size=options.vocab_size - behind,
            min_frequency=options.min_frequency,
            special_tokens=list(first),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        spelled = {byte_bpe.spell_in_bytes(word): count for word, count in counts.items()}
        model = _train_model(models.BPE(), trainer, spelled)
        return _sort_by_id(model), model['merges']


class ComposedByteBpeTrainer(ByteBpeTrainer):
    """Makes a tokenizer.json as ModernBERT's: bytes, merged pieces, then the special tokens."""

    kind = 'fast'
    special_tokens = SPECIAL_TOKENS

    def split(self, text: str) -> list[str]:
        """Return the stretches of a line, composed."""
        return super().split(unicodedata.normalize('NFC', text))

    def lines(self, sentences: list[str], spaces: list[str], lined: bool) -> Iterable[str]:
        """Return the text with all that is between its sentences, line ends too."""
        return super().lines(sentences, spaces, lined=False)

    def train(self, counts: dict[str, int]) -> bytes:
        """Return the content of a tokenizer.json."""
        entries, merges = self._train_entries(counts, (), len(self.special_tokens))
        return byte_bpe.make_composed_json(entries, merges, self._options.add_prefix_space)


class SentencePieceTrainer(Trainer):
    """Makes an spm.model with the five special tokens first."""

    kind = 'sentencepiece'

    def normalize(self, word: str) -> list[str]:
        """Return the word, or stretches of a very long one.

        Stretches of the word as it is, so that they are those of a text in lines of that
        length.
        """
        composed = self.normalizer.compose(word)
        if len(composed.encode()) > _LONGEST_BYTES:
            parts = (word[i : i + _STRETCH] for i in range(0, len(word), _STRETCH))
            composed = ' '.join(map(self.normalizer.compose, parts))
        return composed.split()

    def train(self, counts: dict[str, int]) -> bytes:
        """Return the content of an spm.model."""
        from bert_jax.input_pipeline.tokenizer.sentencepiece_model import round_scores

        options, characters = self._options, count_characters(counts)
        kept, coverage = self._choose_characters(
            characters, dict.fromkeys(characters, 1), self._half
        )
        if coverage >= _LEAST_COVERAGE:  # the library finds such an alphabet by its share
            model = self._train_without(counts, {_RESERVED}, coverage)
        else:
            model = self._train_without(counts, characters.keys() - kept, 1.0)
            free = options.vocab_size - sum(1 for _ in fields(model, 1))
            if free and coverage < options.character_coverage:
                # No pieces to fill it with: more characters, each by what normalisation makes of
                # it.
                entries = {char: len(unicodedata.normalize('NFKC', char)) for char in characters}
                kept, _ = self._choose_characters(characters, entries, self._half + free)
                model = self._train_without(counts, characters.keys() - kept, 1.0)
        return round_scores(model) if options.model == 'unigram' else model

    def _train_without(self, counts: dict[str, int], left_out: Set[str], coverage: float) -> bytes:
        """Return a model without some characters, which keeps that share of the others."""
        import sentencepiece

        # The same ids as in a WordPiece vocabulary: [PAD] is 0, then [UNK] [CLS] [SEP], and [MASK]
        # next.
        options, (pad, unk, cls, sep, mask) = self._options, SPECIAL_TOKENS.values()
        left_out = set().union(*counts) & {_RESERVED, *left_out}
        table = str.maketrans(dict.fromkeys(left_out, unk))
        # As long as a word can become by that; only then, for it is written into the model.
        longest: dict[str, Any] = {}
        if left_out:
            longest['max_sentence_length'] = len(unk) * _LONGEST_BYTES
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(f'{w.translate(table)}\t{n}' for w, n in counts.items()),
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
            # The library's own words speak of internals; the cure is one of two flags.
            words = (
                f'--vocab_size={options.vocab_size}: less than the characters of the text: raise'
                ' it, or lower --character_coverage'
            )
            if 'required_chars' not in str(error):  # its normalisation has deleted all
                words = (
                    f'--model={options.model}: SentencePiece finds no words in the text ({error})'
                )
            raise UserError(words) from error
        return model.getvalue()


_TRAINERS: dict[str, type[Trainer]] = {
    'wordpiece': WordPieceTrainer,
    'unigram': SentencePieceTrainer,
    'bpe': SentencePieceTrainer,
    'byte_bpe': ByteBpeTrainer,
    'words': WordsTrainer,
}


def make_trainer(options: VocabularyOptions) -> Trainer:
    """Return the trainer of the model that the options name."""
    if options.model == 'byte_bpe' and options.layout == 'modernbert':
        return ComposedByteBpeTrainer(options)
    return _TRAINERS[options.model](options)


def count_characters(counts: Mapping[str, int]) -> Counter[str]:
    """Return how often each character occurs in running text."""
    characters = Counter[str]()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    return characters


def _sort_by_frequency(counts: Counter[str]) -> list[tuple[str, int]]:
    """Return characters or words with their counts, the most frequent first."""
    # Ties by the character itself, so that it is the same every time.
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _train_model(model: Any, trainer: Any, counts: dict[str, int]) -> dict[str, Any]:
    """Return the model of the tokenizers library, as JSON, after training on counted words."""
    from tokenizers import Tokenizer, pre_tokenizers

    pipeline = Tokenizer(model)
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.train_from_iterator(_running_text(counts), trainer)
    # Its own file is the only place where the library tells the merges.
    return json.loads(pipeline.to_str())['model']


def _sort_by_id(model: dict[str, Any]) -> list[str]:
    return sorted(model['vocab'], key=model['vocab'].__getitem__)


def _running_text(counts: dict[str, int]) -> Iterator[str]:
    """Yield text in which every word occurs as often as counted: the trainer takes no counts."""
    # A frequent word comes in stretches, or one string would be as large as the text itself.
    for word, count in counts.items():
        for done in range(0, count, 10_000):
            yield f'{word} ' * min(count - done, 10_000)
