"""Files of many forms as documents of sentences.

Owns where documents begin and end. Knows nothing of globs and compression (text/files.py), of
decoding and sentences (text/lines.py), of tokens or of vocabularies. Work is divided into units: a
stretch of a plain file that begins and ends between documents, a row group of a parquet file, or a
whole compressed file; each can be read by itself, in any process.

What a document is:
- text: lines up to a blank line (the form of google-research/bert), a line being a sentence, or
  with `segment` a paragraph to be split into sentences. Unlike there, a file's end also ends a
  document;
- jsonl (by extension: .jsonl .ndjson .json, or by its first line): one object a line, its text in
  `text_column`;
- WikiExtractor output (by its first line): each <doc>, without the title that it repeats;
- parquet (by its first bytes), tfds:NAME/SPLIT and hf:NAME:SPLIT (a data set of the Hugging Face
  Hub): one row, its text in `text_column`.
The first three plain or as gzip, bzip2, xz or zstd, told by content and not by name.
"""

from __future__ import annotations

import functools
import hashlib
import html
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

from etils import epath

from configs.errors import UserError, reading
from input_pipeline.text.files import (
    CHUNK,
    Compression,
    chunks,
    compression_of,
    decompressed,
    matching,
)
from input_pipeline.text.lines import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENT_LINES,
    Lines,
    Report,
    Text,
    TextOptions,
)
from input_pipeline.text.sources import hub, parquet, tfds_files, values

UNIT_BYTES = 32 << 20  # size of the stretches that plain files are divided into
_HEAD_BYTES = 1 << 16  # read of each file to tell its format
_LONGEST_LINE = 4096  # bytes, on average, of lines that end in CR alone: one may stand in any
_DOC = re.compile(r'<doc (?:[^">]|"[^"]*")*>')
_DOC_BORDER = re.compile(r'</doc>(?=\s*<doc )')
_TITLE = re.compile(r'title="([^"]*)"')
_CONTROLS = bytes([*range(1, 8), *range(14, 27), *range(28, 32), 127])  # in no encoding of text
# PNG, JPEG, GIF, TIFF by their first bytes.
_IMAGES = (b'\x89PNG', b'\xff\xd8\xff', b'GIF87a', b'GIF89a', b'II*\0', b'MM\0*')

Format = Literal['text', 'jsonl', 'wikiextractor', 'parquet', 'tfds', 'hf']


