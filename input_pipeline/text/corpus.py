"""Files of many forms as documents of sentences.

Owns where documents begin and end. Knows nothing of globs and of how a corpus is divided
(listing.py, units.py), of compression (files.py), of decoding and sentences (lines.py), of tokens
or of vocabularies.

What a document is:
- text: lines up to a blank line (the form of google-research/bert), a line being a sentence, or
  with `segment` a paragraph to be split into sentences. Unlike there, a file's end also ends a
  document; with `documents=file` nothing else does;
- jsonl (by extension: .jsonl .ndjson .json, or by its first line): one object a line, its text in
  `text_column`;
- WikiExtractor output (by its first line): each <doc>, or each object of its --json, without the
  title that it repeats;
- parquet (by its first bytes), tfds:NAME/SPLIT and hf:NAME:SPLIT (a data set of the Hugging Face
  Hub): one row, its text in `text_column`.
The first three plain or as gzip, bzip2, xz or zstd, told by content and not by name.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.text import data_sets, encodings, formats
from bert_jax.input_pipeline.text.files import iterate_chunks, iterate_unpacked, open_file
from bert_jax.input_pipeline.text.formats import Format, NoText
from bert_jax.input_pipeline.text.lines import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENT_LINES,
    PASS_OVER,
    Lines,
    Passage,
    Report,
    Text,
    TextOptions,
)
from bert_jax.input_pipeline.text.units import (
    AnyUnit,
    SmallFiles,
    Unit,
    detect_formats,
    require_unchanged,
    units,
)
from bert_jax.input_pipeline.text.wrapping import Line, Widths

_DOC = re.compile(r'<doc (?:[^">]|"[^"]*")*>')
_DOC_BORDER = re.compile(r'</doc>(?=\s*<doc )')
_TITLE = re.compile(r'title="([^"]*)"')

Parsed = Iterator[tuple[int, Passage]]  # (offset, sentences) of each document of a unit


@dataclass(frozen=True)
class Document:
    """The sentences of a document, and its name.

    `name` is (path below the glob's root, byte offset of the first line, uncompressed, or row of a
    parquet file): unique and lasting. `spaces` is the white space before each sentence. `lined`:
    each sentence is a line of a text file.
    """

    name: tuple[str, int]
    sentences: list[str]
    spaces: list[str] = field(default_factory=list)
    lined: bool = False


def read_documents(
    pattern: str | Sequence[str],
    options: TextOptions = TextOptions(),
    report: Report | None = None,
) -> Iterator[Document]:
    """Yield all documents of the files that match, in the order of their names.

    Raises:
      UserError: no file matches, no file has text, or a file cannot be read as what it is.
    """
    if report is None:
        report = Report()
    for unit in units(pattern, options, left_out=report.left_out):
        yield from read_unit(unit, options, report)

    # Files that are empty one by one are only reported; a corpus without any text is a mistake.
    if not report.documents:
        given = pattern
        if not isinstance(pattern, str):
            given = ','.join(pattern)
        if report.filtered:
            raise UserError(f'{given}: no document left: {report.lines()[-1]}')
        raise UserError(f'{given}: no text in it (empty files, or blank lines only)')


def read_unit(
    unit: AnyUnit, options: TextOptions = TextOptions(), report: Report | None = None
) -> Iterator[Document]:
    """Yield the documents of one unit; count into `report`. UserError names file and line."""
    if report is None:
        report = Report()

    # Files with too few lines to say whether a width has broken them are judged together.
    first_short = ''
    widths = Widths()
    decoded, invalid, bad_file = report.decoded, report.bad_utf8, ''
    for file in unit.files():
        before = report.bad_utf8
        try:
            for part in detect_formats(file, options):
                of_part = yield from _read(part, options, report)
                if of_part.too_few:
                    widths.merge(of_part)
                    first_short = first_short or part.name
                else:
                    report.add_widths(part.name, of_part)
        except Exception:
            require_unchanged(file)  # which would be why
            raise
        require_unchanged(file)
        if report.bad_utf8 > before:
            bad_file = bad_file or file.path
    if first_short:
        report.add_widths(first_short, widths)

    # A stretch of a large file was judged by all of it.
    decoded, invalid = report.decoded - decoded, report.bad_utf8 - invalid
    together = isinstance(unit, SmallFiles) or unit.format in ('parquet', 'tfds', 'hf')
    if together and options.on_bad_utf8 is None and encodings.are_many(invalid, decoded):
        what, mend = 'records', 'write them as UTF-8'
        if isinstance(unit, SmallFiles):
            what = 'lines of this and other files'
            mend = f'of this one {encodings.word_advice(bad_file)}'
        raise UserError(
            f'{bad_file}: {invalid:,} of {decoded:,} {what} are not UTF-8: {mend}; or {PASS_OVER}'
        )


def _read(unit: Unit, options: TextOptions, report: Report) -> Generator[Document, None, Widths]:
    """Yield the documents of a unit whose format is known; return what was seen of its lines."""
    # One document a line or record needs to be cut into sentences, and so do joined lines; text
    # files have them one a line.
    is_empty = True
    is_text = unit.format == 'text'
    segment = not is_text or options.join_lines
    records = unit.format in ('jsonl', 'parquet', 'tfds', 'hf')
    has_lines = unit.format in ('text', 'jsonl', 'wikiextractor')
    text = Text(unit.path, options, report, segment, records, has_lines)
    with reading(unit.path):
        for offset, sentences in _READERS[unit.format](unit, text, options):
            is_empty = False
            dropped_by = _find_filter(sentences, options)
            if dropped_by:
                report.filtered[dropped_by] += 1
                continue
            report.documents += 1
            report.uncut += not text.segment
            report.sentences += len(sentences)
            lined = is_text and not (text.segment or options.join_lines)
            yield Document((unit.name, offset), sentences, sentences.spaces, lined)
    if unit.whole and is_empty:
        report.empty_files.append(unit.name)
    return text.widths


def _find_filter(sentences: list[str], options: TextOptions) -> str:
    """Name the filter that drops a document, the first one that does, or return ''."""
    if not options.min_chars and options.max_chars is None and not options.min_letters:
        return ''

    # White space between sentences counts as one character, however it was written.
    text = ' '.join(sentences)
    if len(text) < options.min_chars:
        return 'below --min_chars'
    if options.max_chars is not None and len(text) > options.max_chars:
        return 'above --max_chars'

    # A category for each distinct character, of which a document has few. Marks are what vowels
    # are written with in many scripts.
    letters = 0
    if options.min_letters:
        for character, count in Counter(text).items():
            if character.isspace() or unicodedata.category(character)[0] in 'LM':
                letters += count
    if letters < options.min_letters * len(text):
        return 'below --min_letters'
    return ''


def _make_lines(unit: Unit, text: Text, limit: int) -> Lines:
    """Return the lines of a unit of text."""

    def read_stretch() -> Iterator[bytes]:
        with unit.open() as f:
            yield from iterate_unpacked(f, unit.compression, unit.path, unit.bytes)

    def count_before() -> int:
        # Read again from the start, but only where a line of this unit is to be named.
        if not unit.start:
            return 0
        with open_file(unit.path) as f:
            return sum(chunk.count(b'\n') for chunk in iterate_chunks(f, unit.start))

    return Lines(text, read_stretch(), unit.start, limit, count_before)


def _read_text(unit: Unit, text: Text, options: TextOptions) -> Parsed:
    """Yield (offset, sentences) of the stretches between blank lines, or of the whole file."""
    # A document ends at a blank line, or where it has grown beyond any document's size.
    first, end = 0, 0
    sentences = Passage()
    ends_at_blank = options.documents == 'blank_line'
    for number, offset, line in text.paragraphs(_make_lines(unit, text, options.max_line_bytes)):
        if (ends_at_blank and not line.strip()) or _is_too_long(end - first, sentences):
            if sentences:
                text.report.cut_documents += bool(line.strip())
                yield first, sentences
            sentences = Passage()

        # The first line with text gives the document its name.
        if not sentences:
            first = offset
        text.add(sentences, number, line)
        end = offset
    if sentences:
        yield first, sentences


def _is_too_long(size: int, sentences: list[str]) -> bool:
    return size > MAX_DOCUMENT_BYTES or len(sentences) >= MAX_DOCUMENT_LINES


def _read_jsonl(unit: Unit, text: Text, options: TextOptions) -> Parsed:
    """Yield (offset, sentences) of each object's text."""
    # A line that was cut is no JSON any more. `cut_lines` also counts long paragraphs inside of a
    # document, so it is looked at before and after each.
    lines, cut_before, too_long = (
        _make_lines(unit, text, MAX_DOCUMENT_BYTES),
        text.report.cut_lines,
        -1,
    )
    for number, offset, line in lines:
        location = functools.partial(lines.location, number)
        if text.report.cut_lines > cut_before:
            limit = f'{MAX_DOCUMENT_BYTES >> 20} MiB'
            what = f'longer than {limit}: jsonl has one object a line, and that is one document'
            text.leave_out(location, 'too long', what)
            # left out, and not cut; its other parts follow
            text.report.cut_lines, too_long = cut_before, number
        if number != too_long and line.strip():
            value = formats.get_text_of_json(line, options.text_column)
            sentences = Passage()
            if isinstance(value, NoText):
                text.leave_out(location, *value)
            else:
                sentences = text.record(value, location)
            cut_before = text.report.cut_lines
            if sentences:
                yield offset, sentences


