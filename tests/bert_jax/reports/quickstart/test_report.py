"""The quickstart's report: numbers are those of the files, verdicts those of a hand count."""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics

import numpy as np
import pytest

from bert_jax.configs.files.store import Result, Store
from bert_jax.reports.page import page
from bert_jax.reports.page.samples import Hidden, Sample, Samples
from bert_jax.reports.quickstart import report
from bert_jax.reports.quickstart.results import compare
from bert_jax.runs.pretraining.baselines import Baselines

LABELS = 'aabc' * 25
SCORES = {
    'mlm_accuracy': 0.25, 'mlm_loss': 1.5, 'mlm_perplexity': math.exp(1.5),
    'nsp_accuracy': 0.9, 'nsp_loss': 0.4, 'masked': 4.0, 'examples': 3.0,
}  # fmt: skip


def stage(store: Store, name: str, seconds: float, files: dict[str, object]) -> None:
    """A finished stage; lists are JSON lines, other values than texts JSON."""
    for file, content in files.items():
        path = store.of(name) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = content if isinstance(content, list) else [content]
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        path.write_text(content if isinstance(content, str) else text)
    store.results[name] = Result(store.of(name), name, seconds)


def sweep(store: Store, size: int, **right: tuple[int, ...]) -> None:
    """Three runs a side on 100 held-out examples, each right on as many of them as given."""
    files, runs, summary = {}, [], []
    for init, counts in right.items():
        for seed, count in enumerate(counts):
            name = f'init={init},seed={seed}'
            answers = [label if i < count else 'wrong' for i, label in enumerate(LABELS)]
            rows = ['index\tprediction', *(f'{i}\t{a}' for i, a in enumerate(answers))]
            files[f'runs/{name}/predictions/dev/predictions.tsv'] = '\n'.join(rows) + '\n'
            runs.append({'name': name, 'settings': {'init': init, 'seed': seed}, 'step': 200})
        shares = [count / 100 for count in counts]
        scores = {'mean': statistics.fmean(shares), 'sd': statistics.stdev(shares)}
        summary.append({'settings': {'init': init}, 'runs': 3, 'metrics': {'accuracy': scores}})
    stage(
        store, f'finetune_{size}', 5.0, {**files, 'sweep.json': {'summary': summary, 'runs': runs}}
    )


@pytest.fixture
def finished(tmp_path):
    """A finished quickstart, with files as the commands write them."""
    store = Store(tmp_path)
    side = {'groups': 5, 'documents': 10, 'sentences': 40, 'bytes': 4000}
    counts = {'train': side, 'held_out': side, 'dropped': {'documents': 7, 'sentences': 8}}
    stage(store, 'text', 2.0, {'counts.json': counts, 'held_out.txt': 'A sentence.\n'})
    examples = [{'text': 't', 'label': label} for label in LABELS]
    stage(store, 'task', 1.0, {'held_out.jsonl': examples})
    manifest = {
        'vocab_size': 15, 'seq_len': 8, 'shards': [],
        'statistics': {'text': {'train': {'fill': 0.75}}},
    }  # fmt: skip
    stage(store, 'records', 3.0, {'manifest.json': manifest})
    config = {
        'name': 'quickstart', 'model': {'vocab_size': 15}, 'optimizer': {'warmup_steps': 7},
        'phases': [{'steps': 100, 'batch_size': 16, 'seq_len': 8}],
    }  # fmt: skip
    files = {
        'config.json': config,
        'eval/eval.json': {'step': 100, 'metrics': SCORES},
        'metrics.jsonl': [
            {'split': 'train', 'step': 50, 'loss': 9.0, 'tokens_per_s': 100.0, 'seconds': 1.0},
            {'split': 'train', 'step': 100, 'loss': 8.0, 'tokens_per_s': 400.0, 'seconds': 2.0},
            {'split': 'eval', 'step': 100, **SCORES},
        ],
    }
    stage(store, 'pretrain', 60.0, files)
    sweep(store, 400, source=(67, 70, 73), random=(65, 68, 71))
    sweep(store, 80, source=(59, 60, 61), random=(28, 30, 32))
    sweep(store, 2000, source=(69, 70, 71), random=(84, 85, 86))
    return store


