"""What an earlier release has left is read, resumed, asked, merged and exported.

Owns the folder tests/fixtures/old_runs; its README tells how that was made.
"""

from __future__ import annotations

import ast
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from bert_jax.conversion.huggingface import read
from bert_jax.inference import Predictor, export
from bert_jax.input_pipeline.records import shards
from bert_jax.runs.sources import source
from bert_jax.runs.sources.merged import merge
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import load_params
from tests.helpers.files import read_json
from tests.helpers.processes import ok

FIXTURE = pathlib.Path(__file__).parents[1] / 'fixtures/old_runs'
# The machine that made the files may round otherwise than the one that runs the tests.
CLOSE = {'rtol': 0, 'atol': 1e-6}
pytestmark = pytest.mark.oldest


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the old folder, in which the paths that it holds are those of the copy."""
    folder = tmp_path / 'old'
    shutil.copytree(FIXTURE, folder)
    for run in ('tuned', 'lora'):
        path = folder / run / 'data.json'
        path.write_text(path.read_text().replace('FOLDER', str(folder)))
    return folder


def answers(folder: pathlib.Path, run: str) -> list[dict]:
    """The answers that the old release gave to the texts, without their lines."""
    lines = (folder / f'{run}.jsonl').read_text().splitlines()
    return [json.loads(line) | {'line': None} for line in lines]


def assert_answers(found: Predictor, folder: pathlib.Path, run: str, atol: float = 1e-6) -> None:
    for text, answer in zip(
        (folder / 'texts.txt').read_text().splitlines(), answers(folder, run), strict=True
    ):
        assert found(text)['probabilities'] == pytest.approx(answer['probabilities'], abs=atol)


def assert_close(got: dict, want: dict) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_records_are_whole(old):
    verified = shards.verify(str(old / 'records'), lambda count: None)
    assert not verified.faults and verified.counts['train']['records'] == 44


def test_a_stopped_run_goes_on_to_the_end_that_it_would_have_had(old, binary):
    result = binary(
        'pretrain',
        f'--config={old}/pretrained/config.json',
        f'--data={old}/records',
        f'--workdir={old}/pretrained',
    )
    assert result.returncode == 0 and 'resumed at step 6' in result.stderr, result.stderr
    (got, step), (want, _) = load_params(old / 'pretrained'), load_params(old / 'whole')
    assert step == 12
    assert_close(got, want)
    losses = [
        [line['loss'] for line in read_metrics(old / run / 'metrics.jsonl') if 'loss' in line]
        for run in ('pretrained', 'whole')
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and len(losses[0]) == 12


@pytest.mark.parametrize('run', ['tuned', 'lora'])
def test_a_tuned_run_answers_as_it_did(old, run):
    assert_answers(Predictor.from_workdir(str(old / run)), old, run)


def test_a_finished_fine_tuning_is_taken_as_it_is(old, binary):
    run = Workdir(old / 'tuned')
    result = binary(
        'finetune',
        f'--task={old}/task.json',
        f'--init_from={old}/whole',
        f'--workdir={run}',
        f'--config={run}/config.json',
    )
    assert result.returncode == 0 and 'done before' in result.stdout, result.stdout + result.stderr


def test_a_lora_run_is_merged(old):
    merge(str(old / 'lora'), str(old / 'merged'))
    assert_answers(Predictor.from_workdir(str(old / 'merged')), old, 'lora', 1e-5)


def test_a_run_is_exported_as_it_was(old):
    model = source.make_plain(source.read_source(str(old / 'tuned')))
    export.write(model.bert, model.tokenizer, 'huggingface', str(old / 'again'))
    for name in ('vocab.txt', 'tokenizer_config.json', 'model.safetensors'):
        assert (old / 'again' / name).read_bytes() == (old / 'huggingface' / name).read_bytes()
    settings = [read_json(old / it / 'config.json') for it in ('again', 'huggingface')]
    assert settings[0] == settings[1]
    assert_close(read(str(old / 'huggingface')).model.params, model.params)


def test_an_export_that_serves_still_does(old):
    text = (old / 'texts.txt').read_text().splitlines()[0]
    result = subprocess.run(
        [sys.executable, '-P', str(old / 'stablehlo/serve.py'), text],
        capture_output=True, text=True, cwd='/', env={'JAX_PLATFORMS': 'cpu'},
    )  # fmt: skip
    ok(result)
    want = answers(old, 'tuned')[0]['probabilities']
    assert ast.literal_eval(result.stdout) == pytest.approx(want, abs=1e-4)
