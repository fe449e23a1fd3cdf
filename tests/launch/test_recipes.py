"""Recipes in several commands: what each command is given, on stand-ins that note it."""

from __future__ import annotations

import itertools
import os
import subprocess

import pytest

from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from tests.helpers.processes import ROOT, ok

NOTES = '#!/usr/bin/env bash\nprintf "%s\\n" "${0##*/}" "$@" >> commands\necho -- >> commands\n'


@pytest.fixture
def commands(tmp_path) -> list[list[str]]:
    """What mmbert.sh runs, a list of words for each command."""
    for name in ('bert-preprocess', 'bert-pretrain'):
        (tmp_path / 'bin').mkdir(exist_ok=True)
        (tmp_path / 'bin' / name).write_text(NOTES)
        (tmp_path / 'bin' / name).chmod(0o755)
    for number, languages in enumerate((['en'], ['en', 'ko'], ['en', 'ko', 'fo']), 1):
        text = ''.join(f'{code}=text {code}/*.txt\n' for code in languages)
        (tmp_path / f'{number}.txt').write_text(text)
    # No preset here has a base of rotary positions.
    given = {'TEXT': '.', 'TOKENIZER': 'vocab', 'OUTPUT': 'out', 'SHORT': '', 'LONG': ''}
    path = f'{tmp_path}/bin:{os.environ["PATH"]}'
    script = ROOT / 'launch/recipes/mmbert.sh'
    done = subprocess.run(
        ['bash', script], cwd=tmp_path, env={'PATH': path, **given}, capture_output=True, text=True
    )
    ok(done)
    return [
        text.split('\n')[:-1] for text in (tmp_path / 'commands').read_text().split('--\n')[:-1]
    ]


def test_mmberts_phases_are_as_published(commands):
    names = [words[0] for words in commands]
    assert names == ['bert-preprocess', 'bert-pretrain'] * 3
    flags = [
        dict(w[2:].split('=', 1) for w in words if w.startswith('--') and '=' in w)
        for words in commands
    ]
    records = [
        PreprocessOptions(
            input=tuple(w[8:] for w in words if w.startswith('--input=')),
            tokenizer='vocab',
            output=given['output'],
            seq_len=int(given['seq_len']),
            language_exponent=float(given['language_exponent']),
            masked_lm_prob=float(given['masked_lm_prob']),
            objective=given['objective'],
            packing='--packing' in words,
        )
        for words, given in zip(commands[::2], flags[::2], strict=True)
    ]
    assert [len(r.input) for r in records] == [1, 2, 3]
    assert [r.language_exponent for r in records] == [0.7, 0.5, 0.3]
    assert [r.masked_lm_prob for r in records] == [0.3, 0.15, 0.05]

    base = load('bert_base')
    sets = [[w for a, w in itertools.pairwise(words) if a == '--set'] for words in commands[1::2]]
    runs = [apply(base, [*changes, 'model.max_position=8192']) for changes in sets]
    assert [(p.seq_len, p.batch_size) for r in runs for p in r.phases] == [
        (1024, 4608),
        (8192, 576),
        (8192, 576),
    ]
    assert [g.get('init_from') for g in flags[1::2]] == [None, 'out/run1', 'out/run2']
    assert [g.get('init_by') for g in flags[1::2]] == [None, *['weights_and_moments'] * 2]
    assert [g['data'] for g in flags[1::2]] == [r.output for r in records]
    assert {run.optimizer.algorithm for run in runs} == {'stable_adamw'}
