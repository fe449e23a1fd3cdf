"""`bert-jax`: every command in a line, in the order of need, and the way to each."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def test_every_command_has_a_line_and_nothing_heavy_is_imported():
    command = [sys.executable, '-X', 'importtime', '-m', 'bert_jax.launch']
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    usage, empty, *lines = run.stdout.splitlines()
    files = (ROOT / 'launch').glob('*.py')
    commands = {file.stem for file in files if "\nif __name__ == '__main__':" in file.read_text()}
    assert usage.startswith('usage: bert-jax NAME') and not empty
    assert sorted(line.split()[0] for line in lines) == sorted(commands)
    assert all(len(line.split()) > 4 for line in lines)
    imported = {line.rpartition('|')[2].strip() for line in run.stderr.splitlines()}
    assert 'absl.flags' in imported and not {'jax', 'numpy', 'tensorflow'} & imported


@pytest.mark.parametrize('name', ['slurm', 'jobset'])
def test_a_command_that_was_replaced_names_its_template(name):
    script = 'import sys; from bert_jax.cli.app import console'
    script += f'; sys.argv = ["bin/bert-{name}"]; console()'
    for way in (['-c', script], ['-m', 'bert_jax.launch', name]):
        run = subprocess.run([sys.executable, *way], cwd=ROOT, capture_output=True, text=True)
        assert (run.returncode, run.stdout, run.stderr.count('\n')) == (2, '', 1)
        (template,) = re.findall(r'copy (\S+) and edit the copy', run.stderr)
        assert pathlib.Path(template).resolve().parent == ROOT / 'launch' / 'cluster'
        assert pathlib.Path(template).is_file()
