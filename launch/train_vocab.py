"""Trains a vocabulary on text and writes a tokenizer directory.

  bert-train-vocab --input=GLOB --output=DIR --vocab_size=30522 [--model=unigram]
  bert-train-vocab --input=GLOB --output=DIR --vocab_size=50265 --model=byte_bpe
  bert-train-vocab --extend=DIR --input=GLOB --output=DIR --new_words=1000
  bert-train-vocab --extend=DIR --words=FILE --output=DIR
  bert-train-vocab --extend=DIR --markers='[E1],[/E1]' --output=DIR
  bert-train-vocab --input=de=GLOB --input=ko=GLOB --output=DIR --nolower_case

The third adds the words that save most pieces, the fourth those in a list, one a line, the fifth
tokens that mark places in a text. --extend
gives new words entries of their own in the vocabulary of a model that is there: in its
[unused] slots first, then at its end. bert-pretrain --init_from goes on from that model with
records made so. The last counts text of several languages in the mixture that bert-preprocess
makes records of (docs/languages.md).

Prints how many entries were made, the share of characters they cover, the share of unknown pieces
and the pieces a word takes. Hugging Face reads the directory as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.options import option, required
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions

if TYPE_CHECKING:
    from etils import epath

    from bert_jax.input_pipeline.progress import Progress
    from bert_jax.input_pipeline.text.corpus import Report
    from bert_jax.input_pipeline.text.inputs.units import AnyUnit
    from bert_jax.input_pipeline.tokenizer.vocabulary import WordTable


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is read and written, and what is added where a vocabulary is there already."""

    input: tuple[str, ...] | None = option(
        None,
        'text files: a file, a folder, a glob in quotes, or several with commas between; '
        'or tfds:NAME/SPLIT, or hf:NAME:SPLIT; or these as LANGUAGE=PATTERN. Give the flag as often'
        ' as there are inputs',
    )
    language_exponent: float | None = option(
        None,
        'with --input=LANGUAGE=PATTERN: the share of each language, in bytes, is raised to this'
        ' power, as by bert-preprocess; by default 0.7',
        within='[0, 1]',
    )
    language_repeats: tuple[str, ...] = option(
        (),
        "in place of it: how often a language's text is counted, as in ko=4,en=0.5; 1 where it is"
        ' not named',
        commas=True,
    )
    output: str = required('tokenizer directory to make')
    extend: str | None = option(None, 'tokenizer directory of a model, WordPiece, to add words to')
    new_words: int = option(1000, '--extend: how many words of --input to add', bounds=(1, None))
    words: str | None = option(
        None, '--extend: a file of words to add, one a line, in place of --input'
    )
    markers: tuple[str, ...] = option(
        (),
        '--extend: tokens that mark places in a text, as [E1],[/E1]: each is an entry, and found in'
        ' text as it stands; beside new words, or alone',
        commas=True,
    )


# In this order the help is read: what for, how large, in place of what, and then the details.
_FIRST = ('input', 'language_exponent', 'language_repeats', 'output')
flags.define(Options, only=_FIRST)
flags.define(VocabularyOptions, only=('vocab_size',))
flags.define(Options, without=_FIRST)
flags.define(VocabularyOptions, without=('vocab_size',))
flags.define(TextOptions, without=('segment', 'language'))


def main(argv: Sequence[str]) -> None:
    """Trains a vocabulary, or extends one."""
    del argv
    options, vocabulary = flags.read(Options), flags.read(VocabularyOptions)
    # words do not depend on where sentences end
    text = flags.read(TextOptions, segment=False, language=TextOptions.language)
    from etils import epath

    # Everything that can be refused, before hours of reading.
    output = epath.Path(options.output)
    # better now than after the training
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(
            f'--output={output}: exists and is not an empty folder: remove it, or name another'
        )
    app.check_output('output', options.output)
    check_flags(options, vocabulary.model)

    # Two jobs by one command: from nothing, or on from a vocabulary that models know.
    if options.extend:
        extend(options.extend, options, vocabulary.min_frequency, text, output)
    else:
        train(vocabulary, options, text, output)


