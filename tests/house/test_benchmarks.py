"""The benchmarks: what they count and divide, on small things whose cost is known."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from bert_jax.configs import schema
from bert_jax.configs.load import load
from bert_jax.conversion import huggingface
from bert_jax.costs import flops
from tests.helpers import tiny_models
from tests.helpers.files import read_json
from tests.helpers.processes import ROOT, mistake, ok, python
from tests.helpers.texts import documents
from tests.helpers.vocabularies import write_vocabulary


@pytest.fixture
def text(tmp_path):
    """A vocabulary, and 30 documents."""
    words = [f'w{i}' for i in range(50)]
    write_vocabulary(tmp_path / 'vocabulary', words)
    (tmp_path / 'text.txt').write_text(documents(words, 30) + '\n')
    return tmp_path


def benchmark(folder, *arguments):
    flags = [
        f'--input={folder}/text.txt',
        f'--tokenizer={folder}/vocabulary',
        '--dupe_factor=2',
        *arguments,
    ]
    return python('-m', 'benchmarks.preprocess', *flags)


def test_the_command(text):
    done = benchmark(text, '--seq_len=32', f'--json={text}/found.json')
    ok(done)
    found = read_json(text / 'found.json')
    (job,) = found['jobs']
    assert found['text_bytes'] == (text / 'text.txt').stat().st_size
    assert found['machine']['cores']
    assert found['machine']['numpy']
    assert job['examples_a_cpu_second'] == pytest.approx(job['examples'] / job['cpu_seconds'][0])
    assert f'{job["examples"]:,} examples' in done.stdout
    # What follows -- goes to the job, whose word it has on a mistake.
    assert '--masking=none' in benchmark(text, '--', '--masking=none').stderr
    missing = benchmark(text, f'--reference={text}')
    assert 'no create_pretraining_data.py in it' in mistake(missing)


def test_inference_is_measured_and_what_is_not_installed_is_named(tmp_path):
    """A program is there with figures or left out with a reason, and ours is like itself."""
    tiny_models.tokenizer().save(tmp_path)
    huggingface.write(tmp_path, tiny_models.model('BertModel'))
    lines = [f'Paris is the capital of France. {"A film of Paris " * n}.' for n in range(2, 6)]
    (tmp_path / 'text.txt').write_text('\n'.join(lines))

    def run(*flags) -> subprocess.CompletedProcess:
        command = [
            *(sys.executable, '-m', 'benchmarks.inference', f'--model={tmp_path}'),
            *(f'--text={tmp_path}/text.txt', f'--json={tmp_path}/found.json', '--rounds=2'),
        ]
        return subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)

    ok(run('--sentences=6', '--calls=2', '--only=ours,onnxruntime'))
    found = read_json(tmp_path / 'found.json')
    assert found['programs'].keys() | found['left_out'].keys() == {'ours', 'onnxruntime'}
    ours = found['programs']['ours']
    assert ours['cosine'] == pytest.approx(1, abs=1e-5) and ours['one_ms']['median'] > 0
    low, high = ours['a_wall_second']['range']
    assert 0 < low <= ours['a_wall_second']['median'] <= high
    assert found['sentences'] == 6 and found['machine']['cores']
    refused = run('--sentences=99')
    assert '8 sentences, and --sentences=99' in mistake(refused)


def test_questions_find_their_paragraphs_of_articles_that_nothing_was_trained_on(tmp_path):
    tiny_models.tokenizer().save(tmp_path)
    huggingface.write(tmp_path, tiny_models.model('BertModel'))

    def ask(article: int) -> dict:
        asked = [{'id': f'{article}', 'question': 'the film' + ' good' * article}]
        return {'paragraphs': [{'context': f'a book of {article}', 'qas': asked}]}

    (tmp_path / 'squad.json').write_text(json.dumps({'data': [ask(n) for n in range(6)]}))
    given = (f'--squad={tmp_path}/squad.json', f'--encoder={tmp_path}', f'--output={tmp_path}/out')
    sizes = ('--kinds=', '--queries=2', '--max_seq_length=16')
    ok(python('-m', 'benchmarks.search', *given, *sizes))
    found = read_json(tmp_path / 'out/search.json')
    assert found['data'] == {'questions': 0, 'queries': 2, 'documents': 3}
    assert 0 < found['runs']['encoder']['mrr@10'] <= 1
    assert found['speeds']['encoder']['bytes'] == 4 * 16
    assert found['speeds']['encoder']['query_ms'] > 0
    trained_on = (tmp_path / 'out/data/pairs.jsonl').read_text()
    assert 'a book of 2' in trained_on and 'a book of 3' not in trained_on


@pytest.mark.slow
def test_the_gpu_day_goes_through_its_parts_on_a_cpu(tmp_path):
    """The parts run for real, on a tiny model; what fails is said, not dropped."""
    words = [a + b for a in 'bcdfgklm' for b in ('a', 'en', 'ist', 'o', 'u')]
    (tmp_path / 'text.txt').write_text(documents(words, 250, length=14))
    base = load('bert_tiny')
    sizes = {'vocab_size': 73, 'max_position': 128}
    model = dataclasses.replace(base.model, **sizes, hidden_dropout=0.0, attention_dropout=0.0)
    preset = tmp_path / 'small.json'
    preset.write_text(schema.dumps(dataclasses.replace(base, model=model)))
    sizes = {'PRESET': str(preset), 'LENGTH': '64', 'LAYERS': '2', 'BATCH': '8'}
    environment = {**os.environ, **sizes, 'XLA_FLAGS': ''}
    environment['PATH'] = f'{os.path.dirname(sys.executable)}:{environment["PATH"]}'
    command = ['bash', 'benchmarks/gpu_day.sh', f'{tmp_path}/text.txt', f'{tmp_path}/day']
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    # No CPU has the fused kernel: that part alone fails.
    ended = dict(line.split(': ', 1) for line in done.stdout.splitlines())
    assert ended.pop('attention').startswith('FAILED') and 'cudnn' in done.stdout
    assert all(text.startswith('done') for text in ended.values()), done.stdout
    assert ended.keys() >= {'vocabulary', 'records128', 'records64', 'resume', 'speed64'}
    assert done.returncode == 1
    assert 'equal bits after a kill: True' in ended['resume']
    # The killed run was: its second command says from where it goes on.
    log = (tmp_path / 'day/resume.log').read_text()
    assert 'killed: resumed at step 20 of 60' in log

    (case,) = read_json(tmp_path / 'day/speed128.json')['cases']
    assert case['programs'].keys() >= {'ours', 'bare', 'runtime.scan_layers=true'}
    assert case['flops_a_sequence'] == flops.count_training_flops(model, 128, 20)
