"""Actions as flags: what the flags say comes back in the types of the fields of one action."""

from __future__ import annotations

import dataclasses
import functools
import importlib

import pytest

from bert_jax.configs.options import list_command_options
from tests.helpers import commands
from tests.helpers.processes import ROOT

COMMANDS = [f.stem for f in (ROOT / 'launch').glob('*.py') if not f.stem.startswith('__')]
PROGRAM = '''"""Shears sheep."""
from dataclasses import dataclass
from typing import Literal

from bert_jax.configs.options import check_intervals, option, required
from bert_jax.cli import app

@dataclass(frozen=True, kw_only=True)
class Wool:
    """What is shorn.

    Attributes:
      colour: of the wool.
      share: how much of it,
        in all.
    """
    colour: Literal['white', 'black'] = option('white', switch=('dark', 'black'))
    share: float = option(0.5, within='[0, 1)')

    def __post_init__(self):
        check_intervals(self)

    def __call__(self):
        print(self)

@dataclass(frozen=True, kw_only=True)
class Shear(Wool):
    """Shear a flock.

    Attributes:
      flock: where they are.
      sheep: how many of them.
      lengths: of the wool.
      names: of the sheep.
      days: when.
      gently: how.
    """
    flock: str
    sheep: int | None = option(None, bounds=(1, 9))
    lengths: tuple[int, ...] = option((3, -1), commas=True)
    names: str | tuple[str, ...] | None = None
    days: tuple[int, ...] = ()
    gently: bool = True
    dog: str = 'none'

@dataclass(frozen=True, kw_only=True)
class Sell(Wool):
    """Sell wool.

    Attributes:
      price: in full.
      kind: of the market.
    """
    price: int
    kind: Literal['fair'] = 'fair'

@dataclass(frozen=True, kw_only=True)
class Give:
    """Give wool away.

    Attributes:
      kind: of the gift.
      names: of those who get it.
    """
    kind: Literal['gift']
    names: tuple[str, ...] = ()

    def __call__(self):
        print(self)
        return 3

if __name__ == '__main__':
    app.run(Shear, Sell, Give)
'''


@pytest.fixture
def program(tmp_path):
    path = tmp_path / 'shear.py'
    path.write_text(PROGRAM)
    return functools.partial(commands.run, str(path))


def test_no_command_defines_a_flag_by_hand():
    for path in (ROOT / 'launch').rglob('*.py'):
        assert 'DEFINE_' not in path.read_text(), path


@pytest.mark.parametrize('name', COMMANDS)
def test_every_option_of_an_action_has_its_help(name):
    module = importlib.import_module(f'bert_jax.launch.{name}')
    actions = [
        cls
        for cls in vars(module).values()
        if dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__
    ]
    assert actions
    for action in actions:
        told = {option.name for option in list_command_options(action).values()}
        assert told == {field.name for field in dataclasses.fields(action) if field.init}


def test_what_is_not_given_is_the_fields_default(program):
    done = program('--flock=hill')
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == (
        "Shear(colour='white', share=0.5, flock='hill', sheep=None, lengths=(3, -1), names=None,"
        " days=(), gently=True, dog='none')\n"
    )


def test_what_is_given_has_the_fields_type(program):
    done = program(
        *('--flock=hill', '--sheep=2', '--share=0', '--lengths=4,5', '--names=Dolly'),
        *('--days=1', '--days=2', '--nogently', '--dark'),
    )
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == (
        "Shear(colour='black', share=0.0, flock='hill', sheep=2, lengths=(4, 5), names='Dolly',"
        " days=(1, 2), gently=False, dog='none')\n"
    )
    assert (
        "names=('Dolly', 'Shaun')" in program('--flock=a', '--names=Dolly', '--names=Shaun').stdout
    )


def test_the_options_say_which_action_is_meant(program):
    assert program('--price=3', '--share=0.1').stdout.startswith('Sell(')
    gift = program('--kind=gift', '--names=Dolly')
    assert (gift.returncode, gift.stdout) == (3, "Give(kind='gift', names=('Dolly',))\n")


def test_help_has_each_option_once_where_it_is_declared(program):
    shown = program('--help').stdout
    assert 'Shear: Shear a flock.\n  --flock\n      where they are (required)\n' in shown
    assert '  --share\n      how much of it, in all (default: 0.5)\n' in shown
    assert shown.count('how much of it') == 1
    assert '  --kind\n      <fair>: of the market (default: fair)\n' in shown
    assert '  and, as above: --colour, --share\n' in shown and '--dog' not in shown


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([], '--flock, --price or --kind=gift is required'),
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
        (
            ['--flock=a', '--price=3'],
            '--flock (of Shear) and --price (of Sell) do not go together',
        ),
        (
            ['--flock=a', '--kind=gift'],
            '--flock (of Shear) and --kind=gift (of Give) do not go together',
        ),
        (
            ['--price=3', '--kind=gift'],
            '--price (of Sell) and --kind=gift (of Give) do not go together',
        ),
    ],
)
def test_what_may_not_be_given_is_one_line(program, arguments, message):
    done = program(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (2, '', 1)
    assert message in done.stderr
