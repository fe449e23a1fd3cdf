"""How every binary starts and ends: flags, help, one-line errors and exit codes.

A binary has its actions as dataclasses (bert_jax/cli/flags.py), imports what is heavy when they are
called, and ends with `if __name__ == '__main__': app.run(Action, ...)`. Exit codes: 0 success, 1 a
defect of ours (with its traceback), 2 a mistake the user can mend (one line on stderr), 130
interrupted, 141 when what reads the output has closed it (`| head`), as a shell tells of any
program. This file knows no option, and nothing of what binaries do.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging as std_logging
import math
import os
import pathlib
import re
import runpy
import select
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TextIO

from absl import app
from absl import flags as absl_flags

import bert_jax
from bert_jax.cli import commands, flags, log
from bert_jax.configs.errors import UserError, iterate_causes, require_extra
from bert_jax.configs.options import Described, drop_none, list_command_options
from bert_jax.configs.overrides import describe_settings
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.configs.section import Section, names

_IN_COMMAND = False


def run(*actions: type) -> None:
    """Parse the flags, call the action that they ask for, and exit.

    Args:
      actions: what the command can do. An action that is interrupted ends with its attribute
        `after_interrupt`, which says what the same command does then. What it returns is an exit
        code, or a result whose `show()`, if it has one, prints it and returns the code.
    """
    program = pathlib.Path(sys.argv[0]).stem
    flags.define(actions)
    options = [option for action in actions for option in list_command_options(action).values()]
    takes_words = [field.option for field in options if field.option and field.option.words]
    are_texts = any(option.texts for option in takes_words)
    settings = [field.option.settings for field in options if field.option]
    settings_class = next(filter(None, settings), None)
    if settings_class:
        text = 'print every setting, or those of one section: meaning, type, default and interval'
        absl_flags.DEFINE_string('help_settings', None, text)
    after_interrupt = getattr(actions[0], 'after_interrupt', '')

    def parse(argv: Sequence[str]) -> list[str]:
        # What follows -- belongs to another program: its --help is not asked of us.
        ours = argv[1 : argv.index('--')] if '--' in argv else argv[1:]
        with report_end(program, after_interrupt):
            commands.check_no_subcommand(program, ours)
            # Before the flags are parsed, of which others may be required.
            if {'--help', '-help', '-h'} & set(ours):
                _tell(_write_help(actions, program))
            if '--version' in ours:
                _tell(f'bert_jax {bert_jax.__version__}')
            section = _find_section(ours)
            if settings_class and section is not None:
                _tell(describe_settings(settings_class, section))
            words = _parse(argv, program, settings_class)
            # What absl takes without a word. Surely a slip: --flag value.
            after = list(argv[argv.index('--') + 1 :]) if '--' in argv else []
            only_after = any(option.words.startswith('[--') for option in takes_words)
            if words[1:] and (not takes_words or (only_after and words[1:] != after)):
                slip = 'a flag is written --name=value, without spaces around "=" (see --help)'
                raise UserError(f'unexpected argument {words[1]!r}: {slip}')
            _check_values(options)
            # Another program's words are its own, and a text is no address.
            for word in [] if are_texts or '--' in argv else words[1:]:
                _check_address(word, word)

        # Last, since --verbosity must be read by then.
        log.set_up()
        return words

    def guarded(argv: Sequence[str]) -> int | None:
        with report_end(program, after_interrupt), _mark_as_command():
            result = flags.read(actions, tuple(argv[1:]))()
            if isinstance(result, int):
                return result
            show = getattr(result, 'show', None)
            return show() if show else 0

    app.run(guarded, flags_parser=parse)


def _tell(text: str) -> NoReturn:
    print(text)
    sys.exit(0)


def in_command() -> bool:
    """Tell whether what runs is a command, and no call of somebody's program."""
    return _IN_COMMAND


@contextlib.contextmanager
def _mark_as_command() -> Iterator[None]:
    global _IN_COMMAND
    before, _IN_COMMAND = _IN_COMMAND, True
    try:
        yield
    finally:
        _IN_COMMAND = before


