"""A whole study, small: stopped twice it comes to what it comes to when it is left alone."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.files import read_json, write_lines
from tests.helpers.texts import documents

STUDY = """
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study

BASE = PretrainConfig(
    model=ModelConfig(
        vocab_size=300, hidden_size=16, num_layers=1, num_heads=1, intermediate_size=32,
        max_position=32, hidden_dropout=0.0, attention_dropout=0.0,
    ),
    phases=(Phase(32, 20, 8),),
    optimizer=OptimizerConfig(peak_lr=1e-3, warmup_steps=4),
    runtime=RuntimeConfig(log_every=5, checkpoint_every=5),
)
TUNED = {'max_seq_length': 32, 'batch_size': 8, 'hidden_dropout': 0.0, 'attention_dropout': 0.0}


def get_studies():
    left = {'model.attention': 'left_to_right'}
    column = Column('mrpc', 'pairs', 'accuracy', learning_rates=(1e-3,), finetuning=TUNED)
    return {'cpu': Study(
        'small', (column, HeldOut('mlm_loss', 'loss')),
        (Row('both sides'), Row('left', pretraining=left)), BASE,
        {'vocab_size': 300}, {'dupe_factor': 2, 'eval_fraction': 0.1}, seeds=(0,),
        finetuning_seeds=(0,),
    )}
"""


@pytest.fixture
def arguments(tmp_path) -> list[str]:
    """The flags of the study but for its folder; the files that it reads."""
    rng = random.Random(0)
    words = [''.join(rng.choices('abcdefghij', k=rng.randint(2, 6))) for _ in range(200)]
    say = lambda: ' '.join(rng.choices(words, k=6))
    (tmp_path / 'small.py').write_text(STUDY)
    (tmp_path / 'text.txt').write_text(documents(words, 60))
    folder = tmp_path / 'mrpc'
    folder.mkdir()
    for split, rows in (('train', 64), ('dev', 32)):
        lines = ['Quality\t#1 ID\t#2 ID\t#1 String\t#2 String']
        lines += [f'{rng.randint(0, 1)}\t{i}\t{i}\t{say()}\t{say()}' for i in range(rows)]
        write_lines(folder / f'{split}.tsv', lines)
    return [
        f'--study={tmp_path}/small.py',
        f'--corpus={tmp_path}/text.txt',
        f'--data_dir=mrpc={folder}',
    ]


def start(arguments: list[str], workdir: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, '-m', 'bert_jax.launch.study', *arguments, f'--workdir={workdir}'],
        cwd=pathlib.Path(__file__).parents[4],
        env={**os.environ, 'JAX_NUM_CPU_DEVICES': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def scores(workdir: pathlib.Path) -> list:
    """The table, and the last losses of all pre-training."""
    cells = read_json(workdir / 'tables/small/table.json')
    losses = {
        file.parent.name: json.loads(file.read_text().splitlines()[-1])['mlm_loss']
        for file in workdir.glob('pretraining/*/metrics.jsonl')
    }
    return [*cells, losses]


@pytest.mark.slow
def test_stopped_twice_or_left_alone(tmp_path, arguments):
    alone = start(arguments, tmp_path / 'alone')
    said, _ = alone.communicate(timeout=900)
    assert alone.returncode == 0, said
    assert 'both sides' in said and 'left' in said

    # With all its commands in the midst of the first pre-training; then by a signal, which is
    # passed on, after the first fine-tuning.
    workdir = tmp_path / 'killed'
    for pattern, number in (
        ('pretraining/*/checkpoints/5', signal.SIGKILL),
        ('finetune/*/sweep.json', signal.SIGTERM),
    ):
        study = start(arguments, workdir)
        deadline = time.monotonic() + 600
        while not list(workdir.glob(pattern)) and study.poll() is None:
            assert time.monotonic() < deadline, pattern
            time.sleep(0.05)
        assert study.poll() is None, study.communicate()[0]
        os.killpg(study.pid, number)
        study.communicate(timeout=120)
    last = start(arguments, workdir)
    said, _ = last.communicate(timeout=900)
    assert last.returncode == 0, said
    assert scores(workdir) == scores(tmp_path / 'alone')
