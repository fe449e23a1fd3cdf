"""Trains a vocabulary on text and writes a tokenizer directory.

  python -m launch.train_vocab --input=GLOB --output=DIR --vocab_size=30522 [--model=unigram] [--nolower_case]

Prints how many entries were made, the share of characters they cover, the share of unknown pieces
and the pieces a word takes. Hugging Face reads the directory as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from absl import flags, logging

from configs.errors import UserError
from launch import app

_INPUT = flags.DEFINE_string('input', None, 'text files: a file, a folder, a glob in quotes, or several with commas between', required=True)
_OUTPUT = flags.DEFINE_string('output', None, 'tokenizer directory to make', required=True)
_VOCAB_SIZE = flags.DEFINE_integer('vocab_size', 30522, 'entries, special tokens included')
_MODEL = flags.DEFINE_enum('model', 'wordpiece', ['wordpiece', 'unigram', 'bpe'], "BERT's own, or one of SentencePiece's")
_LOWER_CASE = flags.DEFINE_bool('lower_case', True, 'lower-case the text; the directory remembers it')
_STRIP_ACCENTS = flags.DEFINE_bool('strip_accents', None, 'remove accents (default: as --lower_case); takes Hangul syllables apart')
_COVERAGE = flags.DEFINE_float('character_coverage', 0.9999, 'share of the running characters that get entries of their own')
_MIN_FREQUENCY = flags.DEFINE_integer('min_frequency', 2, 'wordpiece: do not merge pairs seen less often')
_TEXT_COLUMN = flags.DEFINE_string('text_column', 'text', 'jsonl, parquet, tfds: the name of the text')
_ON_BAD_UTF8 = flags.DEFINE_enum('on_bad_utf8', 'replace', ['replace', 'skip', 'error'], 'what to do with a line of invalid UTF-8')
_STRICT = flags.DEFINE_bool('strict', False, 'the same as --on_bad_utf8=error')
_MAX_LINE_BYTES = flags.DEFINE_integer('max_line_bytes', 1 << 20, 'cut longer lines at white space')


def main(argv: Sequence[str]) -> None:
    """Reads, trains, writes, reports."""
    from etils import epath

    from input_pipeline import corpus, vocabulary
    from input_pipeline.progress import Progress

    options = vocabulary.VocabularyOptions(
        _VOCAB_SIZE.value, _MODEL.value, _LOWER_CASE.value, _STRIP_ACCENTS.value, _COVERAGE.value, _MIN_FREQUENCY.value
    )
    text = corpus.TextOptions(
        segment=False,  # words do not depend on where sentences end
        text_column=_TEXT_COLUMN.value,
        on_bad_utf8='error' if _STRICT.value else _ON_BAD_UTF8.value,
        max_line_bytes=_MAX_LINE_BYTES.value,
    )
    output = epath.Path(_OUTPUT.value)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):  # better now than after the training
        raise UserError(f'--output={output}: exists and is not an empty folder: remove it, or name another')
    units, read = corpus.units(_INPUT.value, text), corpus.Report()

    def lines() -> Iterator[str]:
        progress, done = Progress('reading text', sum(unit.bytes for unit in units), 'MB', 1e6), 0
        for unit in units:
            for document in corpus.read_unit(unit, text, read):
                yield from document.sentences
            done += unit.bytes
            progress.update(done)
        progress.done()
        logging.info('training')

    tokenizer, report = vocabulary.train(lines(), options)
    tokenizer.save(output)
    for warning in (*read.lines(), *report.warnings):
        print(f'warning: {warning}')
    print(f'{read.documents} documents, {read.sentences} lines, {read.bytes} bytes read')
    print(f'{output}: {options.model}, {report}')


if __name__ == '__main__':
    app.run(main)
