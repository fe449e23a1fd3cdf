"""Exit codes and messages of a binary, seen from outside as a shell sees them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = '''"""Counts sheep.

More about sheep."""
import errno
from absl import flags
from configs.errors import UserError
from launch import app

CONFIG, SET = app.config_flags()
DATA = flags.DEFINE_string('data', None, 'where the sheep are', required=True)
KIND = flags.DEFINE_enum('kind', 'white', ['white', 'black'], 'which sheep')
ERRORS = {
    'mistake': UserError('two\\nlines'),
    'defect': KeyError('sheep'),
    'interrupt': KeyboardInterrupt(),
    'full': OSError(errno.ENOSPC, 'No space left on device', 'flock.txt'),
}

def main(argv):
    if DATA.value == 'wrapped':
        try:
            raise ERRORS['full']
        except OSError as error:
            raise RuntimeError('save failed') from error
    if DATA.value in ERRORS:
        raise ERRORS[DATA.value]
    print(argv[1:], SET.value)

if __name__ == '__main__':
    app.run(main, ARGUMENTS)
'''


@pytest.fixture
def program(tmp_path):
    def run(*arguments: str, takes: str = '') -> subprocess.CompletedProcess:
        path = tmp_path / 'sheep.py'
        path.write_text(PROGRAM.replace('ARGUMENTS', repr(takes)))
        environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
        return subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, env=environment)

    return run


def test_success(program):
    result = program('--data=x', '--set', 'a.b=1', '--set=c=2')
    assert (result.returncode, result.stdout, result.stderr) == (0, "[] ['a.b=1', 'c=2']\n", '')


def test_help_shows_the_binarys_own_flags(program):
    result = program('--help')
    assert (result.returncode, result.stderr) == (0, '')
    assert 'More about sheep.' in result.stdout
    for flag in ('--data', '--kind', '<white|black>', '--config', '--set'):
        assert flag in result.stdout
    assert 'verbosity' not in result.stdout
    assert program('--helpfull').returncode == 0


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], '--data is required'),
        (['--data=x', '--dta=y'], "Unknown command line flag 'dta'. Did you mean: data"),
        (['--data=x', '--kind=red'], 'flag --kind=red: value should be one of <white|black>'),
        (['--data=x', 'left'], "unexpected argument 'left'"),
        (['--data=x', '--', '--over'], "unexpected argument '--over'"),
        (['--data=mistake'], 'two lines'),
        (['--data=full'], 'flock.txt: disk full: free some space'),
        (['--data=wrapped'], 'flock.txt: disk full: free some space'),
    ],
)
def test_a_users_mistake_is_one_line(program, arguments, message):
    result = program(*arguments)
    assert result.returncode == 2
    assert result.stdout == ''
    assert result.stderr.startswith('sheep: error: ') and message in result.stderr
    assert result.stderr.count('\n') == 1


def test_arguments_are_taken_where_they_are_announced(program):
    assert program('--data=x', 'left', '--', '--runner=beam', '--help', takes='DIR').stdout == "['left', '--runner=beam', '--help'] []\n"
    assert 'sheep [--flags] DIR' in program('--help', takes='DIR').stdout


def test_a_defect_keeps_its_traceback(program):
    result = program('--data=defect')
    assert result.returncode == 1
    assert result.stderr.startswith('Traceback') and "KeyError: 'sheep'" in result.stderr


def test_interrupted(program):
    result = program('--data=interrupt')
    assert (result.returncode, result.stderr) == (130, 'sheep: interrupted\n')


def test_an_old_python_gets_one_line():
    """launch/__init__.py is the first file that runs; it must parse and speak on any Python."""
    code = f'import sys; sys.version_info = (3, 8, 1); exec(open({str(ROOT / "launch/__init__.py")!r}).read())'
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == 'bert_jax needs Python 3.11 or 3.12, this is 3.8: use `python3.11 -m ...`\n'
