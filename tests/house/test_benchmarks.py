"""The benchmarks: what they count and divide, on small things whose cost is known."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from benchmarks import stages
from bert_jax.configs import schema
from bert_jax.configs.load import load
from bert_jax.conversion import huggingface
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
    done = benchmark(text, '--seq_len=32', '--scale=3', f'--json={text}/found.json')
    ok(done)
    found = read_json(text / 'found.json')
    (job,) = found['jobs']
    assert found['text_bytes'] == (text / 'text.txt').stat().st_size * 3 + 3
    assert found['machine']['cores']
    assert found['machine']['numpy']
    assert job['examples_a_cpu_second'] == pytest.approx(job['examples'] / job['cpu_seconds'][0])
    assert f'{job["examples"]:,} examples' in done.stdout
    assert job['last_line'].startswith(f'{job["examples"]:,} examples in')
    shares = found['stages']['32']
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == {name for name, _, _ in stages.CLOCKS}
    assert min(shares.values()) > 0
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
    low, high = ours['sorted_a_wall_second']['range']
    assert 0 < low <= ours['sorted_a_wall_second']['median'] <= high
    assert found['sentences'] == 6 and found['machine']['cores']
    refused = run('--sentences=99')
    assert '8 sentences, and --sentences=99' in mistake(refused)


@pytest.mark.slow
def test_the_gpu_day_goes_through_its_parts_on_a_cpu(tmp_path):
    """The parts run for real, on a tiny model; what fails is said, not dropped."""
    words = [a + b for a in 'bcdfgklm' for b in ('a', 'en', 'ist', 'o', 'u')]
    (tmp_path / 'text.txt').write_text(documents(words, 250, length=14))
    base = load('bert_tiny')
    # At 512, the length of one part, it has no positions.
    sizes = {'vocab_size': 500, 'max_position': 128}
    model = dataclasses.replace(base.model, **sizes, hidden_dropout=0.0, attention_dropout=0.0)
    preset = tmp_path / 'small.json'
    preset.write_text(schema.dumps(dataclasses.replace(base, model=model)))
    flags = [f'--text={tmp_path}/text.txt', f'--output={tmp_path}/day', f'--preset={preset}']
    done = ok(python('-m', 'benchmarks.gpu_day', '--minutes=20', *flags, XLA_FLAGS=''))
    parts = read_json(tmp_path / 'day/gpu_day.json')['parts']
    states = dict.fromkeys(('records', 'speed128', 'resume', 'attention', 'modern128'), 'done')
    assert {name: part['state'] for name, part in parts.items()} == states | {'attention': 'failed'}
    assert 'position' in parts['attention']['error'] and 'attention: failed' in done.stdout
    assert all(name in (tmp_path / 'day/day.html').read_text() for name in parts)
    assert parts['resume']['equal_bits'] and parts['resume']['arrays'] > 50
    # The killed run was: its second command says from where it goes on.
    log = (tmp_path / 'day/logs/resume.log').read_text()
    assert log.count('-m bert_jax.launch.pretrain ') == 3
    assert 'killed: resumed at step 20 of 60' in log
    assert parts['speed128']['ours'] > 0 and parts['modern128']['ours'] > 0
    assert 'examples a row 2' in (tmp_path / 'day/logs/modern128.log').read_text()
    assert 'resume: done, equal_bits True' in done.stdout

    # By hand: 6 (4 H^2 + 2 H F) S L + 12 L H S^2 + 6 P (H^2 + H V) + 6 H^2, with H=128 F=512 L=2
    # S=128 P=20 V=500.
    (case,) = read_json(tmp_path / 'day/train_step_128.json')['cases']
    assert case['programs'].keys() == {'ours', 'bare'}
    assert (
        case['flops_a_sequence']
        == 6 * 2 * (4 * 128**2 + 2 * 128 * 512) * 128
        + 12 * 2 * 128 * 128**2
        + 6 * 20 * (128**2 + 128 * 500)
        + 6 * 128**2
    )
