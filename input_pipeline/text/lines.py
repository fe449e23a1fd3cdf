"""Text in files: bytes decoded, lines cut, sentences parted, and what was wrong counted.

Owns the options of reading and the report; must not know where documents begin and end, nor
file formats (corpus.py does).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import check_intervals, option, select_options
from bert_jax.input_pipeline.text.wrapping import Line, Widths, join_broken_lines

# A "document" longer than this is cut, or refused where it is one record: nobody means it, and it
# has to fit in memory
MAX_DOCUMENT_BYTES = 64 << 20
MAX_DOCUMENT_LINES = 1 << 20
_EXAMPLES = 5  # invalid lines, or files, that a report names
# Options that the first manifests did not have.
_LATER = 'on_bad_record join_lines hyphens documents min_chars max_chars min_letters'.split()
# Ends of sentences that the library does not know: the shads of Tibetan and Dzongkha, the full
# stops of Khmer. Signs at the head of a Tibetan text go with what follows, what closes an end and
# the Khmer "and so on" with what is before.
_ENDS = '\u0f0d-\u0f11\u17d4\u17d5'
_ENDS_RE = re.compile(f'[{_ENDS}]')
_SENTENCE_RE = re.compile(
    rf'[\s\u0f01-\u0f14]*[^{_ENDS}]+(?:[{_ENDS}](?:\u179b\u17d4)?[{_ENDS}\s»”’)\]]*)?|[{_ENDS}]+'
)
PASS_OVER = 'let --on_bad_utf8=replace or =skip pass over what is not UTF-8'
_MANY_BROKEN = 0.01  # of the lines looked at, from which broken lines are worth a word


@dataclass(frozen=True)
class TextOptions:
    """How files are read; alike in every binary that reads text.

    Attributes:
      segment: lines are paragraphs: cut them into sentences; by default for all but text files.
      language: language of the text, for --segment.
      text_column: jsonl, parquet, tfds, hf: the field that holds the document.
      on_bad_utf8: what to do with a line that is not UTF-8; each is counted and reported; by
        default replace, and from 5 % of the lines of a file (20 or more) on the file is refused.
      on_bad_record: jsonl, parquet, tfds, hf: what to do with a record that has no text; skip
        counts and reports those left out.
      max_line_bytes: longer lines are split at a space.
      join_lines: lines are broken at a width, as in most books and mails: join those of a
        paragraph, and cut it into sentences.
      hyphens: --join_lines: what becomes of the hyphen of a word that is parted at the end of a
        line: keep, for words that have one (well-/known), or drop (syl-/lable).
      documents: what ends a document of a text file: a blank line, or only the end of the file,
        blank lines parting paragraphs.
      min_chars: drop documents of fewer characters, spaces included; 50 words of English are
        about 300.
      max_chars: drop documents of more characters.
      min_letters: drop documents in which a smaller share of the characters are letters of any
        script, with their marks, or spaces.
    """

    segment: bool | None = None
    language: str = 'en'
    text_column: str = 'text'
    on_bad_utf8: Literal['replace', 'error', 'skip'] | None = option(
        None, switch=('strict', 'error')
    )
    on_bad_record: Literal['stop', 'skip'] = 'stop'
    max_line_bytes: int = option(1 << 20, within=f'[64, {MAX_DOCUMENT_BYTES}]')

    join_lines: bool = False
    hyphens: Literal['keep', 'drop'] = 'keep'
    documents: Literal['blank_line', 'file'] = 'blank_line'
    min_chars: int = option(0, within='[0, 2147483647]')
    max_chars: int | None = option(None, within='[1, 2147483647]')
    min_letters: float = option(0.0, within='[0, 1]')

    def __post_init__(self) -> None:
        check_intervals(self)
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise UserError(f'--max_chars={self.max_chars}: is below --min_chars={self.min_chars}')
        if self.hyphens == 'drop' and not self.join_lines:
            raise UserError('--hyphens=drop: is for lines that are joined: add --join_lines')
        if not re.fullmatch('[a-z]{2,3}(-[A-Za-z]+)*', self.language):
            raise UserError(
                f'--language={self.language}: must be an ISO 639 code such as en, de, ko or zh'
            )

    @property
    def text(self) -> TextOptions:
        """Return these options alone, of a command that has others too."""
        return select_options(self, TextOptions, language=self.language or TextOptions.language)

    def described(self) -> dict[str, Any]:
        """Return the options by name, as a manifest keeps them.

        Those that came after the first manifests are named only where they say something else than
        the default, so that equal jobs go on having equal manifests. What is refused by default
        makes no records: else they are those of `replace`.
        """
        described: dict[str, Any] = {}
        for each in fields(TextOptions):
            value = getattr(self, each.name)
            if value != each.default or each.name not in _LATER:
                described[each.name] = value
        return described | {'on_bad_utf8': self.on_bad_utf8 or 'replace'}


@dataclass
class Report:
    """What was read and what was wrong with it; readers add to it and callers print `lines()`."""

    documents: int = 0
    uncut: int = 0  # of these, whose lines were taken for sentences
    sentences: int = 0
    bytes: int = 0  # of text, uncompressed
    decoded: int = 0  # lines that are not empty, and records of bytes
    bad_utf8: int = 0  # of these, those with invalid UTF-8, replaced or skipped
    bad_places: list[str] = field(default_factory=list)  # 'FILE line N' of the first few
    nul_bytes: int = 0  # removed
    bad_records: Counter[str] = field(default_factory=Counter)  # left out, by kind
    # 'FILE line N (kind)' of the first few
    bad_record_places: list[str] = field(default_factory=list)
    filtered: Counter[str] = field(default_factory=Counter)  # documents dropped, by filter
    textless: Counter[str] = field(default_factory=Counter)  # no documents: null or empty texts
    textless_places: list[str] = field(default_factory=list)  # of the first few
    cut_lines: int = 0  # lines longer than max_line_bytes
    cut_documents: int = 0  # documents longer than MAX_DOCUMENT_BYTES or _LINES
    unclosed_documents: int = 0  # WikiExtractor's, without </doc>
    lines_outside: int = 0  # lines of text outside of <doc> and </doc>, left out
    left_out: list[str] = field(default_factory=list)  # 'PATH (why)' of what was not read
    empty_files: list[str] = field(default_factory=list)  # files without a document
    watched_lines: int = 0  # that were looked at for being broken at a width
    broken_lines: int = 0  # of these, and that are
    broken_files: list[str] = field(default_factory=list)  # the first few that have such lines

    def add_widths(self, name: str, widths: Widths) -> None:
        """Add what was seen of the lines of a file."""
        of_file = Report(watched_lines=widths.lines, broken_lines=widths.broken)
        if widths.broken:
            of_file.broken_files.append(name)
        self.merge(of_file)

    def merge(self, other: Report) -> None:
        """Add the report of another unit."""
        for entry in fields(self):  # counts and lists alike
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))

        # the first few of all, in the order of the units
        for examples in (self.bad_places, self.bad_record_places, self.textless_places):
            del examples[_EXAMPLES:]
        # a large file comes in several units
        self.broken_files = list(dict.fromkeys(self.broken_files))[: _EXAMPLES + 1]

    def lines(self) -> list[str]:
        """Word one line for each kind of trouble; none for clean text."""
        broken = self.broken_lines / max(1, self.watched_lines)
        limit = f'{MAX_DOCUMENT_BYTES >> 20} MiB or {MAX_DOCUMENT_LINES:,} lines'
        warnings = (
            (self.left_out, f'{len(self.left_out)} left out, not read: {_show(self.left_out)}'),
            (
                broken > _MANY_BROKEN,
                f'{broken:.0%} of the lines look broken at a width, in {_show(self.broken_files)}:'
                ' each is taken for a sentence or paragraph of its own; --join_lines joins them'
                ' (--documents=file where blank lines part paragraphs)',
            ),
            (
                self.unclosed_documents,
                f'no </doc> for {self.unclosed_documents} <doc>: '
                'each ended where the next began, or with the file',
            ),
            (
                self.lines_outside,
                f'{self.lines_outside} line(s) outside of <doc> and </doc> left out, '
                'as in what WikiExtractor writes they are no text',
            ),
            (
                self.empty_files,
                f'no text in {len(self.empty_files)} file(s): {_show(self.empty_files)}',
            ),
            (
                self.bad_utf8,
                f'invalid UTF-8 in {self.bad_utf8} line(s), replaced or skipped (--on_bad_utf8):'
                f' {_show(self.bad_places, self.bad_utf8)}',
            ),
            (
                self.bad_records,
                f'{self.bad_records.total()} record(s) left out as --on_bad_record=skip says'
                f' ({_tally(self.bad_records)}):'
                f' {_show(self.bad_record_places, self.bad_records.total())}',
            ),
            (
                self.textless,
                f'{self.textless.total()} record(s) without text ({_tally(self.textless)}), which'
                f' are no documents: {_show(self.textless_places, self.textless.total())}',
            ),
            (
                self.filtered,
                f'{self.filtered.total():,} document(s) dropped by filters'
                f' ({_tally(self.filtered)}); {self.documents:,} kept',
            ),
            (self.nul_bytes, f'{self.nul_bytes} NUL byte(s) removed'),
            (
                self.cut_lines,
                f'{self.cut_lines} line(s) longer than --max_line_bytes cut at white space',
            ),
            (
                self.cut_documents,
                f'no end of a document in {limit} of text: one ended there, {self.cut_documents}'
                ' time(s)',
            ),
        )
        return [text for happened, text in warnings if happened]


def _tally(counts: Counter[str]) -> str:
    return ', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))


def _show(names: list[str], total: int = 0) -> str:
    more = max(total, len(names)) > _EXAMPLES
    return ', '.join(names[:_EXAMPLES]) + (' ...' if more else '')


def _note(examples: list[str], example: Callable[[], str]) -> None:
    """Keep an example, which is worded only where it is among the first few."""
    if len(examples) < _EXAMPLES:
        examples.append(example())


class Passage(list[str]):
    """The sentences of a document, and in `spaces` the white space before each.

    Joined in turns they are the text, without the white space at its ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spaces: list[str] = []
        self._line = -1  # that the last sentence is of
        self._space: list[str] = []  # since the last sentence

    def add(self, number: int, line: str, parts: Iterable[str]) -> None:
        """Add line `number`, which these parts make up; of a blank one there are none.

        What has the number of the line before goes on with that line.
        """
        if self and number != self._line:
            self._space.append('\n')
        self._line = number

        # White space behind a sentence is before the next one.
        at = len(line) - len(line.lstrip())
        self._space.append(line[:at])
        for part in parts:
            sentence = part.strip()
            if sentence:
                start = line.index(sentence, at)
                self.spaces.append(''.join([*self._space, line[at:start]]) if self else '')
                self.append(sentence)
                at, self._space = start + len(sentence), []
        self._space.append(line[at:])


