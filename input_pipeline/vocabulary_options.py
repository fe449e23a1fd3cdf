"""What the training of a vocabulary can be told: typed options with their help.

Apart from its trainer, input_pipeline/tokenizer/vocabulary.py, because the flags of
bert-train-vocab are made from here, and a room of tokenizers is too heavy for `--help`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import check_intervals, option

# Turkish and Azeri, in which i and ı are two letters, with capitals İ and I.
_DOTTED = ('tr', 'tur', 'az', 'aze')


# Options that some kinds of vocabularies alone have.
_OF_KINDS = {
    'add_prefix_space': ('byte_bpe',),
    'layout': ('byte_bpe', 'wordpiece', 'unigram', 'bpe'),
    'known_words': ('words',),
}


@dataclass(frozen=True)
class VocabularyOptions:
    """What to train; UserError where a number is none that can be.

    Attributes:
      vocab_size: entries, special tokens included.
      model: BERT's own; unigram, bpe: SentencePiece's; byte_bpe: RoBERTa's or ModernBERT's
        (--layout), of bytes, cased; words: whole ones, for RETVec, the most frequent.
      lower_case: lower-case the text, which the directory remembers (default: only where the text
        is English).
      strip_accents: remove accents and vowel signs (default: as --lower_case); takes Hangul
        syllables apart.
      character_coverage: share of the running characters that get entries of their own.
      min_frequency: wordpiece, byte_bpe: do not merge pairs seen less often.
      add_prefix_space: byte_bpe: encode a text as if a space stood before it; RoBERTa does not.
      layout: special tokens and rows: roberta, of byte_bpe alone: <s> A </s></s> B </s>;
        modernbert, of all but words: [CLS] A [SEP] B [SEP] without segments; a mask takes the space
        before it. byte_bpe composes text (NFC); others round the size up to 64 by rows that are
        never predicted.
      known_words: words: so many of the most frequent ones go into records, by their characters;
        a rarer one is [UNK] there.
    """

    # BERT's own number of entries.
    vocab_size: int = option(30522, within='[7, 16777216]')
    model: Literal['wordpiece', 'unigram', 'bpe', 'byte_bpe', 'words'] = 'wordpiece'
    lower_case: bool | None = None
    strip_accents: bool | None = None
    # Below 1, or every stray character of a large text would take the place of a word.
    character_coverage: float = option(0.9999, within='(0, 1]')
    min_frequency: int = option(2, within='[1, 2147483647]')
    add_prefix_space: bool = False
    layout: Literal['roberta', 'modernbert'] = 'roberta'
    known_words: int = option(1 << 20, within='[1, 16777216]')

    def __post_init__(self) -> None:
        check_intervals(self)
        for name, kinds in _OF_KINDS.items():
            value = getattr(self, name)
            if value != getattr(VocabularyOptions, name) and self.model not in kinds:
                models = ' or '.join(kinds)
                raise UserError(f'--{name}={value} is for --model={models}: leave it out')


def refuse_other_case(options: VocabularyOptions, languages: Iterable[str]) -> None:
    """Raise UserError where a language is lower-cased that has another lower case of I."""
    for language in languages:
        if options.lower_case and language.split('-')[0] in _DOTTED:
            raise UserError(
                f'--lower_case: {language} has I of ı and İ of i, and BERT lower-cases both to i,'
                ' which makes other words: leave it out'
            )