def _find_section(words: Sequence[str]) -> str | None:
    """Return what --help_settings names in `words`; '' for all, None if it is not there."""
    for word, after in zip(words, [*words[1:], '-']):
        name, equals, section = word.partition('=')
        if name in ('--help_settings', '-help_settings'):
            return section if equals or after.startswith('-') else after
    return None


@contextlib.contextmanager
def report_end(program: str, after_interrupt: str = '') -> Iterator[None]:
    """End the program, in one line, for what is no defect of ours.

    Args:
      program: the name that begins the line.
      after_interrupt: what the line says of a program that was interrupted.
    """
    try:
        try:
            yield
        finally:
            _flush_output()  # at the interpreter's exit a failure would be a traceback
    except UserError as error:
        _fail(program, str(error), error.exit_code)
    # Exit codes as a shell tells them: 128 + the signal (SIGINT is 2, SIGPIPE is 13).
    except KeyboardInterrupt:
        print(': '.join(filter(None, (program, 'interrupted', after_interrupt))), file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        if sys.stdout is None or not _is_unread(sys.stdout):  # it was another pipe
            raise
        _discard(sys.stdout)
        sys.exit(141)
    # What the machine lacks is no defect either; everything else keeps its traceback.
    except Exception as error:
        line = _explain_shortage(error)
        if line is None:
            raise
        if sys.stdout is not None:
            _discard(sys.stdout)  # else what did not fit is tried again at exit
        _fail(program, line)


def _flush_output() -> None:
    """Write what stdout still holds; nothing where it was a terminal that has been closed."""
    try:
        print(end='', flush=True)
    except OSError as error:
        if error.errno != errno.EIO or not stat.S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode):
            raise
        _discard(sys.stdout)


def _is_unread(stream: TextIO) -> bool:
    """Tell whether `stream` goes to a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)  # errors and hang-ups are always reported
    return bool(poll.poll(0))


def _discard(stream: TextIO) -> None:
    """Let what `stream` still holds, and all that follows, go nowhere."""
    # The descriptor itself is replaced: Python's buffers, and libraries' in C, write to it.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def console() -> None:
    """Run the command that an installed script is named after.

    `bert-jax`, which is named as the project, lists them.
    """
    # One entry for all commands, which reads its own name; alter_sys, so that `main.__module__` is
    # known when the help is asked for.
    name = pathlib.Path(sys.argv[0]).stem.removeprefix('bert-').replace('-', '_')
    with report_end(f'bert-{name}'):
        module = commands.find_module(name)
    runpy.run_module(module, run_name='__main__', alter_sys=True)


def check_output_file(flag: str, path: str) -> None:
    """Raise UserError where no file can be written at `path`, which --`flag` names; leaves nothing.

    What lies in an object store is not looked at.
    """
    if '://' in path:
        return
    if not path or path.endswith('/') or os.path.isdir(path):
        raise UserError(f'--{flag}={path}: that is a folder: name a file')
    check_output(flag, path)


def check_output(flag: str, path: str) -> None:
    """Raise UserError where nothing can be made at `path`, which --`flag` names; leaves nothing."""
    if '://' in path:
        return

    # The nearest folder that is there: the ones between will be made in it.
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):  # folders that are to be made
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise UserError(f'--{flag}={path}: {above} is no folder: name another')
    try:
        # Tried and not asked: rights, a full disk and a read-only mount all show so.
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        reason = f'{above} cannot be written in ({error.strerror})'
        raise UserError(f'--{flag}={path}: {reason}: name another') from error


def list_own_flags() -> list[absl_flags.Flag]:
    """Return the binary's own flags in the order of their definition."""
    # flags.py disclaims what it defines, so that absl counts it to this file.
    return absl_flags.FLAGS.flags_by_module_dict().get(__name__, [])


def _check_values(options: Sequence[Described]) -> None:
    """Raise UserError for a flag whose value is empty, nan, or on an unknown kind of storage."""
    may_be_empty = {field.name for field in options if field.default == ''}
    for flag in list_own_flags():
        # Only what was given: a default is the program's own affair.
        values = flag.value if isinstance(flag.value, list) else [flag.value]
        for value in values if flag.present else []:
            given = f'--{flag.name}={value}'

            # nan passes every bound, since all comparisons with it are false.
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f'{given}: must be a finite number')

            # The rest is about names, which are strings.
            if not isinstance(value, str):
                continue
            if not value and flag.name not in may_be_empty:
                raise UserError(f'{given}: is empty: give a value, or leave the flag out')
            if re.search('[\ud800-\udfff]', value):  # how Python shows bytes that are no text
                raise UserError(f'{given!a}: is not UTF-8')
            _check_address(given, value)


