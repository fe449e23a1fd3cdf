"""Exit codes and messages of a binary, seen from outside as a shell sees them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from bert_jax.cli import app
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import PretrainConfig
from bert_jax.launch.preprocess import Preprocess
from bert_jax.launch.train_vocab import TrainVocab
from tests.helpers import commands
from tests.helpers.processes import ROOT, python

PROGRAM = '''"""Counts sheep.

More about sheep."""
import errno
from dataclasses import dataclass
from typing import Literal
from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.configs.schema import PretrainConfig
from bert_jax.cli import app, log

ERRORS = {
    'mistake': UserError('two\\nlines'),
    'defect': KeyError('sheep'),
    'interrupt': KeyboardInterrupt(),
    'memory': MemoryError('Unable to allocate 3 GiB'),
    'no words': MemoryError(),
    'device': type('JaxRuntimeError', (RuntimeError,), {})(
        'RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\\nand more'
    ),
    'other': BrokenPipeError(errno.EPIPE, 'a process of ours has gone'),
    'remote': type('OpError', (Exception,), {'__module__': 'tensorflow.x'})('no host\\nof gs://sheep/a'),
    'closed': OSError(errno.EACCES, 'Permission denied', 'flock.txt'),
    'full': OSError(errno.ENOSPC, 'No space left on device', 'flock.txt'),
    'limit': OSError(errno.EFBIG, 'File too large', 'flock.txt'),
}

@dataclass(frozen=True, kw_only=True)
class Count:
    """Count sheep.

    Attributes:
      data: where the sheep are.
      share: how many of them.
      count: their number.
      kind: which sheep.
      config: of a run.
      settings: of a run.
      words: the rest.
    """

    data: str
    share: float = 0.5
    count: int = 1
    kind: Literal['white', 'black'] = 'white'
    config: str | None = None
    settings: tuple[str, ...] = option((), flag='set', settings=PretrainConfig)
    WORDS

    def __call__(self):
        if self.data == 'wrapped':
            try:
                raise ERRORS['full']
            except OSError as error:
                raise RuntimeError('save failed') from error
        if self.data in ERRORS:
            raise ERRORS[self.data]
        if self.data == 'config':
            config, _ = load.load_config(self.config, PretrainConfig)
            print(config.name, config.seed)
        elif self.data == 'log':
            import logging as library
            from absl import logging
            exec(compile("logging.info('ours')", f'{log.ROOT}/launch/x.py', 'exec'))
            library.getLogger('jax').warning('theirs, serious')
            library.getLogger('jax').info('theirs')
            exec(compile("logging.info('orbax')", '/site-packages/orbax/x.py', 'exec'))
            import warnings
            warnings.warn('of a library', RuntimeWarning)
            library.getLogger('matplotlib.font_manager').warning('building the font cache')
        else:
            print(list(getattr(self, 'words', [])))

if __name__ == '__main__':
    app.run(Count)
'''


@pytest.fixture
def program(tmp_path):
    def run(*arguments: str, takes: str = '', alone: bool = True) -> subprocess.CompletedProcess:
        path = tmp_path / 'sheep.py'
        words = f'words: tuple[str, ...] = option((), words={takes!r})' if takes else ''
        path.write_text(PROGRAM.replace('WORDS', words))
        if alone:
            return python(path, *arguments, PYTHONPATH=str(ROOT))
        return commands.run(str(path), *arguments)

    return run


def test_help_shows_the_binarys_own_flags(program):
    result = program('--help', alone=False)
    assert (result.returncode, result.stderr) == (0, '')
    assert 'More about sheep.' in result.stdout
    assert '--data\n      where the sheep are (required)\n' in result.stdout
    assert '--kind\n      <white|black>: which sheep (default: white)\n' in result.stdout
    assert '--config\n' in result.stdout and '--set\n' in result.stdout
    assert 'verbosity' not in result.stdout
    assert program('--helpfull').returncode == 0
    assert program('--version').stdout.startswith('bert_jax ')


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([], '--data is required'),
        (
            ['--data=x', '--dta=y'],
            '--dta: bert-sheep has no such flag; did you mean --data? (see --help)',
        ),
        (['--data='], '--data=: is empty: give a value'),
        (['--data=x', '--share=half'], 'flag --share=half: must be a number (see --help)'),
        (['--data=x', '--share=nan'], '--share=nan: must be a finite number'),
        (['--data=xx://a/b'], '--data=xx://a/b: xx:// is neither read nor written: give a local'),
        (['--data=caf\udce9'], "'--data=caf\\udce9': is not UTF-8"),
        (['--data=closed'], 'flock.txt: Permission denied: give yourself the right to it'),
        (['--data=remote'], 'gs://sheep/a: cannot be reached (no host of gs://sheep/a)'),
        (['--data=x', '--kind=red'], 'flag --kind=red: value should be one of <white|black>'),
        (['--data=x', 'left'], "unexpected argument 'left'"),
        (['--data=mistake'], 'two lines'),
        (['--data=full'], 'flock.txt: disk full: free some space'),
        (
            ['--data=device'],
            (
                'the device has too little memory (RESOURCE_EXHAUSTED: Out of memory allocating 9'
                ' bytes.): take a smaller batch_size'
            ),
        ),
        (['--data=config'], '--config is required: a preset (albert_base, '),
        (
            ['--data=config', '--config=FINETUNE'],
            'holds a FinetuneConfig, but this program takes a PretrainConfig',
        ),
    ],
)
def test_a_users_mistake_is_one_line(program, tmp_path, arguments, message):
    path = tmp_path / 'config.json'
    path.write_text(schema.dumps(schema.FinetuneConfig()))
    # What the machine lacks ends the output too, and so needs a process.
    alone = arguments in [[f'--data={error}'] for error in ('closed', 'remote', 'full', 'device')]
    arguments = [argument.replace('FINETUNE', str(path)) for argument in arguments]
    result = program(*arguments, alone=alone)
    assert result.returncode == 2
    assert result.stdout == ''
    assert result.stderr.startswith('sheep: error: ') and message in result.stderr
    assert result.stderr.count('\n') == 1


def test_arguments_are_taken_where_they_are_announced(program):
    taken = functools.partial(program, takes='DIR', alone=False)
    words = "['left', '--runner=beam', '--help']\n"
    assert taken('--data=x', 'left', '--', '--runner=beam', '--help').stdout == words
    assert 'sheep [--flags] DIR' in taken('--help').stdout


def test_a_defect_keeps_its_traceback(program):
    result = program('--data=defect')
    assert result.returncode == 1
    assert result.stderr.startswith('Traceback') and "KeyError: 'sheep'" in result.stderr


@pytest.mark.parametrize(
    'name, arguments, unbuffered',
    [
        ('pretrain', ['--help'], ''),
        ('pretrain', ['--config=bert_base', '--print_config'], '1'),
        ('finetune', ['--help_settings'], ''),
        ('__main__', [], '1'),
    ],
)
def test_a_reader_that_leaves_early_is_no_error(name, arguments, unbuffered):
    """`python -m launch.NAME --help | head`, with a reader that has gone before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, '-m', f'bert_jax.launch.{name}', *arguments],
            cwd=ROOT,
            env={**os.environ, 'PYTHONUNBUFFERED': unbuffered},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (141, '')


