"""The data of each phase of a pre-training run: its batches, on the devices.

Owns which rows of the records a step reads, and their way to the mesh. It must not know what is
trained.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
from jax.sharding import Mesh

from bert_jax.configs.schema import Phase, PretrainConfig
from bert_jax.input_pipeline.records.sampler import Growth
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.mesh import sharding
from bert_jax.runs.pretraining.budget import make_growth
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.dynamic_masking import DynamicMasking
from bert_jax.train.gradient_accumulation import number_filled_rows, number_rows
from bert_jax.train.learning_rate import traced_seed
from bert_jax.train.loop import prefetch
from bert_jax.train.losses.objective import Batch
from bert_jax.train.pretraining_program import InputKind
from bert_jax.train.step import draw_masks

if TYPE_CHECKING:
    from bert_jax.runs.pretraining.teacher import Teacher


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The batches of one phase.

    Attributes:
      number: of the phase, from 0.
      first: the steps of the run before it.
      phase: its length, steps and batch size.
      records: what it reads.
      mesh: the devices.
      seed: of the order of its records.
      order: how they are ordered, as PretrainConfig.record_order.
      inputs: makes what the model reads of a batch of a tokenizer's ids.
      growth: how its batch grows; None where it does not.
      teacher: adds its answers to a batch; None where there is none.
      mask: masks a batch as the run's step with that number does; None where rows come masked, or
        the step itself masks them.
    """

    number: int
    first: int
    phase: Phase
    records: Records
    mesh: Mesh
    seed: int
    order: Literal['spread', 'blocks']
    inputs: Callable[[dict[str, Any]], dict[str, Any]]
    growth: Growth | None = None
    teacher: Teacher | None = None
    mask: Callable[[Batch, Any], dict[str, jax.Array]] | None = None

    @property
    def last(self) -> int:
        """Return the number of the run's step with which the phase ends."""
        return self.first + self.phase.steps

    @functools.cached_property
    def kind(self) -> InputKind:
        """Return what the program must know of its rows."""
        return self.records.kind(self.phase.masked_lm_prob)

    def stream(self, split: str) -> RecordStream:
        """Open the rows of a split that this process puts on its devices."""
        size = self.phase.batch_size
        return RecordStream(
            self.records.directory,
            split,
            size,
            self.seed,
            rows=sharding.list_local_rows(self.mesh, size),
            order=self.order,
            growth=self.growth,
        )

    def place(self, batch: dict[str, Any], step: int | None = None) -> dict[str, jax.Array]:
        """Put a batch of this process's rows on the devices, as one of all rows.

        Args:
          batch: the rows.
          step: of the run, from 0, whose masks are drawn where a teacher reads them; None: of
            held-out rows, which come masked.
        """
        placed = sharding.place_batch(self.inputs(batch), self.mesh, self.phase.batch_size)
        if self.teacher is None:
            return placed
        # The mesh is known to one thread at a time, and batches are made in another.
        with jax.set_mesh(self.mesh):
            if self.mask is not None and step is not None:
                placed = self.mask(placed, step)
            return self.teacher(placed)

    def batches(self, stream: RecordStream, step: int) -> Iterator[dict[str, jax.Array]]:
        """Yield batches on the devices, from the run's step `step` (from 0) on."""
        # The stream counts the phase's steps from 0, the run counts all phases' together. The next
        # batch is read and placed while the device works on this one.
        numbered = zip(stream.batches(step - self.first), itertools.count(step))
        return prefetch(numbered, lambda pair: self.place(*pair))

    def list_size_starts(self) -> list[int]:
        """Return the run's steps (from 0) at which the batch has each of its sizes first."""
        if self.growth is None:
            return [self.first]
        count = self.growth.full // self.growth.first
        return [self.first + i * self.growth.steps for i in range(count)]

    def sizes(self, step: int) -> Iterator[int] | None:
        """Return the rows of each batch from the run's step `step` on; None where none grows."""
        if self.growth is None:
            return None
        return map(self.growth.size, itertools.count(step - self.first))

    def read_by(self, stream: RecordStream, first: int, last: int) -> str:
        """Say which rows the run's steps from one to another (from 1) have read of the phase."""
        begin = max(first - 1, self.first) - self.first
        return f'; they read {stream.read_by(begin, last - self.first)}'


def make_phases(
    config: PretrainConfig,
    records: Sequence[Records],
    mesh: Mesh,
    teacher: Teacher | None = None,
) -> list[PhaseData]:
    """Make the data of each phase of a run.

    Args:
      config: the settings of the run.
      records: those of each phase (records.match_phases).
      mesh: the devices.
      teacher: whose answers the batches have besides.
    """
    phases, first = [], 0
    for number, phase in enumerate(config.phases):
        growth, mask = make_growth(phase, config.runtime.accumulation), None
        if teacher is not None:
            masking = records[number].kind(phase.masked_lm_prob).masking
            mask = _make_mask(config.seed, masking, growth)
        data = PhaseData(
            number=number,
            first=first,
            phase=phase,
            records=records[number],
            mesh=mesh,
            # A phase has its own order of the records: with one seed a second phase on the same
            # ones would read them as the first did.
            seed=config.seed + number,
            order=config.record_order,
            inputs=word_vectors.inputs(config.model, records[number].tokenizer),
            growth=growth,
            teacher=teacher,
            mask=mask,
        )
        phases.append(data)
        first += phase.steps
    return phases


def _make_mask(
    seed: int, masking: DynamicMasking | None, growth: Growth | None
) -> Callable[[Batch, Any], dict[str, jax.Array]] | None:
    """Make what masks a batch before a teacher reads it; None where records are masked."""
    if masking is None:
        return None

    def mask(batch: Batch, step: Any) -> dict[str, jax.Array]:
        rows_B = number_rows(batch)
        if growth is not None:
            rows_B, _ = number_filled_rows(batch, growth.parts)
        return draw_masks(masking, batch, traced_seed(seed), step, rows_B)

    return jax.jit(mask)
