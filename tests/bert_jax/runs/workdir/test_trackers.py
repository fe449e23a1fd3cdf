"""The writers for other programs' trackers, offline, where those programs are installed."""

from __future__ import annotations

import time

import pytest

from bert_jax.runs.workdir import trackers
from bert_jax.runs.workdir.metrics import Writers
from bert_jax.runs.workdir.trackers import MlflowWriter, WandbWriter
from bert_jax.train.loop import LogEntry
from tests.helpers.refusals import refused

LINES = [
    LogEntry(5, {'split': 'train', 'loss': 2.0, 'phase': 0, 'grad_norm': float('nan')}, 10, 1.0),
    LogEntry(5, {'split': 'eval', 'loss': 2.5}, 10),
    LogEntry(10, {'split': 'train', 'loss': 1.0, 'phase': 0}, 10, 0.0),
]


def write(writer, lines=LINES) -> None:
    writers = Writers([writer])
    for line in lines:
        writers.write(line)
    writers.close()


def test_a_tracker_by_name(monkeypatch):
    assert trackers.writers_of(None, 'run') == trackers.writers_of('tensorboard', 'run') == []
    for name, variable in (('wandb', 'WANDB_PROJECT'), ('mlflow', 'MLFLOW_EXPERIMENT_NAME')):
        made = []
        monkeypatch.setattr(trackers, f'{name.title()}Writer', lambda *a, made=made: made.append(a))
        monkeypatch.setattr('importlib.util.find_spec', lambda module: module)
        for folder in ('a/run', 'b/run'):
            trackers.writers_of(name, folder)
        monkeypatch.setenv(variable, 'mine')
        trackers.writers_of(name, 'a/run')
        assert [project for project, *_ in made] == ['bert_jax', 'bert_jax', 'mine']
        first, other, again = (run for _, run, *_ in made)
        assert first == again != other and first.startswith('run-')
        monkeypatch.setattr('importlib.util.find_spec', lambda module: None)
        with refused(f'--track={name}: {name} is not installed: pip install'):
            trackers.writers_of(name, 'run')


def test_mlflow_has_the_points_of_a_run_and_of_what_goes_on_with_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip(
        'mlflow', reason='mlflow is an extra: pip install bert_jax[mlflow]'
    )
    monkeypatch.setenv('MLFLOW_TRACKING_URI', f'file:{tmp_path}')
    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
    write(MlflowWriter('rtd', 'one'), LINES[:2])
    write(MlflowWriter('rtd', 'one'), LINES[2:])
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name('rtd').experiment_id])
    points = client.get_metric_history(run.info.run_id, 'train/loss')
    assert [(point.step, point.value) for point in points] == [(5, 2.0), (10, 1.0)]
    assert run.data.metrics == {'train/loss': 1.0, 'train/phase': 0.0, 'eval/loss': 2.5}
    assert run.info.status == 'FINISHED'


def test_wandb_keeps_the_points_of_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip('wandb', reason='wandb is an extra: pip install bert_jax[wandb]')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    write(WandbWriter('rtd', 'one', str(tmp_path)))
    (kept,) = tmp_path.glob('wandb/offline-run-*-one/run-one.wandb')
    until = time.monotonic() + 30  # its own process writes the file
    while b'eval/loss' not in kept.read_bytes() and time.monotonic() < until:
        time.sleep(0.1)
    content = kept.read_bytes()
    assert b'train/loss' in content and b'eval/loss' in content and b'grad_norm' not in content