def check_flags(options: Options, model: str) -> None:
    """UserError for flags that contradict each other; `model`: the kind to train."""
    from bert_jax.configs.options import check_intervals
    from bert_jax.input_pipeline.preprocess.languages import check_mixture, split_inputs
    from bert_jax.input_pipeline.text.inputs.listing import refuse_inside

    check_intervals(options)
    languages = split_inputs('input', options.input or ())
    for patterns in languages.values():
        refuse_inside('output', options.output, patterns, ('vocab.txt', 'tokenizer_config.json'))
    check_mixture(options.language_exponent, options.language_repeats, languages or {'': ()})

    # Each way by what it cannot take: a flag that has no effect would mislead.
    if not options.extend:
        if odd := flags.present('new_words', 'words', 'markers'):
            raise UserError(f'{odd[0]} needs --extend=DIR, the tokenizer to add words to')
        for kind, its in (('byte_bpe', 'add_prefix_space'), ('words', 'known_words')):
            if model != kind and (odd := flags.present(its)):
                raise UserError(f'{odd[0]} is for --model={kind}: leave it out')
        of_characters = 'lower_case', 'strip_accents', 'character_coverage'
        if model == 'byte_bpe' and (odd := flags.present(*of_characters)):
            raise UserError(
                f'{odd[0]} does not go with --model=byte_bpe, which spells every text as it stands'
            )
    elif odd := flags.present(
        'vocab_size',
        'model',
        'lower_case',
        'strip_accents',
        'character_coverage',
        'add_prefix_space',
        'known_words',
    ):
        raise UserError(
            f'{odd[0]} does not go with --extend: kind and casing are those of the tokenizer there'
        )
    elif options.words and (odd := flags.present('input', 'new_words')):
        raise UserError(f'{odd[0]} does not go with --words: the words are those of the file')
    if not options.input and not options.words and not options.markers:
        raise UserError('--input is required: the text')


def train(
    vocabulary: VocabularyOptions, options: Options, text: TextOptions, output: epath.Path
) -> None:
    """Reads, trains, writes, reports."""
    from bert_jax.input_pipeline.text.corpus import Report
    from bert_jax.input_pipeline.tokenizer.vocabulary import counted, measure, train_on

    # One pass: lines are counted as they are read, and `read` adds up what was left out.
    read = Report()
    tables, repeats = count(options, text, read, lambda lines: counted(lines, vocabulary))
    tokenizer, report = train_on(mixed(tables, repeats), vocabulary)
    tokenizer.save(output)
    say_what_was_read(read, report.warnings)

    # Of each language how well it fared, beside the others and by itself.
    for language, table in tables.items() if repeats else ():
        fit = measure(tokenizer, table.counts, table.words, [])
        print(
            f'{language}: {fit.words} words, counted {repeats[language]:.2f} times:'
            f' {fit.characters_covered:.4%} of characters covered, {fit.unknown:.4%} of pieces'
            f' unknown, {fit.fertility:.3f} pieces a word'
        )
    print(f'{output}: {vocabulary.model}, {report}')


def extend(
    directory: str, options: Options, min_frequency: int, text: TextOptions, output: epath.Path
) -> None:
    """Adds new words to the tokenizer in `directory`: finds or reads them, writes, reports."""
    from bert_jax.input_pipeline.text.corpus import Report
    from bert_jax.input_pipeline.tokenizer import Tokenizer, extension, vocabulary

    # The words come from a file or from text, and markers from the command alone.
    tokenizer, fit = Tokenizer.load(directory), ''
    if not options.words and not options.input:
        extended = extension.mark(tokenizer, options.markers)
    elif options.words:
        listed = lines_of(options.words)
        extended = extension.extend(
            tokenizer, extension.normalize(tokenizer, listed, options.words)
        )
    else:
        # Counted as the tokenizer sees them, casing and all: its own words are compared.
        read = Report()

        def counted(lines: Iterable[str]) -> WordTable:
            table = vocabulary.WordTable(tokenizer.normalizer.split)
            for line in lines:
                table.add(line)
            table.fold()
            return table

        table = mixed(*count(options, text, read, counted))

        # Fewer than asked for is said, and no fault: the text has no more that would save a piece.
        chosen = extension.worthwhile(tokenizer, table.counts, options.new_words, min_frequency)
        extended = extension.extend(tokenizer, chosen)

        # How many pieces a word takes, on the same text: what the new words are for.
        before, after = (
            vocabulary.measure(t, table.counts, table.words, [])
            for t in (tokenizer, extended.tokenizer)
        )
        fit = f'; {before.fertility:.3f} pieces a word before, {after.fertility:.3f} after'
        few = len(chosen) < options.new_words
        say_what_was_read(
            read, [f'only {len(chosen)} words of the text would save a piece'] if few else []
        )

    if options.markers and (options.words or options.input):
        marked = extension.mark(extended.tokenizer, options.markers)
        extended = extension.Extended(
            marked.tokenizer, *(a + b for a, b in zip(extended[1:], marked[1:], strict=True))
        )

    # A tokenizer equal to the old one would be taken for an extension.
    if extended.tokenizer.fingerprint == tokenizer.fingerprint:
        raise UserError(
            f'--extend={directory}: no new words: all of them are entries already, or none'
            ' would save a piece'
        )
    extended.tokenizer.save(output)
    print(f'{output}: {extended}{fit}')


