"""Trains an encoder to find replaced tokens (ELECTRA), as docs/extending.md explains it.

    python examples/replaced_tokens.py RECORDS WORKDIR

RECORDS is what `bert-preprocess` made. The same command again goes on from the newest checkpoint.
"""

import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from table_writer import Table

from bert_jax import Objective, RunContext, cross_entropy, train_steps
from bert_jax.configs.load import load
from bert_jax.configs.schema import Phase
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.mesh import construction
from bert_jax.model import heads
from bert_jax.runs.pretraining import held_out, records
from bert_jax.runs.pretraining.phase_data import make_phases
from bert_jax.train import loop, state, step


class Detector(heads.EncoderModel):  # a head of one's own: [B, T] logits that a token was replaced
    @nn.compact
    def __call__(self, batch, rng=None):
        return nn.Dense(1, name='detector')(self.encode(batch, rng)[0])[..., 0]


class Models(NamedTuple):
    generator: heads.Pretraining
    detector: Detector

    def init(self, key, batch):  # all that `create_state` asks of a model
        small = self.generator.init(jax.random.fold_in(key, 1), batch)['params']
        return {'params': {**self.detector.init(key, batch)['params'], 'generator': small}}

    def sums(self, params, batch, rng):  # of each loss (its sum, the weight of what is in it)
        at_BP = jnp.where(batch['masked_lm_weights'] > 0, batch['masked_lm_positions'], 1 << 20)
        key, rows_B = (rng.key, rng.rows_B) if rng else (jax.random.key(0), jnp.arange(len(at_BP)))
        logits_BPV, _ = self.generator.apply({'params': params['generator']}, batch, rng)
        draw = lambda row, logits: jax.random.categorical(jax.random.fold_in(key, row), logits)
        drawn_BP = jax.vmap(draw)(rows_B + (1 << 24), logits_BPV)  # not dropout's numbers
        write = jax.vmap(lambda ids, at, new: ids.at[at].set(new, mode='drop'))
        shown_BT = write(batch['input_ids'], at_BP, drawn_BP)
        replaced_BT = shown_BT != write(batch['input_ids'], at_BP, batch['masked_lm_ids'])
        told_BT = self.detector.apply({'params': params}, {**batch, 'input_ids': shown_BT}, rng)
        values = {'rtd_loss': optax.sigmoid_binary_cross_entropy(told_BT, replaced_BT)}
        values['mlm_loss'] = cross_entropy(logits_BPV, batch['masked_lm_ids'])
        return {k: (jnp.sum(values[k] * of), jnp.sum(of)) for k, of in counted(batch).items()}


def counted(batch):  # which positions each loss is a mean over
    names = {'mlm_loss': 'masked_lm_weights', 'rtd_loss': 'input_mask'}
    return {k: batch[name] * batch['example_weights'][:, None] for k, name in names.items()}


def weights(batch):  # by which the sums are divided before they are added: 50 times detection
    return {k: jnp.sum(of) / {'mlm_loss': 1, 'rtd_loss': 50}[k] for k, of in counted(batch).items()}


def train_detector(config, small, data, workdir, writers=lambda step: ()):
    mesh, steps = construction.make_mesh(config.runtime), config.total_steps
    (phase,) = make_phases(config, records.match_phases(config, [data]), mesh)
    models = Models(heads.Pretraining(small), Detector(config.model))
    objective = Objective(models.sums, weights)
    optimizer = optax.adamw(optax.linear_schedule(5e-4, 0.0, steps))
    fresh = state.create_state(models, config.seed, optimizer, mesh)
    train_step = step.jit_train_step(step.make_train_step(objective, optimizer), fresh)
    eval_step = jax.jit(step.make_eval_step(objective))

    def evaluate(done, now):
        batches = map(phase.place, phase.stream('eval').evaluation())
        found = held_out.measure(eval_step, now.params, batches)
        return loop.EvalResult({'split': 'eval', **found}, score=(-found['rtd_loss'],))

    held = loop.Evaluation(config.runtime.eval_every, evaluate)
    with RunContext(workdir, config, mesh, writers=writers) as context:
        context.claim(phase.records.tokenizer, {'rtd records': phase.records.identity()})
        context.begin(fresh)
        batches = phase.batches(phase.stream('train'), int(context.state.step))
        return train_steps(context, train_step, batches, held)


def main(data, workdir, steps=200):
    made = Manifest.load(data)
    config = load('quickstart')
    shape = {'vocab_size': made.vocab_size, 'max_position': made.seq_len}
    model = dataclasses.replace(config.model, **shape)
    runtime = dataclasses.replace(config.runtime, log_every=50, eval_every=100)
    phases = (Phase(made.seq_len, steps, 32),)
    config = dataclasses.replace(config, model=model, phases=phases, runtime=runtime)
    small = dataclasses.replace(model, hidden_size=64, num_heads=1, intermediate_size=256)

    def table(step):
        return [Table(Path(workdir) / 'losses.tsv', step)]

    train_detector(config, small, data, workdir, writers=table)
    print((Path(workdir) / 'losses.tsv').read_text(), end='')


if __name__ == '__main__':
    main(*sys.argv[1:])