class Text:
    """Decodes what a file holds, in the way the options say.

    Each `location` that a method takes words where the text is; it is called for bad text only.
    """

    def __init__(
        self,
        path: str,
        options: TextOptions,
        report: Report,
        segment: bool,
        records: bool = False,
        has_lines: bool = False,
    ):
        """Make a decoder of the text of a file.

        Args:
          path: the file.
          options: of the user.
          report: to count into.
          segment: whether the file holds paragraphs, unless the options say.
          records: whether it holds records, each with its text.
          has_lines: whether it is a file of lines.
        """
        self.path, self.report, self._options = path, report, options
        self._has_lines = has_lines
        self._skips = records and options.on_bad_record == 'skip'
        self.segment = segment if options.segment is None else options.segment
        self.widths = Widths()

    def paragraphs(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Return the lines as they are, and watched; or joined, where that is wanted."""
        if self._options.join_lines:
            drop = self._options.hyphens == 'drop'
            return join_broken_lines(lines, drop, self._options.max_line_bytes)
        return self.widths.watch(lines)

    def decode(self, raw: bytes, location: Callable[[], str]) -> str | None:
        """Return the text without NUL; None where it is to be skipped."""
        # NUL is valid UTF-8, but no vocabulary has it and C libraries end at it.
        if b'\0' in raw:
            self.report.nul_bytes += raw.count(b'\0')
            raw = raw.replace(b'\0', b'')

        # Bytes that are not UTF-8 are the options' business: replaced, skipped or refused.
        self.report.decoded += bool(raw)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if self._options.on_bad_utf8 is None and self._has_lines:
                # imported here: --help of commands reads the options of this file
                from bert_jax.input_pipeline.text import encodings

                encodings.refuse_other(self.path, PASS_OVER)
            if self._keeps_invalid(location, f'invalid UTF-8 ({error.reason})'):
                return raw.decode(errors='replace')
            return None

    def _keeps_invalid(self, location: Callable[[], str], what: str) -> bool:
        """Count invalid characters, and tell whether their line is to be kept.

        Raises:
          UserError: the options want none. Of a record that is left out, nothing is kept.
        """
        if self._options.on_bad_utf8 == 'error':
            if not self._skips:
                raise UserError(f'{location()}: {what}: convert the file to UTF-8, or {PASS_OVER}')
            self.leave_out(location, 'invalid UTF-8', what)
            return False
        self.report.bad_utf8 += 1
        _note(self.report.bad_places, location)
        return self._options.on_bad_utf8 != 'skip'

    def leave_out(self, location: Callable[[], str], kind: str, what: str) -> None:
        """Count a record without a text as left out; UserError where that is not wanted."""
        if not self._skips:
            raise UserError(
                f'{location()}: {what} (or let --on_bad_record=skip leave such records out)'
            )
        self.report.bad_records[kind] += 1
        _note(self.report.bad_record_places, lambda: f'{location()} ({kind})')

    def record(self, value: str | bytes | None, location: Callable[[], str]) -> Passage:
        """Return the sentences of a record's text, of which null and blank ones have none."""
        if value is None and self._skips:
            self.leave_out(location, 'null', 'null')
            return Passage()
        text = value
        if isinstance(value, bytes):
            text = self.decode(value, location)
        elif value is not None:
            text = value.replace('\0', '')
            try:
                text.encode()
            except UnicodeEncodeError:  # half of a surrogate pair, as \\ud800
                kept = self._keeps_invalid(location, 'half a surrogate pair')
                text = text.encode(errors='replace').decode() if kept else None

        # No document and no mistake: a text that is null or empty.
        if value is None or (text is not None and not text.strip()):
            kind = 'null' if value is None else 'empty'
            self.report.textless[kind] += 1
            _note(self.report.textless_places, lambda: f'{location()} ({kind})')
        return self.document(str(text)) if text else Passage()

    def add(self, passage: Passage, number: int, line: str) -> None:
        """Add the sentences of a line to a passage."""
        passage.add(number, line, self._cut_sentences(line))

    def _cut_sentences(self, line: str) -> list[str]:
        """Return what a line is cut into, perhaps with white space at the ends of each."""
        line = line.strip()
        if not line or not self.segment:
            return [line]

        # imported here: most text comes as a sentence a line and needs no rules of a language
        import sentencex

        stretches: list[str] = []
        for part in sentencex.segment(self._options.language, line):
            if _ENDS_RE.search(part):
                stretches += _SENTENCE_RE.findall(part)
            else:
                stretches.append(part)
        return stretches

    def document(self, text: str) -> Passage:
        """Return the sentences of a whole document in one record; its lines are paragraphs."""
        # Encoding every line to know its size would cost more than the rest: a line of fewer than
        # limit / 4 characters cannot be too long.
        passage, limit = Passage(), self._options.max_line_bytes
        lines = ((number, 0, line) for number, line in enumerate(text.split('\n')))
        for number, _, line in self.paragraphs(lines):
            if len(line) <= limit // 4 or len(line.encode()) <= limit:
                self.add(passage, number, line)
                continue
            self.report.cut_lines += 1
            for part, _ in _cut_line(line.encode(), limit):
                self.add(passage, number, part.decode())
        return passage


class Lines:
    """The decoded lines of a stretch of a file, which begins at byte `start` of its text."""

    def __init__(
        self, text: Text, chunks: Iterator[bytes], start: int, limit: int, before: Callable[[], int]
    ):
        """Make the lines of a stretch.

        Args:
          text: decodes them.
          chunks: the bytes of the stretch.
          start: where it begins.
          limit: bytes after which a line is cut.
          before: counts the lines before the stretch; it is called for bad lines only.
        """
        self.text, self._chunks, self._start, self._limit = text, chunks, start, limit
        self._before = functools.cache(before)

    def __iter__(self) -> Iterator[Line]:
        """Yield (line from 0 within the stretch, byte offset, text without line end) of each line.

        A line that is too long comes as several, all of its number.
        """
        number, offset = 0, self._start
        unfinished = b''  # what follows the last line end so far
        cut = False  # its line's beginning has gone out already, because it is too long
        for chunk in self._chunks:
            self.text.report.bytes += len(chunk)
            *lines, unfinished = (unfinished + chunk).split(b'\n')
            for line in lines:
                yield from self._decode_line(number, offset, line, cut)
                number += 1
                offset += len(line) + 1
                cut = False
            if len(unfinished) > self._limit:  # no line end in sight: all but its last part can go
                _, end = _cut_line(unfinished, self._limit)[-1]
                self.text.report.cut_lines += not cut
                yield from self._decode_line(number, offset, unfinished[:end], cut=True)
                offset += end
                unfinished = unfinished[end:]
                cut = True
        yield from self._decode_line(number, offset, unfinished, cut)

    def location(self, number: int) -> str:
        """Return 'FILE line N', counted from 1 over the whole file."""
        return f'{self.text.path} line {self._before() + number + 1}'

    def _decode_line(self, number: int, offset: int, line: bytes, cut: bool) -> Iterator[Line]:
        """Yield a line, in parts of at most `limit` bytes.

        `cut`: it is itself the later part of a line.
        """
        # A long line is counted once, by its first part.
        parts = _cut_line(line, self._limit)
        self.text.report.cut_lines += len(parts) > 1 and not cut
        for part, start in parts:
            # The byte order mark is at the start of the file alone.
            if number == 0 and offset + start == 0:
                part = part.removeprefix(b'\xef\xbb\xbf')
            text = self.text.decode(part, lambda: self.location(number))
            # a blank part is not a blank line
            if text is not None and not ((cut or len(parts) > 1) and not text.strip()):
                yield number, offset + start, text.removesuffix('\r')


def _cut_line(line: bytes, limit: int) -> list[tuple[bytes, int]]:
    """Cut a line into parts of at most `limit` bytes, each with the byte where it begins.

    They end after white space, or at least between characters.
    """
    # At the last blank or tab within the limit, which stays with the part before it.
    parts: list[tuple[bytes, int]] = []
    start = 0
    while len(line) - start > limit:
        blank = line.rfind(b' ', start, start + limit)
        tab = line.rfind(b'\t', start, start + limit)
        end = 1 + max(blank, tab)

        # None: anywhere, but not inside a character of up to four bytes.
        if end <= start:
            end = start + limit
            while end > start + limit - 3 and line[end] & 0xC0 == 0x80:  # inside a UTF-8 character
                end -= 1
        parts.append((line[start:end], start))
        start = end
    parts.append((line[start:], start))
    return parts
