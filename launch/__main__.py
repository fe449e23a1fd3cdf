"""The commands of bert_jax, in the order in which they are needed.

  bert-jax
  bert-jax pretrain --help
  bert-jax --version

The second is the same as `bert-pretrain --help`. Every command has --version.
"""

from __future__ import annotations

import ast
import pathlib
import re
import runpy
import sys

import bert_jax
from bert_jax.cli import app
from bert_jax.configs.errors import UserError, did_you_mean

# From raw text to a model in use; what each does is written at the head of its file.
COMMANDS = (
    'quickstart',
    'train_vocab',
    'train_retvec',
    'preprocess',
    'verify_data',
    'adopt_records',
    'plan',
    'pretrain',
    'supervise',
    'finetune',
    'feature_based',
    'study',
    'evaluate',
    'transfer',
    'translations',
    'report',
    'predict',
    'fill_mask',
    'nearest',
    'extract_features',
    'merge',
    'export',
)


def main() -> None:
    """Run the command that the first argument names, or list all of them."""
    name = sys.argv[1] if len(sys.argv) > 1 else '--help'
    with app.ending('bert-jax'):
        if name in ('--help', '-help', '-h'):
            print(listing())
            return
        if name == '--version':
            print(f'bert_jax {bert_jax.__version__}')
            return
        app.refuse_replaced(name)
        if name not in COMMANDS:
            raise UserError(
                f'{name}: no such command{did_you_mean(name, COMMANDS)}: `bert-jax` lists them'
            )
    sys.argv = sys.argv[1:]
    runpy.run_module(f'bert_jax.launch.{name}', run_name='__main__', alter_sys=True)


def listing() -> str:
    """Return how a command is run, and every command with what it does, a line each."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f'  {name:{width}}{_summary(name)}' for name in COMMANDS]
    usage = ['usage: bert-jax NAME [--flags]; bert-jax NAME --help', '']
    return '\n'.join([*usage, *lines])


def _summary(name: str) -> str:
    """Return what the docstring of a command says first, read without running the file."""
    file = pathlib.Path(__file__).with_name(f'{name}.py')
    first = (ast.get_docstring(ast.parse(file.read_text())) or '').split('\n\n')[0]
    return re.split(r'; | \(|\.$', ' '.join(first.split()))[0]


main()  # without a guard: this file is only ever run, and never imported
