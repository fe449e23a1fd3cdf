"""What a study makes: shared where it can be, once, each step in a process of its own."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from bert_jax.configs.files.lock import take_lock
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig
from bert_jax.configs.studies.load_study import load_study
from bert_jax.configs.studies.study import Column, Row, Study
from bert_jax.reports.studies import runner
from bert_jax.reports.studies.runner import Inputs, Plan
from tests.helpers import commands, pages
from tests.helpers.files import write_lines
from tests.helpers.refusals import refused

BASE = PretrainConfig(
    model=ModelConfig(vocab_size=100, hidden_size=16, num_layers=1, num_heads=1, max_position=64),
    phases=(Phase(32, 10, 4), Phase(64, 10, 4)),
    optimizer=OptimizerConfig(warmup_steps=1),
)
TASK = Column('mrpc', 'MRPC', learning_rates=(1e-3, 1e-4))
READ = Inputs({'': ['text.txt']}, {'mrpc': 'glue'}, '')
LEFT = {'model.attention': 'left_to_right'}


def make_plan(folder, *rows: Row, columns=(TASK,), read=READ, **more) -> Plan:
    return Plan(Study('title', columns, rows, BASE, **more), pathlib.Path(folder), read)


def count_kinds(plan: Plan) -> dict[str, int]:
    kinds = [step.kind for step in plan.steps.values()]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def test_rows_and_studies_share_what_is_the_same(tmp_path):
    plan = Plan(load_study('pretraining_tasks')['paper'], tmp_path, READ)
    # Three kinds of records in two lengths; five rows of five tasks; the BiLSTM's row has the
    # pre-training of the one above it.
    assert count_kinds(plan) == {'vocabulary': 1, 'records': 6, 'pretraining': 4, 'finetune': 25}
    for position, step in enumerate(plan.steps.values()):
        assert all(need in list(plan.steps)[:position] for need in step.needs)

    # One BERT for all studies.
    first = set()
    for name in ('pretraining_tasks', 'model_size', 'masking', 'steps', 'feature_based'):
        plan = Plan(load_study(name)['cpu'], tmp_path, READ)
        row = 'L4 H128 A2' if name == 'model_size' else plan.study.rows[0].name
        first.add(plan.pretraining[row, 0])
    assert len(first) == 1

    # The study of docs/own_studies.md: two vocabularies, each with records of its own.
    blocks = pages.blocks(pages.ROOT / 'docs/own_studies.md')
    [code] = [block.lines for block in blocks if block.language == 'python']
    write_lines(tmp_path / 'mine.py', (line for _, line in code))
    [made] = load_study(str(tmp_path / 'mine.py')).values()
    wanted = {'vocabulary': 2, 'records': 4, 'pretraining': 4, 'finetune': 4}
    assert count_kinds(Plan(made, tmp_path, READ)) == wanted


def test_steps_and_what_they_call(tmp_path):
    row = Row('b', records={'mask_mix': (0.0, 1.0, 0.0)}, pretraining=LEFT)
    tagging = Column('conll2003', 'NER', approach='last', bilstm={'lstm_width': 8})
    plan = make_plan(tmp_path, row, columns=(TASK, tagging), vocabulary={'vocab_size': 100})
    vocabulary, short, _, pretraining, tuned, tagged = plan.steps.values()
    folder = lambda step: str(tmp_path / step.name)
    assert vocabulary.keywords == {
        'input': ['text.txt'],
        'vocab_size': 100,
        'lower_case': True,
        'output': folder(vocabulary),
    }
    assert short.keywords == {
        'input': ['text.txt'],
        'tokenizer': folder(vocabulary),
        'mask_mix': (0.0, 1.0, 0.0),
        'eval_fraction': 0.005,
        'seq_len': 32,
        'output': folder(short),
    }
    assert pretraining.keywords['config']['model']['attention'] == 'left_to_right'
    assert tuned.keywords['sweep'] == 'optimizer.peak_lr=0.001,0.0001;seed=0'
    assert tuned.keywords['init_from'] == folder(pretraining)
    assert tagged.keywords['approaches'] == ('last',)
    assert tagged.keywords['set_bilstm'] == ('lstm_width=8',)


def test_checkpoints_are_lines_of_one_pretraining(tmp_path):
    keeps = {'runtime.keep_every': 10, 'runtime.checkpoint_every': 10}
    plan = make_plan(tmp_path, Row('a', pretraining=keeps, checkpoints=(10, 20)))
    assert count_kinds(plan) == {'vocabulary': 1, 'records': 2, 'pretraining': 1, 'finetune': 2}
    sources = []
    for step in (10, 20):
        source = plan.steps[plan.cells[f'a @{step}', 'MRPC', 0]].keywords['init_from']
        sources.append(source.partition('/pretraining/')[2].partition('/')[2])
    assert sources == ['checkpoints/10', '']


def test_inputs_are_named_and_noted(tmp_path):
    text, task, run = tmp_path / 'text.txt', tmp_path / 'm', tmp_path / 'run'
    text.write_text('words')
    task.mkdir()
    (task / 'train.tsv').write_text('x')
    texts, folders = {'': [str(text)]}, {'mrpc': str(task)}
    wrong = Column('mrpc', 'MRPC', 'acuracy')
    for read, columns, line in (
        (Inputs({}, folders, ''), (TASK,), '--corpus=GLOB is required'),
        (Inputs(texts, {}, ''), (TASK,), '--data_dir=mrpc=FOLDER is required'),
        (Inputs(texts, folders, ''), (wrong,), "column 'MRPC': no 'acuracy', but "),
    ):
        with refused(line):
            runner.note_inputs(make_plan(run, Row('a'), columns=columns, read=read))
    plan = make_plan(run, Row('a'), read=Inputs(texts, folders, ''))
    runner.note_inputs(plan)
    runner.note_inputs(plan)
    (task / 'train.tsv').write_text('another')
    with refused('--data_dir=mrpc: .*/inputs.json has other files: use another --workdir'):
        runner.note_inputs(plan)


@pytest.mark.parametrize(
    'flags, line',
    [
        (('--table', '--workdir={}'), 'has a study of version 0.2.0: name another'),
        (('--table', '--workdir={}/none'), 'no study was run there'),
        (('--table', '--seeds=0', '--workdir={}'), 'leave --only and --seeds out'),
        (('--dry_run', '--tflops=3'), '--tflops is gone: '),
        (('--dry_run', '--only=80/10/11'), r'the study has 80/10/10, .*mean 80/10/10\?'),
        (('--dry_run', '--seeds=7'), '--seeds=7: the study has 0'),
        ((), '--workdir is required'),
    ],
)
def test_refused_in_one_line(tmp_path, flags, line):
    (tmp_path / 'study.json').write_text('{}')
    flags = [flag.format(tmp_path) for flag in flags]
    result = commands.run('study', '--study=masking', '--scale=cpu', *flags)
    assert result.returncode == 2 and result.stderr.count('\n') == 1
    assert re.search(line, result.stderr), result.stderr


def test_a_dry_run_lists_what_is_left(tmp_path):
    flags = ('--study=masking', '--scale=cpu', f'--workdir={tmp_path}', '--only=100/0/0')
    lines = commands.run('study', *flags, '--dry_run').stdout.splitlines()
    assert lines[1:4] == [
        '7 of 7 steps are left:',
        '  vocabulary of 100/0/0',
        '  records of 100/0/0, 32 word pieces a row',
    ]
    assert not list(tmp_path.iterdir())


# What steps call here in place of training: a line of Python, and then a letter more in made.txt.
FAKE = """
import os, signal, sys, time
from pathlib import Path
from bert_jax.configs.errors import UserError

