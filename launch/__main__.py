"""The commands of bert_jax, by what one wants to do.

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
from bert_jax.cli import app, commands
from bert_jax.configs.errors import UserError, suggest

# {what one wants to do: the commands}; what each does is written at the head of its file.
COMMANDS = {
    'see all of it in minutes': ('quickstart',),
    'make records of your text': ('train_vocab', 'preprocess', 'verify_data'),
    'pre-train on them': ('plan', 'pretrain', 'train_retvec', 'supervise'),
    'train on your task': ('finetune', 'feature_based', 'transfer', 'study'),
    'see how good it is': ('evaluate', 'translations', 'report'),
    'use a model': ('predict', 'fill_mask', 'nearest', 'extract_features'),
    'take a model elsewhere': ('export', 'merge'),
}
_NAMES = tuple(name for names in COMMANDS.values() for name in names)


def main() -> None:
    """Run the command that the first argument names, or list all of them."""
    name = sys.argv[1] if len(sys.argv) > 1 else '--help'
    with app.report_end('bert-jax'):
        if name in ('--help', '-help', '-h'):
            print(listing())
            return
        if name == '--version':
            print(f'bert_jax {bert_jax.__version__}')
            return
        name = name.replace('-', '_')
        sys.argv = sys.argv[1:]
        # Of this list itself a part: `bert-jax supervise` has no longer name.
        if name in commands.SUBCOMMANDS['jax']:
            module = f'bert_jax.launch.{name}'
        else:
            module = commands.find_module(name)
        if name not in _NAMES:
            raise UserError(
                f'{name}: no such command{suggest(name, _NAMES)}: `bert-jax` lists them'
            )
    runpy.run_module(module, run_name='__main__', alter_sys=True)


def listing() -> str:
    """Return how a command is run, and every command with what it does, a line each."""
    width = max(len(commands.name_as_typed(name)) for name in _NAMES) + 2
    lines = ['usage: bert-jax NAME [--flags], or the command itself:']
    for aim, names in COMMANDS.items():
        lines += ['', f'{aim}:']
        lines += [f'  {commands.name_as_typed(name):{width}}{_summary(name)}' for name in names]
    return '\n'.join(lines)


def _summary(name: str) -> str:
    """Return what the docstring of a command says first, read without running the file."""
    file = pathlib.Path(__file__).with_name(f'{name}.py')
    first = (ast.get_docstring(ast.parse(file.read_text())) or '').split('\n\n')[0]
    return re.split(r'; | \(|\.$', ' '.join(first.split()))[0]


main()  # without a guard: this file is only ever run, and never imported