def _read_wikiextractor(unit: Unit, text: Text, options: TextOptions) -> Parsed:
    """Yield (offset, sentences) of each <doc>; one without its end ends where the next begins."""
    begun, first, title = False, 0, ('', '')
    sentences = Passage()  # none outside of a document
    for number, offset, line in _split_wiki_lines(_make_lines(unit, text, options.max_line_bytes)):
        # A new document. What is open still was never closed: it ends here.
        bare = line.strip()
        if bare.startswith('<doc '):
            text.report.unclosed_documents += begun
            if sentences:
                yield first, sentences
            header = _DOC.match(bare)
            line = bare[header.end() :] if header else ''
            match = _TITLE.search(header[0] if header else bare)
            title = formats.spell_titles(match[1] if match else '')
            begun, first, sentences = True, offset, Passage()

        # The end may be on a line with text.
        closed = bare.endswith('</doc>')
        if closed:
            line = line.rstrip().removesuffix('</doc>')
        bare = line.strip()
        if not begun:
            text.report.lines_outside += bool(bare)
        elif sentences or (bare and bare not in title):
            # The title comes again as the first line, and is left out there.
            if bare and _is_too_long(offset - first, sentences):
                text.report.cut_documents += 1
                yield first, sentences
                first, sentences = offset, Passage()
            text.add(sentences, number, line)

        # After </doc> nothing belongs to a document, until the next <doc>.
        if closed:
            if sentences:
                yield first, sentences
            begun, sentences = False, Passage()

    # The file ends, or the unit: units end between documents, so this one was not closed either.
    text.report.unclosed_documents += begun
    if sentences:
        yield first, sentences


