"""What a fine-tuning run trains, from where and on what.

Owns the answers of the paper's section 4, where the whole encoder is trained with a head;
feature_based.py has those of section 5.3. It must not know how a run goes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embedding_kinds import OF_WORDS
from bert_jax.configs.model.sentence import (
    LOSSES,
    EmbeddingConfig,
    SentenceConfig,
    VectorsConfig,
)
from bert_jax.configs.schema import FeatureSet, ModelConfig, OptimizerConfig, RuntimeConfig
from bert_jax.configs.section import Section
from bert_jax.costs.flops import count_training_flops
from bert_jax.costs.step_costs import StepCosts
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays, Task
from bert_jax.input_pipeline.tasks.embedding import EmbeddingTask
from bert_jax.input_pipeline.tasks.ranking import RankingTask
from bert_jax.model.blocks import matmul
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.runs.finetuning.early_stopping import StoppingRule
from bert_jax.runs.finetuning.encoder_cache import compute_text_vectors, project
from bert_jax.runs.finetuning.machine import Machine
from bert_jax.runs.finetuning.task_data import Batching, TaskData
from bert_jax.runs.sources.fitting import check_pooler
from bert_jax.runs.sources.source import Source, make_plain, read_source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train import task_heads
from bert_jax.train.head_base import PARTS
from bert_jax.train.losses.objective import Objective
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.search_heads import VectorHead
from bert_jax.train.state import TrainState, load_encoder, load_frozen


class Tagger(NamedTuple):
    """A BiLSTM on features of a frozen encoder.

    Attributes:
      features: which layers it reads, as FeatureConfig has it.
      layers: of the BiLSTM.
      width: of each direction.
    """

    features: FeatureSet
    layers: int
    width: int


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """What a run trains and on what, resolved once of its settings.

    Attributes:
      encoder: the shape of its encoder, with the run's dropouts, BiLSTM and tuning.
      is_random: whether it has nothing of the source's encoder but its shape.
      tagger: what is trained on the encoder where that is frozen.
      head_dropout: dropout before the classifier.
      losses: what its loss is told.
      length: the most word pieces of a row.
      examples: the numbers of the training examples.
      batching: how their rows are put together.
      steps: of the whole run.
      stopping: how scores on the way act on it.
      optimizer: the optimizer's settings.
      runtime: how it is computed.
    """

    encoder: ModelConfig
    is_random: bool
    tagger: Tagger | None
    head_dropout: float
    losses: LossSettings
    length: int
    examples: Sequence[int]
    batching: Batching
    steps: int
    stopping: StoppingRule
    optimizer: OptimizerConfig
    runtime: RuntimeConfig


class Training(NamedTuple):
    """The model and the rows of one run.

    Attributes:
      train: features of the training rows, which batches are cut from.
      scored: those of the scored split.
      model: the model.
      trained: the same as it is trained, whose attention kernel may be another.
      objective: what is minimised.
      costs: what its steps take.
    """

    train: Arrays
    scored: Arrays
    model: Any
    trained: Any
    objective: Objective
    costs: StepCosts


class Approach:
    """All of the source's encoder is trained, with a head.

    Attributes:
      data: the task, and the source of the encoder.
    """

    def __init__(self, data: TaskData, machine: Machine):
        """Take up a task; a teacher runs on `machine`, its vectors are kept in `data.cache`."""
        self.data, self._machine = data, machine
        # By name; the features that it has taught by name, width and length of rows.
        self._teachers: dict[str, Source] = {}
        self._taught: dict[tuple[str, int, int], Arrays] = {}
        self._inputs = word_vectors.inputs(data.source.model, data.source.tokenizer)

    def check(self, setup: RunSetup) -> None:
        """Raise UserError where there can be no such run; compute nothing."""
        encoder, task = setup.encoder, self.data.task
        if encoder.embedding == OF_WORDS and not task_heads.HEADS[task.head].fits_whole_words:
            raise UserError(
                f'{task.name} ({task.kind}) is not for an encoder of whole words (model.embedding='
                f'{OF_WORDS}), which takes classification, pairs, regression and tagging'
            )
        check_sections(setup.losses, task)
        for kind, check in _CHECKS.items():
            if isinstance(task, kind):
                check(setup, self.data)
        vectors = self._describe_vectors(setup)
        if vectors is not None:
            vectors.check_encoder(encoder, setup.length)
        parts = task_heads.HEADS[task.head].of(encoder.family).parts
        needed = {part for part in parts if PARTS[part].of_words}
        if not setup.is_random and needed - self.data.source.params.keys():
            raise UserError(
                f'{task.name} ({task.kind}) trains the masked-LM head of its source, and'
                f' {self.data.source.where} has none: name the model as it was pre-trained, with'
                ' that head'
            )
        if 'pooler' in parts:
            check_pooler(self.data.source, encoder.tuning)

    def identify(self, embedding: EmbeddingConfig) -> dict[str, Any]:
        """Return what a run depends on besides the task and the source."""
        if not embedding.teacher:
            return {}
        return {'teacher_fingerprint': self._load_teacher(embedding.teacher).fingerprint()}

    def make_training(self, setup: RunSetup) -> Training:
        """Make what a run trains; slow where features are new.

        Raises:
          UserError: there can be no such run.
          Stopped: after a signal.
        """
        # The dropout of the head is the recipe's, and the encoder has its own.
        task, encoder, runtime = self.data.task, setup.encoder, setup.runtime
        model = task_heads.make_model(
            task.head,
            encoder,
            task.num_outputs,
            setup.head_dropout,
            runtime,
            self._describe_vectors(setup),
        )

        # Two forms of one model: a fused kernel may read only rows of the training length, while
        # splits are predicted in several lengths; and predictions multiply as compute_dtype says.
        train, scored = self.make_features(setup)
        trained = model.clone(
            kernel=choose_kernel(runtime, encoder, train['input_ids'].shape[-1]),
            matmul_dtype=matmul.read_in_training(runtime),
        )
        objective = task_heads.make_objective(task.head, trained, setup.losses)
        passes = task_heads.count_passes(task.head, encoder)
        parts = task_heads.HEADS[task.head].parts

        def count_flops(length: int) -> int:
            # Of the encoder with its pooler, and of a masked-LM head at every position; those of
            # other heads are too few to count.
            predictions = length * sum(PARTS[part].of_words for part in parts)
            return passes * count_training_flops(encoder, length, predictions)

        return Training(train, scored, model, trained, objective, StepCosts(count_flops))

    def make_features(self, setup: RunSetup) -> tuple[Arrays, Arrays]:
        """Return the (training, scored) features that batches are cut from, made once.

        That may be slow, and a signal may end it (Stopped); what `read_inputs` needs is there then.
        """
        train, scored = self.data.features(setup.length, self._describe_vectors(setup))
        embedding = setup.losses.embedding
        if not embedding.teacher:
            return train, scored
        width = embedding.truncate_dim or self.data.source.model.hidden_size
        key = embedding.teacher, width, setup.length
        if key not in self._taught:
            self._taught[key] = self._add_teacher_vectors(train, embedding.teacher, width)
        return self._taught[key], scored

    def _describe_vectors(self, setup: RunSetup) -> VectorsConfig | None:
        """Return what is kept of the vectors that a run trains, if any."""
        prompts, head = self.data.task.options.get('prompts', {}), self.data.task.head
        return task_heads.HEADS[head].describe_vectors(setup.losses, prompts, setup.length)

    def read_inputs(self, setup: RunSetup, split: str, batch: Arrays) -> Arrays:
        """Make what the model reads of a batch of the features of 'train' or the scored split."""
        del setup, split
        return self._inputs(batch)

    def load_weights(self, setup: RunSetup, state: TrainState, folder: str) -> TrainState:
        """Return a run's fresh state with the weights that training begins with."""
        # The control by which pre-training is judged has nothing of the source but its shape,
        # and what is computed from the vocabulary.
        source = self.data.source
        if setup.is_random:
            return load_frozen(state, source.params, source.where)
        return load_source(state, source, setup.encoder, self.data.task.head, folder)

    def _add_teacher_vectors(self, train: Arrays, name: str, width: int) -> Arrays:
        """Return training features with 'teacher_vectors' [N, C, width, 1] float32.

        The last axis of one tells them from the positions of rows. A plain text is there once.
        """
        teacher = self._load_teacher(name)
        sentence = teacher.bert.sentence or SentenceConfig()
        prompts = {name: sentence.prompt(name) for name in ('query', 'document')}
        texts = [example.prompted(prompts) for example in self.data.train]
        numbers: dict[str, int] = {}
        rows = []
        for row in texts:
            rows.append([numbers.setdefault(text, len(numbers)) for text in row])
        rows_NC = np.array(rows)
        vectors = compute_text_vectors(
            self.data.cache, teacher, list(numbers), self._machine.mesh, self._machine.heed
        )
        if vectors.shape[1] < width:
            raise UserError(
                f'embedding.teacher={name} gives vectors of {vectors.shape[1]} numbers, and the'
                f' student gives {width}: set embedding.truncate_dim={vectors.shape[1]}, or take a'
                ' wider teacher'
            )
        vectors = project(vectors, width)
        C = rows_NC.shape[1]
        once = {key: train[key][:, :C] for key in (*INPUT_KEYS, 'text_numbers')}
        return train | once | {'teacher_vectors': vectors[rows_NC][..., None]}

    def _load_teacher(self, name: str) -> Source:
        """Read a teacher, once."""
        if name not in self._teachers:
            teacher = make_plain(read_source(name))
            if teacher.model.words.reads != 'input_ids':
                raise UserError(f'embedding.teacher={name} does not read word pieces: take another')
            if not isinstance(teacher.bert.sentence, SentenceConfig | None):
                raise UserError(
                    f'embedding.teacher={name} gives a text no single dense vector: take another,'
                    ' or its scores, with embedding.loss=distill_kl'
                )
            self._teachers[name] = teacher
        return self._teachers[name]


