"""The teacher of a run of pre-training: read, checked against the student, run on each batch.

Owns the trip of a batch through it. What it gives, and what a student makes of that, is a method of
bert_jax/train/losses/distillation.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import PretrainConfig
from bert_jax.conversion.serving import filled_up
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh import sharding
from bert_jax.model import heads, partition
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.sources.source import plain, read_source
from bert_jax.train.losses.distillation import Distillation, distillation


class Teacher:
    """A model whose answers are columns of the batches that a student is trained on.

    Attributes:
      fingerprint: of its weights and its vocabulary.
    """

    def __init__(
        self,
        config: PretrainConfig,
        method: Distillation,
        tokenizer: Tokenizer,
        mesh: jax.sharding.Mesh,
    ):
        """Read the teacher of `config`, and put it on the devices.

        Raises:
          UserError: there is no such model, or the student cannot learn from it.
        """
        name = f'distillation.teacher={config.distillation.teacher}'
        source = plain(read_source(config.distillation.teacher))
        if tokenizer.fingerprint != source.tokenizer.fingerprint:
            raise UserError(
                f'{name}: the vocabulary of --data is another than its own: make the records with'
                ' its tokenizer'
            )
        if source.model.words.reads != 'input_ids':
            raise UserError(f'{name} does not read word pieces, as --data has them')
        longest = max(phase.seq_len for phase in config.phases)
        if source.model.max_position < longest:
            raise UserError(
                f'{name} reads rows of {source.model.max_position} word pieces, and a phase has'
                f' {longest}: take shorter records'
            )
        if lacking := [part for part in method.reads if part not in source.bert.parts]:
            raise UserError(
                f'{name} has no {", ".join(lacking)}, which distillation.method='
                f'{config.distillation.method} learns from: take a model with it, or another method'
            )
        method.check(config.model, source.model)
        self.fingerprint = source.fingerprint()
        # Without dropout, and nothing is kept for a backward pass.
        model = heads.Pretraining(source.model, jnp.dtype(config.runtime.compute_dtype))
        self._params = partition.put(filled_up(model, source.params, method.reads), mesh)
        self._mesh = mesh
        self._columns = jax.jit(
            lambda params, batch: jax.tree.map(
                sharding.constrain_rows, method.columns(model, params, batch)
            )
        )

    @classmethod
    def of(
        cls, config: PretrainConfig, records: Sequence[Records], mesh: jax.sharding.Mesh
    ) -> Teacher | None:
        """Return the teacher of a run, on its devices; None where it has none."""
        method = distillation(config.distillation)
        if method is None:
            return None
        if any(each.kind().masking for each in records):
            raise UserError(
                'distillation.teacher: records with --masking=dynamic are masked in each step,'
                ' and the teacher would read them unmasked: make them without it'
            )
        if config.tuning.method != 'full':
            raise UserError(
                f'distillation.teacher: tuning.method={config.tuning.method} leaves most weights as'
                ' they are: a student takes tuning.method=full'
            )
        return cls(config, method, records[0].tokenizer, mesh)

    def __call__(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return a batch on the devices with the teacher's columns."""
        # The mesh is known to one thread at a time, and batches are made in another.
        with jax.set_mesh(self._mesh):
            return batch | self._columns(self._params, batch)