def test_a_broken_pipe_that_is_not_the_output_keeps_its_traceback(program):
    result = program('--data=other')
    assert result.returncode == 1
    assert 'BrokenPipeError' in result.stderr


def test_interrupted(program):
    result = program('--data=interrupt')
    assert (result.returncode, result.stderr) == (130, 'sheep: interrupted\n')


@pytest.mark.parametrize(
    'action,then',
    [
        (Preprocess, 'the same command goes on from here'),
        (TrainVocab, 'nothing was written; the same command begins anew'),
    ],
)
def test_an_interrupted_command_says_what_it_does_when_given_again(capsys, action, then):
    with pytest.raises(SystemExit) as ended, app.report_end('name', action.after_interrupt):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == f'name: interrupted: {then}\n'


def test_an_old_python_gets_one_line():
    """launch/__init__.py is the first file that runs; it must parse and speak on any Python."""
    code = (
        'import sys; sys.version_info = (3, 8, 1);'
        f' exec(open({str(ROOT / "launch/__init__.py")!r}).read())'
    )
    result = python('-c', code)
    assert result.returncode == 2
    assert (
        result.stderr
        == 'bert_jax needs Python 3.11, 3.12 or 3.13, this is 3.8: use `python3.13 -m ...`\n'
    )


@pytest.fixture
def script(tmp_path):
    """Runs what pip installs as bert-NAME, in `tmp_path`."""

    def run(name, *arguments):
        file = tmp_path / 'bin' / f'bert-{name}'
        file.parent.mkdir(exist_ok=True)
        file.write_text('from bert_jax.cli.app import console\nconsole()\n')
        return python(file, *arguments, cwd=tmp_path, PYTHONPATH=str(ROOT))

    return run


