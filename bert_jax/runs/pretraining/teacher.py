"""The teacher of a run of pre-training: read, checked against the student, run on each batch.

Owns the trip of a batch through it. What it gives, and what a student makes of that, is a method of
bert_jax/train/losses/distillation.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.configs.errors import UserError
from bert_jax.conversion.serving import fill_up
from bert_jax.mesh import sharding
from bert_jax.model import heads, partition
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.sources.source import Source, make_plain, read_source
from bert_jax.train.losses.distillation import Distillation
from bert_jax.train.pretraining_program import PretrainingSetup


class Teacher:
    """A model whose answers are columns of the batches that a student is trained on.

    Attributes:
      fingerprint: of its weights and its vocabulary.
    """

    def __init__(self, setup: PretrainingSetup, records: Sequence[Records], mesh: Mesh):
        """Read the teacher of a run that has one, and put it on the devices.

        Args:
          setup: of the run.
          records: those of each phase.
          mesh: the devices.

        Raises:
          UserError: there is no such model, or the student cannot learn from it.
        """
        tuning = setup.encoder.tuning
        if tuning.method != 'full':
            raise UserError(
                f'distillation.teacher: tuning.method={tuning.method} leaves most weights as'
                ' they are: a student takes tuning.method=full'
            )
        method = setup.distillation
        assert method is not None, 'a run without a teacher'
        source = make_plain(read_source(method.settings.teacher))
        check_teacher(method, source, records)
        method.check(setup.model, source.model)
        self.fingerprint = source.fingerprint()

        # Without dropout, and nothing is kept for a backward pass.
        model = heads.Pretraining(source.model, jnp.dtype(setup.runtime.compute_dtype))
        self._params = partition.put(fill_up(model, source.params, method.reads), mesh)

        def make_columns(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return jax.tree.map(sharding.constrain_rows, method.columns(model, params, batch))

        self._columns = jax.jit(make_columns)

    def __call__(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return a batch on the devices with the teacher's columns; call it in the mesh."""
        return batch | self._columns(self._params, batch)


def check_teacher(method: Distillation, source: Source, records: Sequence[Records]) -> None:
    """Raise UserError where a teacher, `source`, cannot answer what the student reads."""
    settings = method.settings
    name = f'distillation.teacher={settings.teacher}'
    if records[0].tokenizer.fingerprint != source.tokenizer.fingerprint:
        raise UserError(
            f'{name}: the vocabulary of --data is another than its own: make the records with'
            ' its tokenizer'
        )
    if source.model.words.reads != 'input_ids':
        raise UserError(f'{name} does not read word pieces, as --data has them')
    longest = max(of_phase.manifest.seq_len for of_phase in records)
    if source.model.max_position < longest:
        raise UserError(
            f'{name} reads rows of {source.model.max_position} word pieces, and a phase has'
            f' {longest}: take shorter records'
        )
    lacking = [part for part in method.reads if part not in source.bert.parts]
    if lacking:
        raise UserError(
            f'{name} has no {", ".join(lacking)}, which distillation.method='
            f'{settings.method} learns from: take a model with it, or another method'
        )
