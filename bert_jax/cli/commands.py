"""The names that commands are called by, and the file that each of them runs.

Owns which commands are a part of another. It must not know what a command does.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

from bert_jax.configs.errors import UserError

# {command: {its subcommand: the file in launch}}; jax is `bert-jax`, which lists all of them.
SUBCOMMANDS = {
    'jax': {'supervise': 'supervise'},
    'preprocess': {'verify': 'verify_data'},
    'pretrain': {'retvec': 'train_retvec'},
    'finetune': {'feature-based': 'feature_based', 'transfer': 'transfer'},
    'evaluate': {'translations': 'translations'},
    'export': {'merge': 'merge'},
}
_PARTS = {file: (name, sub) for name, subs in SUBCOMMANDS.items() for sub, file in subs.items()}
# {the file of a command: {a flag that it had: what stands for it}}.
REMOVED_FLAGS = {
    'plan': {
        'search': 'settings are tried with --set, one plan each',
        'tries': 'a change that would do is named by estimate',
        'write_rate': 'the size of a checkpoint is told, divide it by your rate',
    },
    'study': {'tflops': 'no time is told before a study begins; --dry_run lists what is left'},
}
# Subcommands of version 0.2.0 that are there no longer.
_LEFT = {
    ('preprocess', 'adopt'): (
        'records of google-research/bert are taken no longer: make them again from their text;'
        ' those that version 0.2.0 has taken are read as before'
    ),
}


def find_module(name: str) -> str:
    """Return the module that runs the command; a subcommand is taken from the arguments.

    Raises UserError for a subcommand that was there once.
    """
    word = sys.argv[1] if len(sys.argv) > 1 else ''
    reason = _LEFT.get((name, word))
    if reason:
        raise UserError(f'{word}: {reason}')
    file = SUBCOMMANDS.get(name, {}).get(word)
    if file:
        sys.argv = [str(pathlib.Path(sys.argv[0]).with_name(file)), *sys.argv[2:]]
    elif name == 'jax':
        return 'bert_jax.launch'
    return f'bert_jax.launch.{file or name}'


def check_no_subcommand(file: str, words: Sequence[str]) -> None:
    """Raise UserError where a file of launch is run as if it were the script of its command."""
    if not words:
        return
    part = SUBCOMMANDS.get(file, {}).get(words[0])
    if part:
        raise UserError(
            f'{words[0]!r} is a part of the installed command: run `{name_as_typed(part)}`, or'
            f' python -m bert_jax.launch.{part}'
        )


def name_script(command: str) -> str:
    """Return the installed script of a command: `bert-train-vocab` of `train_vocab`."""
    return f'bert-{command.replace("_", "-")}'


def name_as_typed(file: str) -> str:
    """Return what is typed for a file of launch: `bert-preprocess verify` of `verify_data`."""
    name, subcommand = _PARTS.get(file, (file, ''))
    return f'{name_script(name)} {subcommand}'.rstrip()


def list_subcommands(name: str) -> list[str]:
    """Return the lines of a command's help that name its subcommands."""
    return [f'also: {name_as_typed(file)} --help' for file in SUBCOMMANDS.get(name, {}).values()]
