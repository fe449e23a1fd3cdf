"""Files of many forms as documents of sentences.

Owns where documents begin and end. Knows nothing of globs and compression (text_files.py), of decoding and
sentences (text_lines.py), of tokens or of vocabularies. Work is divided into units: a stretch of a plain file
that begins and ends between documents, a row group of a parquet file, or a whole compressed file; each can be
read by itself, in any process.

What a document is:
- text: lines up to a blank line (the form of google-research/bert), a line being a sentence, or with
  `segment` a paragraph to be split into sentences. Unlike there, a file's end also ends a document;
- jsonl (by extension: .jsonl .ndjson .json, or by its first line): one object a line, its text in `text_column`;
- WikiExtractor output (by its first line): each <doc>, without the title that it repeats;
- parquet (by its first bytes) and tfds:NAME/SPLIT: one row, its text in `text_column`.
The first three plain or as gzip, bzip2, xz or zstd, told by content and not by name.
"""

from __future__ import annotations

import contextlib
import html
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

from etils import epath

from configs.errors import UserError
from input_pipeline import parquet, tfds_files
from input_pipeline.text_files import CHUNK, Compression, chunks, compression_of, decompressed, matching
from input_pipeline.text_lines import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_LINES, Lines, Report, Text, TextOptions

UNIT_BYTES = 32 << 20  # size of the stretches that plain files are divided into
_HEAD_BYTES = 1 << 16  # read of each file to tell its format
_TITLE = re.compile(r'title="([^"]*)"')

Format = Literal['text', 'jsonl', 'wikiextractor', 'parquet', 'tfds']


@dataclass(frozen=True)
class Unit:
    """A part of a corpus that is read by itself: a stretch of a plain file, a row group of a parquet file, or a whole file."""

    path: str
    name: str  # the path below the root of the glob: the same on every machine
    start: int  # byte, or number of the row group
    bytes: int  # as they lie on disk
    format: Format
    compression: Compression | None
    whole: bool  # the unit is all of its file
    changed: int  # when its file was last changed, in seconds
    language: str = ''  # of its text, where the user named it


@dataclass(frozen=True)
class Document:
    """`name` is (path below the glob's root, byte offset of the first line, uncompressed, or row of a parquet file): unique and lasting."""

    name: tuple[str, int]
    sentences: list[str]


def read_documents(pattern: str, options: TextOptions = TextOptions(), report: Report | None = None) -> Iterator[Document]:
    """All documents of the files that match, in the order of their names.

    Raises UserError where no file matches, no file has text, or a file cannot be read as what it is.
    """
    report = Report() if report is None else report
    for unit in units(pattern, options):
        yield from read_unit(unit, options, report)
    if not report.documents:
        raise UserError(f'{pattern}: no text in it (empty files, or blank lines only)')


