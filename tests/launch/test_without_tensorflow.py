"""The commands where TensorFlow, an optional extra, is not installed.

It is installed where the tests run, so it is made what Python takes for absent: a name in
sys.modules that holds None, in the commands and in the processes that they start.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

from tests.helpers.mood import write
from tests.helpers.processes import ROOT, ok
from tests.helpers.texts import documents

ABSENT = """
import sys
for name in ('tensorflow', 'tensorflow_datasets', 'keras', 'gcsfs'):
    sys.modules[name] = None
"""
INSTALL = "pip install -c constraints.txt '.[tensorflow]'"
WORDS = 'the ship sailed over deep water while sailors watched waves harbour storm anchor'.split()
TRAINING = [
    'model.vocab_size=60',
    'model.hidden_size=32',
    'model.num_layers=1',
    'model.intermediate_size=64',
    'phases.0.steps=4',
    'phases.0.batch_size=16',
    'optimizer.warmup_steps=2',
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A text, a task of two labels, and what makes TensorFlow absent."""
    folder, rng = tmp_path_factory.mktemp('without'), random.Random(0)
    (folder / 'absent').mkdir()
    (folder / 'absent/sitecustomize.py').write_text(ABSENT)
    (folder / 'text.txt').write_text(documents(WORDS, 50))
    labelled = lambda _, word: {'text': f'{" ".join(rng.choices(WORDS, k=8))} . {word}'}
    write(folder, labelled, WORDS[:2], WORDS[2:4], (32, 8))
    return folder


# Commands one after the other, of which one imports what all need.
COMMANDS = """
import json, sys
from tests.helpers import commands
for name, *arguments in json.load(sys.stdin):
    done = commands.run(name, *arguments)
    print(json.dumps([name, done.returncode, done.stdout, done.stderr]), flush=True)
"""


@pytest.fixture
def without(folder):
    """Runs commands in a process without TensorFlow: (name, code, stdout, stderr) of each.

    `DIR` in their arguments stands for the folder.
    """

    def run(*lines):
        path = os.pathsep.join([str(folder / 'absent'), str(ROOT)])
        done = subprocess.run(
            [sys.executable, '-c', COMMANDS],
            input=json.dumps([line.replace('DIR', str(folder)).split() for line in lines]),
            cwd=ROOT,
            env={**os.environ, 'JAX_NUM_CPU_DEVICES': '1', 'PYTHONPATH': path},
            capture_output=True,
            text=True,
        )
        ok(done)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.mark.slow
def test_from_text_to_an_exported_model(folder, without):
    changes = ' '.join(f'--set={change}' for change in TRAINING)
    pretrain = f'pretrain --config=quickstart --data=DIR/records {changes}'
    finetune = 'finetune --task=DIR/mood.json --init_from=DIR/run --workdir=DIR/tuned'
    done = without(
        'train_vocab --input=DIR/text.txt --output=DIR/vocab --vocab_size=60',
        'preprocess --input=DIR/text.txt --tokenizer=DIR/vocab --output=DIR/records --seq_len=32'
        ' --eval_fraction=0.2 --workers=2',
        'verify_data DIR/records',
        f'{pretrain} --workdir=DIR/run',
        'evaluate --workdir=DIR/run --data=DIR/records',
        f'{finetune} --set=epochs=1 --set=max_seq_length=16 --set=hidden_dropout=0'
        ' --set=attention_dropout=0',
        'evaluate --workdir=DIR/tuned',
        'predict --workdir=DIR/tuned --input=DIR/train.jsonl --output=DIR/answers.jsonl',
        'extract_features --workdir=DIR/run --input=DIR/text.txt --output=DIR/x.npz --layers=-1',
        'fill_mask --workdir=DIR/run the_[MASK]',
        'nearest --workdir=DIR/run --input=DIR/text.txt waves',
        'export --workdir=DIR/tuned --format=huggingface --output=DIR/hf',
        'export --workdir=DIR/run --format=google --output=DIR/google',
        'export --workdir=DIR/tuned --format=stablehlo --output=DIR/stablehlo',
    )
    assert [(name, said) for name, code, _, said in done if code] == []
    assert len((folder / 'answers.jsonl').read_text().splitlines()) == 32
    assert list((folder / 'run').glob('events.out.tfevents.*'))


def test_what_needs_it_says_so_in_one_line(without):
    lines = {
        'train_vocab --input=tfds:wikipedia/train --output=DIR/x': (
            f'tfds:wikipedia/train: tensorflow_datasets is not installed: {INSTALL}'
        ),
        'verify_data gs://bucket/records': (
            "gs://bucket/records: gcsfs is not installed: pip install -c constraints.txt '.[gcs]'"
        ),
    }
    for line, (name, code, out, err) in zip(lines, without(*lines), strict=True):
        assert (code, out, err) == (2, '', f'{name}: error: {lines[line]}\n')
