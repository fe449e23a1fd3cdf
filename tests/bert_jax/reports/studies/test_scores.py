"""Means, spreads and differences, recomputed here with numpy from the same files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.configs.files.store import write_note
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study
from bert_jax.reports.studies import scores, table
from bert_jax.reports.studies.inputs import Input, Inputs
from bert_jax.reports.studies.plan import Plan
from bert_jax.reports.studies.steps import Folder
from tests.helpers.files import read_json
from tests.helpers.refusals import refused

BASE = PretrainConfig(
    model=ModelConfig(max_position=32),
    phases=(Phase(32, 10, 4),),
    optimizer=OptimizerConfig(warmup_steps=1),
)
RATES, TUNED = (1e-3, 1e-4), (0, 1, 2)
MRPC = Column('mrpc', 'MRPC', 'accuracy', learning_rates=RATES)
# [row, seed, rate, fine-tuning seed]; the second rate is the better one for `other` alone.
NOISE = np.random.RandomState(0).uniform(0, 0.05, (2, 2, 2, 3))
VALUES = NOISE + np.array([[0.7, 0.6], [0.5, 0.8]])[:, None, :, None]


def made(folder, rows=('first', 'other'), columns=(MRPC,), seeds=(0, 1)) -> Plan:
    rows = [Row(name, pretraining={'optimizer.b2': 0.9 + 0.01 * i}) for i, name in enumerate(rows)]
    study = Study('title', BASE, columns, tuple(rows), seeds=seeds, finetuning_seeds=TUNED)
    return Plan(study, Inputs({'': Input(1)}, {'MRPC': Input(2)}, None), Folder(str(folder)))


def finish(plan: Plan, step: str, name: str, content) -> None:
    """A step that is done, with a file of its results."""
    file = plan.folder.of(step) / name
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(content))
    write_note(plan.folder.note(step), {'done': True})


def write(plan: Plan, *which: tuple[int, int], failed=()) -> dict:
    """Finished sweeps of (row, seed), by VALUES; return the cells."""
    for row, seed in which:
        runs = [
            {
                'settings': {'optimizer.peak_lr': rate, 'seed': tuned},
                'metric': 'f1',
                'metrics': {'f1': 0.0, 'accuracy': VALUES[row, seed, i, j]},
                'failed': row == 1 and (i, j) in failed,
            }
            for i, rate in enumerate(RATES)
            for j, tuned in enumerate(TUNED)
        ]
        step = plan.cells[('first', 'other')[row], 'MRPC', seed]
        finish(plan, step, 'sweep.json', {'metric': 'f1', 'runs': runs})
    return scores.cells(plan)


def test_over_pretraining_seeds(tmp_path):
    cells = write(made(tmp_path), (0, 0), (0, 1), (1, 0), (1, 1))
    first, other = (cells[row, 'MRPC'] for row in ('first', 'other'))
    assert (first.learning_rate, other.learning_rate) == (1e-3, 1e-4)

    # One number for each pre-training: the mean of its three fine-tunings at the chosen rate.
    a, b = 100 * VALUES[0, :, 0].mean(-1), 100 * VALUES[1, :, 1].mean(-1)
    assert first.over == 'pre-training' and list(first.values.values()) == pytest.approx(list(a))
    assert (first.mean, first.sd) == pytest.approx((a.mean(), a.std(ddof=1)))
    gap = scores.difference(first, other)
    assert gap == pytest.approx(((b - a).mean(), (b - a).std(ddof=1) / np.sqrt(2), 2))
    assert not first.missing and not first.failed_runs


def test_one_pretraining_seed_has_the_spread_of_fine_tuning(tmp_path):
    cells = write(made(tmp_path), (0, 0), (0, 1), (1, 0), failed={(1, 2), (0, 0)})
    first, other = (cells[row, 'MRPC'] for row in ('first', 'other'))
    a, b = 100 * VALUES[0, 0, 0], 100 * VALUES[1, 0, 1]
    assert other.over == 'fine-tuning' and other.missing == (1,)
    assert other.failed_runs == 1  # the other one is at the rate that was not chosen
    assert (other.mean, other.sd) == pytest.approx((b.mean(), b.std(ddof=1)))
    # The one pre-training that both have, fine-tuning by fine-tuning.
    gap = scores.difference(first, other)
    assert gap == pytest.approx(((b - a).mean(), (b - a).std(ddof=1) / np.sqrt(3), 3))


def test_no_seed_is_shared(tmp_path):
    plan = made(tmp_path)
    cells = write(plan, (0, 0), (1, 1))
    a, b = 100 * VALUES[0, 0, 0], 100 * VALUES[1, 1, 1]
    error = np.sqrt(a.var(ddof=1) / 3 + b.var(ddof=1) / 3)
    gap = scores.difference(cells['first', 'MRPC'], cells['other', 'MRPC'])
    assert gap == pytest.approx((b.mean() - a.mean(), error, 0))
    assert ' u' in table.gap(cells, *plan.lines(), 'MRPC', 2)


def test_the_table_says_what_is_missing_and_what_failed(tmp_path):
    plan = made(tmp_path, rows=('first', 'other', 'third'))
    write(plan, (0, 0), (0, 1), (1, 0), failed={(1, 0)})
    plan.folder.note_failure(plan.cells['third', 'MRPC', 0], 'bert-finetune ended: oh no')
    text = table.write(plan, tmp_path / 'tables', {'file': 'masking', 'digest': ''})
    mean = 100 * VALUES[0, :, 0].mean()
    assert f'first    {mean:.2f} ± ' in text and '(2)' in text
    assert '(3)!*' in text and '*: seeds are missing: other / MRPC' in text
    assert '!: runs that have learnt nothing are among them: other / MRPC' in text
    assert 'FAILED: third: bert-finetune ended: oh no' in text
    written = {path.name for path in (tmp_path / 'tables').iterdir()}
    assert written == {'table.md', 'table.json', 'plot.png'}
    cell = read_json(tmp_path / 'tables/table.json')['lines'][0]['cells']['MRPC']
    assert cell['mean'] == pytest.approx(mean) and len(cell['scores']) == 6


def test_losses_have_decimals_enough_to_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(scores, 'compute', lambda *_: None)
    columns = (HeldOut('mlm_loss', 'loss'), HeldOut('mlm_perplexity', 'perplexity'))
    plan = made(tmp_path, ('a', 'b'), columns, seeds=(0,))
    for row, loss in (('a', 4.6771), ('b', 4.6743)):
        metrics = {'mlm_loss': loss, 'mlm_perplexity': np.exp(loss)}
        finish(plan, plan.cells[row, 'loss', 0], 'eval/eval.json', {'metrics': metrics})
    (_, means), (_, gaps) = table.tables(plan, scores.cells(plan))[:2]
    assert means[1:] == [['a', '4.6771 (1)', '107.46 (1)'], ['b', '4.6743 (1)', '107.16 (1)']]
    assert gaps[1:] == [['b', '-0.0028 ± ?', '-0.30 ± ?']]


def test_a_metric_that_no_run_has_is_one_line(tmp_path):
    plan = made(tmp_path, columns=(Column('mrpc', 'MRPC', 'exact', learning_rates=RATES),))
    with refused("column 'MRPC': mrpc has no metric 'exact', but f1, acc"):
        write(plan, (0, 0))
