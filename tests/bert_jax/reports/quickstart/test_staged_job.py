"""Stages: made once from the same inputs, taken up where interrupted, never over others' files."""

from __future__ import annotations

import pathlib
import sys

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.reports.quickstart.stages import Stages, binary, command, fingerprint


@pytest.fixture
def make():
    calls = []

    def make(folder):
        calls.append(sorted(path.name for path in folder.glob('*')))
        folder.mkdir(exist_ok=True)
        (folder / f'made{len(calls)}').write_text('x')

    make.calls = calls
    return make


def test_reuse(tmp_path, make, capsys):
    first = Stages(str(tmp_path)).run('text', {'a': 1}, make)
    again = Stages(str(tmp_path)).run('text', {'a': 1}, make)
    assert make.calls == [[]] and again.key == first.key and again.seconds == first.seconds
    assert 'text: reused, made from the same inputs' in capsys.readouterr().out
    other = Stages(str(tmp_path)).run('text', {'a': 2}, make)
    assert make.calls == [[], []] and other.key != first.key  # made again, from nothing
    assert 'inputs have changed' in capsys.readouterr().out


def test_interrupted(tmp_path, make):
    """A stage that failed keeps its files, for the binaries take up their own work."""

    def fail(folder):
        make(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stages(str(tmp_path)).run('pretrain', {}, fail)
    done = Stages(str(tmp_path)).run('pretrain', {}, make)
    assert make.calls == [[], ['made1']] and done.folder == tmp_path / 'pretrain'


def test_a_strangers_folder_is_left_alone(tmp_path, make):
    (tmp_path / 'text').mkdir()
    (tmp_path / 'text' / 'novel.txt').write_text('mine')
    with pytest.raises(UserError, match='was not made by this command: use another --workdir'):
        Stages(str(tmp_path)).run('text', {}, make)
    assert make.calls == [] and (tmp_path / 'text' / 'novel.txt').read_text() == 'mine'


def test_fingerprint(tmp_path):
    file = tmp_path / 'a.txt'
    file.write_text('one')
    before = fingerprint([file])
    file.write_text('three')
    assert fingerprint([file]) != before


@pytest.mark.parametrize('name', ['configs', 'launch'])
def test_a_users_package_of_a_name_of_ours_is_passed_by(tmp_path, monkeypatch, capfd, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / '__init__.py').touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', str(pathlib.Path(__file__).parents[4]))
    binary('preprocess', '--help')
    assert 'usage: bert-preprocess' in capfd.readouterr().out


def test_failed_binary(capfd):
    with pytest.raises(SystemExit) as stopped:
        binary('preprocess', '--seq_len=none')
    output = capfd.readouterr()
    assert (
        stopped.value.code == 2
        and 'bert-preprocess failed (exit code 2)' in output.out
        and '--seq_len' in output.err
    )


@pytest.mark.parametrize('on_path', [True, False], ids=['on_path', 'not_on_path'])
def test_commands_are_scripts_to_who_has_called_one(tmp_path, monkeypatch, on_path):
    """By its name alone only where a shell finds that very script."""
    scripts = tmp_path / 'env' / 'bin'
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
