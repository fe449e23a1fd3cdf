"""GLUE's table and submission from a glob of runs.

The best run of each task, the site's names and labels, and what is missing.
"""

from __future__ import annotations

import json
import zipfile

import pytest

import bert_jax
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.runs.finetuning import glue as glue_suite
from tests.helpers.files import read_json
from tests.helpers.refusals import refused

# task -> (folder of the download, columns of its test files, the metric that selects)
TASKS = {
    'cola': ('CoLA', 2, 'matthews'),
    'sst2': ('SST-2', 2, 'accuracy'),
    'mrpc': ('MRPC', 5, 'f1'),
    'stsb': ('STS-B', 9, 'spearman'),
    'qqp': ('QQP', 3, 'f1'),
    'mnli': ('MNLI', 10, 'accuracy'),
    'qnli': ('QNLI', 3, 'accuracy'),
    'rte': ('RTE', 3, 'accuracy'),
}


def write(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.fixture
def glue(tmp_path):
    """Three test rows of every task, WNLI's training set, and the diagnostic set."""
    for task, (folder, columns, _) in TASKS.items():
        rows = [[str(i), *['x'] * (columns - 1)] for i in range(-1, 3)]  # the first are names
        text = ''.join('\t'.join(row) + '\n' for row in rows)
        for name in ('test_matched', 'test_mismatched') if task == 'mnli' else ('test',):
            write(tmp_path / 'glue' / folder, f'{name}.tsv', text)
    rows = 'index\tsentence1\tsentence2\n0\ta\tb\n1\ta\tb\n'
    labelled = 'index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n1\ta\tb\t1\n2\ta\tb\t0\n'
    write(tmp_path / 'glue/WNLI', 'train.tsv', labelled)
    write(tmp_path / 'glue/WNLI', 'test.tsv', rows)
    write(tmp_path / 'glue/diagnostic', 'diagnostic.tsv', rows)
    return tmp_path / 'glue'


def run_folder(folder, glue, task, score, splits=('dev', 'test'), step=3):
    """What bert-finetune and bert-evaluate leave: results by split, and predictions."""
    known = load_task(task, str(glue / TASKS[task][0]))
    write(folder, 'data.json', json.dumps({'task': task, 'data_dir': str(glue / TASKS[task][0])}))
    for split in splits:
        metrics = {TASKS[task][2]: score} if 'dev' in split else {}
        result = {'task': task, 'split': split, 'metric': TASKS[task][2], 'metrics': metrics}
        result |= {'step': step, 'config_hash': 'h'}
        write(folder / 'eval', f'{split}.json', json.dumps(result))
        answers = [known.labels[0] if known.labels else 2.5] * 3
        lines = ['index\tprediction', *(f'{i}\t{answer}' for i, answer in enumerate(answers))]
        write(folder / 'predictions' / split, 'predictions.tsv', '\n'.join(lines) + '\n')


@pytest.fixture
def small(monkeypatch):
    """A site whose test sets are those of `glue`."""
    files = {
        name: (*expected[:2], 2 if name in ('AX', 'WNLI') else 3)
        for name, expected in glue_suite._FILES.items()
    }
    monkeypatch.setattr(glue_suite, '_FILES', files)


@pytest.fixture
def runs(tmp_path, glue):
    for task in TASKS:
        run_folder(tmp_path / 'runs' / task, glue, task, 0.66)
    mnli = tmp_path / 'runs/mnli'
    run_folder(mnli, glue, 'mnli', 0.834, ('dev_mismatched', 'test_mismatched', 'ax-test'))
    answers = 'index\tprediction\n1\tneutral\n0\tentailment\n'
    write(mnli / 'predictions/ax-test', 'predictions.tsv', answers)
    return tmp_path / 'runs'


def test_the_best_run_on_dev_stands_for_its_task(tmp_path, runs, glue):
    run_folder(runs / 'sweep/runs/seed=1', glue, 'rte', 0.71)
    assert glue_suite.find_runs(f'{runs}/*')['rte'].folder.endswith('sweep/runs/seed=1')
    best = runs / 'sweep/runs/seed=1/eval/dev.json'
    best.write_text(json.dumps(read_json(best) | {'failed': True}))
    assert glue_suite.find_runs(f'{runs}/*')['rte'].folder == str(runs / 'rte')
    with refused('no folder that matches is a finished run'):
        glue_suite.find_runs(f'{tmp_path}/nothing*')


def test_the_zip_is_what_the_site_takes(tmp_path, runs, small):
    output = tmp_path / 'out.zip'
    result = bert_jax.evaluate(suite='glue', runs=f'{runs}/*', output=output)
    table, *_, last = result.text.splitlines()
    assert 'Average' in table and last == f'wrote {output}'
    with zipfile.ZipFile(output) as archive:
        files = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    names = 'AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI'.split()
    assert sorted(files) == [f'{name}.tsv' for name in names]
    assert all(lines[0] == 'index\tprediction' for lines in files.values())
    assert files['AX.tsv'][1:] == ['0\tentailment', '1\tneutral']  # in the order of the test file
    assert files['WNLI.tsv'][1:] == ['0\t0', '1\t0']  # the majority of its training set
    first = [files[f'{name}.tsv'][1].split('\t')[1] for name in ('MNLI-mm', 'QNLI', 'STS-B')]
    assert first == ['contradiction', 'entailment', '2.5']


def test_what_is_missing_is_named(tmp_path, runs, small, glue):
    found = glue_suite.find_runs(f'{runs}/*')
    partial = {task: run for task, run in found.items() if task not in ('qqp', 'mnli')}
    assert glue_suite.format_table(partial).splitlines()[1].split()[:2] == ['-', '-']
    (glue / 'QNLI/test.tsv').unlink()
    message = (
        r'missing a run of qqp; a run of mnli; the folder diagnostic in .*QNLI/test.tsv: no such'
        r' file'
    )
    with refused(message):
        glue_suite.submit(partial, None, str(tmp_path / 'out.zip'))
    assert not (tmp_path / 'out.zip').exists()
