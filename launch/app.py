"""How every binary starts and ends: flags, help, one-line errors and exit codes.

A binary defines its flags with absl, imports what is heavy inside `main(argv)`, and ends with
`if __name__ == '__main__': app.run(main)`. Exit codes: 0 success, 1 a defect of ours (with its
traceback), 2 a mistake the user can mend (one line on stderr), 130 interrupted. This file knows
no flag but the two that binaries share, and nothing of what they do.
"""

from __future__ import annotations

import errno
import logging as std_logging
import pathlib
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from absl import app, flags, logging

from configs.errors import UserError
from configs.load import load, presets
from configs.overrides import apply
from configs.schema import Config, FinetuneConfig, PretrainConfig

ROOT = pathlib.Path(__file__).parents[1]


def run(main: Callable[[Sequence[str]], int | None], arguments: str = '') -> None:
    """Parses the flags, calls `main([program, *arguments])` and exits.

    arguments: what may stand beside the flags, as the help shows it ('DIR'); where it is empty
    anything that is not a flag is refused. What follows `--` counts as such an argument.
    """
    program = pathlib.Path(sys.argv[0]).stem

    def parse(argv: Sequence[str]) -> list[str]:
        own = argv[: argv.index('--')] if '--' in argv else argv
        if {'--help', '-help', '-h'} & set(own[1:]):
            print(_usage(main, program, arguments))
            sys.exit(0)
        try:
            rest = flags.FLAGS(argv)
        except flags.Error as error:
            _fail(program, f'{_plain(error)} (see --help)')
        except SystemExit:  # absl's own --helpfull and the like, which exit with 1
            sys.exit(0)
        if rest[1:] and not arguments:
            _fail(program, f'unexpected argument {rest[1]!r}: a flag is written --name=value, without spaces around "=" (see --help)')
        _set_up_logging()
        return rest

    def guarded(argv: Sequence[str]) -> int | None:
        try:
            return main(argv)
        except UserError as error:
            _fail(program, str(error), error.exit_code)
        except KeyboardInterrupt:
            print(f'{program}: interrupted', file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            too_little = _too_little(error)
            if too_little is None:
                raise
            _fail(program, too_little)

    app.run(guarded, flags_parser=parse)


def console() -> None:
    """Entry of the installed scripts: `bert-train-vocab ...` is `python -m launch.train_vocab ...`."""
    name = pathlib.Path(sys.argv[0]).stem.removeprefix('bert-').replace('-', '_')
    runpy.run_module(f'launch.{name}', run_name='__main__', alter_sys=True)


def define_config_flags(default: str | None = None) -> None:
    """Defines --config and --set, which `config_from_flags` reads."""
    flags.DEFINE_string('config', default, "a preset's name, a Python file with get_config() (it is run), or a saved config.json")
    flags.DEFINE_multi_string('set', [], 'changes one setting, as in --set optimizer.peak_lr=2e-5')


def config_from_flags(kind: Literal['pretrain', 'finetune'], default: Config | None = None) -> Config:
    """The configuration that --config names, or `default` without that flag, with every --set applied.

    Raises UserError where it is not of that kind, or there is neither --config nor a default.
    """
    name, cls = flags.FLAGS['config'].value, {'pretrain': PretrainConfig, 'finetune': FinetuneConfig}[kind]
    if name is None and default is None:
        raise UserError(f'--config is required: a preset ({", ".join(presets())}), a Python file or a saved config.json')
    config = default if name is None else load(name)
    if type(config) is not cls:
        raise UserError(f'--config={name}: holds a {type(config).__name__}, but this program takes a {cls.__name__}')
    return apply(config, flags.FLAGS['set'].value)


def _set_up_logging() -> None:
    """Short lines on stderr. Libraries are heard from a warning on (all of them with --verbosity=0)."""
    handler = logging.get_absl_handler()
    handler.setFormatter(std_logging.Formatter('%(asctime)s %(levelname).1s %(message)s', '%H:%M:%S'))
    if not flags.FLAGS['verbosity'].present:
        ours = tuple(f'{ROOT}/{package}/' for package in ('configs', 'input_pipeline', 'bert_jax', 'launch'))
        handler.addFilter(lambda record: record.levelno >= std_logging.WARNING or record.pathname.startswith(ours))


def _fail(program: str, message: str, exit_code: int = UserError.exit_code) -> None:
    """Ends the program for a mistake the user can mend."""
    print(f'{program}: error: {" ".join(message.split())}', file=sys.stderr)
    sys.exit(exit_code)


def _plain(error: flags.Error) -> str:
    """absl's message, without its repetition where a required flag is missing."""
    return re.sub(r'flag --(\w+)=None: Flag --\1 must have a value other than None\.', r'--\1 is required', str(error))


def _too_little(error: BaseException) -> str | None:
    """The line for a full disk or too little memory, where `error` or what caused it is that; None where it is neither."""
    disk = 'free some space and run the same command again'
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f'{error.filename}: disk full: {disk}' if error.filename else f'disk full: {disk}'
        if 'No space left on device' in str(error):  # as tensorstore words it
            return f'disk full: {disk}'
        if isinstance(error, MemoryError):
            return f'this machine has too little memory ({error}): end other programs, or take a larger one'
        if type(error).__name__ in ('JaxRuntimeError', 'XlaRuntimeError') and 'RESOURCE_EXHAUSTED' in str(error):
            return (
                f'the device has too little memory ({str(error).splitlines()[0]}): take a smaller batch_size, '
                '--set runtime.accumulation=2, --set runtime.remat=full or, over several devices, --set runtime.fsdp=2; '
                'launch.pretrain --dry_run says what a step takes'
            )
        error = error.__cause__ or error.__context__
    return None


def _usage(main: Callable, program: str, arguments: str) -> str:
    """The binary's docstring and its own flags, in the order of their definition."""
    module = sys.modules[main.__module__]
    by_module = flags.FLAGS.flags_by_module_dict()
    lines = [(module.__doc__ or '').strip(), '', f'usage: python -m launch.{program} [--flags] {arguments}'.rstrip(), '']
    for flag in by_module.get(sys.argv[0], []) + by_module.get(__name__, []):
        form = f'--[no]{flag.name}' if flag.boolean else f'--{flag.name}'
        default = '' if flag.default in (None, [], '') else f' (default: {flag.default_as_str.strip(chr(39))})'
        required = ' (required)' if any('other than None' in validator.message for validator in flag.validators) else ''
        lines += [f'  {form}', flags.text_wrap(f'{flag.help}{default}{required}', length=100, indent='      ')]
    return '\n'.join(lines)
