"""Text files of many forms as documents of sentences.

Owns decoding, and where documents and sentences begin. Knows nothing of globs and compression
(text_files.py), of tokens or of vocabularies. Work is divided into units: a stretch of a plain file that begins and ends
between documents, or a whole compressed file; each can be read by itself, in any process.

What a document is:
- text: lines up to a blank line (the form of google-research/bert), a line being a sentence, or with
  `segment` a paragraph to be split into sentences. Unlike there, a file's end also ends a document;
- jsonl (by extension: .jsonl .ndjson .json): one object a line, its text in `text_column`;
- WikiExtractor output (by its first line): each <doc>, without the title that it repeats.
Any of them plain or as gzip, bzip2, xz or zstd, told by content and not by name.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from etils import epath

from configs.errors import UserError
from input_pipeline.text_files import CHUNK, Compression, chunks, compression_of, decompressed, matching

UNIT_BYTES = 32 << 20  # size of the stretches that plain files are divided into
MAX_DOCUMENT_BYTES = 64 << 20  # a "document" longer than this is cut: nobody means it, and it has to fit in memory
_HEAD_BYTES = 1 << 16  # read of each file to tell its format
_PLACES = 5  # invalid lines that a report names
_TITLE = re.compile(r'title="([^"]*)"')

Format = Literal['text', 'jsonl', 'wikiextractor']


@dataclass(frozen=True)
class TextOptions:
    """How files are read; alike in every binary that reads text."""

    segment: bool | None = None  # split lines into sentences; None: only jsonl and WikiExtractor, whose lines are paragraphs
    language: str = 'en'  # ISO 639 code for the splitting
    text_column: str = 'text'  # jsonl: the name of the text
    on_bad_utf8: Literal['replace', 'skip', 'error'] = 'replace'  # for a line with invalid bytes
    max_line_bytes: int = 1 << 20  # longer lines are cut at white space

    def __post_init__(self) -> None:
        if self.max_line_bytes < 64:
            raise UserError(f'--max_line_bytes={self.max_line_bytes}: must be 64 or more')
        if not re.fullmatch('[a-z]{2,3}(-[A-Za-z]+)*', self.language):
            raise UserError(f'--language={self.language}: must be an ISO 639 code such as en, de, ko or zh')


@dataclass(frozen=True)
class Unit:
    """A part of a corpus that is read by itself: bytes [start, start + bytes) of a plain file, or a compressed file."""

    path: str
    name: str  # the path below the root of the glob: the same on every machine
    start: int
    bytes: int  # as they lie on disk
    format: Format
    compression: Compression | None
    whole: bool  # the unit is all of its file
    changed: int  # when its file was last changed, in seconds


@dataclass(frozen=True)
class Document:
    """`name` is (path below the glob's root, byte offset of the first line, uncompressed): unique and lasting."""

    name: tuple[str, int]
    sentences: list[str]


@dataclass
class Report:
    """What was read and what was wrong with it; readers add to it and callers print `lines()`."""

    documents: int = 0
    sentences: int = 0
    bytes: int = 0  # of text, uncompressed
    bad_utf8: int = 0  # lines with invalid UTF-8, replaced or skipped
    bad_places: list[str] = field(default_factory=list)  # 'FILE line N' of the first few
    nul_bytes: int = 0  # removed
    cut_lines: int = 0  # lines longer than max_line_bytes
    cut_documents: int = 0  # documents longer than MAX_DOCUMENT_BYTES
    empty_files: list[str] = field(default_factory=list)  # files without a document

    def merge(self, other: Report) -> None:
        """Adds the report of another unit."""
        for name in ('documents', 'sentences', 'bytes', 'bad_utf8', 'nul_bytes', 'cut_lines', 'cut_documents'):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad_places = (self.bad_places + other.bad_places)[:_PLACES]
        self.empty_files = self.empty_files + other.empty_files

    def lines(self) -> list[str]:
        """One line for each kind of trouble; none for clean text."""
        found = []
        if self.empty_files:
            found.append(f'no text in {len(self.empty_files)} file(s): {_some(self.empty_files)}')
        if self.bad_utf8:
            places = _some(self.bad_places, self.bad_utf8)
            found.append(f'invalid UTF-8 in {self.bad_utf8} line(s), replaced or skipped as --on_bad_utf8 says: {places}')
        if self.nul_bytes:
            found.append(f'{self.nul_bytes} NUL byte(s) removed')
        if self.cut_lines:
            found.append(f'{self.cut_lines} line(s) longer than --max_line_bytes cut at white space')
        if self.cut_documents:
            found.append(f'no blank line in {MAX_DOCUMENT_BYTES >> 20} MiB of text: a document ended there, {self.cut_documents} time(s)')
        return found


def _some(names: list[str], total: int | None = None) -> str:
    total = len(names) if total is None else total
    return ', '.join(names[:_PLACES]) + (' ...' if total > _PLACES else '')


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

    `pattern`: a file, a folder (all files below it), a glob (`**` for any depth), or several with commas between;
    local or gs://. A document belongs to the unit in which it begins. Raises UserError as `read_documents`.
    """
    found = []
    for path, name in matching(pattern):
        stat = path.stat()
        size = stat.length
        with path.open('rb') as f:
            compression = compression_of(f)
            head = next((some for some in decompressed(f, compression, str(path), _HEAD_BYTES) if some), b'')
            form = _format(name, head, str(path))
            borders = [0, size] if compression else [0, *_borders(f, size, form, unit_bytes), size]
        whole = len(borders) == 2
        found += [Unit(str(path), name, a, b - a, form, compression, whole, stat.mtime) for a, b in zip(borders, borders[1:], strict=False)]
    return found


def read_unit(unit: Unit, options: TextOptions = TextOptions(), report: Report | None = None) -> Iterator[Document]:
    """The documents of one unit; counts into `report`. Raises UserError naming file and line."""
    report = Report() if report is None else report
    before = report.documents
    reader = {'text': _text_documents, 'jsonl': _jsonl_documents, 'wikiextractor': _wiki_documents}[unit.format]
    for offset, sentences in reader(_Lines(unit, options, report)):
        report.documents += 1
        report.sentences += len(sentences)
        yield Document((unit.name, offset), sentences)
    if unit.whole and report.documents == before:
        report.empty_files.append(unit.name)


class _Lines:
    """The decoded lines of a unit, and sentences from them."""

    def __init__(self, unit: Unit, options: TextOptions, report: Report):
        self._unit, self._options, self.report = unit, options, report
        self._segment = options.segment if options.segment is not None else unit.format != 'text'
        self._lines_before: int | None = None

    def __iter__(self) -> Iterator[tuple[int, int, str]]:
        """(line from 0 within the unit, byte offset, text without line end); a line that is too long comes as several."""
        limit = sys.maxsize if self._unit.format == 'jsonl' else self._options.max_line_bytes
        number, offset, rest, cut = 0, self._unit.start, b'', False
        for chunk in self._chunks():
            *lines, rest = (rest + chunk).split(b'\n')
            for line in lines:
                yield from self._parts(number, offset, line, limit, cut)
                number, offset, cut = number + 1, offset + len(line) + 1, False
            if len(rest) > limit:  # no line end in sight: all but its last part can go
                end = _cuts(rest, limit)[-2]
                yield from self._parts(number, offset, rest[:end], limit, cut)
                offset, rest, cut = offset + end, rest[end:], True
        yield from self._parts(number, offset, rest, limit, cut)

    def _parts(self, number: int, offset: int, line: bytes, limit: int, cut: bool) -> Iterator[tuple[int, int, str]]:
        """A line decoded, in parts of at most `limit` bytes. `cut`: it is itself the later part of a line."""
        ends = _cuts(line, limit) if len(line) > limit else [len(line)]
        self.report.cut_lines += len(ends) > 1 and not cut
        for start, end in zip([0, *ends], ends, strict=False):
            text = self._decode(number, line[start:end])
            if text is not None and not ((cut or len(ends) > 1) and not text.strip()):  # a blank part is not a blank line
                yield number, offset + start, text

    def where(self, number: int) -> str:
        """'FILE line N', counted from 1 over the whole file."""
        if self._lines_before is None:
            self._lines_before = 0
            if self._unit.start:
                with epath.Path(self._unit.path).open('rb') as f:
                    self._lines_before = sum(chunk.count(b'\n') for chunk in chunks(f, self._unit.start))
        return f'{self._unit.path} line {self._lines_before + number + 1}'

    def sentences(self, text: str) -> list[str]:
        """The sentences of a line."""
        text = text.strip()
        if not text:
            return []
        if not self._segment:
            return [text]
        import sentencex

        return [sentence for part in sentencex.segment(self._options.language, text) if (sentence := part.strip())]

    def column(self, number: int, line: str) -> str:
        """The text of a line of JSON. Raises UserError where there is none."""
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f'{self.where(number)}: not valid JSON ({error})') from error
        name = self._options.text_column
        if not isinstance(record, dict) or not isinstance(record.get(name), str | None) or name not in record:
            has = ', '.join(sorted(record)) if isinstance(record, dict) else type(record).__name__
            raise UserError(f'{self.where(number)}: no text in column {name!r} (it has {has}): name the column with --text_column')
        text = (record[name] or '').replace('\0', '')
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, as \\ud800
            text = text.encode(errors='replace').decode() if self.bad(number, 'half a surrogate pair') else ''
        return text

    def bad(self, number: int, what: str) -> bool:
        """Counts a line with invalid characters; whether it is to be kept. Raises UserError where none is wanted."""
        if self._options.on_bad_utf8 == 'error':
            raise UserError(f'{self.where(number)}: {what}: convert the file to UTF-8, or let --on_bad_utf8=replace or =skip pass over it')
        self.report.bad_utf8 += 1
        if len(self.report.bad_places) < _PLACES:
            self.report.bad_places.append(self.where(number))
        return self._options.on_bad_utf8 == 'replace'

    def _chunks(self) -> Iterator[bytes]:
        unit = self._unit
        with epath.Path(unit.path).open('rb') as f:
            f.seek(unit.start)
            for chunk in decompressed(f, unit.compression, unit.path) if unit.compression else chunks(f, unit.bytes):
                self.report.bytes += len(chunk)
                yield chunk

    def _decode(self, number: int, raw: bytes) -> str | None:
        if number == 0 and self._unit.start == 0:
            raw = raw.removeprefix(b'\xef\xbb\xbf')
        if b'\0' in raw:
            self.report.nul_bytes += raw.count(b'\0')
            raw = raw.replace(b'\0', b'')
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            return raw.decode(errors='replace') if self.bad(number, f'invalid UTF-8 ({error.reason})') else None


def _text_documents(lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of the stretches between blank lines."""
    first, end, sentences = 0, 0, []
    for _, offset, text in lines:
        if not text.strip() or end - first > MAX_DOCUMENT_BYTES:
            if sentences:
                lines.report.cut_documents += bool(text.strip())
                yield first, sentences
            sentences = []
        if not sentences:
            first = offset
        sentences += lines.sentences(text)
        end = offset
    if sentences:
        yield first, sentences


def _jsonl_documents(lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of each object's text."""
    for number, offset, line in lines:
        if line.strip():
            sentences = [sentence for part in lines.column(number, line).split('\n') for sentence in lines.sentences(part)]
            if sentences:
                yield offset, sentences


def _wiki_documents(lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of each <doc>; lines outside of one are no text."""
    first, title, sentences = None, '', []
    for _, offset, line in lines:
        text = line.strip()
        if text.startswith('<doc '):
            match = _TITLE.search(text)
            first, title, sentences = offset, html.unescape(match[1]) if match else '', []
        elif text == '</doc>':
            if sentences:
                yield first, sentences
            first, sentences = None, []
        elif first is not None and (sentences or text != title):
            sentences += lines.sentences(text)
    if sentences:
        yield first, sentences


def _format(name: str, head: bytes, path: str) -> Format:
    """What a file's name and first bytes say it is. Raises UserError where it is no text at all."""
    if head.startswith((b'\xff\xfe', b'\xfe\xff')):
        raise UserError(f'{path}: is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)')
    if head[:4] in (b'PAR1', b'PK\x03\x04') or head.count(b'\0') > len(head) // 8:
        raise UserError(f'{path}: is not text: give text, jsonl or WikiExtractor files, plain or compressed by gzip, bzip2, xz or zstd')
    if b'\r' in head and b'\n' not in head:
        raise UserError(f"{path}: its lines end in CR alone: convert them (tr '\\r' '\\n')")
    if re.search(r'\.(jsonl|ndjson|json)(\.\w+)?$', name):
        return 'jsonl'
    return 'wikiextractor' if head.removeprefix(b'\xef\xbb\xbf').lstrip().startswith(b'<doc ') else 'text'


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


def _cuts(line: bytes, limit: int) -> list[int]:
    """Where the parts of a line end: after white space, or at least between characters, each at most `limit` long."""
    ends, start = [], 0
    while len(line) - start > limit:
        end = 1 + max(line.rfind(b' ', start, start + limit), line.rfind(b'\t', start, start + limit))
        if end <= start:
            end = start + limit
            while end > start + limit - 3 and line[end] & 0xC0 == 0x80:  # inside a UTF-8 character
                end -= 1
        ends.append(end)
        start = end
    return [*ends, len(line)]
