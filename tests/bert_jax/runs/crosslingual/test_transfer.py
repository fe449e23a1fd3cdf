"""bert-transfer: rows fine-tuned on some languages, scored on all; kept, and taken up again."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from bert_jax.runs.crosslingual.languages import list_rows, load_languages, read_training_examples
from bert_jax.runs.crosslingual.transfer import Cell, format_tables
from tests.helpers.files import read_json, write_lines
from tests.helpers.processes import ok
from tests.helpers.refusals import refused

# Words of the tests' encoder: what is good and bad is said by other words in each language.
WORDS = {
    'en': ({'yes': ['good', 'fine', 'great'], 'no': ['bad', 'poor', 'dull']}, 'the film was'),
    'de': ({'yes': ['good', 'fox'], 'no': ['bad', 'dog']}, 'a book is'),
}


def write_tasks(folder: pathlib.Path, test_only: tuple[str, ...] = ()) -> list[str]:
    """A task file for each language; -> the flags that name them."""
    rng = np.random.default_rng(0)
    for language, (moods, frame) in WORDS.items():
        place = folder / language
        place.mkdir(parents=True)
        splits = {'test': 20} if language in test_only else {'train': 64, 'dev': 30}
        for split, count in splits.items():
            rows = ['text\tmood']
            for _ in range(count):
                mood = str(rng.choice(list(moods)))
                rows.append(f'{frame} {rng.choice(moods[mood])}\t{mood}')
            write_lines(place / f'{split}.tsv', rows)
        task = {
            'kind': 'classification',
            'files': {split: f'{split}.tsv' for split in splits},
            'columns': {'text': 'text', 'label': 'mood'},
            'labels': ['no', 'yes'],
        }
        (place / 'mood.json').write_text(json.dumps(task))
    return [f'--task={language}={folder}/{language}/mood.json' for language in WORDS]


@pytest.mark.slow
def test_the_matrix_of_two_languages(tmp_path, encoder, binary):
    tasks = write_tasks(tmp_path / 'tasks')
    settings = ('epochs=15', 'batch_size=8', 'max_seq_length=16', 'optimizer.peak_lr=3e-3')
    settings += ('hidden_dropout=0', 'attention_dropout=0')
    arguments = [
        *tasks,
        f'--init_from={encoder}',
        f'--workdir={tmp_path}/run',
        *(f'--set={setting}' for setting in settings),
        '--seeds=0,1',
    ]
    done = ok(binary('transfer', *arguments, '--train=en', '--train=en+de'))
    found = read_json(tmp_path / 'run/transfer.json')
    cells = {(tuple(c['trained_on']), c['language']): c for c in found['cells']}
    assert list(cells) == [
        (('en',), 'en'),
        (('en',), 'de'),
        (('en', 'de'), 'en'),
        (('en', 'de'), 'de'),
    ]
    for cell in cells.values():
        assert set(cell['scores']) == {'0', '1'} and cell['examples'] == 30
        assert cell['mean'] == pytest.approx(sum(cell['scores'].values()) / 2)
        # The score again, from the predictions that were written and the file itself.
        folder = tmp_path / 'run' / '+'.join(cell['trained_on']) / 'runs' / 'seed=0'
        rows = (folder / f'predictions/{cell["language"]}-dev/predictions.tsv').read_text()
        said = [line.split('\t')[1] for line in rows.splitlines()[1:]]
        truth = (tmp_path / 'tasks' / cell['language'] / 'dev.tsv').read_text().splitlines()[1:]
        right = np.mean([a == b.split('\t')[1] for a, b in zip(said, truth, strict=True)])
        assert right == pytest.approx(cell['scores']['0'])

    # What is in both languages is learnt from English, the rest from German alone.
    assert cells[('en',), 'en']['mean'] > 0.9 < cells[('en', 'de'), 'de']['mean']
    assert cells[('en',), 'de']['mean'] < 0.9
    # en train and de dev: good and bad, of 9 and 7 words.
    assert cells[('en',), 'de']['overlap'] == pytest.approx(2 / 14)
    assert '| en | **' in done.stdout and '| en + de |' in done.stdout
    assert (tmp_path / 'run/transfer.png').read_bytes().startswith(b'\x89PNG')

    # The same command finds all of it done; another row takes up the runs that are there.
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / 'run').rglob('eval/*.json')}
    assert len(times) == 2 * 2 * 3  # a run's own score, and one of each language
    again = binary('transfer', *arguments, '--train=en', '--train=en+de')
    assert again.returncode == 0 and again.stdout == done.stdout
    assert {path: path.stat().st_mtime_ns for path in times} == times

    # A test set that has changed is scored again; the run is not trained again.
    file = tmp_path / 'tasks/de/dev.tsv'
    write_lines(file, file.read_text().splitlines()[:11])
    again = ok(binary('transfer', *arguments, '--train=en'))
    found = read_json(tmp_path / 'run/transfer.json')['cells']
    assert [cell['examples'] for cell in found] == [30, 10]
    checkpoint = tmp_path / 'run/en/runs/seed=0/eval/dev.json'
    assert checkpoint.stat().st_mtime_ns == times[checkpoint]


def test_rows_and_what_they_are_trained_on(tmp_path):
    tasks = [text.removeprefix('--task=') for text in write_tasks(tmp_path)]
    languages = load_languages(tasks, (), None)
    assert list_rows((), languages) == [('en',), ('de',)]
    assert list_rows(('de+en', 'en'), languages) == [('de', 'en'), ('en',)]
    alone, both = (read_training_examples(row, languages) for row in (('de',), ('de', 'en')))
    assert len(alone) == 64 and len(both) == 128
    assert len({example.id for example in both}) == 128
    assert [one.text for one in both[:64]] == [one.text for one in alone]


@pytest.mark.parametrize(
    'tasks, train, said',
    [
        (('mood.json',), (), '--task=mood.json: name its language'),
        (('en=E', 'en=E'), (), 'en is named twice'),
        (('en=E', 'de=D'), ('fr',), "--train=fr: no --task is named 'fr': there are en, de"),
        (('en=E', 'de=D'), ('en+en',), '--train=en+en: names a language twice'),
        (('en=E', 'de=D'), ('de',), 'of de has no train split'),
        (('de=D',), (), 'no language has a train split'),
        (('en=E', 'de=O'), (), 'are not those of en'),
    ],
)
def test_what_is_no_matrix_is_one_line(tmp_path, tasks, train, said):
    write_tasks(tmp_path, test_only=('de',))
    other = read_json(tmp_path / 'en/mood.json') | {'labels': ['yes', 'no']}
    (tmp_path / 'en/other.json').write_text(json.dumps(other))
    places = {'E': 'en/mood.json', 'D': 'de/mood.json', 'O': 'en/other.json'}
    given = [
        f'{name}={tmp_path}/{places[file]}' if file else name
        for name, _, file in (text.partition('=') for text in tasks)
    ]
    with refused("^--data_dir=d=x: no --task is named 'd'"):
        load_languages([f'en={tmp_path}/en/mood.json'], ('d=x',), None)
    with refused('--t') as raised:
        list_rows(train, load_languages(given, (), None))
    assert said in str(raised.value)


def test_the_table_names_spreads_guesses_and_failures():
    cells = [
        Cell(('en',), 'en', 'dev', 9, {0: 0.5, 1: 0.7}, 1, 0.5, 0.4),
        Cell(('en',), 'de', 'dev', 9, {0: 0.25, 1: 0.25}, 1, 0.125, 0.3),
    ]
    assert format_tables('accuracy', cells).splitlines() == [
        'accuracy, mean ± sd of 2 seeds',
        '',
        '| fine-tuned on | en | de |',
        '|---|---:|---:|',
        '| en | **0.6000 ± 0.1414** | 0.2500 ± 0.0000 |',
        '| guessing | 0.4000 | 0.3000 |',
        '',
        'en: 1 of 2 runs FAILED: see sweep.json',
        '',
        'word pieces in common, of those that either has',
        '',
        '| fine-tuned on | en | de |',
        '|---|---:|---:|',
        '| en | 50.0% | 12.5% |',
    ]
