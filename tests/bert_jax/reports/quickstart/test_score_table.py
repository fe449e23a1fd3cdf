"""The quickstart's table: numbers are those of the files, verdicts those of a hand count."""

from __future__ import annotations

import json
import math
import shlex

import numpy as np
import pytest

from bert_jax.configs.files.store import Result, Store
from bert_jax.reports.page import page
from bert_jax.reports.quickstart import score_table
from bert_jax.reports.quickstart.score_table import compare, report
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


def write(store: Store, stage: str, **files: object) -> None:
    """A finished stage; what is no text is JSON."""
    for name, content in files.items():
        path = store.of(stage) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    store.results[stage] = Result(store.of(stage), stage, 60.0)


@pytest.fixture
def finished(tmp_path):
    """A finished quickstart, with files as the stages write them."""
    store = Store(tmp_path)
    labels = ''.join(json.dumps({'label': label}) + '\n' for label in LABELS)
    write(store, 'text', **{'held_out.txt': 'A sentence.\n', 'held_out.jsonl': labels})
    write(store, 'records', **{'manifest.json': {}})
    write(store, 'pretrain', **{'eval/eval.json': {'step': 100, 'metrics': SCORES}})
    files, runs = {}, []
    for size, by_init in RIGHT.items():
        for init, counts in by_init.items():
            for seed, count in enumerate(counts):
                name = f'train_examples={size},init={init},seed={seed}'
                answers = [label if i < count else 'wrong' for i, label in enumerate(LABELS)]
                rows = ['index\tprediction', *(f'{i}\t{a}' for i, a in enumerate(answers))]
                files[f'runs/{name}/predictions/dev/predictions.tsv'] = '\n'.join(rows) + '\n'
                runs.append({'name': name, 'settings': {'train_examples': size, 'init': init}})
    write(store, 'finetune', **files, **{'sweep.json': {'runs': runs}})
    return store


def test_report(finished, tmp_path, monkeypatch):
    """The numbers; what needs a model, a masked word and the page of the runs, is set aside."""
    word = {'before': 'it is ', 'word': 'b', 'after': ' c', 'first': [('d', 0.2), ('e', 0.1)]}
    words = {'texts': [{**word, 'now': [('b', 0.9), ('f', 0.1)]}], 'began': 'fresh', 'why': ''}
    guess, pages = Baselines(2.0, 0.5, 0.6, 2 / 3, 4, 3), []
    monkeypatch.setattr('bert_jax.runs.pretraining.baselines.count_baselines', lambda _: guess)
    monkeypatch.setattr(score_table, 'fill_masked_words', lambda _: words)
    monkeypatch.setattr(page, 'write_report', lambda *args: pages.append(args) or 'report.html')
    text = report(finished, 'a text')
    results = read_json(tmp_path / 'results.json')
    assert results['pretraining']['nats_gained'] == 0.5
    assert results['finetuning']['majority'] == 0.5
    verdicts = {row['train_examples']: row['verdict'] for row in results['finetuning']['rows']}
    assert verdicts == {80: 'wins', 400: 'no clear difference', 2000: 'loses'}
    for piece in (
        '25.0%     50.0%  the most frequent token',
        '90.0%     66.7%',
        '0.500 nats gained over it',
        '60.0% ± 1.0     30.0% ± 2.0       +30.0  wins',
        '[b] c\n    before  d, e\n    after   b, f\n',
    ):
        assert piece in text, piece
    assert max(map(len, text.split('Masked words')[0].splitlines())) <= 100
    ((runs, path, samples),) = pages
    assert [run.name for run in runs] == ['pretrain', 'finetune']
    assert (path, samples) == (tmp_path / 'report.html', 6)

    # What guessing scores is one number on the page and in the terminal.
    (noted,) = notes.guesses(Workdir(tmp_path / 'pretrain'))
    assert noted.scores['mlm_loss'] == results['pretraining']['guessing']['mlm_loss'] == 2.0

    # The first run of most examples, and four times the steps.
    commands = [shlex.split(line) for line in text.splitlines() if 'bin/bert-' in line]
    names = [words[0].rpartition('/')[2] for words in commands]
    assert names == ['bert-fill-mask', 'bert-nearest', 'bert-predict', 'bert-pretrain']
    assert commands[0][-1] == 'it is [MASK] c'
    run = f'{tmp_path}/finetune/runs/train_examples=2000,init=source,seed=0'
    assert f'--workdir={run}' in commands[2] and '--steps=400' in commands[3]


def test_no_masked_words():
    """A script without spaces may have no whole words to hide."""
    why = 'no whole word is masked'
    lines = score_table.format_samples({'texts': [], 'began': '', 'why': why})
    assert lines == [f'No masked words are shown: {why}.']


def test_difference_counts_seeds_and_examples():
    """By hand: two variances, each over its number.

    Of the seeds, and of the mean difference over examples.
    """
    seen = lambda *shares: [np.arange(10) < share for share in shares]
    difference = compare(seen(6, 8), seen(4, 4))
    seeds = np.var([0.6, 0.8], ddof=1) / 2
    examples = np.var([0, 0, 0, 0, 1, 1, 0.5, 0.5, 0, 0], ddof=1) / 10
    assert difference['difference'] == pytest.approx(0.3)
    assert difference['standard_error'] == pytest.approx(math.sqrt(seeds + examples))
    # Seeds that agree do not make 1.2 points on a thousand examples a fact.
    rng = np.random.default_rng(0)
    a, b = ([rng.permutation(np.arange(1000) < right)] * 3 for right in (512, 500))
    assert compare(a, b)['verdict'] == difference['verdict'] == 'no clear difference'
    lone = compare([np.tile(run, 40) for run in seen(8)], [np.tile(run, 40) for run in seen(1)])
    assert (lone['standard_error'], lone['verdict']) == (None, 'no clear difference')
