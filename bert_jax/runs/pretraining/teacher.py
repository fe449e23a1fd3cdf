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
from bert_jax.configs.schema import DistillationConfig, PretrainConfig
from bert_jax.conversion.serving import fill_up
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh import sharding
from bert_jax.model import heads, partition
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.sources.source import Source, make_plain, read_source
from bert_jax.train.losses.distillation import choose_method


class Teacher:
    """A model whose answers are columns of the batches that a student is trained on.

    Attributes:
      fingerprint: of its weights and its vocabulary.
    """

    def __init__(self, config: PretrainConfig, records: Sequence[Records], mesh: Mesh):
        """Read the teacher that `config` names, and put it on the devices.

        Args:
          config: the settings of the run.
          records: those of each phase.
          mesh: the devices.

        Raises:
          UserError: there is no such model, or the student cannot learn from it.
        """
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
        settings, method = config.distillation, choose_method(config.distillation)
        assert method is not None, 'a run without a teacher'
        source = make_plain(read_source(settings.teacher))
        longest = max(phase.seq_len for phase in config.phases)
        check_teacher(settings, source, records[0].tokenizer, longest, method.reads)
        method.check(config.model, source.model)
        self.fingerprint = source.fingerprint()

        # Without dropout, and nothing is kept for a backward pass.
        model = heads.Pretraining(source.model, jnp.dtype(config.runtime.compute_dtype))
        self._params = partition.put(fill_up(model, source.params, method.reads), mesh)
        self._mesh = mesh

        def make_columns(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return jax.tree.map(sharding.constrain_rows, method.columns(model, params, batch))

        self._columns = jax.jit(make_columns)

    def __call__(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return a batch on the devices with the teacher's columns."""
        # The mesh is known to one thread at a time, and batches are made in another.
        with jax.set_mesh(self._mesh):
            return batch | self._columns(self._params, batch)


def check_teacher(
    settings: DistillationConfig,
    source: Source,
    tokenizer: Tokenizer,
    longest: int,
    parts: Sequence[str],
) -> None:
    """Raise UserError where a teacher cannot answer what the student reads.

    Args:
      settings: of the run.
      source: the teacher.
      tokenizer: that of the records.
      longest: the most word pieces of a row.
      parts: what of the teacher the student learns from.
    """
    name = f'distillation.teacher={settings.teacher}'
    if tokenizer.fingerprint != source.tokenizer.fingerprint:
        raise UserError(
            f'{name}: the vocabulary of --data is another than its own: make the records with'
            ' its tokenizer'
        )
    if source.model.words.reads != 'input_ids':
        raise UserError(f'{name} does not read word pieces, as --data has them')
    if source.model.max_position < longest:
        raise UserError(
            f'{name} reads rows of {source.model.max_position} word pieces, and a phase has'
            f' {longest}: take shorter records'
        )
    lacking = [part for part in parts if part not in source.bert.parts]
    if lacking:
        raise UserError(
            f'{name} has no {", ".join(lacking)}, which distillation.method='
            f'{settings.method} learns from: take a model with it, or another method'
        )
