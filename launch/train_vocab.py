"""Trains a vocabulary on text and writes a tokenizer directory.

  python -m launch.train_vocab --input=GLOB --output=DIR --vocab_size=30522 [--model=unigram]
  python -m launch.train_vocab --input=GLOB --output=DIR --vocab_size=50265 --model=byte_bpe
  python -m launch.train_vocab --extend=DIR --input=GLOB --output=DIR --new_words=1000
  python -m launch.train_vocab --extend=DIR --words=FILE --output=DIR

The third adds the words that save most pieces, the fourth those in a list, one a line. --extend
gives new words entries of their own in the vocabulary of a model that is there: in its
[unused] slots first, then at its end. launch.pretrain --init_from goes on from that model with
records made so.

Prints how many entries were made, the share of characters they cover, the share of unknown pieces
and the pieces a word takes. Hugging Face reads the directory as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from absl import logging

from configs.errors import UserError, reading
from configs.options import option, required
from input_pipeline.text.lines import TextOptions
from input_pipeline.vocabulary_options import VocabularyOptions
from launch import app, flags

if TYPE_CHECKING:
    from etils import epath

    from input_pipeline.text.corpus import Report


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is read and written, and what is added where a vocabulary is there already."""

    input: tuple[str, ...] | None = option(
        None,
        'text files: a file, a folder, a glob in quotes, or several with commas between; '
        'or tfds:NAME/SPLIT, or hf:NAME:SPLIT. Give the flag as often as there are inputs, '
        'also as LANGUAGE=PATTERN; all text counts alike',
    )
    output: str = required('tokenizer directory to make')
    extend: str | None = option(None, 'tokenizer directory of a model, WordPiece, to add words to')
    new_words: int = option(1000, '--extend: how many words of --input to add', bounds=(1, None))
    words: str | None = option(
        None, '--extend: a file of words to add, one a line, in place of --input'
    )


# In this order the help is read: what for, how large, in place of what, and then the details.
flags.define(Options, only=('input', 'output'))
flags.define(VocabularyOptions, only=('vocab_size',))
flags.define(Options, without=('input', 'output'))
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
        train(vocabulary, options.input or (), text, output)


def check_flags(options: Options, model: str) -> None:
    """UserError for flags that contradict each other; `model`: the kind to train."""
    # Each way by what it cannot take: a flag that has no effect would mislead.
    if not options.extend:
        if odd := flags.present('new_words', 'words'):
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
    if not options.input and not options.words:
        raise UserError('--input is required: the text')


def train(
    options: VocabularyOptions, patterns: Sequence[str], text: TextOptions, output: epath.Path
) -> None:
    """Reads, trains, writes, reports."""
    from input_pipeline.text.corpus import Report
    from input_pipeline.tokenizer import vocabulary

    # One pass: lines are counted as they are read, and `read` adds up what was left out.
    read = Report()
    tokenizer, report = vocabulary.train(lines(patterns, text, read), options)
    tokenizer.save(output)
    say_what_was_read(read, report.warnings)
    print(f'{output}: {options.model}, {report}')


def extend(
    directory: str, options: Options, min_frequency: int, text: TextOptions, output: epath.Path
) -> None:
    """Adds new words to the tokenizer in `directory`: finds or reads them, writes, reports."""
    from etils import epath

    from input_pipeline.text.corpus import Report
    from input_pipeline.tokenizer import Tokenizer, extension, vocabulary

    # The words come from a file or from text.
    tokenizer, fit = Tokenizer.load(directory), ''
    if options.words:
        file = epath.Path(options.words)
        if not file.exists():
            raise UserError(f'--words={file}: no such file')
        with reading(file):
            raw = file.read_bytes()

        # utf-8-sig: some editors put a mark at the front, which would belong to the first word.
        try:
            listed = raw.decode('utf-8-sig').split('\n')
        except UnicodeDecodeError as error:
            why = f'{error.reason} at byte {error.start}'
            raise UserError(f'--words={file}: is not UTF-8 ({why}): convert it') from None
        extended = extension.extend(tokenizer, extension.normalize(tokenizer, listed, str(file)))
    else:
        # Counted as the tokenizer sees them, casing and all: its own words are compared.
        read, table = Report(), vocabulary.WordTable(tokenizer.normalizer.split)
        for line in lines(options.input or (), text, read):
            table.add(line)
        table.fold()

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

    # A tokenizer equal to the old one would be taken for an extension.
    if not extended.in_slots + extended.appended:
        raise UserError(
            f'--extend={directory}: no new words: all of them are entries already, or none'
            ' would save a piece'
        )
    extended.tokenizer.save(output)
    print(f'{output}: {extended}{fit}')


def lines(patterns: Sequence[str], text: TextOptions, read: Report) -> Iterator[str]:
    """The lines of --input, with progress; what was read is added up in `read`."""
    from input_pipeline.preprocess.languages import split_inputs
    from input_pipeline.progress import Progress
    from input_pipeline.text import corpus

    # every language alike
    # A vocabulary has no share by language: texts are simply read one after another.
    patterns = [pattern for given in split_inputs('input', patterns).values() for pattern in given]
    units = corpus.units(patterns, text, report=read)

    # By bytes of whole units: a unit is a file, or a stretch of one.
    done = 0
    with Progress('reading text', sum(unit.bytes for unit in units), 'MB', 1e6) as progress:
        for unit in units:
            for document in corpus.read_unit(unit, text, read):
                yield from document.sentences
            done += unit.bytes
            progress.update(done)
    logging.info('counted')


def say_what_was_read(read: Report, warnings: Sequence[str]) -> None:
    """The text's faults and size."""
    for warning in (*read.lines(), *warnings):
        print(f'warning: {warning}')
    print(f'{read.documents} documents, {read.sentences} lines, {read.bytes} bytes read')


if __name__ == '__main__':
    app.run(main)
