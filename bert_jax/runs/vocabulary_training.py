"""A tokenizer directory made from text: a vocabulary trained on it, or one that is extended.

Owns how text is read, counted by language and mixed. Must not know how a vocabulary is trained
(input_pipeline/tokenizer/vocabulary.py) or extended (extension.py there).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.preprocess import job_plan
from bert_jax.input_pipeline.preprocess.language_mixture import mixture, split_inputs, too_often
from bert_jax.input_pipeline.progress import Progress
from bert_jax.input_pipeline.text import corpus, digest, encodings
from bert_jax.input_pipeline.text.corpus import Report
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.text.units import AnyUnit
from bert_jax.input_pipeline.tokenizer import extension, vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.trainers import make_trainer
from bert_jax.input_pipeline.tokenizer.vocabulary import WordCounts
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions, refuse_other_case


class TokenizerResult(NamedTuple):
    """What `train_vocab` has made.

    Attributes:
      output: the tokenizer directory.
      lines: what there is to say about it; none where it was there already.
    """

    output: str
    lines: list[str]

    def show(self) -> int:
        """Print the lines."""
        if self.lines:
            print('\n'.join(self.lines))
        return 0


class Text(NamedTuple):
    """The text that words are counted in.

    patterns, language_exponent, language_repeats: as the flags of bert-train-vocab have them;
    options: how its files are read.
    """

    patterns: tuple[str, ...]
    language_exponent: float | None
    language_repeats: Sequence[str]
    options: TextOptions

    def count_words(
        self,
        table_of: Callable[[Iterable[str]], WordCounts],
        lines_of: Callable[[list[str], list[str], bool], Iterable[str]] = lambda lines, *_: lines,
    ) -> tuple[dict[str, WordCounts], dict[str, float], Report]:
        """Count the words of each language; return tables, repeats, and what was read.

        The repeats say how often each language is taken, {} where none is named.

        Args:
          table_of: counts the words of lines.
          lines_of: the lines of a document's sentences, as `Trainer.lines`.
        """
        read = Report()
        units = job_plan.units_of('input', self.patterns, self.options, read)
        tables, sizes, begun = {}, {}, 0
        with Progress('reading text', sum(unit.bytes for unit in units), 'MB', 1e6) as progress:
            # In the order of languages, whose units are neighbours.
            for language, group in itertools.groupby(units, lambda unit: unit.language):
                members, report = list(group), Report()
                tables[language] = table_of(
                    self._iterate_lines(members, report, progress, begun, lines_of)
                )
                sizes[language] = report.bytes
                begun += sum(unit.bytes for unit in members)
                read.merge(report)
        logging.info('counted')
        if '' in tables:
            return tables, {}, read
        for language, table in tables.items():
            if not table.counts:
                raise UserError(
                    f'--input={language}=...: no words in the text of {language}: leave the'
                    ' language out, or give it other text'
                )

        # By bytes: the pieces that records are weighed by are not there yet, and bytes are nearest
        # to them over scripts (about five a piece).
        repeats = mixture(sizes, self.language_exponent, self.language_repeats)
        return tables, repeats, read

    def _iterate_lines(
        self,
        units: Sequence[AnyUnit],
        read: Report,
        progress: Progress,
        begun: int,
        lines_of: Callable,
    ) -> Iterator[str]:
        for unit in units:
            for document in corpus.read_unit(unit, self.options, read):
                yield from lines_of(document.sentences, document.spaces, document.lined)
            begun += unit.bytes
            progress.update(begun)


def inputs_of(options: Mapping[str, Any], text: Text | None) -> dict[str, Any]:
    """Return what a vocabulary is made from: the options, and for files what is in them."""
    inputs = {name: options[name] for name in options if name not in ('input', 'output')}
    if options.get('extend'):
        inputs['extend'] = Tokenizer.load(options['extend']).fingerprint
    if options.get('words'):
        inputs['words'] = _read_words(options['words'])
    if text is None:
        return inputs
    units = job_plan.units_of('input', text.patterns, text.options, Report())
    marks = [digest.marks(unit) for unit in units]
    return {
        **inputs,
        **text.options.described(),
        'input_files': digest.listing_digest(units),
        'input_contents': digest.describe(marks)['input_contents'],
    }


def train(
    options: VocabularyOptions, text: Text, output: epath.Path, language: str | None = None
) -> list[str]:
    """Train a vocabulary on the text and save its tokenizer; return lines about it.

    Args:
      options: what is trained.
      text: what it is trained on.
      output: where the tokenizer goes.
      language: of the text, where its inputs name none; None: told by the words.

    Raises:
      UserError: a language is named whose words such a casing changes.
    """
    if language:
        languages = [language]
    else:
        languages = [name for name in split_inputs('input', text.patterns) if name]
    refuse_other_case(options, languages)
    how_cased = list[str]()
    if languages and options.lower_case is None and make_trainer(options).has_casing:
        named = vocabulary.name_casing(languages)
        options, how_cased = named.applied(options), [str(named)]
    tables, repeats, read = text.count_words(
        lambda lines: vocabulary.count_words(lines, options), make_trainer(options).lines
    )
    tokenizer, report = vocabulary.train_on(_mix(tables, repeats), options)
    tokenizer.save(output)
    lines = [*_describe_text(repeats, read, report.warnings), *how_cased, *report.notes]

    # Of each language how well it fared, by itself.
    by_language = tables if repeats else {}
    for language, table in by_language.items():
        fit = vocabulary.measure(tokenizer, table.counts, table.words, [])
        lines.append(
            f'{language}: {fit.words} words, counted {repeats[language]:.2f} times:'
            f' {fit.characters_covered:.4%} of characters covered, {fit.unknown:.4%} of pieces'
            f' unknown, {fit.fertility:.3f} pieces a word'
        )
    return [*lines, f'{output}: {options.model}, {report}']


def extend(
    directory: str,
    output: epath.Path,
    markers: Sequence[str],
    text: Text | None = None,
    new_words: int = 0,
    min_frequency: int = 1,
    words: str | None = None,
) -> list[str]:
    """Add new words to the tokenizer in `directory`; return lines about it.

    Args:
      directory: the tokenizer that is extended.
      output: where the extended tokenizer goes.
      markers: tokens to add besides.
      text: in which `new_words` words are looked for.
      new_words: how many words of the text to add.
      min_frequency: of a word of the text.
      words: a file of words, one a line, in place of a text.

    Raises:
      UserError: nothing is new.
    """
    tokenizer, lines, fit = Tokenizer.load(directory), list[str](), ''
    if words:
        listed = extension.normalize(tokenizer, _read_words(words), words)
        extended = extension.extend(tokenizer, listed)
    elif text:
        extended, lines, fit = _add_worthwhile(tokenizer, text, new_words, min_frequency)
    else:
        extended, markers = extension.mark(tokenizer, markers), ()
    if markers:
        marked = extension.mark(extended.tokenizer, markers)
        counts = (a + b for a, b in zip(extended[1:], marked[1:], strict=True))
        extended = extension.Extended(marked.tokenizer, *counts)

    # A tokenizer equal to the old one would be taken for an extension.
    if extended.tokenizer.fingerprint == tokenizer.fingerprint:
        raise UserError(
            f'--extend={directory}: no new words: all of them are entries already, or none'
            ' would save a piece'
        )
    extended.tokenizer.save(output)
    return [*lines, f'{output}: {extended}{fit}']


def _add_worthwhile(
    tokenizer: Tokenizer, text: Text, new_words: int, min_frequency: int
) -> tuple[extension.Extended, list[str], str]:
    """Add the words of the text that save most pieces; return lines about the text, and the fit."""
    # Counted as the tokenizer sees them, casing and all: its own words are compared.
    split = tokenizer.normalizer.split
    tables, repeats, read = text.count_words(lambda lines: WordCounts(split).count(lines))
    table = _mix(tables, repeats)

    # Fewer than asked for is logged, and no fault: the text has no more that would save a piece.
    chosen = extension.choose_new_words(tokenizer, table.counts, new_words, min_frequency)
    extended = extension.extend(tokenizer, chosen)
    warnings = []
    if len(chosen) < new_words:
        warnings.append(f'only {len(chosen)} words of the text would save a piece')
    lines = _describe_text(repeats, read, warnings)

    # How many pieces a word takes, on the same text: what the new words are for.
    before = vocabulary.measure(tokenizer, table.counts, table.words, [])
    after = vocabulary.measure(extended.tokenizer, table.counts, table.words, [])
    fit = f'; {before.fertility:.3f} pieces a word before, {after.fertility:.3f} after'
    return extended, lines, fit


def _read_words(words: str) -> list[str]:
    """Read the lines of --words."""
    with reading(f'--words={words}'):
        raw = epath.Path(words).read_bytes()

    # utf-8-sig: some editors put a mark at the front, which would belong to the first word.
    try:
        return raw.decode('utf-8-sig').split('\n')
    except UnicodeDecodeError as error:
        why = f'{error.reason} at byte {error.start}'
        raise UserError(
            f'--words={words}: is not UTF-8 ({why}): {encodings.word_advice(words)}'
        ) from None


def _mix(tables: dict[str, WordCounts], repeats: dict[str, float]) -> WordCounts:
    """Return one table of all languages."""
    if not repeats:
        return tables['']
    return WordCounts.mixed([(table, repeats[language]) for language, table in tables.items()])


def _describe_text(repeats: dict[str, float], read: Report, warnings: Sequence[str]) -> list[str]:
    """Return the warnings about the text, and its size."""
    every = [*read.lines(), *warnings]
    if repeats:
        every = [*too_often(repeats), *every]
    lines = [f'warning: {warning}' for warning in every]
    return [*lines, f'{read.documents} documents, {read.sentences} lines, {read.bytes} bytes read']
