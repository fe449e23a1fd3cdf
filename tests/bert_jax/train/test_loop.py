"""The training loop with a model, an objective and a writer of one's own."""

from __future__ import annotations

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig
from bert_jax.mesh import construction, sharding
from bert_jax.runs.workdir.run_context import RunContext, own_run
from bert_jax.train import loop
from bert_jax.train.learning_rate import hparams_of
from bert_jax.train.losses.objective import Objective
from bert_jax.train.state import create_state
from bert_jax.train.step import jit_train_step, make_train_step
from tests.helpers.tiny_models import tokenizer
from tests.helpers.trees import assert_same

OPTIMIZER = OptimizerConfig(algorithm='adamw', schedule='constant', warmup_steps=0, peak_lr=0.1)
STEPS = 12


class Table(nn.Module):
    """A number for each of ten words."""

    @nn.compact
    def __call__(self, batch: dict[str, Any]) -> jax.Array:
        return nn.Embed(10, 1, name='embeddings')(batch['input_ids'])[..., 0]


def _sums(params, batch, dropout_rng):
    del dropout_rng
    error = jnp.square(Table().apply({'params': params}, batch) - batch['input_ids'])
    return {'loss': (jnp.sum(error), jnp.float32(error.size))}


SQUARES = Objective(_sums, lambda batch: {'loss': jnp.float32(batch['input_ids'].size)})


class Lines(list):
    """A writer that keeps what is deterministic of the lines."""

    def close(self):
        pass

    def write(self, line):
        clock = ('seconds', 'step_ms', 'input_wait')
        values = {k: v for k, v in line.metrics.items() if k not in clock}
        self.append({'step': line.step, **values})


def batches(start: int):
    for step in itertools.count(start):
        ids = np.random.default_rng(step).integers(0, 10, (8, 4), np.int32)
        yield {'input_ids': ids, 'example_weights': np.ones(8, np.float32)}


class Counted(RunContext):
    """Stops after so many beats, and keeps what a bar is shown."""

    beats = 99
    done = 0

    def stop_requested(self):
        return 15 if self.done >= self.beats else None

    def heartbeat(self):
        self.done += 1


def trained(folder, beats=99, evaluate=None, show=None, **options):
    """Takes the run in `folder` up, to a signal after so many beats -> (ended, lines, saved)."""
    runtime = RuntimeConfig(log_every=5, checkpoint_every=4, keep_checkpoints=9, stall_minutes=0)
    config = PretrainConfig(phases=(Phase(16, STEPS, 8),), optimizer=OPTIMIZER, runtime=runtime)
    mesh, lines = construction.make_mesh(RuntimeConfig()), Lines()
    with Counted(folder, config, mesh, writers=lambda step: [lines]) as context:
        context.beats = beats
        context.claim(tokenizer(), {'numbers': 10})
        state = create_state(Table(), 0, OPTIMIZER, mesh)
        step = jit_train_step(make_train_step(SQUARES, OPTIMIZER), state)
        context.begin(state)
        if show:
            context.show = show
        held = evaluate and loop.Evaluation(3, evaluate)
        rows = loop.prefetch(
            batches(int(context.state.step)), lambda batch: sharding.place_batch(batch, mesh, 8)
        )
        part = loop.Part(name='numbers', labels={'table': 'ten'}, **options)
        ended = loop.train_steps(context, step, rows, held, part)
        context.checkpoints.wait()
        return ended, lines, context.checkpoints.steps()


def test_a_run_of_ones_own_is_logged_evaluated_and_saved_in_order(tmp_path):
    def evaluate(step, state):
        return loop.EvalResult({'split': 'mine', 'at': int(state.step)}, (float(-abs(step - 6)),))

    ended, lines, saved = trained(tmp_path, evaluate=evaluate)
    assert (int(ended.state.step), ended.signal, ended.early) == (STEPS, None, False)
    mine, train = (
        [line['step'] for line in lines if line['split'] == s] for s in ('mine', 'train')
    )
    assert (mine, train) == ([3, 6, 9, 12], [5, 10, 12])
    assert [line['split'] for line in lines[-2:]] == ['train', 'mine']
    assert {line['table'] for line in lines} == {'ten'}
    # each fourth, the last, and those of the best score so far
    assert saved == [3, 4, 6, 8, 12]
    assert lines[-2]['loss'] < lines[1]['loss']


