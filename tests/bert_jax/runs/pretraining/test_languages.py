"""Held-out measures by language: of a model in training, and of a workdir."""

from __future__ import annotations

import json

import pytest

from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.runs.pretraining import baselines
from bert_jax.runs.workdir.metrics import read_metrics
from tests.helpers import commands
from tests.helpers.processes import ok
from tests.helpers.texts import documents
from tests.helpers.tiny_models import tokenizer

WORDS = {'de': ['paris', 'is', 'the', 'capital', 'of'], 'ko': ['good', 'bad', 'film', 'un', 'a']}
SETTINGS = (
    'model.hidden_size=16 model.num_layers=1 model.num_heads=2 model.intermediate_size=32'
    ' model.hidden_dropout=0 model.attention_dropout=0 model.max_position=32'
    f' model.vocab_size={tokenizer().vocab_size} phases.0.seq_len=32 phases.0.steps=4'
    ' phases.0.batch_size=8 optimizer.warmup_steps=1 runtime.eval_every=2 runtime.eval_batches=2'
    ''
).split()


def run(command: str, *arguments: str) -> str:
    """What a command prints."""
    done = commands.run(command, *arguments)
    ok(done)
    return done.stdout


@pytest.fixture(scope='module')
def records(tmp_path_factory) -> str:
    """Records of two languages, the held-out ones of ko fewer than two batches."""
    folder = tmp_path_factory.mktemp('languages')
    for language, words in WORDS.items():
        count = 200 if language == 'de' else 60
        (folder / f'{language}.txt').write_text(documents(words, count, length=6))
    tokenizer().save(folder / 'vocab')
    run(
        'preprocess',
        *(f'--input={language}={folder}/{language}.txt' for language in WORDS),
        f'--tokenizer={folder}/vocab',
        f'--output={folder}/records',
        '--seq_len=32',
        '--dupe_factor=1',
        '--workers=1',
        '--eval_fraction=0.2',
    )
    return str(folder / 'records')


def test_each_language_has_its_own_loss(records, tmp_path):
    """The loss of all is the mean over all masked tokens, so those of the languages add up to it.

    Both by the same batches: at most runtime.eval_batches of each.
    """
    workdir = str(tmp_path / 'run')
    changes = [f'--set={change}' for change in SETTINGS]
    run('pretrain', '--config=bert_tiny', *changes, f'--data={records}', f'--workdir={workdir}')
    lines = [one for one in read_metrics(f'{workdir}/metrics.jsonl') if one['split'] == 'eval']
    assert [line['step'] for line in lines] == [2, 4]

    # How many masked tokens count, from the records: two batches of eight of each language.
    stream = RecordStream(records, 'eval', 8, 0)
    masked = {}
    for language in WORDS:
        batches = list(stream.evaluation(0, language))
        masked[language] = sum(batch['masked_lm_weights'].sum() for batch in batches[:2])
        assert len(batches) >= 2
    for line in lines:
        mean = sum(masked[name] * line[f'mlm_loss_{name}'] for name in WORDS)
        assert line['masked'] == sum(masked.values())
        assert line['mlm_loss'] == pytest.approx(mean / line['masked'], rel=1e-5)
        assert line['mlm_loss_de'] != line['mlm_loss_ko']
        assert 0 <= line['mlm_accuracy_ko'] <= 1

    # Guessing is measured on the same records.
    guess = baselines.count_baselines(records, 16)
    assert guess.masked == sum(masked.values())

    # bert-evaluate reads all of them.
    found = json.loads(run('evaluate', f'--workdir={workdir}', f'--data={records}'))['metrics']
    assert {'mlm_loss_de', 'mlm_loss_ko'} <= found.keys() and found['masked'] > guess.masked
