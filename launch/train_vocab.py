"""Trains a vocabulary on text and writes a tokenizer directory.

  python -m launch.train_vocab --input=GLOB --output=DIR --vocab_size=30522 [--model=unigram]
  python -m launch.train_vocab --extend=DIR --input=GLOB --output=DIR --new_words=1000
  python -m launch.train_vocab --extend=DIR --words=FILE --output=DIR

The second adds the words that save most pieces, the third those in a list, one a line. --extend
gives new words entries of their own in the vocabulary of a model that is there: in its
[unused] slots first, then at its end. launch.pretrain --init_from goes on from that model with
records made so.

Prints how many entries were made, the share of characters they cover, the share of unknown pieces
and the pieces a word takes. Hugging Face reads the directory as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from absl import flags, logging

from configs.errors import UserError, reading
from launch import app

if TYPE_CHECKING:
    from etils import epath

    from input_pipeline.text.corpus import Report

_INPUT = flags.DEFINE_multi_string(
    'input',
    None,
    'text files: a file, a folder, a glob in quotes, or several with commas between; '
    'or tfds:NAME/SPLIT. Give the flag as often as there are inputs, '
    'also as LANGUAGE=PATTERN; all text counts alike',
)
_OUTPUT = flags.DEFINE_string('output', None, 'tokenizer directory to make', required=True)
_VOCAB_SIZE = flags.DEFINE_integer('vocab_size', 30522, 'entries, special tokens included')
_EXTEND = flags.DEFINE_string(
    'extend',
    None,
    'tokenizer directory of a model, WordPiece, to add words to',
    allow_overwrite=False,
)
_NEW_WORDS = flags.DEFINE_integer(
    'new_words', 1000, '--extend: how many words of --input to add', lower_bound=1
)
_WORDS = flags.DEFINE_string(
    'words',
    None,
    '--extend: a file of words to add, one a line, in place of --input',
    allow_overwrite=False,
)
_MODEL = flags.DEFINE_enum(
    'model', 'wordpiece', ['wordpiece', 'unigram', 'bpe'], "BERT's own, or one of SentencePiece's"
)
_LOWER_CASE = flags.DEFINE_bool(
    'lower_case', True, 'lower-case the text; the directory remembers it'
)
_STRIP_ACCENTS = flags.DEFINE_bool(
    'strip_accents', None, 'remove accents (default: as --lower_case); takes Hangul syllables apart'
)
_COVERAGE = flags.DEFINE_float(
    'character_coverage', 0.9999, 'share of the running characters that get entries of their own'
)
_MIN_FREQUENCY = flags.DEFINE_integer(
    'min_frequency', 2, 'wordpiece: do not merge pairs seen less often'
)
_TEXT_COLUMN = flags.DEFINE_string(
    'text_column', 'text', 'jsonl, parquet, tfds: the name of the text'
)
_ON_BAD_UTF8 = flags.DEFINE_enum(
    'on_bad_utf8',
    'replace',
    ['replace', 'skip', 'error'],
    'what to do with a line of invalid UTF-8',
)
_STRICT = flags.DEFINE_bool('strict', False, 'the same as --on_bad_utf8=error')
_MAX_LINE_BYTES = flags.DEFINE_integer('max_line_bytes', 1 << 20, 'cut longer lines at white space')


def main(argv: Sequence[str]) -> None:
    """Trains a vocabulary, or extends one."""
    del argv
    from etils import epath

    output = epath.Path(_OUTPUT.value)
    # better now than after the training
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(
            f'--output={output}: exists and is not an empty folder: remove it, or name another'
        )
    app.check_output('output', _OUTPUT.value)
    check_flags()
    if _EXTEND.value:
        extend(output)
    else:
        train(output)


def check_flags() -> None:
    """UserError for flags that contradict each other."""
    given = lambda *names: [f'--{name}' for name in names if flags.FLAGS[name].present]
    if not _EXTEND.value:
        if odd := given('new_words', 'words'):
            raise UserError(f'{odd[0]} needs --extend=DIR, the tokenizer to add words to')
    elif odd := given('vocab_size', 'model', 'lower_case', 'strip_accents', 'character_coverage'):
        raise UserError(
            f'{odd[0]} does not go with --extend: kind and casing are those of the tokenizer there'
        )
    elif _WORDS.value and (odd := given('input', 'new_words')):
        raise UserError(f'{odd[0]} does not go with --words: the words are those of the file')
    if not _INPUT.value and not _WORDS.value:
        raise UserError('--input is required: the text')


def train(output: epath.Path) -> None:
    """Reads, trains, writes, reports."""
    from input_pipeline.text.corpus import Report
    from input_pipeline.tokenizer import vocabulary

    options = vocabulary.VocabularyOptions(
        _VOCAB_SIZE.value,
        app.choice(_MODEL),
        _LOWER_CASE.value,
        _STRIP_ACCENTS.value,
        _COVERAGE.value,
        _MIN_FREQUENCY.value,
    )
    read = Report()
    tokenizer, report = vocabulary.train(lines(read), options)
    tokenizer.save(output)
    say_what_was_read(read, report.warnings)
    print(f'{output}: {options.model}, {report}')


def extend(output: epath.Path) -> None:
    """Finds or reads the new words, writes, reports."""
    from etils import epath

    from input_pipeline.text.corpus import Report
    from input_pipeline.tokenizer import Tokenizer, extension, vocabulary

    tokenizer, fit = Tokenizer.load(app.given(_EXTEND)), ''
    if _WORDS.value:
        file = epath.Path(_WORDS.value)
        if not file.exists():
            raise UserError(f'--words={file}: no such file')
        with reading(file):
            raw = file.read_bytes()
        try:
            listed = raw.decode('utf-8-sig').split('\n')
        except UnicodeDecodeError as error:
            why = f'{error.reason} at byte {error.start}'
            raise UserError(f'--words={file}: is not UTF-8 ({why}): convert it') from None
        extended = extension.extend(tokenizer, extension.normalize(tokenizer, listed, str(file)))
    else:
        read, table = Report(), vocabulary.WordTable(tokenizer.normalizer.split)
        for line in lines(read):
            table.add(line)
        table.fold()
        chosen = extension.worthwhile(
            tokenizer, table.counts, _NEW_WORDS.value, _MIN_FREQUENCY.value
        )
        extended = extension.extend(tokenizer, chosen)
        before, after = (
            vocabulary.measure(t, table.counts, table.words, [])
            for t in (tokenizer, extended.tokenizer)
        )
        fit = f'; {before.fertility:.3f} pieces a word before, {after.fertility:.3f} after'
        few = len(chosen) < _NEW_WORDS.value
        say_what_was_read(
            read, [f'only {len(chosen)} words of the text would save a piece'] if few else []
        )
    if not extended.in_slots + extended.appended:
        raise UserError(
            f'--extend={_EXTEND.value}: no new words: all of them are entries already, or none'
            ' would save a piece'
        )
    extended.tokenizer.save(output)
    print(f'{output}: {extended}{fit}')


def lines(read: Report) -> Iterator[str]:
    """The lines of --input, with progress; what was read is added up in `read`."""
    from input_pipeline.preprocess.languages import split_inputs
    from input_pipeline.progress import Progress
    from input_pipeline.text import corpus

    text = corpus.TextOptions(
        segment=False,  # words do not depend on where sentences end
        text_column=_TEXT_COLUMN.value,
        on_bad_utf8='error' if _STRICT.value else app.choice(_ON_BAD_UTF8),
        max_line_bytes=_MAX_LINE_BYTES.value,
    )
    patterns = [one for some in split_inputs('input', app.given(_INPUT)).values() for one in some]
    units = corpus.units(patterns, text, report=read)
    progress, done = Progress('reading text', sum(unit.bytes for unit in units), 'MB', 1e6), 0
    for unit in units:
        for document in corpus.read_unit(unit, text, read):
            yield from document.sentences
        done += unit.bytes
        progress.update(done)
    progress.done()
    logging.info('counted')


def say_what_was_read(read: Report, warnings: Sequence[str]) -> None:
    """The text's faults and size."""
    for warning in (*read.lines(), *warnings):
        print(f'warning: {warning}')
    print(f'{read.documents} documents, {read.sentences} lines, {read.bytes} bytes read')


if __name__ == '__main__':
    app.run(main)
