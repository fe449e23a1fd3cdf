"""A trained model that stays in memory and answers: `Predictor.from_workdir(...)`.

  from bert_jax.inference import Predictor

  predictor = Predictor.from_workdir('runs/mrpc')
  predictor(('He said so.', 'So he said.'))
  # {'label': '1', 'probability': 0.97, 'probabilities': {...}}
  predictor([{'text': 'One.', 'text_b': 'Another.'}])  # a list of records gives a list of answers

Owns the way from records to answers through the device. What a record and an answer are is
pipelines.py's; to score a split of a task is finetuning/evaluation.py's.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from absl import logging

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.conversion import huggingface, serving
from bert_jax.conversion.trained_model import Model, check_parts
from bert_jax.costs.step_costs import format_bytes
from bert_jax.inference import pipelines
from bert_jax.inference.engine import DeviceWeights, InferenceEngine, check_process
from bert_jax.inference.pipelines import Pipeline
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.input_pipeline.tasks.features import count_cut, name_limit, say_cut
from bert_jax.input_pipeline.text.record_files import BadRecord
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer, listed
from bert_jax.model.blocks.matmul import choose_inference_dtype
from bert_jax.runs.finetuning.data_collator import Result, gather
from bert_jax.runs.sources.source import Source, read_source, read_tuned, split_step
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.loop import iterate_ahead
from bert_jax.train.task_heads import CLASSES

_CHUNK = 512  # records that go together through `stream`
_ROW_ARRAYS = ('input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions')


def find_pipeline(model: Model) -> type[Pipeline] | None:
    """Return the class that asks a model; None where it has no head that answers."""
    # A class may be readable and still have no head of ours that answers (an encoder).
    if model.architecture not in CLASSES or model.row.pipeline is None:
        return None
    return getattr(pipelines, model.row.pipeline)


def check_windows(model: Model, doc_stride: int) -> None:
    """Raise UserError for a model that does not read a text in several rows, or no such windows."""
    if doc_stride < 1:
        raise UserError(f'doc_stride={doc_stride}: must be a whole number from 1')
    asked = find_pipeline(model)
    if asked is None or not asked.in_windows:
        raise UserError(
            f'doc_stride: {model.architecture} is not read in windows, as classifiers, regressions'
            ' and questions are: leave it out'
        )


def make_pipeline(
    model: Model, tokenizer: Tokenizer, max_length: int, top: int, options: Mapping[str, Any]
) -> Pipeline:
    """Return what asks `model` and makes its answers.

    Args:
      model: the model.
      tokenizer: the model's.
      max_length: word pieces of its longest row.
      top: how many candidates an answer lists.
      options: those of the task that it was trained on.

    Raises:
      UserError: the model has no head that answers.
    """
    asked = find_pipeline(model)
    if asked is None:
        if model.sentence is not None:
            raise UserError(
                'a sentence encoder gives vectors and no answers: take Bert.load(...).embed of'
                ' bert_jax.inference, or bert-nearest'
            )
        raise UserError(
            f'{model.architecture} has no head that answers: its hidden states are what'
            ' bert-extract-features writes'
        )

    check_parts(model, 'to answer', 'name one that has all, or train it first')

    # Sources of others may leave out their labels: then as transformers calls them.
    labels = tuple(model.labels)
    if CLASSES[model.architecture].labelled and not labels:
        labels = tuple(f'LABEL_{i}' for i in range(model.outputs))

    return asked(labels, tokenizer, max_length, top, {**model.chosen, **options})


def read_training_options(init_from: str) -> tuple[int | None, dict[str, Any]]:
    """Return (longest row, options) that a workdir was fine-tuned with; (None, {}) elsewhere."""
    workdir, _ = split_step(init_from)
    # A Hugging Face directory has a config.json too, and is none.
    if workdir.config_file.exists() and not huggingface.is_directory(init_from):
        config = workdir.config()
        if isinstance(config, schema.FinetuneConfig):
            return config.max_seq_length, workdir.data(options=dict)['options']
    return None, {}


def choose_roles(
    pipeline: Pipeline, options: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the roles that a record must have, and may have, for a model trained with `options`.

    A second text is optional only where nothing says whether the task has one.
    """
    required, optional = pipeline.required, pipeline.optional
    if 'text_b' in optional and 'texts' in options:
        optional = tuple(role for role in optional if role != 'text_b')
        if options['texts'] == 2:
            required = (*required, 'text_b')
    return required, optional


