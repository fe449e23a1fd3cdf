"""The program of pre-training: model, objective, jitted steps, the shapes of their arguments.

Owns how these follow from a configuration and a mesh, in one place: the run, its dry run, the plan
for chips that are not here, the held-out evaluation and the benchmarks all take them from here.
Nothing is computed or compiled yet. It must not know where records come from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import Phase, PretrainConfig
from bert_jax.mesh import exchange, sharding
from bert_jax.model import heads
from bert_jax.model.blocks import matmul
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.model.dropout import rounded
from bert_jax.train.dynamic_masking import DynamicMasking
from bert_jax.train.learning_rate import Hparams, hparams_of
from bert_jax.train.losses.distillation import choose_method
from bert_jax.train.losses.masked_lm import make_pretraining_objective
from bert_jax.train.losses.objective import Objective
from bert_jax.train.state import TrainState, abstract_state, create_state
from bert_jax.train.step import jit_train_step, make_eval_step, make_train_step

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


class InputKind(NamedTuple):
    """What a program must know of the rows that it reads.

    Attributes:
      seq_len: tokens of a row.
      predictions: masked positions of a row.
      nsp: whether they have labels for the next-sentence head.
      packed: whether a row holds several examples.
      masking: what the step itself masks; None where rows come masked.
    """

    seq_len: int
    predictions: int
    nsp: bool = True
    packed: bool = False
    masking: DynamicMasking | None = None


class PretrainingProgram(NamedTuple):
    """One phase's program.

    Attributes:
      kernel: what computes attention (choose_kernel).
      objective: what is minimised, of (params, batch).
      train_step: jitted (state, batch, hparams) -> (state, metrics); takes the state's memory.
      eval_step: jitted (params, batch) -> metrics; params are all of the model's, frozen ones too.
      state: ShapeDtypeStructs of the train state, with their shardings.
      hparams: the scalars that the train step is given.
    """

    kernel: str
    objective: Objective
    train_step: Any
    eval_step: Any
    state: TrainState
    hparams: Hparams


def pretraining_program(
    config: PretrainConfig,
    inputs: InputKind,
    mesh: Mesh,
    platform: str | None = None,
    phase: Phase | None = None,
) -> PretrainingProgram:
    """Make the program of a phase that reads such `inputs`; call it inside `jax.set_mesh(mesh)`.

    platform: 'cpu', 'gpu' or 'tpu', by default that of the devices here. phase: whose batch may
    grow; by default one whose batch does not. UserError where runtime.attention names a kernel that
    cannot be had.
    """
    # The kernel first: a setting that cannot be had is refused before anything is traced.
    runtime = config.runtime
    kernel = choose_kernel(runtime, config.encoder, inputs.seq_len, inputs.packed, platform)
    model = pretraining_model(config, kernel)
    trained_model = model.clone(matmul_dtype=matmul.read_in_training(runtime, platform))
    objective = _make_objective(config, inputs, trained_model)
    # A teacher reads the masked rows too, so they are masked before the step.
    masking = None if config.distillation.teacher else inputs.masking
    train_step = make_train_step(
        objective,
        config.optimizer,
        runtime.accumulation,
        masking,
        runtime.dropout_rng,
        sharding.shards_update(runtime, mesh),
        jnp.dtype(runtime.compute_dtype),
        encoder=config.model,
        grows=phase is not None and phase.batch_warmup_from is not None,
    )
    # The state's shardings are known without computing it; the jitted step gives its result the
    # same.
    state = state_shapes(config, mesh)
    return PretrainingProgram(
        kernel,
        objective,
        jit_train_step(train_step, state),
        jax.jit(make_eval_step(_make_objective(config, inputs, model))),
        state,
        hparams_of(config.optimizer, config.seed, config.total_steps),
    )


def _make_objective(config: PretrainConfig, inputs: InputKind, model: Any) -> Objective:
    """Make the objective of a run: that of its distillation, or of masked words and pairs."""
    method = choose_method(config.distillation)
    if method is not None:
        return method.objective(model)
    # A plan has no records; a family without pairs has no head to train on them.
    nsp = inputs.nsp and config.pair_loss and bool(config.model.traits.pairs)
    return make_pretraining_objective(model, nsp)


def pretraining_model(config: PretrainConfig, kernel: str = 'xla') -> heads.Pretraining:
    """Return the model as `runtime` computes it outside of training, which may multiply otherwise.

    Any kernel has the same parameters.
    """
    runtime = config.runtime
    return heads.Pretraining(
        config.encoder,
        jnp.dtype(runtime.compute_dtype),
        runtime.remat,
        runtime.scan_layers,
        kernel,
        vocabulary_loss=runtime.vocabulary_loss,
    )


def departures(config: PretrainConfig, mesh: Mesh) -> list[str]:
    """List what a run of `config` does otherwise than its settings say."""
    rates = {
        'model.hidden_dropout': config.model.hidden_dropout,
        'model.attention_dropout': config.model.attention_dropout,
        'tuning.lora_dropout': config.tuning.lora_dropout,
    }
    return [
        *config.optimizer.without_effect(),
        *exchange.without_effect(config.runtime, mesh),
        *rounded(rates, config.runtime.dropout_rng),
    ]


def fresh_state(config: PretrainConfig, mesh: jax.sharding.Mesh) -> TrainState:
    """Make the state that a run of `config` begins with, on the mesh."""
    shards = sharding.shards_update(config.runtime, mesh)
    model = _initial_model(config)
    return create_state(model, config.seed, config.optimizer, mesh, shards, config.encoder)


def state_shapes(config: PretrainConfig, mesh: Mesh) -> TrainState:
    """Return the shapes of `fresh_state`, as ShapeDtypeStructs with their shardings."""
    shards = sharding.shards_update(config.runtime, mesh)
    model = _initial_model(config)
    return abstract_state(model, config.optimizer, mesh, shards, config.encoder)


def _initial_model(config: PretrainConfig) -> heads.Pretraining:
    """Return a model whose initial values are those of any that `config` may compute."""
    # One runtime setting changes shapes; without the others one model is traced for all purposes.
    return heads.Pretraining(config.encoder, scan=config.runtime.scan_layers)


def argument_shapes(
    config: PretrainConfig, inputs: InputKind, batch_size: int, mesh: Mesh
) -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct], Hparams]:
    """Return (state, batch, hparams) of the train step, ShapeDtypeStructs with their shardings.

    Of rows that come masked and are not packed.
    """
    if config.distillation.teacher:
        raise UserError(
            'distillation.teacher: what a teacher takes is not counted: leave it out of a plan'
        )
    # The columns as the records' reader gives them (input_pipeline/records/fields.py), for a
    # program that is compiled where there are no records.
    B, T, P = batch_size, inputs.seq_len, inputs.predictions
    columns: dict[str, tuple[tuple[int, ...], Any]] = {
        'input_ids': ((B, T), jnp.int32),
        'input_mask': ((B, T), jnp.int32),
        'segment_ids': ((B, T), jnp.int32),
        'masked_lm_positions': ((B, P), jnp.int32),
        'masked_lm_ids': ((B, P), jnp.int32),
        'masked_lm_weights': ((B, P), jnp.float32),
        'next_sentence_labels': ((B,), jnp.int32),
        'example_weights': ((B,), jnp.float32),
    }
    columns[config.model.words.reads] = ((B, T, *config.model.words.axes), jnp.int32)
    # Every column is split by rows; scalars are on every device.
    by_rows, everywhere = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    batch = {}
    for name, (shape, dtype) in columns.items():
        batch[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=by_rows)
    hparams = hparams_of(config.optimizer, config.seed, config.total_steps)
    scalars = [jax.ShapeDtypeStruct((), x.dtype, sharding=everywhere) for x in hparams]
    return state_shapes(config, mesh), batch, Hparams(*scalars)