@dataclass(frozen=True)
class Unit:
    """What of a corpus is read by itself, in any process.

    A stretch of a plain file, a row group of a parquet file, a shard of a data set of the Hub, or
    all of a file.
    """

    path: str
    name: str  # the path below the root of the glob: the same on every machine
    start: int  # byte, or number of the row group or shard
    bytes: int  # as they lie on disk
    format: Format
    compression: Compression | None
    whole: bool  # the unit is all of its file
    changed: int  # when its file was last changed, in seconds
    language: str = ''  # of its text, where the user named it

    @property
    def identity(self) -> str:
        """By what it is known among the units of another listing, wherever its file lies."""
        listed = repr((self.name, self.start, self.bytes))
        return hashlib.sha256(listed.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Document:
    """The sentences of a document, and its name.

    `name` is (path below the glob's root, byte offset of the first line, uncompressed, or row of a
    parquet file): unique and lasting.
    """

    name: tuple[str, int]
    sentences: list[str]


def read_documents(
    pattern: str | Sequence[str],
    options: TextOptions = TextOptions(),
    report: Report | None = None,
) -> Iterator[Document]:
    """All documents of the files that match, in the order of their names.

    Raises UserError where no file matches, no file has text, or a file cannot be read as what it
    is.
    """
    report = Report() if report is None else report
    for unit in units(pattern, options, report=report):
        yield from read_unit(unit, options, report)

    # Files that are empty one by one are only reported; a corpus without any text is a mistake.
    if not report.documents:
        given = pattern if isinstance(pattern, str) else ','.join(pattern)
        raise UserError(f'{given}: no text in it (empty files, or blank lines only)')


def units(
    pattern: str | Sequence[str],
    options: TextOptions = TextOptions(),
    unit_bytes: int = UNIT_BYTES,
    report: Report | None = None,
) -> list[Unit]:
    """Divides the matching files into units, sorted by name and place.

    `pattern`: one or more, each a file, a folder (all files below it), a glob (`**` for any depth),
    or several with commas between, local or gs://; or tfds:NAME/SPLIT, or
    hf:NAME[:CONFIG]:SPLIT. A document belongs to the
    unit in which it begins. What is not taken is added to `report`. Raises UserError as
    `read_documents`.
    """
    # Data sets of tensorflow-datasets: a unit a file, for a TFRecord file cannot be entered in its
    # middle. One that is named twice is read once.
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    divided = []
    for dataset in dict.fromkeys(text for text in patterns if text.startswith('tfds:')):
        for path in tfds_files.find(dataset, options.text_column):
            stat = path.stat()
            divided.append(
                Unit(str(path), path.name, 0, stat.length, 'tfds', None, True, stat.mtime)
            )

    # Data sets of the Hub: a unit a shard, as their library divides them.
    for dataset in dict.fromkeys(text for text in patterns if hub.is_meant(text)):
        found = hub.find(dataset, options.text_column)
        if {unit.name for unit in divided} & set(found.names):
            raise UserError(f'{dataset}: another input has this name too: give its folder another')
        divided += [
            Unit(found.path, name, shard, found.bytes, 'hf', None, True, found.version)
            for shard, name in enumerate(found.names)
        ]

    # Files: what each is, by its name and first bytes, unpacked; then where it may be divided.
    files = [text for text in patterns if not (text.startswith('tfds:') or hub.is_meant(text))]
    left_out = None if report is None else report.left_out
    for path, name in matching(files, left_out) if files else []:
        with reading(path), path.open('rb') as f:
            stat = path.stat()
            compression = compression_of(f)
            begun = decompressed(f, compression, str(path), _HEAD_BYTES)

            # the first chunk that has something in it: a decompressor may give empty ones before
            head = next((chunk for chunk in begun if chunk), b'')
            form = _format(name, head, str(path), options)

            # Parquet is divided as it was written; one without row groups is still a unit, and is
            # reported as empty.
            if form == 'parquet':
                if compression:
                    raise UserError(
                        f'{path}: is a parquet file inside {compression}: unpack it, for parquet'
                        ' compresses by itself'
                    )
                stretches = [
                    (i, size)
                    for i, size in enumerate(parquet.row_groups(f, str(path), options.text_column))
                ] or [(0, 0)]
            else:
                # Compressed text can be read from its start alone; plain text from any border of
                # documents.
                inner = [] if compression else _borders(f, stat.length, form, unit_bytes)
                borders = [0, *inner, stat.length]
                stretches = [(a, b - a) for a, b in itertools.pairwise(borders)]

        # Only then can "no text in it" be said of the file.
        alone = len(stretches) == 1
        divided += [
            Unit(str(path), name, start, size, form, compression, alone, stat.mtime)
            for start, size in stretches
        ]
    return divided


def read_unit(
    unit: Unit, options: TextOptions = TextOptions(), report: Report | None = None
) -> Iterator[Document]:
    """The documents of one unit; counts into `report`. Raises UserError naming file and line."""
    report = Report() if report is None else report
    before = report.documents

    # One document a line or record needs to be cut into sentences; text files have them one a line.
    text = Text(
        unit.path,
        options,
        report,
        segment=unit.format != 'text',
        records=unit.format in ('jsonl', 'parquet', 'tfds', 'hf'),
    )
    with reading(unit.path):
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
            yield from (
                decompressed(f, unit.compression, unit.path)
                if unit.compression
                else chunks(f, unit.bytes)
            )

    def before() -> int:
        # Read again from the start, but only where a line of this unit is to be named.
        with epath.Path(unit.path).open('rb') as f:
            return sum(chunk.count(b'\n') for chunk in chunks(f, unit.start)) if unit.start else 0

    return Lines(text, stretch(), unit.start, limit, before)


def _text_documents(
    unit: Unit, text: Text, options: TextOptions
) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of the stretches between blank lines."""
    # A document ends at a blank line, or where it has grown beyond any document's size.
    first, end = 0, 0
    sentences: list[str] = []
    for _, offset, line in _lines(unit, text, options.max_line_bytes):
        if not line.strip() or _too_long(end - first, sentences):
            if sentences:
                text.report.cut_documents += bool(line.strip())
                yield first, sentences
            sentences = []

        # The first line with text gives the document its name.
        if not sentences:
            first = offset
        sentences += text.sentences(line)
        end = offset
    if sentences:
        yield first, sentences


def _too_long(size: int, sentences: list[str]) -> bool:
    return size > MAX_DOCUMENT_BYTES or len(sentences) >= MAX_DOCUMENT_LINES


def _jsonl_documents(
    unit: Unit, text: Text, options: TextOptions
) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of each object's text."""
    # A line that was cut is no JSON any more. `cut_lines` also counts long paragraphs inside of a
    # document, so it is looked at before and after each.
    lines, cut_before, too_long = _lines(unit, text, MAX_DOCUMENT_BYTES), text.report.cut_lines, -1
    for number, offset, line in lines:
        where = functools.partial(lines.where, number)
        if text.report.cut_lines > cut_before:
            limit = f'{MAX_DOCUMENT_BYTES >> 20} MiB'
            text.no_text(
                where,
                'too long',
                f'longer than {limit}: jsonl has one object a line, and that is one document',
            )
            # left out, and not cut; its other parts follow
            text.report.cut_lines, too_long = cut_before, number
        if number != too_long and line.strip():
            of_line = functools.partial(values.of_json, line, options.text_column)
            sentences = text.document(_found(of_line, where, text))
            cut_before = text.report.cut_lines
            if sentences:
                yield offset, sentences


def _found(find: Callable[[], str | None], where: Callable[[], str], text: Text) -> str:
    """The text that `find` takes out of a record, without what no UTF-8 has; '' for none."""
    try:
        found = find()
    except values.NoText as error:
        text.no_text(where, error.kind, str(error))
        return ''

    # null is a document without text. NUL is taken out as from other files.
    if found is None:
        text.null(where)
        return ''
    found = found.replace('\0', '')
    try:
        found.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as \\ud800
        kept = text.bad(where, 'half a surrogate pair')
        return found.encode(errors='replace').decode() if kept else ''
    return found


def _wiki_documents(
    unit: Unit, text: Text, options: TextOptions
) -> Iterator[tuple[int, list[str]]]:
    """(offset, sentences) of each <doc>; one without its end ends where the next begins."""
    first: int | None = None
    title = ''
    sentences: list[str] = []  # none where `first` is None
    for offset, line in _wiki_lines(_lines(unit, text, options.max_line_bytes)):
        # A new document. What is open still was never closed: it ends here.
        if line.startswith('<doc '):
            text.report.unclosed_documents += first is not None
            if first is not None and sentences:
                yield first, sentences
            header = _DOC.match(line)
            match = _TITLE.search(header[0] if header else line)
            first, title, sentences = offset, html.unescape(match[1]) if match else '', []
            line = line[header.end() :].strip() if header else ''

        # The end may stand on a line with text.
        closed = line.endswith('</doc>')
        line = line.removesuffix('</doc>').rstrip()
        if first is None:
            text.report.lines_outside += bool(line)
        elif line and (sentences or line != title):
            # The title comes again as the first line, and is left out there.
            if _too_long(offset - first, sentences):
                text.report.cut_documents += 1
                yield first, sentences
                first, sentences = offset, []
            sentences += text.sentences(line)

        # After </doc> nothing belongs to a document, until the next <doc>.
        if closed:
            if first is not None and sentences:
                yield first, sentences
            first, sentences = None, []

    # The file ends, or the unit: units end between documents, so this one was not closed either.
    text.report.unclosed_documents += first is not None
    if first is not None and sentences:
        yield first, sentences


def _wiki_lines(lines: Lines) -> Iterator[tuple[int, str]]:
    """(byte offset, text) of each line; one that ends a document and begins the next is two."""
    for _, offset, line in lines:
        begin = 0
        for border in _DOC_BORDER.finditer(line) if '</doc>' in line else ():
            yield offset + len(line[:begin].encode()), line[begin : border.end()].strip()
            begin = border.end()
        yield offset + len(line[:begin].encode()), line[begin:].strip()


def _records_of(
    read: Callable[[Unit, str], Iterator[tuple[int, bytes | None]]], unit_of: str
) -> Callable:
    """A reader of files whose records have a column of text, each a document."""

    def documents(unit: Unit, text: Text, options: TextOptions) -> Iterator[tuple[int, list[str]]]:
        for place, raw in read(unit, options.text_column):
            # Made into words only where something is wrong with the text.
            where = functools.partial('{} {} {}'.format, unit.path, unit_of, place)
            if raw is None:
                text.null(where)
                continue
            text.report.bytes += len(raw)
            decoded = text.decode(raw, where)
            sentences = text.document(decoded) if decoded else []
            if sentences:
                yield place, sentences

    return documents


def _hub_documents(unit: Unit, text: Text, options: TextOptions) -> Iterator[tuple[int, list[str]]]:
    """(row, sentences) of each row of a shard."""
    for row, record in hub.rows(unit.path, unit.start):
        where = functools.partial('hf:{} row {}'.format, unit.name, row)
        of_row = functools.partial(values.of_record, record, options.text_column)
        found = _found(of_row, where, text)
        text.report.bytes += len(found.encode())
        if sentences := text.document(found):
            yield row, sentences


_READERS = {
    'text': _text_documents,
    'jsonl': _jsonl_documents,
    'wikiextractor': _wiki_documents,
    'parquet': _records_of(lambda unit, column: parquet.rows(unit.path, unit.start, column), 'row'),
    'hf': _hub_documents,
    'tfds': _records_of(lambda unit, column: tfds_files.texts(unit.path, column), 'record at byte'),
}


def _format(name: str, head: bytes, path: str, options: TextOptions) -> Format:
    """What a file's name and first bytes say it is. Raises UserError where it is no text at all."""
    # What has a signature: parquet is read, other encodings and formats are refused by name,
    # because decoded as UTF-8 they would be a corpus of rubbish.
    if head.startswith(b'PAR1'):
        return 'parquet'
    if head.startswith((b'\xff\xfe', b'\xfe\xff', b'\0\0\xfe\xff')):
        wide = head.startswith((b'\xff\xfe\0\0', b'\0\0\xfe\xff'))
        name = 'UTF-32' if wide else 'UTF-16'
        raise UserError(f'{path}: is {name}: convert it to UTF-8 (iconv -f {name} -t UTF-8)')
    if head.startswith(b'PK\x03\x04') or head[257:262] == b'ustar':
        raise UserError(f'{path}: is an archive: unpack it, and give the files in it')

    controls = len(head) - len(head.translate(None, _CONTROLS))
    if head.startswith((b'%PDF-', b'{\\rtf')):
        raise UserError(f'{path}: is a document of its own format: give the text that is in it')

    # No signature, but bytes that text hardly has: a stray control character is no reason to refuse
    # it, a share of them is.
    many_controls = head.count(b'\0') > len(head) // 8 or controls > max(8, len(head) // 100)
    if head.startswith(_IMAGES) or many_controls:
        raise UserError(
            f'{path}: is not text: give text, jsonl or WikiExtractor files, '
            'plain or compressed by gzip, bzip2, xz or zstd, or parquet files'
        )

    # As UTF-8 some lines may be broken, but not a third of the bytes.
    if len(head) - len(head.decode(errors='ignore').encode()) > max(8, len(head) * 0.3):
        raise UserError(
            f'{path}: is not UTF-8: convert it (iconv -f ENCODING -t UTF-8), if it is text at all'
        )
    if b'\n' not in head and head.count(b'\r') > len(head) // _LONGEST_LINE:
        raise UserError(f"{path}: its lines end in CR alone: convert them (tr '\\r' '\\n')")

    # It is text; which kind, its name or its first line says.
    head = head.removeprefix(b'\xef\xbb\xbf').lstrip()
    if re.search(r'\.(jsonl|ndjson|json)(\.\w+)?$', name) or _is_json(
        head.split(b'\n', 1)[0], options.text_column
    ):
        return 'jsonl'
    return 'wikiextractor' if head.startswith(b'<doc ') else 'text'


def _is_json(line: bytes, column: str) -> bool:
    """Whether a file's first line is a JSON object with that column.

    `WikiExtractor --json` writes such lines into files without extension.
    """
    if line.startswith(b'{'):
        try:
            return column in json.loads(line)
        except RecursionError:
            return True  # the reader refuses it, with its line
        except ValueError:
            pass
    return False


def _borders(f: BinaryIO, size: int, form: Format, unit_bytes: int) -> list[int]:
    """Places where a document begins for sure: one at or after each multiple of `unit_bytes`."""
    # From each multiple on, line by line, to the first border. The byte before it is read too:
    # whether a line begins at a place is told by the line end before it.
    borders = [0]
    for wanted in range(unit_bytes, size, unit_bytes):
        if wanted <= borders[-1]:
            continue

        # a line may be longer than CHUNK and then comes in pieces: only one that follows a line
        # end is a line's begin
        f.seek(wanted - 1)
        fresh = False  # whether the next piece begins a line
        while piece := f.readline(CHUNK):
            begins, fresh = fresh, piece.endswith(b'\n')

            # After a blank line; after any line of jsonl; before a <doc>.
            if (form == 'text' and begins and fresh and not piece.strip()) or (
                form == 'jsonl' and fresh
            ):
                borders.append(f.tell())
            elif form == 'wikiextractor' and begins and piece.startswith(b'<doc '):
                borders.append(f.tell() - len(piece))
            else:
                continue
            break

    # The end of the file is the caller's border already.
    return [place for place in borders[1:] if place < size]
