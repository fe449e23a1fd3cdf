"""The commands where TensorFlow, an optional extra, is not installed.

It is installed where the tests run, so it is made what Python takes for absent: a name in
sys.modules that holds None, in the commands and in the processes that they start.
"""

from __future__ import annotations

import os
import pathlib
import random

import pytest

from tests.helpers.mood import write

ABSENT = """
import sys
for name in ('tensorflow', 'tensorflow_datasets', 'keras', 'gcsfs'):
    sys.modules[name] = None
"""
ROOT = pathlib.Path(__file__).parents[2]
INSTALL = "pip install -c constraints.txt '.[tensorflow]'"
WORDS = 'the ship sailed over deep water while sailors watched waves harbour storm anchor'.split()
TRAINING = [
    'model.vocab_size=60',
    'model.hidden_size=32',
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
    sentence = lambda: ' '.join(rng.choices(WORDS, k=8)) + ' .'
    documents = ['\n'.join(sentence() for _ in range(8)) for _ in range(50)]
    (folder / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    labelled = lambda _, word: {'text': f'{sentence()} {word}'}
    write(folder, labelled, WORDS[:2], WORDS[2:4], (32, 8))
    return folder


@pytest.fixture
def without(folder, binary):
    """Runs a command without TensorFlow; `DIR` in its arguments stands for the folder."""

    def run(name, *arguments):
        path = os.pathsep.join([str(folder / 'absent'), str(ROOT)])
        arguments = [argument.replace('DIR', str(folder)) for argument in arguments]
        return binary(name, *arguments, PYTHONPATH=path)

    return run


@pytest.mark.slow
def test_from_text_to_an_exported_model(folder, without):
    records = '--input=DIR/text.txt --tokenizer=DIR/vocab --output=DIR/records --seq_len=32'
    pretrain = '--config=quickstart --data=DIR/records --workdir=DIR/run'
    finetune = '--task=DIR/mood.json --init_from=DIR/run --workdir=DIR/tuned'
    changes = ' '.join(f'--set={change}' for change in TRAINING)
    for name, arguments in (
        ('train_vocab', '--input=DIR/text.txt --output=DIR/vocab --vocab_size=60'),
        ('preprocess', f'{records} --eval_fraction=0.2 --workers=2'),
        ('verify_data', 'DIR/records'),
        ('pretrain', f'{pretrain} {changes}'),
        ('evaluate', '--workdir=DIR/run --data=DIR/records'),
        ('finetune', f'{finetune} --set=epochs=1 --set=max_seq_length=16'),
        ('evaluate', '--workdir=DIR/tuned'),
        ('predict', '--workdir=DIR/tuned --input=DIR/train.jsonl --output=DIR/answers.jsonl'),
        (
            'extract_features',
            '--workdir=DIR/run --input=DIR/text.txt --output=DIR/x.npz --layers=-1',
        ),
        ('fill_mask', '--workdir=DIR/run the_[MASK]'),
        ('nearest', '--workdir=DIR/run --input=DIR/text.txt waves'),
        ('export', '--workdir=DIR/tuned --format=huggingface --output=DIR/hf'),
        ('export', '--workdir=DIR/run --format=google --output=DIR/google'),
        ('export', '--workdir=DIR/tuned --format=stablehlo --output=DIR/stablehlo'),
    ):
        run = without(name, *arguments.split())
        assert run.returncode == 0, (name, run.stderr)
    assert len((folder / 'answers.jsonl').read_text().splitlines()) == 32
    assert list((folder / 'run').glob('events.out.tfevents.*'))

    # The one setting that asks for it is refused before the run begins.
    other = pretrain.replace('DIR/run', 'DIR/refused').split()
    refused = without('pretrain', *other, *changes.split(), '--set=runtime.decoder=tfdata')
    assert (refused.returncode, refused.stdout) == (2, '')
    assert refused.stderr.splitlines()[-1] == (
        f'pretrain: error: runtime.decoder=tfdata: tensorflow is not installed: {INSTALL}, or take'
        ' the decoder auto, which reads with numpy'
    )


@pytest.mark.parametrize(
    ('name', 'arguments', 'said'),
    [
        (
            'export',
            '--workdir=DIR/none --format=saved_model --output=DIR/served',
            f'--format=saved_model: tensorflow is not installed: {INSTALL}',
        ),
        (
            'train_vocab',
            '--input=tfds:wikipedia/train --output=DIR/x',
            f'tfds:wikipedia/train: tensorflow_datasets is not installed: {INSTALL}',
        ),
        (
            'verify_data',
            'gs://bucket/records',
            'gs://bucket/records: gcsfs, which reads and writes gs://, is not installed: pip'
            " install -c constraints.txt '.[gcs]'",
        ),
    ],
    ids=['SavedModel', 'tfds', 'gs'],
)
def test_what_needs_it_says_so_in_one_line(without, name, arguments, said):
    run = without(name, *arguments.split())
    assert (run.returncode, run.stdout) == (2, '')
    assert run.stderr == f'{name}: error: {said}\n'