def _check_address(given: str, value: str) -> None:
    """Raise UserError for storage of a kind that nobody reads, before any work."""
    # Also within LANGUAGE=PATTERN and lists with commas.
    for scheme in re.findall(r'(?:^|[=,])([A-Za-z][\w+.-]*)://', value):
        if scheme != 'gs':
            raise UserError(
                f'{given}: {scheme}:// is neither read nor written: '
                'give a local path (download it first) or gs://'
            )
        # TensorFlow reads gs:// where it is installed, else gcsfs, each with much to say about it.
        if importlib.util.find_spec('tensorflow') is None:
            require_extra(given, 'gcs', 'gcsfs')
        os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
        os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
        std_logging.getLogger('gcsfs').setLevel(std_logging.CRITICAL)


def _fail(program: str, message: str, exit_code: int = UserError.exit_code) -> None:
    """End the program for a mistake the user can mend."""
    try:
        print(f'{program}: error: {" ".join(message.split())}', file=sys.stderr)
    except BrokenPipeError:
        _discard(sys.stderr)
    sys.exit(exit_code)


def _parse(argv: Sequence[str], program: str, settings: type[Section] | None) -> list[str]:
    """Parse the flags, and return what is none of them."""
    try:
        return absl_flags.FLAGS(argv)
    except SystemExit:  # absl's own --helpfull and the like, which exit with 1
        sys.exit(0)
    except absl_flags.UnrecognizedFlagError as error:
        raise UserError(_describe_unknown(error.flagname, program, settings)) from None
    except absl_flags.Error as error:
        message = str(error)

    # Without repetition, and without Python's words for what is no number.
    for absl_words, ours in (
        (
            r'^flag --(\w+)=(.*): already defined as (.*)$',
            r'--\1=\2: --\1 was given before: give it once',
        ),
        (r'invalid literal for int\(\) with base 10: .*', 'must be a whole number'),
        (r'could not convert string to float: .*', 'must be a number'),
    ):
        message = re.sub(absl_words, ours, message)
    raise UserError(f'{message} (see --help)')


def _describe_unknown(flag: str, program: str, settings: type[Section] | None) -> str:
    """Return the line for a flag that the program does not have: what may have been meant."""
    from bert_jax.cli import elsewhere  # where it is needed, so that --help is quick

    instead = commands.REMOVED_FLAGS.get(program, {}).get(flag)
    if instead:
        return f'--{flag} is gone: {instead}'
    flag_names = [each.name for each in list_own_flags()]
    if settings is None and 'set' in flag_names:  # feature-based's own --set
        settings = FinetuneConfig
    command = commands.name_as_typed(program)
    meant = elsewhere.propose(flag, command, flag_names, names(settings) if settings else ())
    if flag == 'recipe' and 'config' in flag_names:  # a flag of bert-finetune
        meant = '--config=NAME names a preset, as --config=modernbert_base'
    return f'--{flag}: {command} has no such flag{meant and "; "}{meant} (see --help)'


def _explain_shortage(error: BaseException) -> str | None:
    """Return the line for a full disk, too little memory, and what may not or cannot be reached.

    `error` is it, or was caused by it; None where it is neither.
    """
    # From the error to what caused it, for libraries wrap the errors of the system.
    for cause in iterate_causes(error):
        file, number = getattr(cause, 'filename', None), getattr(cause, 'errno', None)
        name = f'{file}: ' if file else ''
        # tensorstore has errors of its own, and says the same.
        if number in (errno.ENOSPC, errno.EDQUOT) or 'No space left on device' in str(cause):
            return f'{name}disk full: free some space and run the same command again'

        # A quota of the shell and not of the disk: more room would not help.
        if number == errno.EFBIG:
            return (
                f'{name}a limit on the size of files was reached: raise it (ulimit -f) and run the'
                ' same command again'
            )

        # After the disk: a full one is named as such also where it was met over a network.
        unreachable = _explain_unreachable(cause)
        if unreachable:
            return unreachable

        # The host's memory, and after it the device's, which has other remedies.
        if isinstance(cause, MemoryError):
            asked = f' ({cause})' if str(cause) else ''
            return (
                f'this machine has too little memory{asked}: end other programs, or take a larger'
                ' one'
            )
        of_jax = type(cause).__name__ in ('JaxRuntimeError', 'XlaRuntimeError')
        if of_jax and 'RESOURCE_EXHAUSTED' in str(cause):
            return (
                f'the device has too little memory ({str(cause).splitlines()[0]}): take a smaller'
                ' batch_size, --set runtime.accumulation=2, --set runtime.remat=full or, over'
                ' several devices, --set runtime.fsdp=2; bert-pretrain --dry_run says what a'
                ' step takes'
            )
    return None


