"""Text as UTF-8: files that are read as a whole, and the words for one in another encoding.

Owns the share of a file's lines from which it is refused, and the guess. The guess is a trial: an
encoding that fits decodes the lines, and its most common letters are among what is outside of
ASCII. Must not know what the lines mean.
"""

from __future__ import annotations

import codecs
import functools
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.json_object import parse
from bert_jax.input_pipeline.text.files import (
    CHUNK,
    detect_compression,
    iterate_unpacked,
    open_file,
    read_state,
)

_FEWEST, _SHARE = 20, 0.05  # lines that are not UTF-8, from which on a text is refused
_SAMPLE_BYTES = 1 << 20  # of such lines, by which an encoding is guessed
_HIGH = bytes(range(128, 256))
_MARKS = {
    b'\xff\xfe\0\0': 'UTF-32',
    b'\0\0\xfe\xff': 'UTF-32',
    b'\xff\xfe': 'UTF-16',
    b'\xfe\xff': 'UTF-16',
}
_HANZI = '[的一是不了在人有我他这這中大来來上国國个個到说說们們为為和你地出道时時年会會生]'
# What is common in texts of an encoding, and the least share that it has of all characters outside
# of ASCII. Accented letters of Western languages come alone or in pairs, between others.
_WESTERN = r'(?<![^\0-\x7f])[À-ÖØ-öø-ÿœŒªº°§€£«»¿¡‘’“”„…–—\xa0·©®]{1,2}(?![^\0-\x7f])'
_COMMON = (
    ('euc-kr', '[이다는에의을를로하고가한도지기은인사]', 0.15),
    ('cp949', '[이다는에의을를로하고가한도지기은인사]', 0.15),
    ('shift_jis', '[ぁ-んァ-ヶ]', 0.2),
    ('cp932', '[ぁ-んァ-ヶ]', 0.2),
    ('gb18030', _HANZI, 0.08),
    ('cp1251', '(?<![A-Za-z])[оеаинтсрвлі](?![A-Za-z])', 0.5),
    ('latin1', _WESTERN, 0.8),
    ('cp1252', _WESTERN, 0.8),
)


class _Survey(NamedTuple):
    """What a file is: how it is packed, how many lines it has, and how many of them are what."""

    compression: str | None
    mark: str  # the encoding that its first bytes name, or ''
    lines: int
    invalid: int  # no UTF-8
    valid: int  # UTF-8 with characters outside of ASCII
    sample: bytes  # the first of the invalid ones


def refuse_other(path: str, mend: str) -> None:
    """Raise UserError for a file with so many lines that are not UTF-8 that it is in another.

    `mend`: what else the user may do.
    """
    survey = _survey_of(path)
    if survey.mark or are_many(survey.invalid, survey.lines):
        raise UserError(
            f'{path}: {survey.invalid:,} of {survey.lines:,} lines are not UTF-8:'
            f' {word_advice(path)}; or {mend}'
        )


def are_many(invalid: int, lines: int) -> bool:
    """Tell whether so many lines that are not UTF-8 are no slips, but another encoding."""
    return invalid >= max(_FEWEST, _SHARE * lines)


def word_advice(path: str) -> str:
    """Word how to convert a file that is not UTF-8: 'it looks like cp1252 (...): convert it ...'.

    The command is for any locale, and reads the file as it is compressed.
    """
    survey = _survey_of(path)
    encoding = survey.mark
    looks = f'it is {encoding}'
    if not encoding:
        if survey.valid > survey.invalid / 10:
            return (
                f'{survey.valid:,} other lines are UTF-8 with letters outside of ASCII: convert'
                ' the parts of the file apart, before they are put together'
            )
        encoding, word = guess_encoding(survey.sample)
        shown = encoding.replace('latin1', 'latin-1')  # its other name is no name to iconv
        looks = f'it looks like {shown} ({word})' if encoding else 'its encoding is not known'

    name, into = shlex.quote(path), shlex.quote(f'{path}.utf8')
    command = f'iconv -f {encoding or "ENCODING"} -t UTF-8'
    if survey.compression:
        command = f'{survey.compression} -dc < {name} | {command}'
    else:
        command = f'{command} {name}'
    return f'{looks}: convert it ({command} > {into}) and put that in its place'


