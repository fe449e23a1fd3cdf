"""The quickstart by its command: all is made from a small corpus, and a second run reuses it."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess

import pytest

from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.reports.quickstart import corpus as corpus_module


@pytest.fixture
def corpus(tmp_path):
    """40 documents in Korean syllables, each with words of its own, as paragraphs."""
    source = random.Random(0)
    syllables = [chr(0xAC00 + 28 * i) for i in range(40)]
    word = lambda: ''.join(source.choice(syllables) for _ in range(3))
    lines = []
    for _ in range(40):
        words = [word() for _ in range(60)]
        lines += [
            ' '.join(source.choice(words) for _ in range(12))
            + '. '
            + ' '.join(source.choice(words) for _ in range(12))
            + '.'
            for _ in range(40)
        ] + ['']
    (tmp_path / 'text.txt').write_text('\n'.join(lines), encoding='utf-8')
    return tmp_path / 'text.txt'


@pytest.mark.slow
def test_quickstart(tmp_path, corpus, binary):
    flags = [
        f'--corpus={corpus}',
        '--language=ko',
        f'--workdir={tmp_path}/run',
        '--vocab_size=500',
        '--steps=12',
        '--finetune_steps=6',
        '--train_examples=32',
    ]
    first = binary('quickstart', *flags, '--finetune_runs=2', timeout=900)
    assert first.returncode == 0, first.stderr[-3000:]
    assert '--nolower_case' in first.stdout  # most letters are not Latin
    results = json.loads((tmp_path / 'run' / 'results.json').read_text())
    evaluated = json.loads((tmp_path / 'run' / 'pretrain' / 'eval' / 'eval.json').read_text())
    assert results['pretraining']['final']['mlm_loss'] == evaluated['metrics']['mlm_loss']
    assert results['pretraining']['steps'] == 12 and results['finetuning']['rows'][0]['steps'] == 6
    runs = json.loads((tmp_path / 'run' / 'finetune_32' / 'sweep.json').read_text())['runs']
    of_source = [run['metrics']['accuracy'] for run in runs if run['settings']['init'] == 'source']
    assert results['finetuning']['rows'][0]['source']['mean'] == pytest.approx(sum(of_source) / 2)

    # What is said to do next is done, by the commands as they are printed.
    page = (tmp_path / 'run' / 'report.html').read_text()
    assert '<html' in page and len(results['samples']['texts']) == page.count('<mark>') == 6
    commands = first.stdout.split('What to do next')[1].splitlines()
    commands = [line.strip() for line in commands if ' -m bert_jax.launch.' in line]
    assert len(commands) == 4
    root = pathlib.Path(__file__).parents[4]
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f'{command}\n{done.stderr[-3000:]}'
    answers = (tmp_path / 'run' / 'answers.jsonl').read_text().splitlines()
    assert len(answers) == results['finetuning']['held_out_examples']

    second = binary('quickstart', *flags, '--finetune_runs=2')
    assert (
        second.returncode == 0 and second.stdout.count(': reused, made from the same inputs') == 7
    )
    assert 'launch.train_vocab' not in second.stdout
    assert first.stdout.split('\n\n', 1)[1] == second.stdout.split('\n\n', 1)[1]  # the same table


def test_mistakes(tmp_path, binary):
    (tmp_path / 'one.txt').write_text('A document. Of two sentences.\n')
    (tmp_path / 'two.txt').write_text('Another. One.\n')
    both = [f'--corpus={tmp_path}/one.txt', f'--corpus={tmp_path}/two.txt']
    for flags, message in (
        (['--corpus=nowhere/*.txt'], 'no file matches'),
        (['--corpus='], '--corpus=: is empty'),
        (both, 'the text has 1 documents to learn from and 1 to hold out'),
        (['--train_examples=many'], '--train_examples=many: must be whole numbers'),
        (['--corpus_mb=inf'], '--corpus_mb=inf: must be a finite number'),
        (['--steps=0'], 'steps'),
    ):
        failed = binary('quickstart', f'--workdir={tmp_path}/run/mine', *flags)
        assert failed.returncode == 2 and message in failed.stderr, failed.stderr
        assert failed.stderr.count('\n') == 1
        assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    ('language', 'text', 'expected'),
    [
        ('en', 'Plain English.', False),
        ('en-GB', 'Plain English.', False),
        ('de', 'Gro\u00dfe H\u00e4user.', True),
        ('en', '\ud55c\uad6d\uc5b4 \uae00\uc774\ub2e4.', True),  # the language was forgotten
    ],
    ids=['en', 'en-GB', 'de', 'ko'],
)
def test_casing(tmp_path, language, text, expected):
    """Lower-casing strips accents too: it is for English alone, unless it is asked for."""
    (tmp_path / 'mine.txt').write_text(text, encoding='utf-8')
    (tmp_path / 'train.txt').write_text(text, encoding='utf-8')
    reading = TextOptions(segment=True, language=language)
    source = corpus_module.source([f'{tmp_path}/mine.txt'], reading, 1000)
    assert source.cased(tmp_path) is expected


def test_parts_of_documents(tmp_path):
    """A part is of eight sentences, and knows its document; options of reading are obeyed."""
    lines = [f'Sentence {i} of {name} has words.' for name in 'ab' for i in range(20)]
    lines.insert(20, '')
    (tmp_path / 'mine.jsonl').write_text(json.dumps({'body': '\n'.join(lines)}) + '\n')
    reading = TextOptions(segment=True, text_column='body')
    source = corpus_module.Corpus([f'{tmp_path}/mine.jsonl'], reading, 10**6)
    found = list(source.documents())
    assert [len(part.sentences) for part in found] == [8, 8, 8, 8, 8]
    assert len({part.group for part in found}) == 5
    assert {part.label for part in found} == {'mine.jsonl:0'}
    other = corpus_module.Corpus([f'{tmp_path}/mine.jsonl'], TextOptions(segment=True), 10**6)
    assert source.inputs != other.inputs
