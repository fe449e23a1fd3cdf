"""Commands as a program starts them: of this environment, and past a user's packages."""

from __future__ import annotations

import sys

import pytest

from bert_jax.reports.quickstart.commands import command


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
