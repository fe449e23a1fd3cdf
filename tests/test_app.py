"""Exit codes and messages of a binary, seen from outside as a shell sees them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from configs import schema

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = '''"""Counts sheep.

More about sheep."""
import errno
from absl import flags
from configs.errors import UserError
from launch import app

app.define_config_flags()
DATA = flags.DEFINE_string('data', None, 'where the sheep are', required=True)
KIND = flags.DEFINE_enum('kind', 'white', ['white', 'black'], 'which sheep')
ERRORS = {
    'mistake': UserError('two\\nlines'),
    'defect': KeyError('sheep'),
    'interrupt': KeyboardInterrupt(),
    'memory': MemoryError('Unable to allocate 3 GiB'),
    'device': type('JaxRuntimeError', (RuntimeError,), {})('RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\\nand more'),
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
    if DATA.value == 'config':
        config = app.config_from_flags('pretrain')
        print(config.name, config.seed)
    elif DATA.value == 'log':
        import logging as library
        from absl import logging
        exec(compile("logging.info('ours')", f'{app.ROOT}/launch/x.py', 'exec'))
        library.getLogger('jax').warning('theirs, serious')
        library.getLogger('jax').info('theirs')
        exec(compile("logging.info('orbax')", '/site-packages/orbax/x.py', 'exec'))
    else:
        print(argv[1:])

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
    result = program('--data=x')
    assert (result.returncode, result.stdout, result.stderr) == (0, '[]\n', '')


def test_config_and_set(program):
    result = program('--data=config', '--config=bert_tiny', '--set', 'seed=7', '--set=name=mine')
    assert (result.returncode, result.stdout, result.stderr) == (0, 'mine 7\n', '')


def test_help_shows_the_binarys_own_flags(program):
    result = program('--help')
    assert (result.returncode, result.stderr) == (0, '')
    assert 'More about sheep.' in result.stdout
    assert '--data\n      where the sheep are (required)\n' in result.stdout
    assert '--kind\n      <white|black>: which sheep (default: white)\n' in result.stdout
    assert '--config\n' in result.stdout and '--set\n' in result.stdout
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
        (['--data=memory'], 'this machine has too little memory (Unable to allocate 3 GiB)'),
        (
            ['--data=device'],
            'the device has too little memory (RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.): take a smaller batch_size',
        ),
        (['--data=config'], '--config is required: a preset (bert_base, '),
        (['--data=config', '--config=none_such'], '--config=none_such: neither a file nor a preset'),
        (['--data=config', '--config=FINETUNE'], 'holds a FinetuneConfig, but this program takes a PretrainConfig'),
        (['--data=config', '--config=bert_tiny', '--set=sede=1'], 'did you mean seed?'),
        (['--data=wrapped'], 'flock.txt: disk full: free some space'),
    ],
)
def test_a_users_mistake_is_one_line(program, tmp_path, arguments, message):
    path = tmp_path / 'config.json'
    path.write_text(schema.dumps(schema.FinetuneConfig()))
    result = program(*(argument.replace('FINETUNE', str(path)) for argument in arguments))
    assert result.returncode == 2
    assert result.stdout == ''
    assert result.stderr.startswith('sheep: error: ') and message in result.stderr
    assert result.stderr.count('\n') == 1


def test_arguments_are_taken_where_they_are_announced(program):
    assert program('--data=x', 'left', '--', '--runner=beam', '--help', takes='DIR').stdout == "['left', '--runner=beam', '--help']\n"
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


def test_libraries_are_heard_only_when_it_is_serious(program):
    """orbax logs through absl, line after line: below a warning only our own lines are shown."""
    quiet, loud = (program('--data=log', *flags).stderr for flags in ([], ['--verbosity=1']))
    assert [line.split(' ', 1)[1] for line in quiet.splitlines()] == ['I ours', 'W theirs, serious']
    assert [line.split(' ', 1)[1] for line in loud.splitlines()] == ['I ours', 'W theirs, serious', 'I theirs', 'I orbax']
