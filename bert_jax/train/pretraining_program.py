"""The program of pre-training: model, objective, jitted steps, the shapes of their arguments.

Owns how these follow from a configuration and a mesh, in one place: the run, its dry run, the plan
for chips that are not here, the held-out evaluation and the benchmarks all take them from here.
Nothing is computed or compiled yet. It must not know where records come from.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.objectives import OBJECTIVES
from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    RuntimeConfig,
)
from bert_jax.mesh import exchange, sharding
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model.blocks import matmul
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.model.dropout import list_rounded_rates
from bert_jax.train.dynamic_masking import DynamicMasking
from bert_jax.train.learning_rate import Hparams, hparams_of
from bert_jax.train.losses.distillation import Distillation, choose_method
from bert_jax.train.losses.objective import Objective
from bert_jax.train.pretraining_objectives import MaskedLMObjective, choose_objective
from bert_jax.train.state import (
    TrainState,
    compute_parameter_shapes,
    count_weights,
    create_state,
    describe_state,
)
from bert_jax.train.step import StepOptions, jit_train_step, make_eval_step, make_train_step

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
    """

    kernel: str
    objective: Objective
    train_step: Any
    eval_step: Any
    state: TrainState


@dataclasses.dataclass(frozen=True)
class PretrainingSetup:
    """What a run of pre-training trains, made once of its settings; a phase's program follows.

    Attributes:
      model: the encoder's shape.
      encoder: that with what its tuning adds.
      optimizer: how it is updated.
      runtime: how it is computed.
      hparams: the traced scalars of its steps.
      seed: of the first weights.
      pair_loss: whether pairs are learnt where rows have them.
      objective: what is learnt, but for a teacher's answers.
      distillation: what is learnt from a teacher; None without one.
    """

    model: ModelConfig
    encoder: ModelConfig
    optimizer: OptimizerConfig
    runtime: RuntimeConfig
    hparams: Hparams
    seed: int
    pair_loss: bool
    objective: MaskedLMObjective
    distillation: Distillation | None

    @classmethod
    def from_config(cls, config: PretrainConfig, phase: int = 0) -> Self:
        """Make it of the settings of a run, as they are in a phase, counted from 0."""
        model, optimizer = config.choose_model(phase), config.choose_optimizer(phase)
        first, steps = config.time_schedule(phase)
        return cls(
            model=model,
            encoder=model.tuned(config.tuning),
            optimizer=optimizer,
            runtime=config.runtime,
            hparams=hparams_of(optimizer, config.seed, steps, first_step=first),
            seed=config.seed,
            pair_loss=config.pair_loss,
            objective=choose_objective(config),
            distillation=choose_method(config.distillation),
        )

    def make_model(self, kernel: str = 'xla', is_whole: bool = False) -> Any:
        """Return the model as it computes outside of training, which may multiply otherwise.

        Args:
          kernel: what computes attention; any has the same parameters.
          is_whole: whether the parameters are those of a source, in which no model lacks arrays
            that it shares with another.
        """
        runtime = self.runtime
        return self.objective.make_model(
            self.encoder,
            is_whole,
            dtype=jnp.dtype(runtime.compute_dtype),
            remat=runtime.remat,
            scan=runtime.scan_layers,
            kernel=kernel,
            vocabulary_loss=runtime.vocabulary_loss,
        )

    def make_objective(self, model: Any, has_pairs: bool) -> Objective:
        """Make the objective of a model: that of its distillation, or of the run.

        has_pairs: whether the rows have pairs. A plan has no records; a family without pairs has no
        head to train on them.
        """
        if self.distillation is not None:
            return self.distillation.objective(model)
        nsp = has_pairs and self.pair_loss and bool(self.encoder.traits.pairs)
        return self.objective.make_objective(model, nsp)

    def make_program(
        self, inputs: InputKind, mesh: Mesh, platform: str | None = None, grows: bool = False
    ) -> PretrainingProgram:
        """Make the program of a phase; call it inside `jax.set_mesh(mesh)`.

        Args:
          inputs: what it reads.
          mesh: the devices.
          platform: 'cpu', 'gpu' or 'tpu', by default that of the devices here.
          grows: whether the batch of the phase grows.

        Raises:
          UserError: runtime.attention names a kernel that cannot be had.
        """
        # The kernel first: a setting that cannot be had is refused before anything is traced.
        runtime = self.runtime
        kernel = choose_kernel(runtime, self.encoder, inputs.seq_len, inputs.packed, platform)
        model = self.make_model(kernel)
        trained = model.clone(matmul_dtype=matmul.read_in_training(runtime, platform))
        objective = self.make_objective(trained, inputs.nsp)
        # A teacher reads the masked rows too, so they are masked before the step.
        masking = self.objective.adapt(inputs.masking) if self.distillation is None else None
        options = StepOptions(
            runtime.accumulation,
            masking,
            runtime.dropout_rng,
            sharding.shards_update(runtime, mesh),
            jnp.dtype(runtime.compute_dtype),
            encoder=self.model,
            grows=grows,
            clipped_apart=self.objective.clipped_apart,
        )
        train_step = make_train_step(objective, self.optimizer, options)
        # The state's shardings are known without computing it; the jitted step gives its result the
        # same.
        state = self.state_shapes(mesh)
        eval_step = jax.jit(make_eval_step(self.make_objective(model, inputs.nsp)))
        train_step = jit_train_step(train_step, state)
        return PretrainingProgram(kernel, objective, train_step, eval_step, state)

    def make_state(self, mesh: jax.sharding.Mesh) -> TrainState:
        """Make the state that the run begins with, on the mesh."""
        shards = sharding.shards_update(self.runtime, mesh)
        model = self._initial_model()
        return create_state(model, self.seed, self.optimizer, mesh, shards, self.encoder)

    def state_shapes(self, mesh: Mesh) -> TrainState:
        """Return the shapes of `make_state`, as ShapeDtypeStructs with their shardings."""
        shards = sharding.shards_update(self.runtime, mesh)
        return describe_state(self._initial_model(), self.optimizer, mesh, shards, self.encoder)

    def count_parameters(self) -> int:
        """Return the number of parameters of the models, without what tuning adds.

        Computed vectors are none, and what two models share counts once.
        """
        shapes = group_by_path(compute_parameter_shapes(self.objective.make_model(self.model)))
        for path in self.model.words.computed:
            shapes.pop(path, None)
        return count_weights(shapes, self.model)

    def _initial_model(self) -> Any:
        """Return a model whose initial values are those of any that the run may compute."""
        # One runtime setting changes shapes; without the others one model is traced for all
        # purposes.
        return self.objective.make_model(self.encoder, scan=self.runtime.scan_layers)

    def argument_shapes(
        self, inputs: InputKind, batch_size: int, mesh: Mesh
    ) -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct], Hparams]:
        """Return (state, batch, hparams) of the train step, ShapeDtypeStructs with their shardings.

        Of rows that come masked and are not packed.
        """
        if self.distillation is not None:
            raise UserError(
                'distillation.teacher: what a teacher takes is not counted: leave it out of a plan'
            )
        # The columns as the records' reader gives them (input_pipeline/records/fields.py), for a
        # program that is compiled where there are no records.
        B, T, P = batch_size, inputs.seq_len, inputs.predictions
        words = self.encoder.words
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
        columns[words.reads] = ((B, T, *words.axes), jnp.int32)
        # Every column is split by rows; scalars are on every device.
        by_rows, everywhere = sharding.make_row_sharding(mesh), sharding.make_whole_sharding(mesh)
        batch = {}
        for name, (shape, dtype) in columns.items():
            batch[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=by_rows)
        scalars = [jax.ShapeDtypeStruct((), x.dtype, sharding=everywhere) for x in self.hparams]
        return self.state_shapes(mesh), batch, Hparams(*scalars)

    def list_departures(self, mesh: Mesh) -> list[str]:
        """List what the run does otherwise than its settings say."""
        config = self.objective.config
        rates = {
            'model.hidden_dropout': self.encoder.hidden_dropout,
            'model.attention_dropout': self.encoder.attention_dropout,
            'tuning.lora_dropout': self.encoder.tuning.lora_dropout,
        }
        return [
            *self.optimizer.without_effect(),
            *OBJECTIVES[config.objective].list_without_effect(config),
            *config.model.list_unlike_family(),
            *exchange.list_without_effect(self.runtime, mesh),
            *list_rounded_rates(rates, self.runtime.dropout_rng),
        ]
