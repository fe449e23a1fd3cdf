"""The table of a study: as version 0.2.0 printed it of the same results; its means by numpy."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from bert_jax.configs.files.store import write_note
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study
from bert_jax.reports.studies import table
from bert_jax.reports.studies.runner import Inputs, Plan
from tests.helpers.files import read_json

BASE = PretrainConfig(
    model=ModelConfig(vocab_size=100, hidden_size=16, num_layers=1, num_heads=1, max_position=32),
    phases=(Phase(32, 10, 4),),
    optimizer=OptimizerConfig(warmup_steps=1),
)
RATES, TUNED = (1e-3, 1e-4), (0, 1, 2)
MRPC = Column('mrpc', 'MRPC', 'accuracy', learning_rates=RATES)
HELD_OUT = (
    HeldOut('mlm_loss', 'loss'),
    HeldOut('mlm_perplexity', 'LM ppl'),
    HeldOut('bits_per_sentence', 'bits'),
)
NAMES = ('first', 'other', 'third')
# [row, seed, rate, fine-tuning seed]; the second rate is the better one for `other` alone.
NOISE = np.random.RandomState(0).uniform(0, 0.05, (3, 2, 2, 3))
VALUES = NOISE + np.array([[0.7, 0.6], [0.5, 0.8], [0.6, 0.4]])[:, None, :, None]
MANIFEST = {
    'max_predictions': 5,
    'vocab_size': 100,
    'statistics': {
        'records': {'train': {'records': 50, 'masked': 220}, 'eval': {'records': 3}},
        'text': {'train': {'fill': 0.9}, 'eval': {'tokens': 300, 'sentences': 20}},
    },
}


def make_plan(folder, columns=(MRPC,), seeds=(0, 1), rows=3, **of_rows) -> Plan:
    """A plan of rows that differ in a setting."""
    made = [Row(name, **of_rows) for name in NAMES[:rows]]
    made = [
        dataclasses.replace(row, pretraining={**row.pretraining, 'optimizer.b2': 0.9 + 0.01 * i})
        for i, row in enumerate(made)
    ]
    study = Study('A title', columns, tuple(made), BASE, seeds=seeds, finetuning_seeds=TUNED)
    return Plan(study, folder, Inputs({}, {}, ''))


def finish(plan: Plan, step: str, **files) -> None:
    """A step that is done, with its results."""
    for name, content in files.items():
        file = plan.store.of(step) / name.replace('__', '/').replace('_', '.')
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    write_note(plan.store.note(step), {'done': True})


def finish_pretraining(plan: Plan, *which: tuple[int, int]) -> None:
    """Pre-trainings that are done, of (row, seed)."""
    lines = [{'split': 'train', 'step': step, 'seconds': 2.0 * step} for step in (5, 10)]
    for row, seed in which:
        step = plan.pretraining[NAMES[row], seed]
        for records in plan.steps[step].needs:
            finish(plan, records, manifest_json=MANIFEST)
        metrics = {
            'mlm_loss': 4.6771 - 0.01 * row - 0.002 * seed,
            'mlm_perplexity': 107.5 - row,
        }
        finish(
            plan,
            step,
            config_json={'kind': 'pretrain', **plan.steps[step].keywords['config']},
            metrics_jsonl=''.join(json.dumps(line) + '\n' for line in lines),
            eval__eval_json={'metrics': metrics},
        )


def finish_tuning(plan: Plan, line: str, seed: int, values, failed=()) -> None:
    """A sweep that is done, with these scores by rate and seed."""
    runs = [
        {
            'settings': {'optimizer.peak_lr': rate, 'seed': tuned},
            'metric': 'f1',
            'metrics': {'f1': 0.0, 'accuracy': float(values[i, j])},
            'seconds': 1.5,
            'failed': (i, j) in failed,
        }
        for i, rate in enumerate(RATES)
        for j, tuned in enumerate(TUNED)
    ]
    finish(plan, plan.cells[line, 'MRPC', seed], sweep_json={'runs': runs})


def test_it_is_what_version_0_2_0_printed(tmp_path):
    plan = make_plan(tmp_path, (MRPC, *HELD_OUT))
    finish_pretraining(plan, (0, 0), (0, 1), (1, 0), (1, 1))
    finish_tuning(plan, 'first', 0, VALUES[0, 0])
    finish_tuning(plan, 'first', 1, VALUES[0, 1])
    finish_tuning(plan, 'other', 0, VALUES[1, 0], failed={(1, 0)})
    log = plan.log(plan.cells['third', 'MRPC', 0])
    log.parent.mkdir(parents=True)
    log.write_text('Traceback\n\nFAILED: finetune ended with exit code 1: oh no\n')
    text = table.write_table(plan, tmp_path / 'tables')
    stored = pathlib.Path(__file__).with_name('table.txt').read_text()
    assert text + '\n' == stored

    page = (tmp_path / 'tables/table.md').read_text()
    assert page.startswith('# A title\n\nDev scores: mean ± sd (seeds):\n\n|  | MRPC | loss |')
    assert '| first | 73.47 ± 0.50 (2) | 4.6761 ± 0.0014 (2) |' in page
    cells = read_json(tmp_path / 'tables/table.json')
    assert len(cells) == 12 and len(cells[0]['scores']) == 6


def test_means_and_differences_by_numpy(tmp_path):
    plan = make_plan(tmp_path)
    for row, line in enumerate(NAMES[:2]):
        for seed in (0, 1):
            finish_tuning(plan, line, seed, VALUES[row, seed])
    first, other = (table.read_cell(plan, line, MRPC) for line in NAMES[:2])
    assert (first.learning_rate, other.learning_rate) == (1e-3, 1e-4)
    # One number for each pre-training: the mean of its three fine-tunings at the chosen rate.
    a, b = 100 * VALUES[0, :, 0].mean(-1), 100 * VALUES[1, :, 1].mean(-1)
    assert first.over == 'pre-training' and list(first.values.values()) == pytest.approx(list(a))
    assert (first.mean, first.sd) == pytest.approx((a.mean(), a.std(ddof=1)))
    gap, error = (b - a).mean(), (b - a).std(ddof=1) / np.sqrt(2)
    assert table.write_gap(first, other, 4) == f'{gap:+.4f} ± {error:.4f}'


def test_one_pretraining_seed_has_the_spread_of_fine_tuning(tmp_path):
    plan = make_plan(tmp_path, rows=2)
    finish_tuning(plan, 'first', 0, VALUES[0, 0])
    finish_tuning(plan, 'other', 0, VALUES[1, 0], failed={(1, 2), (0, 0)})
    first, other = (table.read_cell(plan, line, MRPC) for line in NAMES[:2])
    a, b = 100 * VALUES[0, 0, 0], 100 * VALUES[1, 0, 1]
    assert other.over == 'fine-tuning' and other.missing == [1]
    assert other.failed_runs == 1  # the other one is at the rate that was not chosen
    assert (other.mean, other.sd) == pytest.approx((b.mean(), b.std(ddof=1)))
    # The one pre-training that both have, fine-tuning by fine-tuning.
    gap, error = (b - a).mean(), (b - a).std(ddof=1) / np.sqrt(3)
    assert table.write_gap(first, other, 4) == f'{gap:+.4f} ± {error:.4f}'


def test_no_seed_is_shared(tmp_path):
    plan = make_plan(tmp_path, rows=2)
    finish_tuning(plan, 'first', 0, VALUES[0, 0])
    finish_tuning(plan, 'other', 1, VALUES[1, 1])
    a, b = 100 * VALUES[0, 0, 0], 100 * VALUES[1, 1, 1]
    error = np.sqrt(a.var(ddof=1) / 3 + b.var(ddof=1) / 3)
    first, other = (table.read_cell(plan, line, MRPC) for line in NAMES[:2])
    gap = f'{b.mean() - a.mean():+.4f} ± {error:.4f} u'
    assert table.write_gap(first, other, 4) == gap


def test_a_diverged_rate_is_not_chosen(tmp_path):
    plan = make_plan(tmp_path, seeds=(0,), rows=1)
    for broken in (0, 1):
        values = VALUES[0, 0].copy()
        values[broken] = np.nan
        finish_tuning(plan, 'first', 0, values)
        cell = table.read_cell(plan, 'first', MRPC)
        assert cell.learning_rate == RATES[1 - broken] and not np.isnan(cell.mean)


def test_lines_of_checkpoints_are_compared_at_the_same_step(tmp_path):
    keeps = {'runtime.keep_every': 5, 'runtime.checkpoint_every': 5}
    plan = make_plan(tmp_path, seeds=(0,), rows=2, pretraining=keeps, checkpoints=(5, 10))
    finish_pretraining(plan, (0, 0), (1, 0))
    for row, name in enumerate(NAMES[:2]):
        for point, step in enumerate((5, 10)):
            finish_tuning(plan, f'{name} @{step}', 0, VALUES[row, point])
    lines = table.write_table(plan, tmp_path / 'tables').splitlines()
    assert lines[3:8] == [
        '                       MRPC',
        'first @5   73.11 ± 0.42 (3)',
        'first @10  73.82 ± 1.43 (3)',
        'other @5   81.57 ± 2.25 (3)',
        'other @10  83.40 ± 0.95 (3)',
    ]
    assert lines[11:13] == ['other @5   +8.46 ± 1.39', 'other @10  +9.58 ± 1.17']
    assert lines[16].split() == ['first', '@5', '576', '88', '3.86e-07', '10', '9']
