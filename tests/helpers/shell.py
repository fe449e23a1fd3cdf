"""A user's shell: the pages' commands in a folder, with the programs of this environment."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

from tests.helpers.pages import ROOT


class Shell:
    """Runs commands in a folder, `python` and `bert-...` being this environment's."""

    def __init__(self, folder: pathlib.Path, seconds: int = 300):
        self.folder, self.bin, self.seconds = folder, folder / 'bin', seconds
        self.environment = {
            **os.environ,
            'PATH': f'{self.bin}:{os.environ["PATH"]}',
            'PYTHONPATH': str(ROOT),
            'JAX_NUM_CPU_DEVICES': '1',
            'HF_HUB_OFFLINE': '1',
        }

    def install(self) -> None:
        """Makes the programs that the pages name."""
        self.bin.mkdir()
        programs = {'python': f'exec {sys.executable} "$@"'}
        # By `bert-jax`, which knows the subcommands of each.
        jax = f'exec {sys.executable} -m bert_jax.launch'
        programs['bert-jax'] = f'{jax} "$@"'
        for file in (ROOT / 'launch').glob('[a-z]*.py'):
            programs['bert-' + file.stem.replace('_', '-')] = f'{jax} {file.stem} "$@"'
        for name, line in programs.items():
            (self.bin / name).write_text(f'#!/bin/sh\n{line}\n')
            (self.bin / name).chmod(0o755)

    def run(self, text: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ['bash', '-euo', 'pipefail', '-c', text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self.seconds,
        )

    def __call__(self, text: str) -> str | None:
        """Runs a line in processes of its own; what went wrong, or None."""
        return fault_of(self.run(text))

    def words(self, text: str) -> list[str] | None:
        """The words of a line that is one command of ours, as bash cuts them; else None."""
        program = re.match(r'bert-[a-z-]+', text)
        if program is None or re.search(r' (--|\||>|<<?)( |$)', text):
            return None
        return self.run(f'{program[0]}() {{ printf "%s\\0" "$@"; }}; {text}').stdout.split('\0')[
            :-1
        ]


def fault_of(run: subprocess.CompletedProcess) -> str | None:
    last = '\n'.join(run.stderr.splitlines()[-5:])
    return f'exit code {run.returncode}\n{last}' if run.returncode else None