def _split_wiki_lines(lines: Lines) -> Iterator[Line]:
    """Yield each line, cut where a document ends and the next begins."""
    for number, offset, line in lines:
        begin = 0
        borders = _DOC_BORDER.finditer(line) if '</doc>' in line else ()
        for border in borders:
            at = offset + len(line[:begin].encode())
            yield number, at, line[begin : border.end()]
            begin = border.end()
        yield number, offset + len(line[:begin].encode()), line[begin:]


def _make_reader(
    texts: Callable[[str, int, str], Iterator[tuple[int, str | bytes | NoText | None]]],
    called: str,
) -> Callable:
    """Return a reader of records that have a column of text, each a document.

    `called` words where a record is, by its unit and its number.
    """

    def documents(unit: Unit, text: Text, options: TextOptions) -> Parsed:
        for number, raw in texts(unit.path, unit.start, options.text_column):
            location = functools.partial(called.format, unit=unit, number=number)
            if isinstance(raw, NoText):
                text.leave_out(location, *raw)
                continue
            if isinstance(raw, str):
                text.report.bytes += len(raw.encode(errors='replace'))
            elif raw is not None:
                text.report.bytes += len(raw)
            sentences = text.record(raw, location)
            if sentences:
                yield number, sentences

    return documents


_READERS: dict[Format | None, Callable] = {
    'text': _read_text,
    'jsonl': _read_jsonl,
    'wikiextractor': _read_wikiextractor,
    'parquet': _make_reader(data_sets.iterate_parquet_texts, '{unit.path} row {number}'),
    'hf': _make_reader(data_sets.iterate_hub_texts, 'hf:{unit.name} row {number}'),
    'tfds': _make_reader(data_sets.iterate_tfds_texts, '{unit.path} record at byte {number}'),
}
