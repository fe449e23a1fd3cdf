"""bert-pretrain on every kind of records that bert-preprocess makes."""

from __future__ import annotations

import json
import random

import pytest

from bert_jax.runs.workdir.metrics import read_metrics

TRAINING = (
    'phases.0.steps=40',
    'phases.0.batch_size=16',
    'optimizer.warmup_steps=5',
    'runtime.log_every=10',
    'runtime.eval_every=20',
    'runtime.checkpoint_every=40',
)
WORDS = (
    'the ship sailed over deep water while sailors watched waves harbour storm anchor tide captain'
).split()


@pytest.mark.slow
@pytest.mark.parametrize(
    'options',
    [['--masking=dynamic', '--whole_word'], ['--packing', '--short_seq_prob=0.9']],
    ids=lambda o: o[0][2:],
)
def test_pretrain_learns_from_them(options, tmp_path, binary):
    rng = random.Random(0)
    documents = [
        '\n'.join(' '.join(rng.choices(WORDS, k=8)) + '.' for _ in range(8)) for _ in range(120)
    ]
    (tmp_path / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    text = f'--input={tmp_path}/text.txt'
    made = binary('train_vocab', text, f'--output={tmp_path}/vocab', '--vocab_size=120')
    assert made.returncode == 0, made.stderr
    shape = ('--seq_len=32', '--eval_fraction=0.1', '--workers=1')
    made = binary(
        'preprocess',
        text,
        f'--tokenizer={tmp_path}/vocab',
        f'--output={tmp_path}/records',
        *shape,
        *options,
    )
    assert made.returncode == 0, made.stderr

    vocab_size = json.loads((tmp_path / 'records' / 'manifest.json').read_text())['vocab_size']
    changes = [
        f'--set={change}'
        for change in (*TRAINING, f'model.vocab_size={vocab_size}', 'runtime.decoder=numpy')
    ]
    result = binary(
        'pretrain',
        '--config=quickstart',
        f'--data={tmp_path}/records',
        f'--workdir={tmp_path}/run',
        *changes,
    )
    assert result.returncode == 0, result.stderr
    found = {(m['split'], m['step']): m for m in read_metrics(tmp_path / 'run' / 'metrics.jsonl')}
    assert found['train', 40]['mlm_loss'] < found['train', 10]['mlm_loss'] - 0.3
    assert {'nsp_accuracy_is_next', 'nsp_accuracy_random', 'mlm_accuracy'} <= set(found['eval', 40])
