"""The quickstart by its command: all is made from a small corpus, and a second run reuses it."""

from __future__ import annotations

import pathlib
import random
import subprocess

import pytest

from tests.helpers import commands
from tests.helpers.files import read_json
from tests.helpers.processes import mistake, ok


@pytest.mark.slow
def test_quickstart(tmp_path, binary):
    # 40 documents in Korean syllables, each with words of its own, as paragraphs.
    source, text = random.Random(0), []
    syllables = [chr(0xAC00 + 28 * i) for i in range(40)]
    for _ in range(40):
        words = [''.join(source.choices(syllables, k=3)) for _ in range(60)]
        sentence = lambda words=words: ' '.join(source.choices(words, k=12)) + '.'
        text += [f'{sentence()} {sentence()}' for _ in range(40)] + ['']
    (tmp_path / 'text.txt').write_text('\n'.join(text), encoding='utf-8')
    flags = [
        f'--corpus={tmp_path}/text.txt', '--language=ko', f'--workdir={tmp_path}/run',
        '--vocab_size=500', '--steps=12', '--finetune_steps=6', '--train_examples=32',
        '--finetune_runs=2',
    ]  # fmt: skip
    first = binary('quickstart', *flags, timeout=900)
    assert first.returncode == 0, first.stderr[-3000:]
    assert '--language=ko' in first.stdout
    read = lambda file: read_json(tmp_path / 'run' / file)
    results, evaluated = read('results.json'), read('pretrain/eval/eval.json')
    assert results['pretraining']['final']['mlm_loss'] == evaluated['metrics']['mlm_loss']
    [row] = results['finetuning']['rows']
    assert results['pretraining']['steps'] == 12
    of_source = [
        run['metrics']['accuracy']
        for run in read('finetune/sweep.json')['runs']
        if run['settings']['init'] == 'source'
    ]
    assert row['source']['mean'] == pytest.approx(sum(of_source) / 2)

    # What is said to do next is done, by the commands as they are printed.
    page = (tmp_path / 'run' / 'report.html').read_text()
    assert '<html' in page and len(results['samples']['texts']) == page.count('<mark>') == 6
    assert 'next: ' not in first.stderr  # of its stages
    lines = first.stdout.split('What to do next')[1].splitlines()
    lines = [line.strip() for line in lines if 'bin/bert-' in line]
    assert len(lines) == 4
    root = pathlib.Path(__file__).parents[4]
    for command in lines:
        done = subprocess.run(
            command, shell=True, cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f'{command}\n{done.stderr[-3000:]}'
    answers = (tmp_path / 'run' / 'answers.jsonl').read_text().splitlines()
    assert len(answers) == results['finetuning']['held_out_examples']

    second = ok(binary('quickstart', *flags))
    assert second.stderr.count(': reused, made from the same inputs') == 5
    assert '$ bert-' not in second.stdout
    assert first.stdout.split('\nPre-training on')[1] == second.stdout.split('\nPre-training on')[1]


def test_mistakes(tmp_path):
    (tmp_path / 'one.txt').write_text('A document. Of two sentences.\n')
    (tmp_path / 'two.txt').write_text('Another. One.\n')
    both = [f'--corpus={tmp_path}/one.txt', f'--corpus={tmp_path}/two.txt']
    for flags, message in (
        (['--corpus=nowhere/*.txt'], 'no file matches'),
        (both, 'the text has 1 documents to learn from and 1 to hold out'),
        (['--train_examples=0'], '--train_examples=0: must be whole numbers above 0'),
    ):
        failed = commands.run('quickstart', f'--workdir={tmp_path}/run/mine', *flags)
        assert message in mistake(failed)
        assert failed.stderr.count('error: ') == 1
        assert not (tmp_path / 'run').exists()