def call(kind, keywords):
    folder = Path(keywords.get('output') or keywords['workdir'])
    folder.mkdir(parents=True, exist_ok=True)
    exec(os.environ.get('FAKE_' + kind, ''), {**globals(), 'folder': folder})
    with open(folder / 'made.txt', 'a') as file:
        file.write('x')

def vocabulary(**keywords): call('vocabulary', keywords)
def records(**keywords): call('records', keywords)
def pretraining(**keywords): call('pretraining', keywords)
def finetune(**keywords): call('finetune', keywords)
"""
PROGRAM = """
import sys
from tests.bert_jax.reports.studies import test_runner
from bert_jax.reports.studies import runner
runner._POLL_S = 0.05
runner.FUNCTIONS = {kind: f'fake:{kind}' for kind in runner.FUNCTIONS}
plan = test_runner.make_plan(
    sys.argv[1], test_runner.Row('a'), test_runner.Row('b', pretraining=test_runner.LEFT)
)
sys.exit(0 if runner.run_steps(plan) else 1)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a runner of two rows, with what its steps do before they are made."""
    (tmp_path / 'fake.py').write_text(FAKE)

    def start(**does: str) -> subprocess.Popen:
        environment = {f'FAKE_{kind}': textwrap.dedent(code) for kind, code in does.items()}
        paths = os.pathsep.join([str(tmp_path), str(pathlib.Path(__file__).parents[4])])
        return subprocess.Popen(
            [sys.executable, '-c', PROGRAM, str(tmp_path / 'run')],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, 'PYTHONPATH': paths},
        )

    return start


def count_made(folder) -> dict[str, list[int]]:
    """How often each step was made, by its kind."""
    made: dict[str, list[int]] = {}
    for file in sorted(folder.glob('*/*/made.txt')):
        made.setdefault(file.parts[-3], []).append(len(file.read_text()))
    return made


ONCE = {'finetune': [1, 1], 'pretraining': [1, 1], 'records': [1, 1], 'vocabulary': [1]}
# In the first pre-training alone, which is that of row a.
FIRST = "if not list(folder.parent.glob('*/made.txt')) and len(os.listdir(folder.parent)) == 1: "


@pytest.mark.parametrize(
    'end, why',
    [
        ("raise UserError('no such thing')", 'exit code 2: study: error: no such thing'),
        ('os.kill(os.getpid(), signal.SIGKILL)', 'signal 9: '),
        ('sys.exit(75)', 'exit code 75: '),
        ("raise MemoryError('too much')", 'exit code '),
    ],
)
def test_what_ends_badly_fails_its_row_alone(tmp_path, start, end, why):
    program = start(pretraining=FIRST + end)
    printed, _ = program.communicate(timeout=120)
    assert program.returncode == 1, printed
    assert f'FAILED: pre-training of a, seed 0 ended with {why}' in printed
    plan = make_plan(tmp_path / 'run', Row('a'), Row('b', pretraining=LEFT))
    failed, made = (plan.cells[row, 'MRPC', 0] for row in 'ab')
    assert plan.failure(failed).startswith(f'pre-training of a, seed 0 ended with {why}')
    assert plan.store.done(made) and not plan.failure(made)

    # Started again it is tried again, and what is done is passed over.
    program = start()
    program.communicate(timeout=120)
    assert program.returncode == 0 and not plan.failure(failed)
    assert count_made(tmp_path / 'run') == ONCE


def test_a_run_that_stood_still_goes_on(tmp_path, start):
    program = start(
        pretraining="if not (folder / 'x').exists(): (folder / 'x').touch(); sys.exit(75)"
    )
    printed, _ = program.communicate(timeout=120)
    assert program.returncode == 0, printed
    assert count_made(tmp_path / 'run') == ONCE


def test_two_runners_divide_the_steps(tmp_path, start):
    both = [start(pretraining='time.sleep(1)') for _ in range(2)]
    printed = [program.communicate(timeout=240)[0] for program in both]
    assert [program.returncode for program in both] == [0, 0], printed
    assert count_made(tmp_path / 'run') == ONCE
    assert sum(text.count(': done in') for text in printed) == 7


def wait_for(condition, program: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert program.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


WAITS = 'while not Path({!r}).exists(): time.sleep(0.02)'


def test_a_killed_runner_leaves_its_process_the_step(tmp_path, start):
    """Nobody takes the step while the process of the killed one is still at work."""
    go_on = tmp_path / 'go_on'
    program = start(vocabulary=WAITS.format(str(go_on)))
    wait_for(lambda: list((tmp_path / 'run').glob('vocabulary/*')), program)
    program.kill()
    program.communicate()
    [lock] = (tmp_path / 'run').glob('locks/vocabulary/*.lock')
    with take_lock(lock) as mine:
        assert mine is None  # the process has it
    go_on.touch()
    deadline = time.monotonic() + 60
    mine = None
    while mine is None:
        assert time.monotonic() < deadline
        with take_lock(lock) as mine:
            time.sleep(0.05)
    assert count_made(tmp_path / 'run') == {'vocabulary': [1]}


def test_a_signal_is_passed_on_and_ends_the_study(tmp_path, start):
    saves = f"""
        def save(*_):
            Path({str(tmp_path / 'saved')!r}).touch()
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        (folder / 'ready').touch()
        time.sleep(60)
    """
    program = start(vocabulary=saves)
    wait_for(lambda: list((tmp_path / 'run').glob('vocabulary/*/ready')), program)
    program.send_signal(signal.SIGTERM)
    printed, _ = program.communicate(timeout=60)
    assert program.returncode == 143 and (tmp_path / 'saved').exists()
    assert 'stopped by signal 15; the same command goes on from here' in printed
    assert 'FAILED' not in printed