def guess_encoding(sample: bytes) -> tuple[str, str]:
    """Return an encoding that lines may be in, as iconv calls it, and a word of them; or ('', '').

    The lines may end in the middle of a character.
    """
    for encoding, common, least in _COMMON:
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(sample)
        except UnicodeDecodeError:
            continue
        outside = len(re.findall(r'[^\0-\x7f]', text))
        expected = sum(map(len, re.findall(common, text)))
        if outside and expected >= least * outside:
            word = re.search(r'[\w’]*[^\W\0-\x7f][\w’]*', text)
            return encoding, word[0][:20] if word else ''
    return '', ''


def _survey_of(path: str) -> _Survey:
    with reading(path):
        return _survey(path, read_state(path))


@functools.lru_cache(maxsize=1)
def _survey(path: str, state: tuple[int, int]) -> _Survey:
    """Read all of a file, which is as `state` says: another state is another file."""
    del state
    lines = invalid = valid = 0
    mark, sample = '', b''
    with open_file(path) as file:
        compression = detect_compression(file)
        for block in _iterate_blocks(iterate_unpacked(file, compression, path)):
            if not lines:
                mark = _find_mark(block)
            if block.isascii():
                lines += block.count(b'\n') + 1
                continue
            for line in block.split(b'\n'):
                lines += 1
                try:
                    valid += not line.decode().isascii()
                except UnicodeDecodeError:
                    invalid += 1
                    if len(sample) < _SAMPLE_BYTES:
                        sample += line[:_SAMPLE_BYTES] + b'\n'
    return _Survey(compression, mark, lines, invalid, valid, sample)


def _find_mark(begin: bytes) -> str:
    """Return the encoding that the first bytes of a file name, or ''."""
    for mark, encoding in _MARKS.items():
        if begin.startswith(mark):
            return encoding
    return ''


def _iterate_blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the text of a file in whole lines, without the line end that parts two blocks."""
    unfinished = b''
    for chunk in chunks:
        block, end, unfinished = (unfinished + chunk).rpartition(b'\n')
        # A line without an end in sight: a part of it, which is cut beside an ASCII character.
        if not end and len(unfinished) > CHUNK:
            block = unfinished.rstrip(_HIGH) or unfinished
            unfinished = unfinished[len(block) :]
        if end or block:
            yield block
    if unfinished:
        yield unfinished


_COMPRESSED = ('.gz', '.bz2', '.xz', '.zst')


def plain_name(path: str) -> str:
    """Return the name of a file without the ending of its compression: `train.tsv` of `.tsv.gz`."""
    # only one end is taken off: nobody compresses twice
    for end in _COMPRESSED:
        if path.endswith(end):
            return path.removesuffix(end)
    return path


def located(path: str) -> epath.Path | None:
    """Return the file, or where there is none the compressed one (`train.tsv.gz`); or None."""
    # The plain file first: it is the one that was named.
    with reading(path):
        for end in ('', *_COMPRESSED):
            file = epath.Path(path + end)
            if file.exists():
                return file
    return None


def read_utf8(path: str) -> str:
    """Return the text of a file, without a BOM; its first bytes show whether it is compressed.

    Raises:
      UserError: there is no file, or it cannot be read; it names the line of a bad byte.
    """
    # Whole in memory: a task's files are megabytes. Byte order marks are taken off.
    actual = located(path)
    if actual is None:
        raise UserError(f"{path}: no such file; a task's own files are looked for in --data_dir")
    with reading(path), open_file(str(actual)) as file:
        raw = b''.join(iterate_unpacked(file, detect_compression(file), str(actual)))
    text = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        # A person looks for a line, not for a byte.
        line = text.count(b'\n', 0, error.start) + 1
        byte = len(raw) - len(text) + error.start
        raise UserError(
            f'{path}:{line}: byte {byte} is not UTF-8; {word_advice(str(actual))}'
        ) from error


def read_json(path: str, unique: bool = False) -> Any:
    """Parse a JSON file; UserError as `read_utf8`, and for what is no JSON.

    unique: an object that has a name twice is refused; otherwise the last one counts.
    """
    try:
        return parse_json(read_utf8(path), unique)
    except ValueError as error:
        raise UserError(f'{path}: {error}') from error


def parse_json(text: str, unique: bool = False) -> Any:
    """Parse JSON into Python values; `unique` as for `read_json`. ValueError for what is none."""
    try:
        return parse(text, _refuse_twice if unique else None)
    except ValueError as error:
        raise ValueError(f'not JSON ({error})') from error


def well_formed(text: str) -> bool:
    r"""Tell whether UTF-8 can hold it: JSON may spell half a character, as in "\ud83d"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object, where all names are different."""
    # In a dict the last of two equal names has won.
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = names.most_common(1)[0][0]
        raise ValueError(f'{twice!r} is there more than once')
    return entries