def _explain_unreachable(error: BaseException) -> str | None:
    """Return the line for what cannot be read, written or reached; None for other errors."""
    # Only with the name: an error without it helps nobody, so it keeps its traceback.
    closed = (errno.EACCES, errno.EPERM, errno.EROFS)
    if isinstance(error, OSError) and error.errno in closed and error.filename:
        return f'{error.filename}: {error.strerror}: give yourself the right to it, or name another'

    # TensorFlow's file system has no error of its own for a bucket that cannot be reached.
    if type(error).__module__.startswith('tensorflow.') and 'gs://' in str(error):
        address = re.search(r'gs://[^\s\'")]+', str(error))
        name = address[0] if address else 'gs://'
        reason = ' '.join(str(error).split())
        return f'{name}: cannot be reached ({reason[:200]}): check the name and the network'
    return None


def _write_help(actions: Sequence[type], program: str) -> str:
    """Return the docstring of the command's file and its options, action by action."""
    # The docstring is the manual page; the options follow in the order in which they are declared,
    # which tells a story where absl's own help is alphabetical.
    options = [list_command_options(action) for action in actions]
    words = [field.option.words for each in options for field in each.values() if field.option]
    arguments = next(filter(None, words), '')
    lines = [
        (sys.modules[actions[0].__module__].__doc__ or '').strip(),
        '',
        f'usage: {commands.name_as_typed(program)} [--flags] {arguments}'.rstrip(),
        *commands.list_subcommands(program),
    ]
    shown: dict[str, str] = {}
    for action, its_options in zip(actions, options):
        if len(actions) > 1:
            lines += ['', f'{action.__name__}: {(action.__doc__ or "").strip().splitlines()[0]}']
        else:
            lines.append('')
        again = []
        for name, field in its_options.items():
            text = _describe_option(name, field)
            if field.option and field.option.words:
                continue
            # What several actions have in the same way is told once.
            if shown.get(name) == text:
                again.append(f'--{name}')
                continue
            shown[name] = text
            lines += [text, *_describe_switch(field)]
        if again:
            lines.append(f'  and, as above: {", ".join(again)}')
    if any(field.option and field.option.settings for each in options for field in each.values()):
        lines += ['  --help_settings', f'      {absl_flags.FLAGS["help_settings"].help}']
    return '\n'.join(lines)


def _describe_option(name: str, field: Described) -> str:
    """Return the lines of the help about one option."""
    text = field.option.help if field.option else ''
    choices = flags.find_choices(field)
    if choices:
        text = f'<{"|".join(choices)}>: {text}'
    # A value that says nothing (none, empty) is left out.
    if field.is_required:
        text += ' (required)'
    elif field.default not in (None, (), ''):
        text += f' (default: {_write_value(field.default)})'
    is_switch = drop_none(field.type) == [bool]
    head = f'  --[no]{name}' if is_switch else f'  --{name}'
    return f'{head}\n{absl_flags.text_wrap(text, length=100, indent="      ")}'


def _describe_switch(field: Described) -> list[str]:
    """Return the lines of the help about the flag that is short for a value of another."""
    if not field.option or not field.option.switch:
        return []
    name, value = field.option.switch
    return [f'  --[no]{name}', f'      the same as --{field.name}={value}']


def _write_value(value: Any) -> str:
    """Return a value as it is written after a flag."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ','.join(map(str, value))
    return str(value)