def test_report(finished, tmp_path, monkeypatch):
    """The numbers; what needs a model, a masked word and the page of the runs, is set aside."""
    words = Sample(Hidden('it is ', 'b', ' c'), [('d', 0.2), ('e', 0.1)], [('b', 0.9), ('f', 0.1)])
    pages = []
    guess = Baselines(2.0, 0.5, 0.6, 2 / 3, 4, 3)
    monkeypatch.setattr('bert_jax.runs.pretraining.baselines.baselines', lambda _: guess)
    monkeypatch.setattr(report, 'fill_in', lambda _: Samples('fresh weights', 100, [words]))
    monkeypatch.setattr(page, 'write_report', lambda *args, **more: pages.append((*args, more)))
    text = report.write(finished, 'a text', 'which one?')
    results = json.loads((tmp_path / 'results.json').read_text())
    run = results['pretraining']
    assert run['final']['nats_gained'] == 0.5
    numbers = (1600, 1600 * 8 * 0.75, pytest.approx(0.75 * 900 / 3))
    assert (run['sequences'], run['tokens'], run['tokens_per_s']) == numbers
    assert results['finetuning']['majority'] == 0.5
    verdicts = {row['train_examples']: row['verdict'] for row in results['finetuning']['rows']}
    assert verdicts == {80: 'wins', 400: 'no clear difference', 2000: 'loses'}
    for piece in (
        '25.0 %    50.0 %  the most frequent token',
        '90.0 %    66.7 %',
        '0.500 nats gained over it',
        '60.0 % ± 1.0    30.0 % ± 2.0       +30.0  wins',
        'better from the pre-trained weights at 80 training examples',
        'WORSE from the pre-trained weights at 2,000 training examples',
        'no clear difference at 400 training examples',
    ):
        assert piece in text, piece
    table, below = text.split('Masked words of held-out text')
    assert max(map(len, table.splitlines())) <= 110
    assert '[b] c\n    before  d, e\n    after   b, f\n' in below

    # The page has the runs, and before them the table and its picture.
    ((runs, path, more),) = pages
    assert [run.name for run in runs] == [
        'pretrain',
        'finetune_80',
        'finetune_400',
        'finetune_2000',
    ]
    assert path == tmp_path / 'report.html' and list(more['filled']) == [f'{tmp_path}/pretrain']
    ((heading, (shown, pictures)),) = more['first']
    assert heading == 'Quickstart' and shown.text == table.rstrip('\n') + '\n'
    assert 'random weights' in pictures.figures[0].svg

    # The fourth run of most examples, and four times the steps: 100 in this run.
    commands = [line.strip() for line in below.splitlines() if ' -m bert_jax.launch.' in line]
    assert [re.search(r'-m bert_jax\.launch\.(\w+)', line)[1] for line in commands] == [
        'fill_mask', 'nearest', 'predict', 'pretrain',
    ]  # fmt: skip
    assert shlex.split(commands[0])[-1] == 'it is [MASK] c'
    assert f'--workdir={tmp_path}/finetune_2000/runs/init=source,seed=0' in shlex.split(commands[2])
    assert '--set=phases.0.steps=400 --set=optimizer.warmup_steps=28' in commands[3]


def test_no_masked_words_are_no_fault():
    """A script without spaces may have no whole words to hide."""
    none = {'samples': {'texts': [], 'began': '', 'why': 'no whole word is masked'}}
    assert report.words_filled_in(none) == ['No masked words are shown: no whole word is masked.']


def test_what_was_not_learned_is_said():
    results = {
        'pretraining': {
            'final': {'nats_gained': -0.2, 'nsp_accuracy': 0.6},
            'guessing': {'nsp_accuracy': 0.6},
        },
        'finetuning': {'rows': [{'train_examples': 80, 'verdict': 'no clear difference'}]},
    }
    lines = report.conclusions(results)
    assert 'hardly more than how frequent tokens are (-0.20 nats' in lines[0]
    assert 'not learned' in lines[1] and 'no clear difference at 80' in lines[2]


def test_difference_counts_seeds_and_examples():
    """By hand: two variances, each over its number.

    Of the seeds, and of the mean difference over examples.
    """
    seen = lambda *shares: [[i < share for i in range(10)] for share in shares]
    found = compare(seen(6, 8), seen(4, 4))
    seeds = np.var([0.6, 0.8], ddof=1) / 2
    examples = np.var([0, 0, 0, 0, 1, 1, 0.5, 0.5, 0, 0], ddof=1) / 10
    assert found['difference'] == pytest.approx(0.3)
    assert found['standard_error'] == pytest.approx(math.sqrt(seeds + examples))
    assert found['verdict'] == 'no clear difference'
    # Seeds that agree do not make 1.2 points on a thousand examples a fact.
    rng = np.random.default_rng(0)
    a, b = ([rng.permutation(np.arange(1000) < right).tolist()] * 3 for right in (512, 500))
    assert compare(a, b)['verdict'] == 'no clear difference'
    many = lambda *shares: [run * 40 for run in seen(*shares)]
    assert compare(many(8, 8), many(4, 4))['verdict'] == 'wins'
    assert compare(many(4, 4), many(8, 8))['verdict'] == 'loses'
    assert compare(many(8), many(1)) == {
        'difference': pytest.approx(0.7),
        'standard_error': None,
        'verdict': 'no clear difference',
    }
