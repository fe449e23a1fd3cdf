"""One process at a time, whatever becomes of the one before."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from bert_jax.configs.files.lock import lock_folder
from tests.helpers.full_disk import files_of_at_most
from tests.helpers.refusals import refused

OWNER = """
import sys, time
from bert_jax.configs.files.lock import lock_folder
with lock_folder(sys.argv[1], '--output'):
    print('locked', flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_told_who_writes_there_and_a_killed_one_keeps_nobody_out(tmp_path):
    arguments = [sys.executable, '-c', OWNER, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == 'locked\n'
        for _ in range(2):  # the first refusal leaves the note as it is
            with refused(rf'--output={tmp_path}: another process \(pid {owner.pid}\)'):
                with lock_folder(str(tmp_path), '--output'):
                    pytest.fail('locked twice')
        owner.kill()
    assert (tmp_path / '.lock').exists()
    with lock_folder(str(tmp_path), '--output'):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_lock_is_one_line_and_an_object_store_has_none(tmp_path):
    with (
        files_of_at_most(0),
        refused('nothing can be written there .File too large'),
        lock_folder(str(tmp_path), '--output'),
    ):
        pytest.fail('locked')
    with contextlib.ExitStack() as both:
        for _ in range(2):
            both.enter_context(lock_folder('gs://bucket/folder', '--output'))
