"""The page of runs: read back by Python's own parser and compared with what the folders hold."""

from __future__ import annotations

import html.parser
import itertools
import json
import pathlib
import re
import shutil

import pytest

from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.reports.page import page as pages
from bert_jax.reports.page.page import write_report
from bert_jax.reports.page.runs import open_all
from bert_jax.runs.finetuning import sweep as sweeps
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.workdir import Workdir
from tests.helpers import commands
from tests.helpers.files import write_jsonl, write_lines
from tests.helpers.refusals import refused

VOID = {'meta', 'br', 'link', 'img', 'input', 'hr'}
# Held-out scores as a run might have them, and what guessing has on the same records.
EVALUATIONS = [(50, 6.5, 0.0625, 0.25), (100, 4.25, 0.375, 2.25)]
GUESS = {'mlm_loss': 6.5, 'mlm_accuracy': 0.05, 'nsp_loss': 0.69, 'nsp_accuracy': 0.53125}


class Page(html.parser.HTMLParser):
    """A parsed page: its tags, its text, and its tables, (caption, rows) each."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.tables, self._open = [], '', [], []
        self.source = pathlib.Path(path).read_text(encoding='utf-8')
        self.feed(self.source)
        self.close()
        assert not self._open, f'not closed: {self._open}'

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == 'table':
            self.tables.append(['', []])
        elif tag == 'tr':
            self.tables[-1][1].append([])
        elif tag in ('td', 'th'):
            self.tables[-1][1][-1].append('')

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if 'style' in self._open:
            return
        self.text += data
        if 'caption' in self._open:
            self.tables[-1][0] += data
        elif {'td', 'th'} & set(self._open):
            self.tables[-1][1][-1][-1] += data

    def table(self, pattern):
        """The rows of the one table whose caption begins with the pattern."""
        (rows,) = [rows for caption, rows in self.tables if re.match(pattern, caption)]
        return rows


def write_metrics(folder, lines):
    write_jsonl(pathlib.Path(folder) / 'metrics.jsonl', lines)


def pretraining_run(folder, *changes, steps=100):
    """The folder of a pre-training run, without weights."""
    settings = ['phases.0.steps=100', 'optimizer.warmup_steps=10', *changes]
    Workdir(folder).create_or_resume(apply(load('bert_tiny'), settings), {'records': []})
    lines = []
    rates = {'learning_rate': 1e-3, 'tokens_per_s': 1234.0, 'seconds': 33.0}
    for step, loss, accuracy, gained in EVALUATIONS:
        lines.append({'step': step, 'split': 'train', 'mlm_loss': loss + 0.5, **rates})
        scores = {'mlm_loss': loss, 'mlm_accuracy': accuracy, 'nsp_loss': 0.5, 'nsp_accuracy': 0.75}
        lines.append({'step': step, 'split': 'eval', **scores, 'nats_gained': gained})
    write_metrics(folder, [line for line in lines if line['step'] <= steps])
    return folder


def finetuning_run(folder, task, seed, rate, answers, changes=()):
    """The folder of a fine-tuning run that is done, with its answers to the dev split."""
    config = apply(choose_recipe('mood'), [f'seed={seed}', f'optimizer.peak_lr={rate}', *changes])
    data = {
        'task': str(task), 'data_dir': '', 'head': 'classifier', 'labels': ['bad', 'good'],
        'init_from': 'somewhere', 'model': {},
    }  # fmt: skip
    Workdir(folder).create_or_resume(config, data)
    right = sum(answer == truth for answer, truth in zip(answers, TRUTH, strict=True))
    result = {
        'task': 'mood', 'split': 'dev', 'metric': 'accuracy',
        'metrics': {'accuracy': right / len(TRUTH)}, 'examples': len(TRUTH), 'step': 20,
        'train_loss': 0.5, 'chance_loss': 0.6931, 'failed': False, 'seconds': 61.0,
    }  # fmt: skip
    write_metrics(folder, [{'step': 20, 'split': 'train', 'loss': 0.5, 'learning_rate': rate}])
    notes.note_guess(folder, notes.Guess(0, {'loss': 0.6931, 'accuracy': 0.625}))
    rows = [f'{number}\t{answer}' for number, answer in enumerate(answers)]
    for file, text in (
        ('eval/dev.json', json.dumps(result)),
        ('predictions/dev/predictions.tsv', '\n'.join(['index\tprediction', *rows]) + '\n'),
    ):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text)


INITS = ('source', 'random')
TRUTH = ['good', 'bad', 'good', 'good', 'bad', 'good', 'good', 'bad']


@pytest.fixture
def sweep(tmp_path):
    """Two rates with three seeds each; the second rate answers everything with good."""
    for split in ('train', 'dev'):
        rows = [json.dumps({'text': f'text {n}', 'label': label}) for n, label in enumerate(TRUTH)]
        write_lines(tmp_path / f'{split}.jsonl', rows)
    task = {
        'kind': 'classification', 'labels': ['bad', 'good'],
        'files': {split: f'{split}.jsonl' for split in ('train', 'dev')},
        'columns': {'text': 'text', 'label': 'label'},
    }  # fmt: skip
    (tmp_path / 'mood.json').write_text(json.dumps(task))
    answers = {
        1e-4: [TRUTH, ['good', *TRUTH[1:7], 'good'], ['bad', *TRUTH[1:7], 'good']],
        5e-4: [['good'] * 8] * 3,
    }
    for rate, by_seed in answers.items():
        for seed, given in enumerate(by_seed):
            name = f'optimizer.peak_lr={rate},seed={seed}'
            folder = tmp_path / 'sweep/runs' / name
            finetuning_run(folder, tmp_path / 'mood.json', seed, rate, given)
    return tmp_path / 'sweep'


def page_of(*folders, **options):
    return Page(write_report(folders, sample_count=0, **options))


def test_the_page_loads_nothing_and_names_every_run(tmp_path, sweep):
    name = '<script>alert("1")<%2Fscript> & <b>'
    one = pretraining_run(tmp_path / name, 'name=<i>x</i>')
    other = pretraining_run(tmp_path / '한국어 हिन्दी ß', 'optimizer.peak_lr=5e-4')
    page = page_of(one, other, sweep)
    assert write_report([one], sample_count=0) == str(one / 'report.html')
    names = [name, '한국어 हिन्दी ß', *(f'sweep: {run.name}' for run in (sweep / 'runs').iterdir())]
    assert all(name in page.text for name in names)

    # No tag of a user's name, none that loads, no attribute of anything but a part of the page.
    loads = {'script', 'link', 'img', 'iframe', 'object', 'image'}
    assert not {tag for tag, _ in page.tags} & (loads | {'b', 'i'})
    attributes = [item for _, attributes in page.tags for item in attributes.items()]
    for name, value in attributes:
        assert name not in ('src', 'srcset', 'action', 'data', 'poster')
        assert not name.startswith('on') and (name != 'href' or value.startswith('#'))
    assert 'http://' not in page.source and 'https://' not in page.source
    assert all(url.startswith('#') for url in re.findall(r'url\((.*?)\)', page.source))
    assert '@import' not in page.source

    # Each id is there once, and every id that is referred to is there.
    ids = [value for name, value in attributes if name == 'id']
    referred = set(re.findall(r'url\(#(.*?)\)', page.source))
    referred |= {value.removeprefix('#') for name, value in attributes if name == 'href'}
    assert len(set(ids)) == len(ids) and referred <= set(ids)

    # Pictures have the colours of the page, light or dark, and a curve its name.
    colours = re.findall(r'(?:fill|stroke): ([^;"]*)', page.source.partition('<body>')[2])
    assert {colour for colour in colours if not colour.startswith('var(--')} <= {'none'}
    assert ('title', {}) in page.tags[page.tags.index(('body', {})) :]


def test_counts_have_no_decimals():
    assert pages.write_value('masked', 124889.0) == '124,889'
    assert pages.write_value('mlm_loss', 6.5) == '6.5000'


def test_numbers_are_those_of_the_metrics_beside_what_guessing_scores(tmp_path):
    run = pretraining_run(tmp_path / 'run')
    notes.note_guess(str(run), notes.Guess(0, GUESS, 'records'))
    page = page_of(run)
    head, row = page.table('Last evaluation')
    assert [re.sub(r'.*\(|\)', '', cell) for cell in head[1:5]] == [
        'mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy',
    ]  # fmt: skip
    assert row == [
        'run', '4.2500 (6.5000)', '37.5 % (5.0 %)', '0.5000 (0.6900)', '75.0 % (53.1 %)', '100',
        '0:01:06',
    ]  # fmt: skip
    for column, caption, factor in ((1, 'Masked tokens: loss', 1), (2, 'Masked tokens: acc', 100)):
        _, *rows = page.table(caption)
        shown = [float(value.removesuffix(' %')) for *_, value in rows]
        assert shown == pytest.approx([factor * scores[column] for scores in EVALUATIONS], abs=0.06)
        assert [(split, step) for _, split, step, _ in rows] == [
            ('held out', '50'),
            ('held out', '100'),
        ]


def test_the_page_opens_with_what_came_out_and_has_one_number_for_a_thing(tmp_path, sweep):
    run = pretraining_run(tmp_path / 'run')
    notes.note_guess(str(run), notes.Guess(0, GUESS, 'records'))
    first = lambda page: page.text.split('Pre-training')[1]
    page = page_of(run, sweep)
    for line in (
        'run: 2.25 nats better than guessing by word frequencies (held-out mlm_loss 4.25, guessing'
        ' 6.50)',
        'Model: bert_tiny, 2 layers, 128 wide, 30,522 entries. Text: the records in records.',
        'sweep: 0.375 better than guessing (dev accuracy 1.000, guessing 0.625)',
        'Model: somewhere. Task: ',
    ):
        assert line in first(page), line
    # What bert-evaluate has measured of the same weights takes the place of fewer records.
    result = {'step': 100, 'metrics': {'mlm_loss': 4.0, 'mlm_accuracy': 0.4}}
    (run / 'eval').mkdir()
    (run / 'eval/eval.json').write_text(json.dumps(result))
    page = page_of(run)
    assert 'run: 2.50 nats better than guessing' in page.text
    assert page.table('Last evaluation')[1][1:3] == ['4.0000 (6.5000)', '40.0 % (5.0 %)']


def test_only_what_differs_is_not_folded(tmp_path):
    one = pretraining_run(tmp_path / 'left/run')
    other = pretraining_run(tmp_path / 'right/run', 'optimizer.peak_lr=5e-4', 'seed=3')
    page = page_of(one, other, tmp_path / 'right/../left/run')
    # Runs of one name are told apart, and each is there once.
    assert page.table('What differs') == [
        ['setting', 'left/run', 'right/run'],
        ['seed', '12345', '3'],
        ['optimizer.peak_lr', '0.001', '0.0005'],
    ]
    same = dict(page.table('.* settings that all have alike')[1:])
    assert same['model.hidden_size'] == '128' and 'seed' not in same


def test_the_spread_of_a_sweep_is_over_its_seeds(sweep):
    page = page_of(sweep)
    head, first, second = page.table('accuracy on dev')
    # By hand: 8, 7 and 6 of 8 right; mean 7/8, sample standard deviation 1/8.
    assert first == [
        'peak_lr=0.0001', '87.5 %', '12.5 %', '100.0 %', '3', '–',
    ]  # fmt: skip
    assert second[1:4] == ['62.5 %', '0.0 %', '62.5 %'] and len(head) == len(first)
    assert 'guessing scores 62.5 %' in page.text

    # Each run is there once more, folded, with its own score.
    _, *runs = page.table('Scores')
    assert 'All 6 runs' in page.text and len(runs) == 6
    assert runs[1][:2] == ['sweep: optimizer.peak_lr=0.0001,seed=1', 'accuracy 87.5 % (62.5 %)']


def test_scores_over_a_setting_of_numbers_are_lines(sweep):
    """Three sizes, two starts and two seeds are two lines of three points, in one picture."""
    shutil.rmtree(sweep / 'runs')
    wrong = {8: 3, 40: 2, 200: 1}  # of eight, from trained weights; from random ones one more
    for (size, errors), init, seed in itertools.product(wrong.items(), INITS, (0, 1)):
        count = errors + (init == 'random')
        answers = [{'good': 'bad', 'bad': 'good'}[label] for label in TRUTH[:count]]
        name = f'train_examples={size},init={init},seed={seed}'
        changes = (f'train_examples={size}', f'init={init}')
        task = sweep.parent / 'mood.json'
        finetuning_run(sweep / 'runs' / name, task, seed, 1e-4, [*answers, *TRUTH[count:]], changes)
    page = page_of(sweep)
    _, *rows = page.table('accuracy on dev')
    assert [row[:2] for row in rows][::2] == [
        ['train_examples=8, init=random', '50.0 %'],
        ['train_examples=40, init=random', '62.5 %'],
        ['train_examples=200, init=random', '75.0 %'],
    ]
    picture = re.search(r'accuracy on dev over train examples.*?</figure>', page.source, re.DOTALL)
    assert picture
    for label, colour in (('pre-trained', 0), ('random weights', 1)):
        key = (
            rf'class="key " style="color: var\(--run-{colour}\)" aria-hidden="true"></span>{label}'
        )
        assert re.search(key, picture[0]), label
    random, trained = sweeps.chart_scores(open_all([sweep])[0].rows, []).curves
    assert random.label == 'random weights' and trained.label == 'pre-trained'
    assert trained.points == [(8, 62.5), (40, 75.0), (200, 87.5)]
    assert trained.deviations == [0.0, 0.0, 0.0]


def test_confusion_of_the_best_run(tmp_path, sweep):
    (sweep / 'runs/optimizer.peak_lr=0.0001,seed=0/eval/dev.json').unlink()
    page = page_of(sweep)
    assert '5 of 6 runs are done' in page.text and '20, not done' in page.text
    # The best that is left: one bad text was called good, all else is right.
    assert [[re.sub(r' \d+ %', '', cell) for cell in row] for row in page.table('mood dev')] == [
        ['label', 'bad', 'good', 'all'],
        ['bad', '2', '1', '3'],
        ['good', '0', '5', '5'],
    ]
    (tmp_path / 'mood.json').unlink()
    assert 'Not counted:' in page_of(sweep).text


def test_commands_are_those_that_were_given(tmp_path, monkeypatch):
    run = pretraining_run(tmp_path / 'run')
    module = pathlib.Path(notes.__file__).parents[2] / 'launch' / 'pretrain.py'
    monkeypatch.setattr('sys.argv', [str(module), '--data=my records', '--workdir=run'])
    monkeypatch.chdir(tmp_path)
    notes.note_start(Workdir(run), 0)
    notes.note_start(Workdir(run), 50)
    page = page_of(run)
    command = f"cd {tmp_path}\npython -m bert_jax.launch.pretrain '--data=my records' --workdir=run"
    assert page.text.count(command) == 1
    _, *starts = page.table('What run was made on')
    assert [start[1] for start in starts] == ['0', '50'] and 'jax ' in starts[0][-1]


def test_a_run_without_metrics_and_one_that_was_cut_off_are_shown(tmp_path):
    new = pretraining_run(tmp_path / 'new')
    (new / 'metrics.jsonl').unlink()
    page = page_of(new)
    # Nor had runs of older versions a note of their commands.
    config = f'--config={new}/config.json'
    assert f'python -m bert_jax.launch.pretrain {config} --data=RECORDS' in page.text
    assert 'nothing to draw' in page.text and page.table('Last evaluation')[1][1] == '0 of 100'
    cut = pretraining_run(tmp_path / 'cut', steps=50)
    with (cut / 'metrics.jsonl').open('a') as file:
        file.write('{"step": 100, "split": "ev')
    page = page_of(cut, new)
    row = page.table('Last evaluation')[1]
    assert (row[1], row[-2]) == ('6.5000 (6.7500)', '50 of 100')


def test_points_are_finite_numbers_and_a_long_table_keeps_the_last(tmp_path):
    run = pretraining_run(tmp_path / 'run')
    mine = {'step': 60, 'split': 'mine', 'longest_word': 'Donau', 'by_layer': [0.5, 0.25]}
    nothing = {'step': 5, 'split': 'eval', 'mlm_loss': None, 'nsp_loss': 0.5}
    write_metrics(run, [nothing, mine | {'found': 0.375}])
    page = page_of(run)
    assert 'Masked tokens: loss (nats' not in page.text and 'Next sentence: loss' in page.text
    assert 'found' in page.text and '0.3750' in page.text
    assert 'longest_word' not in page.text and 'by_layer' not in page.text
    write_metrics(run, [{'step': n, 'split': 'train', 'loss': 1 / n} for n in range(1, 121)])
    page = page_of(run)
    _, *rows = page.table('Loss')
    assert 'Numbers (one of 3)' in page.text and len(rows) == 40
    assert rows[-1] == ['run', 'train', '120', f'{1 / 120:.4f}']


def test_what_is_no_run_is_one_line_and_leaves_no_page(tmp_path):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'file').touch()
    (pretraining_run(tmp_path / 'damaged') / 'metrics.jsonl').write_text('{\n{}\n')
    good = pretraining_run(tmp_path / 'good')
    for name, message in (
        ('nothing', 'no such folder; expected the folder of a run or of a sweep'),
        ('empty', 'no config.json in it; expected the folder of a run or of a sweep'),
        ('file', 'it is a file'),
        ('damaged', 'metrics.jsonl:1: not a line of metrics'),
    ):
        with refused(re.escape(message)):
            write_report([good, tmp_path / name], sample_count=0)
    assert not (good / 'report.html').exists()
    with refused('--workdir=DIR'):
        write_report([])


def test_the_command_takes_folders_among_its_flags(tmp_path):
    one, other = pretraining_run(tmp_path / 'one'), pretraining_run(tmp_path / 'two words')
    page = tmp_path / 'pages/all.html'
    run = commands.run('report', '--samples=0', f'--output={page}', f'--workdir={one}', other)
    assert (run.returncode, run.stdout) == (0, f'wrote {page}\n'), run.stderr
    assert 'two words' in Page(page).text
    refused = commands.run('report', one, f'--output={tmp_path}')
    assert (refused.returncode, refused.stderr.count('\n')) == (2, 1), refused.stderr
    assert 'that is a folder' in refused.stderr