def test_commands_are_named_as_the_user_names_them(script, binary):
    """In examples and help of flags, in the refusal of a mistake, and in the list of commands."""
    installed, module = script('pretrain', '--help').stdout, binary('pretrain', '--help').stdout
    assert installed == module and 'launch.' not in installed
    assert '\n  bert-pretrain --config=bert_base' in installed
    assert 'made by bert-preprocess' in installed

    command = ['pretrain', '--config=bert_tiny', '--workdir=none']
    assert 'directory (bert-preprocess makes one)' in script(*command).stderr


def test_the_script_named_as_the_project_runs_the_commands(script):
    assert 'usage: bert-preprocess verify' in script('jax', 'verify_data', '--help').stdout
    misspelt = script('jax', 'pretain')
    assert (misspelt.returncode, misspelt.stderr.count('\n')) == (2, 1)
    assert 'no such command (did you mean pretrain?): `bert-jax` lists' in misspelt.stderr


def test_libraries_are_heard_only_when_it_is_serious(program):
    """orbax logs through absl, line after line: below a warning only our own lines are shown."""
    quiet, loud = (program('--data=log', *flags).stderr for flags in ([], ['--verbosity=1']))
    assert [line.split(' ', 1)[1] for line in quiet.splitlines()] == ['I ours', 'W theirs, serious']
    assert [line.split(' ', 1)[1] for line in loud.splitlines()] == [
        'I ours',
        'W theirs, serious',
        'I theirs',
        'I orbax',
        'D RuntimeWarning: of a library',
    ]


@pytest.mark.parametrize(
    'name,given,line',
    [
        ('preprocess', [], '--input, --tokenizer and --output are required (see --help)'),
        ('preprocess', ['--input=a', '--output=b'], 'error: --tokenizer is required (see --help)'),
        ('pretrain', ['--recipe=modernbert'], '--config=NAME names a preset, as --config=modern'),
    ],
)
def test_flags_that_are_missing_or_unknown_are_one_sentence(name, given, line):
    assert line in commands.run(name, *given).stderr


def test_a_batch_that_cannot_grow_says_how_to_turn_the_growth_off():
    from bert_jax.configs.load import load_config
    from bert_jax.configs.overrides import apply

    config, _ = load_config('modernbert_base', PretrainConfig)
    with pytest.raises(UserError, match='turns the growth off, as in --set (.*) --set (.*)') as no:
        apply(config, ['phases.0.batch_size=512'])
    off = str(no.value).split(' --set ')[1:]
    off.append('runtime.accumulation=4')
    assert apply(config, ['phases.0.batch_size=512', *off]).phases[0].batch_warmup_from is None
