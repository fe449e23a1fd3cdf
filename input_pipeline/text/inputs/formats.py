"""What a file is, by its name and its first bytes, whatever its owner believed.

Owns the signs of each format, and the words for files that are no text. Must not know how a format
is read.
"""

from __future__ import annotations

import json
import re
from typing import Literal

from configs.errors import UserError

HEAD_BYTES = 1 << 16  # of a file's beginning, unpacked, by which it is judged
_LONGEST_LINE = 4096  # bytes, on average, of lines that end in CR alone: one may stand in any
_CONTROLS = bytes([*range(1, 8), *range(14, 27), *range(28, 32), 127])  # in no encoding of text
# PNG, JPEG, GIF, TIFF by their first bytes.
_IMAGES = (b'\x89PNG', b'\xff\xd8\xff', b'GIF87a', b'GIF89a', b'II*\0', b'MM\0*')

Format = Literal['text', 'jsonl', 'wikiextractor', 'parquet', 'tfds', 'hf']


def format_of(name: str, head: bytes, path: str, column: str) -> Format:
    """What a file's name and first bytes say it is. Raises UserError where it is no text at all.

    `column`: the field of a JSON object that holds its text.
    """
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
        head.split(b'\n', 1)[0], column
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