def load_source(
    state: TrainState, source: Source, encoder: ModelConfig, head: str, folder: str
) -> TrainState:
    """Return a run's fresh `state` with the encoder of its source.

    Args:
      state: which says how the arrays lie.
      source: where the weights are from.
      encoder: the shape of the run's encoder.
      head: the name of the task's head.
      folder: that of the run, for the log.
    """
    # A BiLSTM above the encoder is in no pre-trained source: its fresh weights are lent to the
    # tree that is loaded, which must be complete.
    name, weights = f'--init_from={source.where}', source.params['encoder']
    if encoder.bilstm and not source.model.bilstm:
        logging.info(f'{folder}: its BiLSTM is fresh')
        weights = {**weights, 'bilstm': state.params['encoder']['bilstm']}

    # Where it is of the task, the pooler is as fresh as the rest of its head.
    parts = task_heads.HEADS[head].of(source.model.family).parts
    if source.model.traits.class_head.place == 'task' and 'pooler' in parts:
        weights = {**weights, 'pooler': state.params['encoder']['pooler']}

    # The encoder, and what is of no task: other parts of the source answer another one.
    shared = {}
    for part in (part for part in parts if PARTS[part].goes_on):
        origin = 'fresh: the source has none'
        if part in source.params:
            shared[part] = source.params[part]
            origin = f'that of {source.where}'
        logging.info(f'{folder}: its part {part} is {origin}')
    return load_encoder(state, weights, encoder, name, shared)


