"""Texts that a command is asked: arguments, lines of stdin, a terminal."""

from __future__ import annotations

import io
import os
import pty
import sys

import pytest

from bert_jax.cli.questions import answer_each
from bert_jax.configs.errors import UserError
from tests.helpers.refusals import refused


def shout(text: str) -> str:
    if text == 'bad':
        raise UserError('a bad one')
    return text.upper()


@pytest.fixture
def stdin(monkeypatch):
    """Puts bytes on stdin."""

    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(content)))

    return put


def test_arguments_are_answered_in_order_and_stdin_is_left_alone(stdin, capsys):
    stdin(b'c\n')
    answer_each(['b', 'a'], shout)
    assert capsys.readouterr() == ('B\nA\n', '')


def test_lines_of_stdin_are_answered_without_a_prompt_and_empty_ones_are_none(stdin, capsys):
    stdin(b'\xef\xbb\xbfb\r\n\n  \n\xc3\xa9 f')
    answer_each([], shout)
    assert capsys.readouterr() == ('B\nÉ F\n', '')


@pytest.mark.parametrize(
    'content, message',
    [(b'a\nbad\nc\n', 'stdin, line 2: a bad one'), (b'\xe9\n', 'stdin, line 1: is not UTF-8')],
)
def test_a_mistake_in_a_line_ends_the_command_and_names_the_line(stdin, content, message):
    stdin(content)
    with refused(message):
        answer_each([], shout)


def test_an_argument_that_is_no_text_is_refused():
    with refused('is not UTF-8'):
        answer_each(['caf\udce9'], shout)


def test_a_terminal_has_a_prompt_and_goes_on_after_a_mistake(monkeypatch, capsys):
    controlling, terminal = pty.openpty()
    os.write(controlling, b'a\nbad\nc\n\x04')  # ends as control-D ends it
    with open(terminal) as file:
        monkeypatch.setattr(sys, 'stdin', file)
        answer_each([], shout)
    os.close(controlling)
    assert capsys.readouterr() == ('A\nC\n', '> > a bad one\n> > \n')
