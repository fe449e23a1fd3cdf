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
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.workdir import Workdir
from tests.helpers.files import read_json

LABELS = 'aabc' * 25
SCORES = {
    'mlm_accuracy': 0.25, 'mlm_loss': 1.5, 'mlm_perplexity': math.exp(1.5),
    'nsp_accuracy': 0.9, 'nsp_loss': 0.4, 'masked': 4.0, 'examples': 3.0,
}  # fmt: skip
# Of 100 held-out examples, how many three runs were right on: from trained and from random weights.
RIGHT = {
    80: {'source': (59, 60, 61), 'random': (28, 30, 32)},
    400: {'source': (67, 70, 73), 'random': (65, 68, 71)},
    2000: {'source': (69, 70, 71), 'random': (84, 85, 86)},
}


def stage(store: Store, name: str, seconds: float, **files: object) -> None:
    """A finished stage; values other than texts are JSON, a line each where there are several."""
    for file, content in files.items():
        path = store.of(name) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = content if isinstance(content, list) else [content]
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        path.write_text(content if isinstance(content, str) else text)
    store.results[name] = Result(store.of(name), name, seconds)


def sweep() -> dict[str, object]:
    """The files of a sweep in which the runs are right as often as RIGHT has it."""
    files, runs, summary = {}, [], []
    for size, init in ((size, init) for size, by_init in RIGHT.items() for init in by_init):
        settings, counts = {'train_examples': size, 'init': init}, RIGHT[size][init]
        for seed, count in enumerate(counts):
            name = f'train_examples={size},init={init},seed={seed}'
            answers = [label if i < count else 'wrong' for i, label in enumerate(LABELS)]
            rows = ['index\tprediction', *(f'{i}\t{a}' for i, a in enumerate(answers))]
            files[f'runs/{name}/predictions/dev/predictions.tsv'] = '\n'.join(rows) + '\n'
            runs.append({'name': name, 'settings': {**settings, 'seed': seed}, 'step': 200})
        shares = [count / 100 for count in counts]
        scores = {'mean': statistics.fmean(shares), 'sd': statistics.stdev(shares)}
        summary.append({'settings': settings, 'runs': 3, 'metrics': {'accuracy': scores}})
    return {**files, 'sweep.json': {'summary': summary, 'runs': runs}}


@pytest.fixture
def finished(tmp_path):
    """A finished quickstart, with files as the commands write them."""
    store = Store(tmp_path)
    stage(store, 'text', 2.0, **{'counts.json': {'train': {}}, 'held_out.txt': 'A sentence.\n'})
    stage(store, 'task', 1.0, **{'held_out.jsonl': [{'label': label} for label in LABELS]})
    statistics = {'text': {'train': {'fill': 0.75}}}
    manifest = {'vocab_size': 15, 'seq_len': 8, 'statistics': statistics}
    stage(store, 'records', 3.0, **{'manifest.json': manifest})
    config = {
        'name': 'quickstart', 'model': {'vocab_size': 15}, 'optimizer': {'warmup_steps': 7},
        'phases': [{'steps': 100, 'batch_size': 16, 'seq_len': 8}],
    }  # fmt: skip
    result = {'step': 100, 'metrics': SCORES}
    stage(store, 'pretrain', 60.0, **{'config.json': config, 'eval/eval.json': result})
    stage(store, 'finetune', 5.0, **sweep())
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
    results = read_json(tmp_path / 'results.json')
    run = results['pretraining']
    assert run['final']['nats_gained'] == 0.5 and results['finetuning']['majority'] == 0.5
    assert (run['sequences'], run['tokens']) == (1600, 1600 * 8 * 0.75)
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
    table, told = table.rstrip().rsplit('\n\n', 1)
    assert max(map(len, table.splitlines())) <= 110
    assert '[b] c\n    before  d, e\n    after   b, f\n' in below

    # The page has the runs, and opens with the same words and the same table.
    ((runs, path, more),) = pages
    assert [run.name for run in runs] == ['pretrain', 'finetune']
    assert path == tmp_path / 'report.html' and list(more['filled']) == [f'{tmp_path}/pretrain']
    *headlines, shown = more['result']
    assert [line.text for line in headlines] == told.splitlines() and shown.text == table
    assert 'the model quickstart, with 15 entries' in table

    # What guessing scores is one number on the page and in the terminal.
    (noted,) = notes.guesses(Workdir(tmp_path / 'pretrain'))
    assert noted.scores['mlm_loss'] == run['guessing']['mlm_loss'] == 2.0

    # The first run of most examples, and four times the steps: 100 in this run.
    commands = [line.strip() for line in below.splitlines() if ' -m bert_jax.launch.' in line]
    names = [re.search(r'-m bert_jax\.launch\.(\w+)', line)[1] for line in commands]
    assert names == ['fill_mask', 'nearest', 'predict', 'pretrain']
    assert shlex.split(commands[0])[-1] == 'it is [MASK] c'
    run = f'{tmp_path}/finetune/runs/train_examples=2000,init=source,seed=0'
    assert f'--workdir={run}' in shlex.split(commands[2])
    assert '--steps=400' in commands[3] and '--set' not in commands[3]


def test_what_was_not_learned_is_said():
    results = {
        'pretraining': {
            'final': {'nats_gained': -0.2, 'nsp_accuracy': 0.6},
            'guessing': {'nsp_accuracy': 0.6},
        },
        'finetuning': {'rows': [{'train_examples': 80, 'verdict': 'no clear difference'}]},
        # A script without spaces may have no whole words to hide.
        'samples': {'texts': [], 'began': '', 'why': 'no whole word is masked'},
    }
    lines = report.conclusions(results)
    assert 'less than how frequent tokens are (-0.20 nats' in lines[0]
    assert 'not learned' in lines[1] and 'no clear difference at 80' in lines[2]
    line = 'No masked words are shown: no whole word is masked.'
    assert report.words_filled_in(results) == [line]


def test_difference_counts_seeds_and_examples():
    """By hand: two variances, each over its number.

    Of the seeds, and of the mean difference over examples.
    """
    seen = lambda *shares: [[i < share for i in range(10)] for share in shares]
    difference = compare(seen(6, 8), seen(4, 4))
    seeds = np.var([0.6, 0.8], ddof=1) / 2
    examples = np.var([0, 0, 0, 0, 1, 1, 0.5, 0.5, 0, 0], ddof=1) / 10
    assert difference['difference'] == pytest.approx(0.3)
    assert difference['standard_error'] == pytest.approx(math.sqrt(seeds + examples))
    # Seeds that agree do not make 1.2 points on a thousand examples a fact.
    rng = np.random.default_rng(0)
    a, b = ([rng.permutation(np.arange(1000) < right).tolist()] * 3 for right in (512, 500))
    assert compare(a, b)['verdict'] == difference['verdict'] == 'no clear difference'
    lone = compare([run * 40 for run in seen(8)], [run * 40 for run in seen(1)])
    assert (lone['standard_error'], lone['verdict']) == (None, 'no clear difference')