def units(pattern: str, options: TextOptions = TextOptions(), unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Divides the matching files into units, sorted by name and place.

    `pattern`: a file, a folder (all files below it), a glob (`**` for any depth), or several with commas between, local
    or gs://; or tfds:NAME/SPLIT. A document belongs to the unit in which it begins. Raises UserError as `read_documents`.
    """
    found = []
    if pattern.startswith('tfds:'):
        for path in tfds_files.find(pattern, options.text_column):
            stat = path.stat()
            found.append(Unit(str(path), path.name, 0, stat.length, 'tfds', None, True, stat.mtime))
        return found
    for path, name in matching(pattern):
        stat = path.stat()
        with path.open('rb') as f:
            compression = compression_of(f)
            head = next((some for some in decompressed(f, compression, str(path), _HEAD_BYTES) if some), b'')
            form = _format(name, head, str(path), options)
            if form == 'parquet':
                if compression:
                    raise UserError(f'{path}: is a parquet file inside {compression}: unpack it, for parquet compresses by itself')
                stretches = [(i, size) for i, size in enumerate(parquet.row_groups(f, str(path), options.text_column))] or [(0, 0)]
            else:
                borders = [0, stat.length] if compression else [0, *_borders(f, stat.length, form, unit_bytes), stat.length]
                stretches = [(a, b - a) for a, b in itertools.pairwise(borders)]
        whole = len(stretches) == 1
        found += [Unit(str(path), name, start, size, form, compression, whole, stat.mtime) for start, size in stretches]
    return found


def read_unit(unit: Unit, options: TextOptions = TextOptions(), report: Report | None = None) -> Iterator[Document]:
    """The documents of one unit; counts into `report`. Raises UserError naming file and line."""
    report = Report() if report is None else report
    before = report.documents
    text = Text(unit.path, options, report, segment=unit.format != 'text')
    for offset, sentences in _READERS[unit.format](unit, text, options):
        report.documents += 1
        report.sentences += len(sentences)
        yield Document((unit.name, offset), sentences)
    if unit.whole and report.documents == before:
        report.empty_files.append(unit.name)


def _lines(unit: Unit, text: Text, limit: int) -> Lines:
    """The lines of a unit of text."""

    def stretch() -> Iterator[bytes]:
        with epath.Path(unit.path).open('rb') as f:
            f.seek(unit.start)
            yield from decompressed(f, unit.compression, unit.path) if unit.compression else chunks(f, unit.bytes)

    def before() -> int:
        with epath.Path(unit.path).open('rb') as f:
            return sum(chunk.count(b'\n') for chunk in chunks(f, unit.start)) if unit.start else 0

    return Lines(text, stretch(), unit.start, limit, before)


def _text_documents(unit: Unit, text: Text, options: TextOptions) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of the stretches between blank lines."""
    first, end, sentences = 0, 0, []
    for _, offset, line in _lines(unit, text, options.max_line_bytes):
        if not line.strip() or _too_long(end - first, sentences):
            if sentences:
                text.report.cut_documents += bool(line.strip())
                yield first, sentences
            sentences = []
        if not sentences:
            first = offset
        sentences += text.sentences(line)
        end = offset
    if sentences:
        yield first, sentences


def _too_long(size: int, sentences: list[str]) -> bool:
    return size > MAX_DOCUMENT_BYTES or len(sentences) >= MAX_DOCUMENT_LINES


def _jsonl_documents(unit: Unit, text: Text, options: TextOptions) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of each object's text."""
    lines, cut_before = _lines(unit, text, MAX_DOCUMENT_BYTES), text.report.cut_lines
    for number, offset, line in lines:
        if text.report.cut_lines > cut_before:
            raise UserError(
                f'{lines.where(number)}: longer than {MAX_DOCUMENT_BYTES >> 20} MiB: jsonl has one object a line, and that is one document'
            )
        if line.strip():
            sentences = text.document(_column(lines.where, number, line, text, options.text_column))
            cut_before = text.report.cut_lines
            if sentences:
                yield offset, sentences


def _column(where: Callable[[int], str], number: int, line: str, text: Text, name: str) -> str:
    """The text of a line of JSON. Raises UserError where there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{where(number)}: not valid JSON ({error}): jsonl has one object a line') from error
    if not isinstance(record, dict) or not isinstance(record.get(name), str | None) or name not in record:
        raise text.column_missing(where(number), sorted(record) if isinstance(record, dict) else [type(record).__name__])
    value = (record[name] or '').replace('\0', '')
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as \\ud800
        value = value.encode(errors='replace').decode() if text.bad(lambda: where(number), 'half a surrogate pair') else ''
    return value


def _wiki_documents(unit: Unit, text: Text, options: TextOptions) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of each <doc>; lines outside of one are no text."""
    first, title, sentences = None, '', []
    for _, offset, line in _lines(unit, text, options.max_line_bytes):
        line = line.strip()
        if line.startswith('<doc '):
            match = _TITLE.search(line)
            first, title, sentences = offset, html.unescape(match[1]) if match else '', []
        elif line == '</doc>':
            if sentences:
                yield first, sentences
            first, sentences = None, []
        elif first is not None and (sentences or line != title):
            if _too_long(offset - first, sentences):
                text.report.cut_documents += 1
                yield first, sentences
                first, sentences = offset, []
            sentences += text.sentences(line)
    if sentences:
        yield first, sentences


def _records_of(read: Callable[[Unit, str], Iterator[tuple[int, bytes]]], unit_of: str) -> Callable:
    """A reader of files whose records have a column of text, each a document."""

    def documents(unit: Unit, text: Text, options: TextOptions) -> Iterator[tuple[int, list[str]]]:
        for place, raw in read(unit, options.text_column):
            text.report.bytes += len(raw)
            decoded = text.decode(raw, lambda place=place: f'{unit.path} {unit_of} {place}')
            sentences = text.document(decoded) if decoded else []
            if sentences:
                yield place, sentences

    return documents


_READERS = {
    'text': _text_documents,
    'jsonl': _jsonl_documents,
    'wikiextractor': _wiki_documents,
    'parquet': _records_of(lambda unit, column: parquet.rows(unit.path, unit.start, column), 'row'),
    'tfds': _records_of(lambda unit, column: tfds_files.texts(unit.path, column), 'record at byte'),
}


def _format(name: str, head: bytes, path: str, options: TextOptions) -> Format:
    """What a file's name and first bytes say it is. Raises UserError where it is no text at all."""
    if head.startswith(b'PAR1'):
        return 'parquet'
    if head.startswith((b'\xff\xfe', b'\xfe\xff')):
        raise UserError(f'{path}: is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)')
    if head.startswith(b'PK\x03\x04') or head[257:262] == b'ustar':
        raise UserError(f'{path}: is an archive: unpack it, and give the files in it')
    if head.count(b'\0') > len(head) // 8:
        raise UserError(
            f'{path}: is not text: give text, jsonl or WikiExtractor files, '
            'plain or compressed by gzip, bzip2, xz or zstd, or parquet files'
        )
    if b'\r' in head and b'\n' not in head:
        raise UserError(f"{path}: its lines end in CR alone: convert them (tr '\\r' '\\n')")
    head = head.removeprefix(b'\xef\xbb\xbf').lstrip()
    if re.search(r'\.(jsonl|ndjson|json)(\.\w+)?$', name) or _is_json(head.split(b'\n', 1)[0], options.text_column):
        return 'jsonl'
    return 'wikiextractor' if head.startswith(b'<doc ') else 'text'


def _is_json(line: bytes, column: str) -> bool:
    """Whether a file's first line is an object with that column, as `WikiExtractor --json` writes into files without extension."""
    if line.startswith(b'{'):
        with contextlib.suppress(ValueError):
            return column in json.loads(line)
    return False


def _borders(f: BinaryIO, size: int, form: Format, unit_bytes: int) -> list[int]:
    """Places at which a document begins for sure: the first at or after each multiple of `unit_bytes`."""
    found = [0]
    for wanted in range(unit_bytes, size, unit_bytes):
        if wanted <= found[-1]:
            continue
        f.seek(wanted - 1)
        fresh = False  # whether the next piece begins a line
        while piece := f.readline(CHUNK):
            begins, fresh = fresh, piece.endswith(b'\n')
            if form == 'text' and begins and fresh and not piece.strip():
                found.append(f.tell())
            elif form == 'jsonl' and fresh:
                found.append(f.tell())
            elif form == 'wikiextractor' and begins and piece.startswith(b'<doc '):
                found.append(f.tell() - len(piece))
            else:
                continue
            break
    return [place for place in found[1:] if place < size]
