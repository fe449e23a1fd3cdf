"""Stages of the quickstart: what is called, what is said of it, and what is made again."""

from __future__ import annotations

import logging
import shlex

import pytest

import bert_jax
from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.store import Store
from bert_jax.configs.options import list_command_options
from bert_jax.launch import evaluate, finetune, preprocess, pretrain, train_vocab
from bert_jax.reports.quickstart import pace
from bert_jax.reports.quickstart.stages import QuickstartOptions, Stages
from bert_jax.runs.workdir.results import RunResult
from tests.helpers.files import read_json
from tests.helpers.refusals import refused

ACTIONS = {
    'bert-train-vocab': train_vocab.TrainVocab,
    'bert-preprocess': preprocess.Preprocess,
    'bert-pretrain': pretrain.Pretrain,
    'bert-evaluate': evaluate.EvaluateRecords,
    'bert-finetune': finetune.Finetune,
}


@pytest.fixture
def calls(monkeypatch):
    """The functions of bert_jax that a stage has called; none of them does anything."""
    made = []

    def make(name):
        def function(**options):
            made.append(name)
            folder = options.get('output') or options['workdir']
            folder.mkdir(exist_ok=True)
            if name == 'evaluate':
                (folder / 'eval').mkdir()
                (folder / 'eval' / 'eval.json').write_text('{}')

        return function

    for name in ('train_vocab', 'preprocess', 'pretrain', 'evaluate', 'finetune'):
        monkeypatch.setattr(bert_jax, name, make(name), raising=False)
    return made


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Makes the stages of a small text with some options, on a machine of 10 ms a step."""
    monkeypatch.setattr(pace, 'measure_step', lambda: 0.01)
    lines = []
    for i in range(40):
        lines += [' '.join(f'word{i}x{j}x{k}' for k in range(9)) for j in range(9)] + ['']
    (tmp_path / 'text.txt').write_text('\n'.join(lines))

    def make(folder='made', **options):
        store = Store(tmp_path / folder)
        corpus = (f'{tmp_path}/text.txt',)
        Stages(QuickstartOptions(corpus=corpus, **options), store).make_all()
        return store

    make.folder = tmp_path / 'made'
    return make


def test_each_call_is_printed_as_a_command_with_flags_that_it_has(run, calls, capsys):
    run(language='ko', steps=30, finetune_steps=5, seed=3, cased='yes', train_examples=(8, 10**6))
    commands = [
        shlex.split(line)[1:]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith('$ ')
    ]
    assert [name for name, *_ in commands] == list(ACTIONS)
    for name, *words in commands:
        flags = list_command_options(ACTIONS[name])
        for word in words:
            flag = word.removeprefix('--').partition('=')[0]
            assert flag in flags or flag.removeprefix('no') in flags, (name, word)
    assert '--nolower_case' in commands[0] and '--seed=3' in commands[1]
    assert '--set=phases.0.steps=30' in commands[2] and '--set=steps=5' in commands[4]
    # A size that the text does not have is replaced by all that it has.
    sweep = next(word for word in commands[4] if word.startswith('--sweep='))
    assert 'train_examples=8,' in sweep and '1000000' not in sweep
    assert calls == ['train_vocab', 'preprocess', 'pretrain', 'evaluate', 'finetune']


def test_what_was_made_from_the_same_is_made_once(run, calls, tmp_path):
    run()
    calls.clear()
    run()
    assert calls == []
    run(finetune_runs=2)
    assert calls == ['finetune']
    calls.clear()
    run(finetune_runs=2, vocab_size=500)
    assert calls == ['train_vocab', 'preprocess', 'pretrain', 'evaluate', 'finetune']
    calls.clear()
    # Wherever the folder lies.
    (tmp_path / 'made').rename(tmp_path / 'moved')
    run('moved', finetune_runs=2, vocab_size=500, seed=1)
    assert calls == ['preprocess', 'pretrain', 'evaluate', 'finetune']


def test_a_preset_that_changes_makes_its_stage_again(run, calls, monkeypatch):
    run()
    calls.clear()
    begun = load.load('quickstart_finetune')
    changed = type(begun)(**{**vars(begun), 'steps': 7})
    monkeypatch.setitem(load.PRESETS, 'quickstart_finetune', lambda: changed)
    run()
    assert calls == ['finetune']


def test_a_stage_that_fails_or_stops_ends_the_quickstart(run, calls, monkeypatch):
    def refuse(**_):
        raise UserError('no such thing')

    monkeypatch.setattr(bert_jax, 'preprocess', refuse)
    with refused('no such thing'):
        run()
    assert calls == ['train_vocab']
    monkeypatch.undo()

    monkeypatch.setattr(bert_jax, 'preprocess', lambda **o: o['output'].mkdir(), raising=False)
    monkeypatch.setattr(bert_jax, 'pretrain', lambda **_: RunResult('', signal=15), raising=False)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 143


def test_minutes_choose_the_steps_once(run, calls, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    run(minutes=4.0, train_examples=(80,), finetune_runs=1)
    notes = read_json(run.folder / 'pace.json')
    steps = notes['steps']
    # Two runs of 200 steps, and what does not depend on the steps.
    wanted = pace.forecast(0.01, steps, 400)
    assert wanted == pytest.approx(240, abs=0.01) and steps > 5400
    assert f'about 4 minutes, with {steps:,} steps' in caplog.text
    # Gone on with on another machine, it has the same steps.
    monkeypatch.setattr(pace, 'measure_step', lambda: pytest.fail('measured twice'))
    run(minutes=4.0, train_examples=(80,), finetune_runs=1)
    assert read_json(run.folder / 'pace.json') == notes


def test_a_time_that_is_too_short_is_refused(run, calls, monkeypatch):
    monkeypatch.setattr(pace, 'measure_step', lambda: 0.1)
    with refused('--minutes=1: takes 7 at least on this machine'):
        run(minutes=1.0)
    with refused('--minutes and --steps both say how long'):
        QuickstartOptions(minutes=5.0, steps=100)


def test_a_step_is_measured_on_this_machine():
    assert 0 < pace.measure_step() < 60


def test_options():
    with refused('--train_examples=0: must be whole numbers above 0'):
        QuickstartOptions(train_examples=(0,))
    with refused('--language=korean9'):
        QuickstartOptions(language='korean9')
