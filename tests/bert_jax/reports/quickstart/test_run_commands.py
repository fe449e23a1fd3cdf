"""Commands as a program starts them: of this environment, and past a user's packages."""

from __future__ import annotations

import sys

import pytest

from bert_jax.reports.quickstart.commands import command
from tests.helpers.processes import ROOT, python

PROGRAM = """
from bert_jax.cli import app, flags
from bert_jax.reports.quickstart import stages
from bert_jax.reports.quickstart.commands import run
flags.define(stages.Options)  # of which commands have some, as --workdir
flag = ('--help', '--help', '--seq_len=x')
app.run(lambda _: [run('preprocess', each) for each in flag])
"""


def test_commands_run_one_after_the_other_in_a_process_until_one_fails(tmp_path):
    (tmp_path / 'program.py').write_text(PROGRAM)
    done = python(tmp_path / 'program.py', '--workdir=w', PYTHONPATH=str(ROOT))
    assert done.returncode == 2, done.stderr
    assert done.stdout.count('usage: bert-preprocess') == 2
    assert done.stderr.startswith('preprocess: error: ') and done.stderr.count('\n') == 1
    assert 'bert-preprocess failed (exit code 2), see above; the same command' in done.stdout


@pytest.mark.parametrize('on_path', [True, False], ids=['on_path', 'not_on_path'])
def test_commands_are_scripts_to_who_has_called_one(tmp_path, monkeypatch, on_path):
    """By its name alone only where a shell finds that very script."""
    scripts = tmp_path / 'env/bin'
    scripts.mkdir(parents=True)
    (scripts / 'bert-fill-mask').write_text('#!/bin/sh\n')
    (scripts / 'bert-fill-mask').chmod(0o755)
    monkeypatch.setattr(sys, 'orig_argv', ['python', str(scripts / 'bert-quickstart')])
    monkeypatch.setenv('PATH', str(scripts) if on_path else '/nowhere')
    monkeypatch.chdir(tmp_path)
    name = 'bert-fill-mask' if on_path else 'env/bin/bert-fill-mask'
    assert command('fill_mask', 'a b') == [name, 'a b']
    # A module is run past a user's package of our name in the current folder.
    monkeypatch.setattr(sys, 'orig_argv', ['python', '-m', 'bert_jax.launch.quickstart'])
    assert command('fill_mask')[-3:] == ['-P', '-m', 'bert_jax.launch.fill_mask']
