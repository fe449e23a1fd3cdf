"""`bert-jax`: every command in a line, by what one wants to do, and the way to each."""

from __future__ import annotations

import configparser
import subprocess
import sys

from bert_jax.cli import commands
from tests.helpers.processes import ROOT, python


def test_every_command_has_a_line_and_nothing_heavy_is_imported():
    run = python('-X', 'importtime', '-m', 'bert_jax.launch')
    usage, *lines = run.stdout.splitlines()
    assert usage == 'usage: bert-jax NAME [--flags], or the command itself:'
    names = [line.split('  ')[1] for line in lines if line.startswith('  ')]
    files = (ROOT / 'launch').glob('*.py')
    ours = {file.stem for file in files if "\nif __name__ == '__main__':" in file.read_text()}
    assert sorted(names) == sorted(map(commands.name_as_typed, ours))
    # By what one wants to do: each aim has its commands below it, and each of them says what it is.
    assert all(line == '' or line.endswith(':') or len(line.split()) > 4 for line in lines)
    assert sum(line.endswith(':') for line in lines) == run.stdout.count('\n\n') > 4
    imported = {line.rpartition('|')[2].strip() for line in run.stderr.splitlines()}
    assert 'absl.flags' in imported and not {'jax', 'numpy', 'tensorflow'} & imported


def test_no_more_than_sixteen_commands_are_left():
    settings = configparser.ConfigParser()
    settings.read(ROOT / 'setup.cfg')
    scripts = settings['options.entry_points']['console_scripts'].strip().splitlines()
    names = {line.split(' = ')[0] for line in scripts if not line.startswith('#')}
    assert len(names) <= 16


def console(*words: str) -> subprocess.CompletedProcess:
    """An installed script, as the shell runs it."""
    script = 'import sys; from bert_jax.cli.app import console'
    script += f'; sys.argv = {list(words)}; console()'
    return python('-c', script)


def test_a_subcommand_is_taken_from_the_arguments(monkeypatch):
    for name, parts in commands.SUBCOMMANDS.items():
        for subcommand, file in parts.items():
            argv = [f'bin/{commands.name_script(name)}', subcommand, '--workdir=x']
            monkeypatch.setattr(sys, 'argv', argv)
            assert commands.find_module(name) == f'bert_jax.launch.{file}'
            assert sys.argv == [f'bin/{file}', '--workdir=x']


def test_the_ways_to_a_subcommand():
    now = console('bert-preprocess', 'verify', '--help')
    assert (now.returncode, now.stderr) == (0, '')
    assert 'usage: bert-preprocess verify' in now.stdout
    assert '\nalso: bert-preprocess verify --help\n' in console('bert-preprocess', '--help').stdout
    assert console('bert-jax', 'preprocess', 'verify', '--help').stdout == now.stdout
    assert 'usage: bert-jax supervise' in console('bert-jax', 'supervise', '--help').stdout


def test_a_subcommand_that_left_says_what_stands_for_it():
    run = console('bert-preprocess', 'adopt', '--input=x', '--output=y')
    assert (run.returncode, run.stdout, run.stderr.count('\n')) == (2, '', 1)
    assert 'adopt: records of google-research/bert are taken no longer' in run.stderr


def test_a_file_that_is_run_with_a_subcommand_says_what_to_run(binary):
    run = binary('preprocess', 'verify', '--help')
    line = "preprocess: error: 'verify' is a part of the installed command: run"
    line += ' `bert-preprocess verify`, or python -m bert_jax.launch.verify_data\n'
    assert (run.returncode, run.stderr) == (2, line)
