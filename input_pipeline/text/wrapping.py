"""Lines that are broken at a width, as most books and mails have them: found, and joined again.

Owns how such lines are told from sentences, and how they become paragraphs. Must not know files,
formats or where documents end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# (number, offset, text) of a line, as text/lines.py gives them; passed on as it is
Line = tuple[int, int, str]

_WATCHED = (
    2000  # lines of a file, or of a stretch of it, that are looked at: what they are, all are
)
_LEAST = 12  # lines that say anything
_NARROWEST, _WIDEST = 30, 160  # widths that text is broken at, in columns
_LONGER = 0.05  # of the lines at most are longer than the width: addresses, headings
# Of the lines at least had no room for the next word: of wrapped text it is 0.6 to 0.97, of other
# text 0 to 0.3.
_FULL = 0.4

# Written without spaces: Thai to Burmese, Khmer, kana, ideographs and their punctuation.
_UNSPACED = (
    '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff'
    '\uf900-\ufaff\uff00-\uff9f\U00020000-\U0003ffff'
)
_IS_UNSPACED = re.compile(f'[{_UNSPACED}]')
_WIDE = re.compile(
    '[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60'
    '\uffe0-\uffe6\U00020000-\U0003fffd]'
)  # two columns of a terminal each
# A sentence's end, in the scripts that mark it, perhaps with quotes and brackets behind.
_ENDS = re.compile('[.!?\u2026\u3002\uff01\uff1f\u0964\u0965\u061f\u06d4\u1362][^\\w\\s]*$')
# Columns, by tabs, bars or gaps that stand behind no end of a sentence.
_TABLE = re.compile('\t|\\||\\S {3}|\\w {2}\\S')

_HYPHENS = '-\u2010'
_SOFT_HYPHEN = '\u00ad'
# What follows a hyphen that stands for a word's missing part, as in "Haupt- und Nebensatz".
_AFTER_SUSPENDED = frozenset('and or to und oder bis sowie et ou e y o en og och eller of'.split())


@dataclass
class Widths:
    """Watches the first lines of a text, and says how many of them a width has broken.

    A line is broken where the first word of the next one would have made it longer than the width,
    the width is one that hardly any line exceeds, and the line does not end a sentence. That needs
    no capitals. Lines of tables, of numbers and of less than two words count as whole.
    """

    lines: int = 0  # that another one follows, with no blank line between
    # Of each that may be broken: whether it ends a sentence, and its length and that with the next
    # word, in characters and in columns.
    _measured: list[tuple[bool, tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    _longer: int = 0  # than any width

    def watch(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the same lines; those that come first are looked at as they pass."""
        lines, before = iter(lines), ''
        for line in lines:
            text = line[2].strip()
            if before and text:
                self._add(before, text)
            before = text
            yield line
            if self.lines >= _WATCHED:
                break
        yield from lines

    def _add(self, line: str, following: str) -> None:
        self.lines += 1
        if len(line) > _WIDEST:
            self._longer += 1
            return

        # Prose alone: the rows of a table have one width, too.
        unspaced = _IS_UNSPACED.match(following)
        if _TABLE.search(line) or not (unspaced or ' ' in line):
            return
        if 2 * sum(map(str.isalpha, line)) < len(line):
            return

        # Without spaces a line breaks anywhere but before a full stop and the like: two characters.
        word = following[:2] if unspaced else ' ' + following.split(None, 1)[0]
        columns = _count_columns(line)
        sizes = (len(line), len(line) + len(word)), (columns, columns + _count_columns(word))
        self._measured.append((bool(_ENDS.search(line)), *sizes))

    def merge(self, other: Widths) -> None:
        """Add what was seen of another text."""
        self.lines += other.lines
        self._longer += other._longer
        self._measured += other._measured

    @property
    def too_few(self) -> bool:
        """Tell whether there are too few lines to say anything."""
        return self.lines < _LEAST

    @property
    def broken(self) -> int:
        """Count the lines that are broken at a width; 0 where that may be chance."""
        if self.too_few:
            return 0

        # Programs count characters or columns, which differ for Korean and Chinese.
        count = max(self._broken_at_best(kind) for kind in (1, 2))
        return count if count >= _FULL * self.lines else 0

    def _broken_at_best(self, kind: int) -> int:
        """Count the lines broken at the width that breaks most of them, measured by `kind`."""
        # Lines that a width breaks are the intervals [length, length with the next word) that it
        # lies in: one more from each begin on, one less from each end on.
        fits, broken = [0] * (_WIDEST + 1), [0] * (_WIDEST + 1)
        for ends_sentence, *sizes in self._measured:
            length, with_next = sizes[kind - 1]
            if length <= _WIDEST:
                fits[length] += 1
                if not ends_sentence:
                    broken[length] += 1
                    if with_next <= _WIDEST:
                        broken[with_next] -= 1

        # The widths that hardly any line exceeds.
        best = fitting = breaking = 0
        limit = (1 - _LONGER) * (len(self._measured) + self._longer)
        for width in range(_WIDEST + 1):
            fitting += fits[width]
            breaking += broken[width]
            if width >= _NARROWEST and fitting >= limit:
                best = max(best, breaking)
        return best


def _count_columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return len(text) + len(_WIDE.findall(text))


def join_broken_lines(lines: Iterable[Line], drop_hyphens: bool, longest: int) -> Iterator[Line]:
    """Yield paragraphs for their lines, each where its first line was; blank lines as they are.

    A paragraph ends at a blank line, and before a line that is indented more than the one before
    it. Where it has `longest` characters it goes on as another one of the same number. Between two
    lines comes a space, and nothing between two characters that are written without. A soft hyphen
    at the end of a line goes. A hyphen there between letters stays, and the next line follows it at
    once; with `drop_hyphens` it goes where the next line begins with a small letter. Before "and",
    "und" and the like it stays, with a space.
    """
    paragraph: tuple[int, int] | None = None
    parts: list[str] = []
    size = indent = 0
    for number, offset, line in lines:
        text = line.strip()
        inwards = len(line) - len(line.lstrip())

        # What is complete goes out before the line that ends it; what is too long goes on.
        if paragraph and (not text or inwards > indent):
            yield *paragraph, ''.join(parts)
            paragraph, parts, size = None, [], 0
        indent = inwards

        if not text:
            yield number, offset, line
        elif paragraph and size > longest:
            yield *paragraph, ''.join(parts) + ' '
            paragraph, parts, size = (paragraph[0], offset), [text], 0
        elif paragraph is None:
            paragraph, parts = (number, offset), [text]
        else:
            parts[-1], between = _join(parts[-1], text, drop_hyphens)
            parts += [between, text]
        size += len(text)
    if paragraph:
        yield *paragraph, ''.join(parts)


def _join(line: str, following: str, drop_hyphens: bool) -> tuple[str, str]:
    """Return the end of a line as it stays, and what comes between it and the next one."""
    if line.endswith(_SOFT_HYPHEN):
        return line[:-1], ''

    # A hyphen within a word. Two of them are a dash, and so is one with a space before it.
    if line[-1] in _HYPHENS and line[-2:-1].isalpha() and following[0].isalpha():
        if following.split(None, 1)[0] in _AFTER_SUSPENDED:
            return line, ' '
        if drop_hyphens and following[0].islower():
            return line[:-1], ''
        return line, ''

    if _IS_UNSPACED.match(line[-1]) and _IS_UNSPACED.match(following):
        return line, ''
    return line, ' '