class _Started(NamedTuple):
    """Records on their way through the device.

    Attributes:
      faults: what is wrong with a record, by its index.
      records: the others, by theirs.
      rows: those of `records`.
      results: of the rows, on the device.
    """

    faults: dict[int, str]
    records: dict[int, Any]
    rows: Arrays
    results: Iterable[Result]


def iterate_chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` items, of the last of which there may be fewer."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


class Predictor:
    """Answers records of text with one trained model.

    Programs are compiled when a length of rows first comes up, and kept.

    Attributes:
      roles: (those that a record must have, those that it may have).
      source: the model, its tokenizer, where it came from.
      settings: what decides its answers besides the model: the longest row, `top`, the arithmetic,
        a span task's options.
      compilations: how many programs were compiled, under 'predict'.
      added_bytes: what its weights take on each device, but for those that it shares
        (`on_one_encoder`).
    """

    def __init__(
        self,
        source: Source,
        max_seq_length: int,
        options: Mapping[str, Any],
        top: int = 5,
        compute_dtype: str = 'auto',
        weights: DeviceWeights | None = None,
    ):
        """Put the model on the devices.

        Args:
          source: the model.
          max_seq_length: word pieces of the longest row.
          options: those of the task that the model was trained with.
          top: how many candidates an answer lists.
          compute_dtype: arithmetic of the layers: float32, bfloat16 or auto, as the processor is
            fast in.
          weights: those on the devices that it shares with other predictors, to which its own are
            added.
        """
        compute_dtype = choose_inference_dtype(compute_dtype)
        if not isinstance(top, int | np.integer) or top < 1:
            raise UserError(f'top={top!r} must be a whole number from 1')

        # Eight positions leave some pieces of each text of a pair, besides the special tokens.
        limit = source.model.max_position
        if not isinstance(max_seq_length, int | np.integer) or not 8 <= max_seq_length <= limit:
            raise UserError(
                f'max_seq_length={max_seq_length!r}: this model reads 8 to {limit} word pieces'
            )

        self._limit = name_limit(options, max_seq_length)

        # What identifies the answers: a file of other settings is not gone on with.
        self.source = source
        self.settings = [max_seq_length, top, compute_dtype, dict(options)]
        pipeline = self._pipeline = make_pipeline(
            source.bert, source.tokenizer, max_seq_length, top, options
        )

        # Choices are scored row by row, with the head of a single number; the weights are the same.
        self.roles = choose_roles(pipeline, options)
        computed = source.bert
        if pipeline.scored_as is not None:
            computed = computed.under(pipeline.scored_as)

        # Reduced on the device, within the same program: the whole vocabulary's scores stay there.
        forward = serving.make_forward(computed, jnp.dtype(compute_dtype))
        self._engine = InferenceEngine(
            lambda params, batch: pipeline.reduce(forward(params, batch)),
            source.params,
            max_seq_length,
            word_vectors.inputs(source.model, source.tokenizer),
            weights or DeviceWeights(compute_dtype),
        )
        self.compilations = self._engine.compilations
        self.added_bytes = self._engine.added_bytes

    def __repr__(self) -> str:
        """Return where the model is from, its head and what a record has."""
        required, optional = self.roles
        roles = ', '.join([*required, *(f'[{role}]' for role in optional)])
        return f'Predictor({self.source.where!r}, {self.source.bert.head}: {roles})'

    @classmethod
    def from_workdir(
        cls,
        init_from: str | os.PathLike[str],
        max_seq_length: int | None = None,
        top: int = 5,
        compute_dtype: str = 'auto',
        doc_stride: int | None = None,
    ) -> Predictor:
        """Load a trained model.

        Args:
          init_from: a workdir of bert-finetune or bert-pretrain, or any other source that
            --init_from takes.
          max_seq_length: word pieces of the longest row; None: as fine-tuned, else as many as the
            model has positions.
          top: how many candidates an answer lists (n-best answers, words for a mask).
          compute_dtype: arithmetic of the layers: float32, bfloat16 or auto, as the processor is
            fast in.
          doc_stride: read a text that is longer than a row in windows that begin so many word
            pieces after each other; None: as trained, which cuts the text of a classifier.

        Raises:
          UserError: the model cannot be read, has no head that answers, or none for windows.
        """
        check_process()
        source = read_source(init_from)
        length, options = read_training_options(os.fspath(init_from))
        length = max_seq_length or length or source.bert.longest_row
        if doc_stride is not None:
            check_windows(source.bert, doc_stride)
            options = {**options, 'doc_stride': doc_stride}
        return cls(source, length, options, top, compute_dtype)

    @classmethod
    def on_one_encoder(
        cls, workdirs: str | Sequence[str], top: int = 5, compute_dtype: str = 'auto'
    ) -> dict[str, Predictor]:
        """Load a predictor for each of several runs that were tuned on one encoder, by their names.

        The encoder is in memory once, on the host and on the devices; each predictor adds what its
        run has trained (`added_bytes`), which the log says too. They answer as those of
        `from_workdir` do.

        Args:
          workdirs: the runs.
          top: how many candidates an answer lists.
          compute_dtype: arithmetic of the layers: float32, bfloat16 or auto, as the processor is
            fast in.

        Raises:
          UserError: a run was not tuned (tuning.method), or on another encoder than the first.
        """
        if not workdirs:
            return {}
        workdirs = [workdirs] if isinstance(workdirs, str) else workdirs
        check_process()
        encoder, sources = read_tuned(workdirs)
        compute_dtype = choose_inference_dtype(compute_dtype)
        weights = DeviceWeights(compute_dtype)
        _, size = weights.place({'encoder': encoder.params['encoder']})
        logging.info('%s: %s in memory, once', encoder.where, format_bytes(size))

        # What is not the encoder's own object is the run's.
        predictors: dict[str, Predictor] = {}
        for workdir, source in zip(workdirs, sources, strict=True):
            length, options = read_training_options(workdir)
            length = length or source.model.max_position
            predictor = cls(source, length, options, top, compute_dtype, weights)
            logging.info('%s: adds %s', workdir, format_bytes(predictor.added_bytes))
            predictors[workdir] = predictor
        return predictors

    def __call__(self, inputs: Any) -> Any:
        """Answer a text, a tuple of texts (in the order of the roles) or a record.

        Of a list or an array of them, return a list.
        """
        inputs = listed(inputs)
        if isinstance(inputs, list):
            return list(self.stream(inputs))
        (answer,) = self.stream([inputs])
        return answer

    def stream(self, inputs: Iterable[Any], errors: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the answers to any number of inputs, in order.

        The next inputs are made ready while the device works. How many were too long for a row and
        cut is logged at the end.

        Args:
          inputs: what `__call__` takes, and BadRecords.
          errors: answer an input that cannot be answered by {'error': what is wrong with it}, in
            place of raising UserError when its turn comes.
        """
        # A text or a record is one input: what it is made of are none.
        inputs = listed(inputs)
        if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
            inputs = [inputs]

        # One chunk ahead, as everywhere: the device is never idle while answers are written.
        done, cut = 0, np.zeros(4, np.int64)
        chunks = iterate_chunks(inputs, _CHUNK)
        for started in iterate_ahead(map(self._start, chunks)):
            cut += count_cut(started.rows)
            for answer in self._finish(started):
                if isinstance(answer, str):
                    if not errors:
                        raise UserError(f'inputs[{done}]: {answer}')
                    answer = {'error': answer}
                done += 1
                yield answer
        say_cut('inputs', cut, self._limit)

    def _make_record(self, item: Any) -> Mapping[str, Any]:
        """Return an input as a record. UserError where a role is missing, unknown, or no text."""
        # First any form becomes {role: text}.
        if isinstance(item, BadRecord):
            raise UserError(item.reason)
        roles = (*self.roles[0], *self.roles[1])
        if isinstance(item, str):
            item = (item,)
        if isinstance(item, tuple):
            if len(item) > len(roles):
                raise UserError(
                    f'{len(item)} texts, where this model reads {" and ".join(roles)} alone'
                )
            item = dict(zip(roles, item, strict=False))
        if not isinstance(item, Mapping):
            raise UserError(
                f'expected a text, a tuple of texts or a record of {", ".join(roles)}, not'
                f' {str(item)[:80]!r}'
            )

        # Then the roles, and last the texts in them. None is a role left out, as an empty cell of
        # a table has it.
        item = {role: text for role, text in item.items() if text is not None}
        for role in self.roles[0]:
            if role not in item:
                raise UserError(
                    f'a record needs {" and ".join(self.roles[0])}: no {role!r} in'
                    f' {str(dict(item))[:80]}'
                )
        for role in item:
            if role not in roles:
                raise UserError(f'a record has {", ".join(roles)}: {role!r} is none of them')

        for role, text in item.items():
            texts, also = [text], ''
            if role in self._pipeline.lists:
                also = ' or a list of texts'
                if isinstance(text, list | tuple):
                    texts = list(text)
            if not all(isinstance(each, str) for each in texts):
                raise UserError(f'{role!r} must be a text{also}, not {str(text)[:80]}')
        return item

    def _start(self, items: Sequence[Any]) -> _Started:
        """Send what can be answered of `items` to the device, and note what cannot."""
        # The form of each record by itself: a fault here is that record's own.
        faults: dict[int, str] = {}
        records: dict[int, Any] = {}
        for index, item in enumerate(items):
            try:
                records[index] = self._make_record(item)
            except UserError as error:
                faults[index] = str(error)
        try:
            # All together, which is fast; only if that fails, one by one.
            rows = self._make_rows(records)
        except UserError:  # of one of them, and one by one they show which
            for index, record in list(records.items()):
                try:
                    self._make_rows({index: record})
                except UserError as error:
                    faults[index] = str(error)
                    del records[index]
            rows = self._make_rows(records)

        # Of the rows' arrays only what the model reads; the others are for the answers.
        arrays = {name: rows[name] for name in _ROW_ARRAYS if name in rows}
        results = self._engine(arrays) if records else []
        return _Started(faults, records, rows, results)

    def _make_rows(self, records: Mapping[int, Any]) -> Arrays:
        return self._pipeline.rows(list(records.values())) if records else {}

    def _finish(self, started: _Started) -> Iterator[dict[str, Any] | str]:
        """Yield the answers of what has been started, and the faults between them, in order."""
        faults, records, rows, results = started
        # No records, no outputs: a chunk may be all faults.
        answers: Iterator[dict[str, Any]] = iter(())
        if records:
            # Answers of every position need all rows at one length; `gather` fills up to it.
            positions = self._engine.max_length if self._pipeline.per_position else 0
            outputs = gather(results, len(rows['input_ids']), positions)
            answers = iter(self._pipeline.answers(list(records.values()), rows, outputs))

        # Indices count faults and records together, so both come out in the order of the inputs.
        for index in range(len(faults) + len(records)):
            yield faults[index] if index in faults else next(answers)
