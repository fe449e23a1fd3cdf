"""Trains a vocabulary on text and writes a tokenizer directory.

  bert-train-vocab --input=GLOB --output=DIR --vocab_size=30522 [--model=unigram]
  bert-train-vocab --input=GLOB --output=DIR --vocab_size=50265 --model=byte_bpe
  bert-train-vocab --input=GLOB --output=DIR --vocab_size=50368 --model=byte_bpe --layout=modernbert
  bert-train-vocab --input=GLOB --output=DIR --vocab_size=32000 --model=unigram --layout=modernbert
  bert-train-vocab --extend=DIR --input=GLOB --output=DIR --new_words=1000
  bert-train-vocab --extend=DIR --words=FILE --output=DIR
  bert-train-vocab --extend=DIR --markers='[E1],[/E1]' --output=DIR
  bert-train-vocab --input=de=GLOB --input=ko=GLOB --output=DIR --nolower_case

The first --extend adds the words that save most pieces, the second those in a list, one a line,
the third tokens that mark places in a text. --extend gives new words entries of their own in the
vocabulary of a model that is there: in its [unused] slots first, then at its end. bert-pretrain
--init_from goes on from that model with records made so. The last line counts text of several
languages in the mixture that bert-preprocess makes records of (docs/languages.md).

Prints how many entries were made, the share of characters they cover, the share of unknown pieces
and the pieces a word takes. Hugging Face reads the directory as it is. English is lower-cased
without accents, as BERT's first vocabulary; any other language keeps both, unless --lower_case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from bert_jax.cli import app
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import check_intervals, option, required, select_options
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.functions import make_function_of_several

if TYPE_CHECKING:
    from bert_jax.runs.vocabulary_training import Text, TokenizerResult

_AFTER_INTERRUPT = 'nothing was written; the same command begins anew'


@dataclass(frozen=True, kw_only=True)
class _OfText(TextOptions):
    """Options of what counts the words of a text.

    Attributes:
      input: text files: a file, a folder, a glob in quotes, or several with commas between; or
        tfds:NAME/SPLIT, or hf:NAME:SPLIT; or these as LANGUAGE=PATTERN. Give the flag as often as
        there are inputs.
      language_exponent: with --input=LANGUAGE=PATTERN: the share of each language, in bytes, is
        raised to this power, as by bert-preprocess; by default 0.7.
      language_repeats: in place of it: how often a language's text is counted, as in ko=4,en=0.5; 1
        where it is not named.
    """

    input: str | tuple[str, ...]
    language_exponent: float | None = option(None, within='[0, 1]')
    language_repeats: tuple[str, ...] = option((), commas=True)
    # Words do not depend on where sentences end.
    segment: bool | None = field(default=False, init=False)

    def check_text(self, output: str) -> None:
        """Raise UserError for inputs, or shares of languages, that cannot be."""
        from bert_jax.input_pipeline.preprocess.language_mixture import check_mixture, split_inputs
        from bert_jax.input_pipeline.text.listing import refuse_inside

        _ = self.text
        languages = split_inputs('input', self.input)
        for patterns in languages.values():
            refuse_inside('output', output, patterns, ('vocab.txt', 'tokenizer_config.json'))
        check_mixture(self.language_exponent, self.language_repeats, languages)

    def make_text(self) -> Text:
        """Return the text that words are counted in."""
        from bert_jax.runs.vocabulary_training import Text

        patterns = (self.input,) if isinstance(self.input, str) else self.input
        return Text(patterns, self.language_exponent, self.language_repeats, self.text)


@dataclass(frozen=True, kw_only=True)
class TrainVocab(_OfText, VocabularyOptions):
    """Train a vocabulary on text and write a tokenizer directory.

    Attributes:
      language: ISO 639 code of the text, as en or vi: only English is lower-cased unless you say
        so; by default the names of --input=LANGUAGE=PATTERN, or found by the words, and printed.
      output: tokenizer directory to make.
    """

    after_interrupt: ClassVar[str] = _AFTER_INTERRUPT

    output: str
    language: str = ''

    def __post_init__(self) -> None:
        check_intervals(self)
        _ = self.vocabulary  # which checks itself
        for name in ('lower_case', 'strip_accents', 'character_coverage'):
            changed = getattr(self, name) != getattr(VocabularyOptions, name)
            if changed and self.model == 'byte_bpe':
                raise UserError(
                    f'--{name} does not go with --model=byte_bpe, which spells every text as it'
                    ' stands'
                )
        self.check_text(self.output)

    @property
    def vocabulary(self) -> VocabularyOptions:
        """Return the options of the vocabulary alone."""
        return select_options(self, VocabularyOptions)

    def __call__(self) -> TokenizerResult:
        """Train it, or find it done."""
        from etils import epath

        from bert_jax.runs.vocabulary_training import train

        text = self.make_text()
        return _make(
            self.output,
            {**dataclasses.asdict(self.vocabulary), **_describe_mixture(self)},
            text,
            lambda: train(self.vocabulary, text, epath.Path(self.output), self.language or None),
        )


@dataclass(frozen=True, kw_only=True)
class _Extension:
    """Options of whatever adds entries to the vocabulary of a model.

    Attributes:
      extend: tokenizer directory of a model, to add words (WordPiece) or markers to.
      output: tokenizer directory to make.
      markers: tokens that mark places in a text, as [E1],[/E1]: each is an entry, and found in text
        as it stands.
    """

    after_interrupt: ClassVar[str] = _AFTER_INTERRUPT

    extend: str
    output: str
    markers: tuple[str, ...] = option((), commas=True)

    def extend_once(self, text: Text | None = None, **words: Any) -> TokenizerResult:
        """Extend the vocabulary, or find it done.

        Args:
          text: in which words are looked for; None: in no text.
          **words: which words are added, as `vocabulary_training.extend` takes them.
        """
        from etils import epath

        from bert_jax.runs.vocabulary_training import extend

        made_from = {'extend': self.extend, 'markers': self.markers, **words}
        if isinstance(self, _OfText):
            made_from |= _describe_mixture(self)
        output = epath.Path(self.output)
        return _make(
            self.output,
            made_from,
            text,
            lambda: extend(self.extend, output, self.markers, text, **words),
        )


@dataclass(frozen=True, kw_only=True)
class ExtendVocab(_Extension, _OfText):
    """Add the words of a text that save most pieces to the vocabulary of a model.

    Attributes:
      new_words: how many words of --input to add.
      min_frequency: do not add words seen less often.
    """

    new_words: int = option(1000, bounds=(1, None))
    min_frequency: int = option(2, within='[1, 2147483647]')
    language: str = field(default='', init=False)

    def __post_init__(self) -> None:
        check_intervals(self)
        self.check_text(self.output)

    def __call__(self) -> TokenizerResult:
        """Extend it, or find it done."""
        return self.extend_once(
            self.make_text(), new_words=self.new_words, min_frequency=self.min_frequency
        )


@dataclass(frozen=True, kw_only=True)
class AddWords(_Extension):
    """Add the words of a list to the vocabulary of a model.

    Attributes:
      words: a file of words to add, one a line, in place of --input.
    """

    words: str

    def __call__(self) -> TokenizerResult:
        """Add them, or find it done."""
        return self.extend_once(words=self.words)


@dataclass(frozen=True, kw_only=True)
class AddMarkers(_Extension):
    """Add tokens that mark places in a text to the vocabulary of a model."""

    markers: tuple[str, ...] = required(commas=True)

    def __call__(self) -> TokenizerResult:
        """Add them, or find it done."""
        return self.extend_once()


def _describe_mixture(options: _OfText) -> dict[str, Any]:
    names = ('language', 'language_exponent', 'language_repeats')
    return {name: getattr(options, name) or None for name in names}


def _make(
    output: str, options: Mapping[str, Any], text: Text | None, make: Callable[[], list[str]]
) -> TokenizerResult:
    """Make a tokenizer directory once, and note what it was made from."""
    from etils import epath

    from bert_jax.configs.files.store import note_inputs, was_made
    from bert_jax.runs.vocabulary_training import TokenizerResult, inputs_of

    # Everything that can be refused, before hours of reading.
    folder = epath.Path(output)
    if was_made(folder, lambda: inputs_of(options, text)):
        print(f'{output}: this is done already')
        return TokenizerResult(output, [])
    app.check_output('output', output)
    inputs = inputs_of(options, text)  # before: what changes meanwhile is not what was read
    lines = make()
    note_inputs(folder, inputs)
    return TokenizerResult(output, lines)


ACTIONS = (TrainVocab, ExtendVocab, AddWords, AddMarkers)
train_vocab = make_function_of_several(ACTIONS, 'input')

if __name__ == '__main__':
    app.run(*ACTIONS)
