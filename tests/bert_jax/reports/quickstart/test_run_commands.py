"""Commands as a program starts them: of this environment, and past a user's packages."""

from __future__ import annotations

import pathlib
import sys

import pytest

from bert_jax.reports.quickstart.commands import command, run


def test_a_users_package_of_a_name_of_ours_is_passed_by(tmp_path, monkeypatch, capfd):
    (tmp_path / 'launch').mkdir()
    (tmp_path / 'launch/__init__.py').touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', str(pathlib.Path(__file__).parents[4]), prepend=':')
    run('preprocess', '--help')
    assert 'usage: bert-preprocess' in capfd.readouterr().out


def test_a_command_that_fails_ends_the_program(capfd):
    with pytest.raises(SystemExit) as stopped:
        run('preprocess', '--seq_len=none')
    printed = capfd.readouterr()
    assert stopped.value.code == 2 and '--seq_len' in printed.err
    assert 'bert-preprocess failed (exit code 2)' in printed.out


@pytest.mark.parametrize('on_path', [True, False], ids=['on_path', 'not_on_path'])
def test_commands_are_scripts_to_who_has_called_one(tmp_path, monkeypatch, on_path):
    """By its name alone only where a shell finds that very script."""
    scripts = tmp_path / 'env/bin'
    scripts.mkdir(parents=True)
    for name in ('bert-quickstart', 'bert-fill-mask'):
        (scripts / name).write_text('#!/bin/sh\n')
        (scripts / name).chmod(0o755)
    monkeypatch.setattr(sys, 'orig_argv', ['python', str(scripts / 'bert-quickstart')])
    monkeypatch.setenv('PATH', str(scripts) if on_path else '/nowhere')
    monkeypatch.chdir(tmp_path)
    name = 'bert-fill-mask' if on_path else 'env/bin/bert-fill-mask'
    assert command('fill_mask', 'a b') == [name, 'a b']
    monkeypatch.setattr(sys, 'orig_argv', ['python', '-m', 'bert_jax.launch.quickstart'])
    assert command('fill_mask')[-3:] == ['-P', '-m', 'bert_jax.launch.fill_mask']
