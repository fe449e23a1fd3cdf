"""PyTorch's side of benchmarks.finetune learns a small task, from its file to a score.

With one text, with two, and of numbers.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

_REASON = 'PyTorch and transformers are not installed: bash launch/test.sh --parity'
pytest.importorskip('torch', reason=_REASON)
transformers = pytest.importorskip('transformers', reason=_REASON)

from bert_jax.configs import schema
from tests.parity import reference

# Warnings of torch and transformers are not ours to mend.
pytestmark = pytest.mark.filterwarnings('default')
ROOT = pathlib.Path(__file__).parents[2]
WORDS = 'good fine great bad poor dull film book'.split()


@pytest.fixture
def encoder(tmp_path):
    """A Hugging Face directory: random weights and a vocabulary of a few words."""
    vocabulary = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
    folder = tmp_path / 'encoder'
    shape = {
        'hidden_size': 32,
        'num_hidden_layers': 1,
        'num_attention_heads': 2,
        'intermediate_size': 64,
    }
    reference.random_model(
        'BertModel', vocab_size=len(vocabulary), max_position_embeddings=16, **shape
    ).save_pretrained(folder)
    (folder / 'vocab.txt').write_text('\n'.join(vocabulary) + '\n')
    transformers.BertTokenizerFast(str(folder / 'vocab.txt')).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize('kind', ['classification', 'pair', 'regression'])
def test_what_one_word_decides_is_learnt(tmp_path, encoder, kind):
    rows = [f'{word} {thing}' for word in WORDS[:6] for thing in WORDS[6:]] * 5
    good = lambda row: row.split()[0] in WORDS[:3]
    number = kind == 'regression'
    lines = [
        json.dumps(
            {
                'a': row,
                'b': 'film',
                'label': float(good(row)) if number else 'no yes'.split()[good(row)],
            }
        )
        for row in rows
    ]
    for split in ('train', 'dev'):
        (tmp_path / f'{split}.jsonl').write_text('\n'.join(lines) + '\n')
    columns = {'text': 'a', 'label': 'label'} | ({'text_b': 'b'} if kind == 'pair' else {})
    task = {'kind': kind, 'files': {'train': 'train.jsonl', 'dev': 'dev.jsonl'}, 'columns': columns}
    task |= (
        {'metrics': ['pearson']} if number else {'labels': ['no', 'yes'], 'metrics': ['accuracy']}
    )
    (tmp_path / 'task.json').write_text(json.dumps(task))
    optimizer = dataclasses.replace(
        schema.FinetuneConfig().optimizer, algorithm='adamw', schedule='linear', peak_lr=3e-3
    )
    config = schema.FinetuneConfig(
        max_seq_length=8,
        batch_size=10,
        epochs=20.0,
        length_buckets=1 + (kind == 'pair'),
        optimizer=optimizer,
    )
    (tmp_path / 'runs' / 'one').mkdir(parents=True)
    (tmp_path / 'runs' / 'one' / 'config.json').write_text(schema.dumps(config))
    (tmp_path / 'sweep.json').write_text(
        json.dumps(
            {'runs': [{'name': 'one', 'settings': {}, 'metrics': {task['metrics'][0]: 1.0}}]}
        )
    )
    flags = [
        f'--runs={tmp_path}',
        f'--task={tmp_path}/task.json',
        f'--init_from={encoder}',
        '--seeds=0',
        f'--json={tmp_path}/scores.json',
    ]
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.finetune', *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and '(sd nan, 1 seeds)' in done.stdout, done.stderr
    (score,) = json.loads((tmp_path / 'scores.json').read_text())['seeds']['0']['metrics'].values()
    assert score > 0.95