def check_sections(losses: LossSettings, task: Task) -> None:
    """Raise UserError where a section is set that the task does not read."""
    read = task_heads.get_task_head(task.head).sections
    for name in losses._fields:
        settings = getattr(losses, name)
        if isinstance(settings, Section) and name not in read and settings != type(settings)():
            kinds = []
            for head in task_heads.HEADS.values():
                if isinstance(head, task_heads.TaskHead) and name in head.sections:
                    kinds.append(head.name)
            raise UserError(
                f'{name}: it is for tasks of kind {", ".join(kinds)}, and {task.name} is of kind'
                f' {task.kind}: leave it out'
            )


def check_embedding(setup: RunSetup, data: TaskData) -> None:
    """Raise UserError where a model of vectors cannot be trained so."""
    embedding, encoder, task = setup.losses.embedding, setup.encoder, data.task
    assert isinstance(task, EmbeddingTask)
    head, examples = cast(VectorHead, task_heads.HEADS[task.head]), task.layouts.get('train', '')
    head.check_settings(setup.losses, encoder)
    embedding.check_batch(setup.batching.size, setup.runtime.accumulation, head.whole_batch)
    if examples and examples not in embedding.reads.examples:
        fitting = [name for name, reads in LOSSES.items() if examples in reads.examples]
        raise UserError(
            f'embedding.loss={embedding.loss} reads {" and ".join(embedding.reads.examples)}, and'
            f' the train split of {task.name} has {examples}: take {" or ".join(fitting)}'
        )
    if embedding.reads.scores and 'teacher_scores' not in task.label_keys:
        raise UserError(
            f"embedding.loss={embedding.loss} learns a teacher's scores, and the train split of"
            f' {task.name} has none: name their column as "scores"'
        )
    if (
        examples == 'texts'
        and embedding.reads.in_batch
        and not (encoder.hidden_dropout or encoder.attention_dropout)
    ):
        raise UserError(
            f'embedding.loss={embedding.loss} compares two draws of dropout, and the encoder has'
            ' none: set hidden_dropout, as to 0.1'
        )


def check_ranking(setup: RunSetup, data: TaskData) -> None:
    """Raise UserError where a reranker cannot be trained so."""
    ranking, task = setup.losses.ranking, data.task
    assert isinstance(task, RankingTask)
    ranking.check_batch(setup.batching.size, setup.runtime.accumulation)
    task.check_loss(ranking, [data.train[number] for number in setup.examples])


_CHECKS: dict[type[Task], Callable[[RunSetup, TaskData], None]] = {
    EmbeddingTask: check_embedding,
    RankingTask: check_ranking,
}
