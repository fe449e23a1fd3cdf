"""Texts that a command is asked: its arguments or, where there are none, the lines of stdin.

Owns where they come from and how a mistake in one ends or does not end the command. Must not know
what is answered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from bert_jax.configs.errors import UserError


def answer_each(arguments: Sequence[str], answer: Callable[[str], str]) -> None:
    """Print `answer(text)` for each text as soon as it is there; lines without a word are no text.

    A UserError of `answer` ends the command and names the line of stdin that it is about. On a
    terminal, where a prompt asks for each text, it is a line on stderr and the next text is asked.
    """
    if arguments:
        for text in arguments:
            print(answer(_make_readable(text)), flush=True)
        return
    asked = sys.stdin is not None and sys.stdin.isatty()
    for number, line in _read_lines(asked):
        try:
            print(answer(line), flush=True)  # at once: what asks may wait for it
        except UserError as error:
            if not asked:
                raise UserError(f'stdin, line {number}: {error}') from error
            print(error, file=sys.stderr)


def _make_readable(text: str) -> str:
    """Return an argument. UserError where it was not UTF-8: it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f'{text!a}: is not UTF-8') from error
    return text


def _read_lines(asked: bool) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of each line of stdin with a word, after a prompt if `asked`."""
    if sys.stdin is None:
        raise UserError('give a text as an argument: there is no stdin')
    number = 0
    while True:
        if asked:
            print('> ', end='', file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        number += 1
        if not line:
            break
        try:
            text = line.decode('utf-8-sig' if number == 1 else 'utf-8').strip()
        except UnicodeDecodeError as error:
            raise UserError(
                f'stdin, line {number}: is not UTF-8 ({error.reason}): pipe the text through iconv'
                ' -f ENCODING -t UTF-8, with its own encoding, such as cp1252'
            ) from error
        if text:
            yield number, text
    if asked:
        print(file=sys.stderr)  # the shell's own prompt starts a line
