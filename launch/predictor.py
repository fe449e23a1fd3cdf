"""A trained model that stays in memory and answers: `Predictor.from_workdir(...)`.

  from launch.predictor import Predictor

  predictor = Predictor.from_workdir('runs/mrpc')
  predictor(('He said so.', 'So he said.'))            # {'label': '1', 'probability': 0.97, 'probabilities': {...}}
  predictor([{'text': 'One.', 'text_b': 'Another.'}])  # a list of records gives a list of answers

Owns the way from records to answers through the device. What a record and an answer are is answers.py's; to score
a split of a task is prediction.py's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from etils import epath

from bert_jax.interchange import huggingface, serving
from configs import schema
from configs.errors import UserError
from launch.answers import Answerer, answerer
from launch.buckets import Batches, Buckets, gather
from launch.source import Source, read_source

_CHUNK = 512  # records that go together through `stream`
_ROW_ARRAYS = ('input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions')


class _Started(NamedTuple):
    """Records on their way through the device."""

    records: Sequence[Mapping[str, Any]]
    rows: dict[str, np.ndarray]
    batches: Batches


class Predictor:
    """Answers records of text with one trained model; programs are compiled when a length first comes up, and kept.

    Attributes:
      roles: (those that a record must have, those that it may have).
      source: the model, its tokenizer, where it came from.
      compilations: how many programs were compiled, under 'predict'.
    """

    def __init__(self, source: Source, max_seq_length: int, options: Mapping[str, Any], top: int = 5, compute_dtype: str = 'float32'):
        """See `from_workdir`; `options` are the span task's that the model was trained with."""
        most = source.model.max_position
        if not 8 <= max_seq_length <= most:
            raise UserError(f'max_seq_length={max_seq_length}: this model reads 8 to {most} word pieces')
        self.source = source
        self._answerer: Answerer = answerer(source.bert, source.tokenizer, max_seq_length, top, options)
        self.roles = (self._answerer.required, self._answerer.optional)
        forward = serving.forward(source.bert._replace(architecture=self._answerer.architecture), jnp.dtype(compute_dtype))
        self._buckets = Buckets(lambda params, batch: self._answerer.reduce(forward(params, batch)), source.params, max_seq_length)
        self.compilations = self._buckets.compilations

    @classmethod
    def from_workdir(cls, where: str, max_seq_length: int | None = None, top: int = 5, compute_dtype: str = 'float32') -> Predictor:
        """Loads a workdir of launch.finetune or launch.pretrain, or any other source that --init_from takes.

        Args:
          where: the workdir.
          max_seq_length: word pieces of the longest row; default: as fine-tuned, else as many as the model has positions.
          top: how many candidates an answer lists (n-best answers, words for a mask).
          compute_dtype: arithmetic of the layers, float32 or bfloat16.
        """
        source, options = read_source(where), {}
        file = epath.Path(where) / 'config.json'
        ours = file.exists() and not huggingface.is_directory(where)
        config = schema.loads(file.read_text(), str(file)) if ours else None
        if isinstance(config, schema.FinetuneConfig):
            options = json.loads((epath.Path(where) / 'data.json').read_text()).get('options', {})
            max_seq_length = max_seq_length or config.max_seq_length
        return cls(source, max_seq_length or source.model.max_position, options, top, compute_dtype)

    def __call__(self, inputs: Any) -> Any:
        """Answers: one for a text, a tuple of texts (in the order of the roles) or a record; a list of them for a list."""
        if isinstance(inputs, list):
            return list(self.stream(inputs))
        return next(self.stream([inputs]))

    def stream(self, inputs: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """The answers to any number of inputs, in order; the next ones are made ready while the device works."""
        records = (self._record(item) for item in inputs)
        before: _Started | None = None
        while chunk := list(itertools.islice(records, _CHUNK)):
            started = self._start(chunk)
            if before:
                yield from self._finish(before)
            before = started
        if before:
            yield from self._finish(before)

    def _record(self, item: Any) -> Mapping[str, Any]:
        """An input as a record. UserError where a role is missing or unknown."""
        roles = (*self.roles[0], *self.roles[1])
        if isinstance(item, str):
            item = (item,)
        if isinstance(item, tuple):
            item = dict(zip(roles, item, strict=False)) if len(item) <= len(roles) else item
        if not isinstance(item, Mapping):
            raise UserError(f'expected a text, a tuple of texts or a record of {", ".join(roles)}, not {str(item)[:80]!r}')
        if missing := [role for role in self.roles[0] if role not in item]:
            raise UserError(f'a record needs {" and ".join(self.roles[0])}: no {missing[0]!r} in {str(dict(item))[:80]}')
        if unknown := [role for role in item if role not in roles]:
            raise UserError(f'a record has {", ".join(roles)}: {unknown[0]!r} is none of them')
        return item

    def _start(self, records: Sequence[Mapping[str, Any]]) -> _Started:
        rows = self._answerer.rows(records)
        return _Started(records, rows, self._buckets({name: rows[name] for name in _ROW_ARRAYS if name in rows}))

    def _finish(self, started: _Started) -> list[dict[str, Any]]:
        rows, positions = started.rows, self._buckets.max_length if self._answerer.per_position else None
        outputs = gather(started.batches, len(rows['input_ids']), positions)
        return self._answerer.answers(started.records, rows, outputs)