def test_each_step_is_shown_with_the_newest_values_that_were_read(tmp_path):
    shown = []
    _, lines, _ = trained(tmp_path, show=shown.append)
    assert [(line.step, line.total) for line in shown] == [(s + 1, STEPS) for s in range(STEPS)]
    losses = [line.metrics['loss'] for line in shown[1:]]  # one step late
    assert 'loss' not in shown[0].metrics and shown[0].eta is None
    assert lines[0]['step'] == 5
    np.testing.assert_allclose(np.mean(losses[:5]), lines[0]['loss'], rtol=1e-6)
    assert shown[-1].eta == 0.0 and shown[-1].metrics['table'] == 'ten'


def test_a_run_that_was_stopped_or_whose_batches_end_goes_on_to_the_bit(tmp_path, monkeypatch):
    whole, all_lines, _ = trained(tmp_path / 'whole')
    cut, lines, saved = trained(tmp_path / 'cut', beats=8)  # of seven steps and a save
    assert (cut.signal, int(cut.state.step), saved[-1]) == (15, 7, 7)

    # the batches of steps 8 and 9, whose sums are on no line
    endless = batches
    with monkeypatch.context() as patch:
        patch.setitem(globals(), 'batches', lambda start: itertools.islice(endless(start), 2))
        message = 'numbers: the batches ended after step 9 of 12; saved at step 9: give batches'
        with pytest.raises(UserError, match=message):
            trained(tmp_path / 'cut')
    resumed, more, saved = trained(tmp_path / 'cut')
    assert saved == [4, 7, 8, 9, 12]
    assert lines + more == all_lines  # the sums of steps 6 to 9 were in the checkpoints
    assert_same(whole.state.params, resumed.state.params)


def test_an_evaluation_may_end_the_run_whose_last_step_has_its_line(tmp_path):
    stop = lambda step, state: loop.EvalResult({'split': 'mine'}, stop=step == 9)
    ended, lines, saved = trained(tmp_path, evaluate=stop, save_last=False)
    assert ended.early and int(ended.state.step) == 9
    assert [(line['step'], line['split']) for line in lines[-2:]] == [(9, 'train'), (9, 'mine')]
    assert saved == [4, 8]  # the last is the caller's


def test_a_program_for_the_version_before_goes_on(tmp_path):
    """`own_run` and `loop.train`, as its documentation had them."""
    _, all_lines, _ = trained(tmp_path / 'new')
    runtime = RuntimeConfig(log_every=5, checkpoint_every=4, keep_checkpoints=9, stall_minutes=0)
    config = PretrainConfig(phases=(Phase(16, STEPS, 8),), optimizer=OPTIMIZER, runtime=runtime)
    mesh, lines = construction.make_mesh(runtime), Lines()
    fresh = create_state(Table(), 0, OPTIMIZER, mesh)
    step = jit_train_step(make_train_step(SQUARES, OPTIMIZER), fresh)
    old = own_run(
        tmp_path, config, fresh, mesh, tokenizer(), {'numbers': 10}, writers=lambda step: [lines]
    )
    with old as (run, begin):
        rows = loop.prefetch(
            batches(int(begin.step)), lambda batch: sharding.place_batch(batch, mesh, 8)
        )
        hparams = hparams_of(OPTIMIZER, 0, STEPS)
        labels = {'table': 'ten'}
        ended = loop.train(run, step, begin, rows, hparams, STEPS, name='numbers', labels=labels)
    assert (int(ended.state.step), lines) == (STEPS, all_lines)