def lines_of(words: str) -> list[str]:
    """The lines of --words."""
    from etils import epath

    file = epath.Path(words)
    if not file.exists():
        raise UserError(f'--words={file}: no such file')
    with reading(file):
        raw = file.read_bytes()

    # utf-8-sig: some editors put a mark at the front, which would belong to the first word.
    try:
        return raw.decode('utf-8-sig').split('\n')
    except UnicodeDecodeError as error:
        why = f'{error.reason} at byte {error.start}'
        raise UserError(f'--words={file}: is not UTF-8 ({why}): convert it') from None


def count(
    options: Options,
    text: TextOptions,
    read: Report,
    counted: Callable[[Iterable[str]], WordTable],
) -> tuple[dict[str, WordTable], dict[str, float]]:
    """(the words of each language of --input, how often each is taken); {} where none is named.

    What was read is added up in `read`.
    """
    from bert_jax.input_pipeline.preprocess import plan
    from bert_jax.input_pipeline.preprocess.languages import mixture, too_often
    from bert_jax.input_pipeline.progress import Progress
    from bert_jax.input_pipeline.text.corpus import Report

    units = plan.units_of('input', options.input or (), text, read)
    tables, sizes, begun = {}, {}, 0
    with Progress('reading text', sum(unit.bytes for unit in units), 'MB', 1e6) as progress:
        # In the order of languages, those of one side by side.
        for language, group in itertools.groupby(units, lambda unit: unit.language):
            members, found = list(group), Report()
            tables[language] = counted(lines(members, text, found, progress, begun))
            sizes[language] = found.bytes
            begun += sum(unit.bytes for unit in members)
            read.merge(found)
    logging.info('counted')
    if '' in tables:
        return tables, {}
    for language, table in tables.items():
        if not table.counts:
            raise UserError(
                f'--input={language}=...: no words in the text of {language}: leave the language'
                ' out, or give it other text'
            )

    # By bytes: the pieces that records are weighed by are not there yet, and bytes are nearest to
    # them over scripts (about five a piece).
    repeats = mixture(sizes, options.language_exponent, options.language_repeats)
    for warning in too_often(repeats):
        print(f'warning: {warning}')
    return tables, repeats


def mixed(tables: dict[str, WordTable], repeats: dict[str, float]) -> WordTable:
    """One table of all languages."""
    from bert_jax.input_pipeline.tokenizer.vocabulary import WordTable

    if not repeats:
        return tables['']
    return WordTable.mixed([(table, repeats[language]) for language, table in tables.items()])


def lines(
    units: Sequence[AnyUnit], text: TextOptions, read: Report, progress: Progress, done: int
) -> Iterator[str]:
    """The lines of some units; what was read is added up in `read`.

    done: bytes that were read before, of those of `progress`.
    """
    from bert_jax.input_pipeline.text import corpus

    # By bytes of whole units: a unit is a file, or a stretch of one.
    for unit in units:
        for document in corpus.read_unit(unit, text, read):
            yield from document.sentences
        done += unit.bytes
        progress.update(done)


def say_what_was_read(read: Report, warnings: Sequence[str]) -> None:
    """The text's faults and size."""
    for warning in (*read.lines(), *warnings):
        print(f'warning: {warning}')
    print(f'{read.documents} documents, {read.sentences} lines, {read.bytes} bytes read')


if __name__ == '__main__':
    app.run(main)
