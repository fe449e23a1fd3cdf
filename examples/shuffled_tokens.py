"""Trains an encoder to find tokens that have changed places, as docs/extending.md explains it.

    python examples/shuffled_tokens.py RECORDS WORKDIR

RECORDS is what `bert-preprocess` made. The same command again goes on from the newest checkpoint.
"""

import dataclasses
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from table_writer import Table

from bert_jax import Objective, RunContext, train_steps
from bert_jax.configs.load import load
from bert_jax.configs.schema import Phase
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.mesh import construction
from bert_jax.model import heads
from bert_jax.runs.pretraining import held_out, records
from bert_jax.runs.pretraining.phase_data import make_phases
from bert_jax.train import loop, state, step


class Detector(heads.EncoderModel):  # a head of one's own: [B, T] logits that a token was moved
    @nn.compact
    def __call__(self, batch, rng=None):
        return nn.Dense(1, name='detector')(self.encode(batch, rng)[0])[..., 0]


def shuffle(batch, rng):  # the chosen tokens of each row change places: (rows, what was moved)
    used_BP = batch['masked_lm_weights'] > 0
    at_BP = jnp.where(used_BP, batch['masked_lm_positions'], 1 << 20)
    key, rows_B = (rng.key, rng.rows_B) if rng else (jax.random.key(0), jnp.arange(len(at_BP)))
    score = lambda row: jax.random.uniform(jax.random.fold_in(key, row), at_BP.shape[1:])
    score_BP = jax.vmap(score)(rows_B + (1 << 24))  # not dropout's numbers
    order_BP = jnp.argsort(jnp.where(used_BP, score_BP, 2.0))  # used places stand first
    moved_BP = jnp.take_along_axis(batch['masked_lm_ids'], order_BP, 1)
    write = jax.vmap(lambda ids, at, new: ids.at[at].set(new, mode='drop'))
    original_BT = write(batch['input_ids'], at_BP, batch['masked_lm_ids'])
    shown_BT = write(original_BT, at_BP, moved_BP)
    return shown_BT, shown_BT != original_BT


def make_objective(model):
    def sums(params, batch, rng):  # of each metric (its sum, the weight of what is in it)
        shown_BT, moved_BT = shuffle(batch, rng)
        told_BT = model.apply({'params': params}, {**batch, 'input_ids': shown_BT}, rng)
        loss_BT = optax.sigmoid_binary_cross_entropy(told_BT, moved_BT)
        values = {'shuffled_loss': loss_BT, 'shuffled_accuracy': (told_BT > 0) == moved_BT}
        return {
            k: (jnp.sum(v * counted(batch)), jnp.sum(counted(batch))) for k, v in values.items()
        }

    # what the sum of each loss is divided by, before losses are added
    return Objective(sums, lambda batch: {'shuffled_loss': jnp.sum(counted(batch))})


def counted(batch):  # every token of the rows that count
    return batch['input_mask'] * batch['example_weights'][:, None]


def train_detector(config, data, workdir, writers=lambda step: ()):
    mesh, steps = construction.make_mesh(config.runtime), config.total_steps
    (phase,) = make_phases(config, records.match_phases(config, [data]), mesh)
    model = Detector(config.model)
    objective = make_objective(model)
    optimizer = optax.adamw(optax.linear_schedule(5e-4, 0.0, steps))
    fresh = state.create_state(model, config.seed, optimizer, mesh)
    train_step = step.jit_train_step(step.make_train_step(objective, optimizer), fresh)
    eval_step = jax.jit(step.make_eval_step(objective))

    def evaluate(done, now):
        batches = map(phase.place, phase.stream('eval').evaluation())
        found = held_out.measure(eval_step, now.params, batches)
        return loop.EvalResult({'split': 'eval', **found}, score=(-found['shuffled_loss'],))

    held = loop.Evaluation(config.runtime.eval_every, evaluate)
    with RunContext(workdir, config, mesh, writers=writers) as context:
        context.claim(phase.records.tokenizer, {'shuffled records': phase.records.identity()})
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

    def table(step):
        return [Table(Path(workdir) / 'losses.tsv', step)]

    train_detector(config, data, workdir, writers=table)
    print((Path(workdir) / 'losses.tsv').read_text(), end='')


if __name__ == '__main__':
    main(*sys.argv[1:])
