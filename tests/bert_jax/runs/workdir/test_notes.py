"""What a run notes of itself: its starts, and what guessing scores."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.notes import Guess, command_line, guesses, note_guess, note_start, starts
from bert_jax.runs.workdir.workdir import Workdir
from tests.helpers.refusals import refused

LAUNCH = pathlib.Path(notes.__file__).parents[2] / 'launch'


@pytest.mark.parametrize(
    'argv, command',
    [
        (
            [f'{LAUNCH}/pretrain.py', '--workdir=a b'],
            "python -m bert_jax.launch.pretrain '--workdir=a b'",
        ),
        (['mine.py', '--set', 'x=$1'], "python mine.py --set 'x=$1'"),
    ],
    ids=['ours', 'own'],
)
def test_a_command_is_what_a_user_would_type(argv, command):
    assert command_line(argv) == command


def test_every_start_is_kept_with_its_step(tmp_path):
    workdir = Workdir(tmp_path / 'run')
    assert starts(workdir) == []
    note_start(workdir, 0)
    note_start(workdir, 40)
    assert [start.step for start in starts(workdir)] == [0, 40]
    assert starts(workdir)[0].versions.keys() >= {'python', 'jax'}
    assert starts(workdir)[0].devices == '8 x cpu' and starts(workdir)[0].cpus > 0


def test_a_guess_takes_the_place_of_one_from_the_same_step(tmp_path):
    first, second = Guess(0, {'mlm_loss': 7.0}, 'a'), Guess(50, {'mlm_loss': 6.0}, 'b')
    for guess in (second, first, second):
        note_guess(str(tmp_path), guess)
    assert guesses(Workdir(tmp_path)) == [first, second]


@pytest.mark.parametrize('text', ['[]', '{"entries": [{"a": 1}]}'])
def test_damaged_notes_are_one_line(tmp_path, text):
    (tmp_path / 'guessing.json').write_text(text)
    with refused(r'guessing\.json: .*put it back from a copy'):
        guesses(Workdir(tmp_path))


def test_a_run_that_has_learnt_nothing_is_not_called_better_than_guessing():
    result = {'metric': 'f1', 'split': 'dev', 'metrics': {'f1': 0.75}}
    guess = [Guess(0, {'f1': 0.5})]
    assert notes.verdict(result, guess).startswith('0.250 better than guessing')
    failed = notes.verdict(result | {'failed': True}, guess)
    assert failed.startswith('hardly learnt its training set (dev f1 0.750, guessing 0.500)')
    assert notes.verdict(result, []) == 'f1 0.750 on dev'
