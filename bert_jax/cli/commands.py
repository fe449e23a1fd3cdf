"""The names that commands are called by, of now and of before, and the file that each of them runs.

Owns which commands are a part of another, and what an old name says. It must not know what a
command does.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

from bert_jax.cli.log import ROOT
from bert_jax.configs.errors import UserError

# {command: {its subcommand: the file in launch}}; jax is `bert-jax`, which lists all of them. Each
# was a command of its own, named as its file: those names go on for one release.
SUBCOMMANDS = {
    'jax': {'supervise': 'supervise'},
    'preprocess': {'verify': 'verify_data', 'adopt': 'adopt_records'},
    'pretrain': {'retvec': 'train_retvec'},
    'finetune': {'feature-based': 'feature_based', 'transfer': 'transfer'},
    'evaluate': {'translations': 'translations'},
    'export': {'merge': 'merge'},
}
_PARTS = {file: (name, sub) for name, subs in SUBCOMMANDS.items() for sub, file in subs.items()}
# {the file of a command: {a flag that it had: what stands for it}}.
_REMOVED_FLAGS = {
    'plan': {
        'search': 'settings are tried with --set, one plan each',
        'tries': 'a change that would do is named by estimate',
        'write_rate': 'the size of a checkpoint is told, divide it by your rate',
    },
}
# Former commands, and the templates that replace them; for one release.
_TEMPLATES = {'slurm': 'slurm.sbatch', 'jobset': 'jobset.yaml'}


def module_of(name: str) -> str:
    """Return the module that runs the command; a subcommand is taken from the arguments.

    Raises UserError, which names the template, for a command that was replaced by one.
    """
    if name in _TEMPLATES:
        template = ROOT / 'launch' / 'cluster' / _TEMPLATES[name]
        raise UserError(f'this command is now a template: copy {template} and edit the copy')
    if name in _PARTS:
        old, new = script_name(name), typed_name(name)
        sys.stderr.write(f'{old} is `{new}` now: the old name goes with the next release\n')
    file = SUBCOMMANDS.get(name, {}).get(sys.argv[1] if len(sys.argv) > 1 else '')
    if file:
        sys.argv = [str(pathlib.Path(sys.argv[0]).with_name(file)), *sys.argv[2:]]
    elif name == 'jax':
        return 'bert_jax.launch'
    return f'bert_jax.launch.{file or name}'


def check_words(file: str, words: Sequence[str]) -> None:
    """Raise UserError for a subcommand given to a file of launch, and for a flag that is gone."""
    if part := SUBCOMMANDS.get(file, {}).get(words[0] if words else ''):
        raise UserError(
            f'{words[0]!r} is a part of the installed command: run `{typed_name(part)}`, or'
            f' python -m bert_jax.launch.{part}'
        )
    for word in words:
        flag = word.lstrip('-').partition('=')[0]
        if word.startswith('-') and (instead := _REMOVED_FLAGS.get(file, {}).get(flag)):
            raise UserError(f'--{flag} is gone: {instead}')


def script_name(command: str) -> str:
    """Return the installed script of a command: `bert-train-vocab` of `train_vocab`."""
    return f'bert-{command.replace("_", "-")}'


def typed_name(file: str) -> str:
    """Return what is typed for a file of launch: `bert-preprocess verify` of `verify_data`."""
    name, subcommand = _PARTS.get(file, (file, ''))
    return f'{script_name(name)} {subcommand}'.rstrip()


def subcommand_lines(name: str) -> list[str]:
    """Return the lines of a command's help that name its subcommands."""
    return [f'also: {typed_name(file)} --help' for file in SUBCOMMANDS.get(name, {}).values()]
