"""Options as flags: what the flags say comes back in the types of the fields."""

from __future__ import annotations

import functools

import pytest

from tests.helpers import commands
from tests.helpers.processes import ROOT

# Words do not depend on where sentences end; the quickstart always looks for them.
PROGRAM = '''"""Shears sheep."""
from dataclasses import dataclass
from typing import Literal

from bert_jax.configs.options import check_intervals, option, required
from bert_jax.cli import app, flags

@dataclass(frozen=True)
class Wool:
    colour: Literal['white', 'black'] = option('white', 'of the wool', switch=('dark', 'black'))
    share: float = option(0.5, 'how much of it', within='[0, 1)')

    def __post_init__(self):
        check_intervals(self)

@dataclass(frozen=True, kw_only=True)
class Options:
    flock: str = required('where they are')
    sheep: int | None = option(None, 'how many of them', bounds=(1, 9))
    wool: Wool
    lengths: tuple[int, ...] = option((3, -1), 'of the wool', commas=True)
    names: str | tuple[str, ...] | None = option(None, 'of the sheep')
    days: tuple[int, ...] = option((), 'when')
    gently: bool = option(True, 'how')
    dog: str = 'none'

flags.define(Options)

def main(argv):
    print(flags.read(Options, dog='Rex'), flags.present('sheep', 'share'))

if __name__ == '__main__':
    app.run(main)
'''


@pytest.fixture
def program(tmp_path):
    path = tmp_path / 'shear.py'
    path.write_text(PROGRAM)
    return functools.partial(commands.run, str(path))


def test_no_command_defines_a_flag_by_hand():
    for path in (ROOT / 'launch').rglob('*.py'):
        if path.name not in ('app.py', 'flags.py'):
            assert 'DEFINE_' not in path.read_text(), path


def test_what_is_not_given_is_the_fields_default(program):
    done = program('--flock=hill')
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == (
        "Options(flock='hill', sheep=None, wool=Wool(colour='white', share=0.5), lengths=(3, -1),"
        " names=None, days=(), gently=True, dog='Rex') []\n"
    )


def test_what_is_given_has_the_fields_type(program):
    done = program(
        *('--flock=hill', '--sheep=2', '--share=0', '--lengths=4,5', '--names=Dolly'),
        *('--days=1', '--days=2', '--nogently', '--dark'),
    )
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == (
        "Options(flock='hill', sheep=2, wool=Wool(colour='black', share=0.0), lengths=(4, 5),"
        " names='Dolly', days=(1, 2), gently=False, dog='Rex') ['--sheep', '--share']\n"
    )
    assert (
        "names=('Dolly', 'Shaun')" in program('--flock=a', '--names=Dolly', '--names=Shaun').stdout
    )


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([], '--flock is required'),
        (['--flock=a', '--flock=b'], '--flock=b: --flock was given before: give it once'),
        *(
            (['--flock=a', first, second], f'{second}: {first.partition("=")[0]} was given before')
            for first, second in (
                ('--dark=true', '--dark=false'),
                ('--share=0', '--share=.5'),
                ('--gently', '--gently=false'),
            )
        ),
        (['--flock=a', '--sheep=10'], '--sheep=10'),
        (['--flock=a', '--colour=red'], 'should be one of <white|black>'),
        (['--flock=a', '--share=1'], '--share=1.0: must be at least 0 and less than 1'),
        (
            ['--flock=a', '--lengths=long'],
            '--lengths=long: must be whole numbers with commas between, as in --lengths=3,-1',
        ),
    ],
)
def test_what_may_not_be_given_is_one_line(program, arguments, message):
    done = program(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (2, '', 1)
    assert message in done.stderr
