"""Hidden words of held-out records, and the two sets of weights that fill them in."""

from __future__ import annotations

import pathlib

import jax
import numpy as np
import pytest

from bert_jax.configs import schema
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh import construction
from bert_jax.model import layout
from bert_jax.reports.page.page import write_report
from bert_jax.reports.page.runs import Run, open_all
from bert_jax.reports.page.samples import Hidden, fill_samples, find_hidden_words
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint
from bert_jax.train.pretraining_program import PretrainingSetup
from tests.helpers import jobs
from tests.helpers.refusals import refused
from tests.helpers.vocabularies import write_vocabulary


@pytest.fixture(scope='module')
def records(tmp_path_factory):
    """Records of a small text, whose held-out documents begin every sentence with their name."""
    folder = tmp_path_factory.mktemp('records')
    jobs.small_records(folder)
    return folder


def begun(config):
    """The state that a run begins with."""
    mesh = construction.make_mesh(config.runtime)
    return PretrainingSetup.from_config(config).make_state(mesh)


@pytest.fixture(scope='module')
def workdir(records, tmp_path_factory):
    """A run on these records with one checkpoint, whose weights are all the negative of fresh
    ones.
    """
    folder = tmp_path_factory.mktemp('runs') / 'run'
    tokenizer = Tokenizer.load(records / 'vocabulary')
    model = schema.ModelConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2,
        intermediate_size=32, max_position=64,
    )  # fmt: skip
    config = schema.PretrainConfig(
        seed=7,
        model=model,
        phases=(schema.Phase(32, 10, 8),),
        optimizer=schema.OptimizerConfig(warmup_steps=0),
    )
    Workdir(folder).create_or_resume(config, {})
    tokenizer.save(folder / 'tokenizer')
    state = begun(config)
    changed = jax.tree.map(lambda x: -x, state.params)
    with checkpoint.Checkpoints(folder) as checkpoints:
        step = state.step + 10
        checkpoints.save(state._replace(params=changed, step=step), {'kind': 'pretrain'})
    notes.note_guess(str(folder), notes.Guess(0, {'mlm_loss': 5.0}, str(records / 'out')))
    return folder


def run_of(workdir) -> Run:
    (run,) = open_all([workdir])
    assert isinstance(run, Run)
    return run


def test_a_hidden_word_is_a_whole_one_in_text_as_it_was(records):
    text = (records / 'text.txt').read_text()
    found = list(find_hidden_words(str(records / 'out'), Tokenizer.load(records / 'vocabulary')))
    assert len(found) > 10
    for one in found:
        assert isinstance(one, Hidden) and one.word.isalnum() and '[' not in one.before + one.after
        # What stands in the records is the text again, mended where a word was in pieces.
        whole = f'{one.before}{one.word}{one.after}'.strip()
        # A row may hold several sentences, which stand in lines.
        assert whole in ' '.join(text.split())


@pytest.mark.slow
def test_before_are_the_weights_of_step_0_and_after_those_of_the_checkpoint(workdir, monkeypatch):
    used = []

    class Filler:
        def __init__(self, source, top, compute_dtype):
            used.append(source.params)

        def __call__(self, text):
            return {'masks': [[{'token': 'x', 'probability': 0.5}]]}

    monkeypatch.setattr('bert_jax.inference.bert.MaskFiller', Filler)
    found = fill_samples(run_of(workdir), 3)
    assert (found.began, found.step) == ('fresh weights of seed 7, as at step 0', 10)
    assert len(found.samples) == 3 and found.samples[0].first == [('x', 0.5)]
    first, now = used
    config = run_of(workdir).config
    assert isinstance(config, schema.PretrainConfig)
    fresh = begun(config).params
    fresh = layout.stack_blocks(jax.device_get(fresh))
    for key in ('encoder', 'mlm', 'nsp'):
        jax.tree.map(np.testing.assert_array_equal, first[key], fresh[key])
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(-a, b), first[key], now[key])


@pytest.mark.slow
def test_the_page_shows_them_or_says_why_not(workdir, records, tmp_path):
    text = pathlib.Path(write_report([workdir], tmp_path / 'page.html', 2)).read_text()
    assert 'Before: fresh weights of seed 7, as at step 0' in text and text.count('<mark>') == 2
    (tmp_path / 'new').mkdir()
    (tmp_path / 'new/config.json').write_text((workdir / 'config.json').read_text())
    text = pathlib.Path(write_report([tmp_path / 'new'])).read_text()
    assert 'No samples: no checkpoint yet.' in text


@pytest.mark.slow
def test_records_that_have_moved_are_told(workdir, tmp_path):
    run = run_of(workdir)
    run.guesses[:] = [notes.Guess(0, {}, str(tmp_path / 'gone'))]
    with refused('gone'):
        fill_samples(run, 1)
    run.guesses[:] = []
    with refused('has not noted where its held-out records are'):
        fill_samples(run, 1)


def test_records_of_another_tokenizer_are_told(records, tmp_path):
    words = (records / 'vocabulary/vocab.txt').read_text().split()
    write_vocabulary(tmp_path, [*words[5:], 'more'])
    with refused('their tokenizer is another'):
        next(find_hidden_words(str(records / 'out'), Tokenizer.load(tmp_path)))
