"""A sweep's results: which run is called the best, and what is said of those that failed.

Also a sweep's folder where a run's is expected.
"""

from __future__ import annotations

import json

import pytest

from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.runs.finetuning import sweep
from tests.helpers.refusals import refused


def row(name, score, loss, failed):
    """A row of sweep.json; a constant answer has a loss of 0.7."""
    facts = {
        'task': 'mood',
        'split': 'dev',
        'metric': 'f1',
        'metrics': {'f1': score},
        'examples': 9,
    }
    facts |= {'train_loss': loss, 'chance_loss': 0.7, 'failed': failed, 'step': 3}
    return {'name': name, 'settings': {'lr': name, 'seed': 0}, **facts}


def test_a_failed_run_is_not_the_best_without_a_word():
    failed, learnt, other = (
        row('a', 0.81, 0.69, True),
        row('b', 0.8, 0.1, False),
        row('c', 0.7, 0.1, False),
    )
    last = lambda *rows: sweep.format_table(rows, 'f1').splitlines()[-1]
    assert last(failed, learnt, other) == 'best on dev: b (f1 0.8000); a has 0.8100 but has failed'
    assert last(learnt, other) == 'best on dev: b (f1 0.8000)'
    assert last(row('d', 0.1, 0.69, True), learnt) == 'best on dev: b (f1 0.8000)'
    assert last(failed) == 'best on dev: a (f1 0.8100); it has FAILED, as all runs have'
    assert sweep.find_best([failed, learnt, other]) is learnt
    assert sweep.find_best([row('e', float('nan'), 0.1, False), other]) is other


def test_what_methods_take_stands_beside_their_scores():
    def run(method, seed, score, costs):
        settings = {'tuning.method': method, 'seed': seed}
        name = f'{method},{seed}'
        noted = {} if costs is None else {'costs': dict(zip(sweep.COSTS, costs, strict=True))}
        return row(name, score, 0.1, False) | {'settings': settings} | noted

    rows = [
        run('full', 0, 0.8, (109_483_778, 438 * 2**20, 1.5 * 2**30, 700.0)),
        run('full', 1, 0.9, (109_483_778, 438 * 2**20, 1.5 * 2**30, 720.0)),
        run('lora', 0, 0.7, (296_450, 1.2 * 2**20, None, 400.0)),
        run('ia3', 0, 0.6, None),  # by a version that noted nothing
    ]
    lines = [line.split('  ') for line in sweep.format_table(rows, 'f1').splitlines()]
    cells = [[cell.strip() for cell in line if cell] for line in lines]
    assert cells[0][-4:] == ['trained', 'checkpoint', 'memory', 'ms a step']
    assert cells[1][-4:] == ['109,483,778', '0.43 GiB', '1.50 GiB', '710.0']
    assert cells[2][-4:] == ['296,450', '1.2 MiB', '-', '400.0']
    assert cells[3][-4:] == ['-', '-', '-', '-']

    # A sweep over anything else has the table that it had.
    assert 'trained' not in sweep.format_table([row('a', 0.8, 0.1, False)], 'f1')


@pytest.mark.parametrize('command, done', [('evaluate', True), ('predict', False)])
def test_a_command_on_a_sweep_names_its_runs(tmp_path, binary, command, done):
    for name in ('seed=0', 'seed=1'):
        (tmp_path / 'runs' / name).mkdir(parents=True)
        (tmp_path / 'runs' / name / 'config.json').write_text('{}')
    if done:
        (tmp_path / 'sweep.json').write_text(json.dumps({'best': 'seed=1'}))
    (tmp_path / 'a.txt').write_text('a\n')
    paths = [] if command == 'evaluate' else [f'--output={tmp_path}/out']
    paths += [f'--input={tmp_path}/a.txt'] if command == 'predict' else []
    ended = binary(command, f'--workdir={tmp_path}', *paths)
    best = 'seed=1' if done else 'seed=0'
    said = '2 runs, of which seed=1 is best' if done else '2 runs'
    assert ended.returncode == 2 and ended.stderr.count('\n') == 1
    flag = '--workdir=' if command == 'evaluate' else ''
    assert (
        f'{flag}{tmp_path} holds a sweep of {said}: name one of them, as in'
        f' {flag}{tmp_path}/runs/{best}\n'
    ) in ended.stderr


def test_a_task_without_dev_is_told_that_it_has_no_dev(tmp_path):
    settings = {
        'kind': 'regression',
        'files': {'train': 'x.tsv'},
        'columns': {'text': 0, 'label': 1},
    }
    (tmp_path / 'mine.json').write_text(json.dumps(settings))
    with refused('task mine has no dev split to be scored on, only train: give it one'):
        _ = load_task(str(tmp_path / 'mine.json')).selection_split
    settings['files']['test'] = 'y.tsv'
    (tmp_path / 'mine.json').write_text(json.dumps(settings))
    assert load_task(str(tmp_path / 'mine.json')).selection_split == 'test'
