"""The shape of a configuration: frozen dataclasses, checked when they are made.

Owns the configurations of runs, the rules that hold between their settings, and the text of a saved
config.json. Their sections have files of their own: phases.py (with the optimizer), runtime.py,
objectives.py, and model_config.py, tuning_config.py and sentence.py of configs/model. It must not
know how a setting is used: nothing here imports more than the standard library. Defaults are the
paper's (BERT-base, appendix A.2) or, where the paper is silent, those of google-research/bert. What
a setting is, its kind and its interval among the rest, is configs/section.py's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.json_object import parse
from bert_jax.configs.model.late_interaction import (
    LateInteractionSettings as LateInteractionSettings,
)
from bert_jax.configs.model.model_config import ModelConfig as ModelConfig
from bert_jax.configs.model.ranking import RankingConfig as RankingConfig
from bert_jax.configs.model.sentence import EmbeddingConfig as EmbeddingConfig
from bert_jax.configs.model.tuning_config import DistillationConfig as DistillationConfig
from bert_jax.configs.model.tuning_config import TuningConfig as TuningConfig
from bert_jax.configs.model.vector_kinds import SparseTraining as SparseTraining
from bert_jax.configs.objectives import OBJECTIVES, ObjectiveName
from bert_jax.configs.objectives import ReplacedTokensConfig as ReplacedTokensConfig
from bert_jax.configs.options import (
    COUNT,
    COUNT_OR_0,
    RATE,
    SEED,
    is_inside,
    later,
    newer,
    option,
)
from bert_jax.configs.phases import OF_MODEL, OF_SCHEDULE
from bert_jax.configs.phases import OptimizerConfig as OptimizerConfig
from bert_jax.configs.phases import Phase as Phase
from bert_jax.configs.runtime import Generator as Generator
from bert_jax.configs.runtime import RuntimeConfig as RuntimeConfig
from bert_jax.configs.section import Section, to_dict
from bert_jax.configs.section import kinds as kinds  # callers know the schema alone


@dataclass(frozen=True)
class PretrainConfig(Section):
    """One pre-training run."""

    name: str = option('bert_base', 'the preset this came from; a label only', kind='runtime')
    seed: int = option(12345, 'seeds initialisation, data order and dropout', within=SEED)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    # The paper's: nine tenths of the steps on short rows, where they cost least (appendix A.2).
    phases: tuple[Phase, ...] = (Phase(128, 900_000, 256), Phase(512, 100_000, 256))
    record_order: Literal['spread', 'blocks'] = newer(
        'spread',
        'in which order records are read; spread: those of a batch meet again in the next epoch by'
        ' chance alone; blocks: half of them do, as in runs from before there was a choice',
        before='blocks',
    )
    objective: ObjectiveName = newer(
        'masked_lm',
        'what is learnt; masked_lm: masked words, and pairs where records have them (the paper);'
        ' replaced_tokens: a small generator fills the masks, and the encoder tells which tokens'
        ' are not the original ones (ELECTRA)',
    )
    pair_loss: bool = newer(
        True,
        'learn next-sentence prediction, or order, where records have pairs; false: pairs are read'
        ' as they are, and masked tokens alone are learnt',
    )
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
    tuning: TuningConfig = later(TuningConfig)
    distillation: DistillationConfig = later(DistillationConfig)
    replaced_tokens: ReplacedTokensConfig = later(ReplacedTokensConfig)
    budget: str = newer(
        '',
        'what the steps were chosen for, as tokens=5e9 or hours=40 of the command; a label only',
        kind='runtime',
    )

    @property
    def encoder(self) -> ModelConfig:
        """Return the model with what the tuning of this run adds to it."""
        return self.model.tuned(self.tuning)

    @property
    def total_steps(self) -> int:
        """Return the optimizer steps over all phases."""
        return sum(phase.steps for phase in self.phases)

    def choose_model(self, number: int) -> ModelConfig:
        """Return the model as it is in a phase, counted from 0: with its rotary bases."""
        return dataclasses.replace(self.model, **self.phases[number].find_changes(OF_MODEL))

    def choose_optimizer(self, number: int) -> OptimizerConfig:
        """Return the optimizer of a phase, counted from 0: with its schedule."""
        changes = self.phases[number].find_changes(OF_SCHEDULE)
        return dataclasses.replace(self.optimizer, **changes)

    def time_schedule(self, number: int) -> tuple[int, int]:
        """Return what a phase's schedule counts, for its steps: from which on, and how many.

        A schedule of its own counts its steps; the run's counts those of all other phases, as if
        they followed each other.
        """
        phase, before = self.phases[number], self.phases[:number]
        if phase.has_schedule:
            return sum(each.steps for each in before), phase.steps
        return (
            sum(each.steps for each in before if each.has_schedule),
            sum(each.steps for each in self.phases if not each.has_schedule),
        )

    def find_phase(self, step: int) -> int:
        """Return the number of the phase, from 0, that has made the weights of that step."""
        last = 0
        for number, phase in enumerate(self.phases):
            last += phase.steps
            if step <= last:
                return number
        return len(self.phases) - 1

    def check(self) -> None:
        """Raise UserError where the fields contradict each other."""
        # Each rule here relates fields of different sections; what one section can tell by itself
        # its own `check` has refused by now.
        self._require(len(self.phases) > 0, 'phases', 'at least one')
        if not is_inside(self.total_steps, COUNT):
            raise UserError(f'phases: {self.total_steps} steps in all: must be in {COUNT}')
        # Phase by phase: rows must fit the position table, and a batch must be cut into equal
        # parts.
        for i, phase in enumerate(self.phases):
            if phase.seq_len > self.model.max_position:
                raise UserError(
                    f'phases.{i}.seq_len={phase.seq_len} is beyond the position table'
                    f' (model.max_position={self.model.max_position}): use shorter records or a'
                    ' larger model.max_position'
                )
            if phase.batch_size % self.runtime.accumulation:
                raise UserError(
                    f'phases.{i}.batch_size={phase.batch_size} does not divide by'
                    f' runtime.accumulation={self.runtime.accumulation}: change either'
                )
            micro = phase.batch_size // self.runtime.accumulation
            if phase.batch_warmup_from and phase.batch_warmup_from % micro:
                parts = phase.batch_size // phase.batch_warmup_from
                raise UserError(
                    f'phases.{i}.batch_warmup_from={phase.batch_warmup_from} is no multiple of a'
                    f' micro-batch, which is batch_size / runtime.accumulation = {micro}: set'
                    f' runtime.accumulation to {parts} or a multiple of that'
                )
        # Then what the phases have in common.
        if self.tuning.method not in ('full', 'bitfit', 'lora', 'houlsby', 'pfeiffer', 'ia3'):
            raise UserError(
                f'tuning.method={self.tuning.method}: it is for fine-tuning; in pre-training take'
                ' lora, houlsby, pfeiffer, ia3, bitfit or full'
            )
        self.tuning.check_optimizer(self.optimizer)
        self.model.tuned(self.tuning)  # which must fit its shape
        self.model.check_apart(self.optimizer.layer_decay, self.optimizer.freeze_layers)
        if self.optimizer.freeze_layers > self.model.num_layers:
            raise UserError(
                f'optimizer.freeze_layers={self.optimizer.freeze_layers} is more than'
                f' model.num_layers={self.model.num_layers}: lower it'
            )
        for i, phase in enumerate(self.phases):
            self.choose_model(i)
            warmup, (_, steps) = self.choose_optimizer(i).warmup_steps, self.time_schedule(i)
            if warmup > steps:
                name = f'phases.{i}' if phase.has_schedule else 'optimizer'
                raise UserError(
                    f'{name}.warmup_steps={warmup} is more than the {steps} steps of its schedule:'
                    ' lower it or train longer'
                )
        OBJECTIVES[self.objective].check(self)


@dataclass(frozen=True)
class FinetuneConfig(Section):
    """One fine-tuning run; defaults are the paper's for GLUE (section 4.1, appendix A.3)."""

    name: str = option('finetune', 'the recipe this came from; a label only', kind='runtime')
    seed: int = option(0, 'seeds the new head, data order and dropout', within=SEED)
    max_seq_length: int = option(
        128, 'longest input in word pieces, special tokens included', within=COUNT
    )
    batch_size: int = option(32, 'examples a step', within=COUNT)
    epochs: float = option(3.0, 'passes over the training set', within='(0, 1000000]')
    steps: int = newer(
        0,
        'optimizer steps, in place of epochs; 0: as epochs says',
        within=COUNT_OR_0,
    )
    train_examples: int = option(
        0, 'use that many training examples, drawn by seed; 0: all', within=COUNT_OR_0
    )
    warmup_fraction: float = option(0.1, 'share of all steps that warm up', within='[0, 1]')
    head_dropout: float = option(
        0.1, 'dropout before a classifier (run_classifier.py:597)', within=RATE
    )
    label_smoothing: float = newer(
        0.0, 'of classes: share of the target that all have alike', within=RATE
    )
    class_weights: str = newer(
        '', 'of classes: their weights: balanced, or LABEL=NUMBER,...; empty: equal'
    )
    hidden_dropout: float | None = option(
        None, 'dropout of the encoder, as ModelConfig has it; none: as the source', within=RATE
    )
    attention_dropout: float | None = option(
        None, 'dropout on its attention probabilities; none: as the source', within=RATE
    )
    bilstm: bool = option(
        False, 'a fresh bidirectional LSTM on top, where the source has none (section 5.1)'
    )
    retvec: Literal['frozen', 'trained'] | None = newer(
        None,
        'the network of words of an encoder with model.embedding=retvec; none: as the source',
    )
    length_buckets: int = option(
        1,
        'static lengths that rows are cut to; 1: all as long as the longest (the paper); '
        'more: a batch holds rows of like length',
        within='[1, 8]',
    )
    score_every: int = option(
        0,
        'steps between scores on the dev split in training; 0: only at the end',
        within=COUNT_OR_0,
    )
    select: Literal['last', 'best'] = option(
        'last', 'weights a run ends with: the last (the paper), or those with the best dev score'
    )
    patience: int = option(
        0,
        'dev scores in a row that are not the best so far, after which training stops; 0: never',
        within=COUNT_OR_0,
    )
    init: Literal['source', 'random'] = option(
        'source', 'source: the encoder of --init_from; random: its shape alone, for comparison'
    )
    tuning: TuningConfig = later(TuningConfig)
    embedding: EmbeddingConfig = later(EmbeddingConfig)
    sparse: SparseTraining = later(SparseTraining)
    late_interaction: LateInteractionSettings = later(LateInteractionSettings)
    ranking: RankingConfig = later(RankingConfig)
    optimizer: OptimizerConfig = dataclasses.field(
        # Warm-up is a share of the steps here (warmup_fraction), which follow from the data.
        default_factory=lambda: OptimizerConfig(peak_lr=2e-5, warmup_steps=0, schedule='bert')
    )
    runtime: RuntimeConfig = dataclasses.field(
        default_factory=lambda: RuntimeConfig(keep_checkpoints=1)
    )

    def check(self) -> None:
        """Raise UserError where the fields contradict each other."""
        # Both look at scores on the way, of which there are none without score_every.
        for name, unread in (('select', 'last'), ('patience', 0)):
            if (value := getattr(self, name)) != unread and not self.score_every:
                raise UserError(
                    f'{name}={value} needs scores in training: set score_every, the steps between'
                    ' them'
                )
        self.tuning.check_optimizer(self.optimizer)
        self._require(
            self.tuning.method == 'full' or self.init == 'source',
            'init',
            f'source: random is for tuning.method=full, not {self.tuning.method}',
        )
        self._require(
            self.optimizer.warmup_steps == 0,
            'optimizer',
            'without warmup_steps: fine-tuning warms up by warmup_fraction',
        )

    def unused(self) -> dict[str, str]:
        """Return {unread setting of `runtime`: what does its work in a run of this kind}."""
        # Pre-training reads these; here something else does their work, and a user who sets them
        # would wait in vain.
        return {
            'eval_every': 'score_every is the number of steps between scores on the dev split',
            'eval_batches': 'the dev split is always scored whole',
        }

    def refuse_unused(self) -> None:
        """Raise UserError where a setting of `unused` was changed.

        Apart from `check`, because the config.json of older runs holds such settings and is still
        read.
        """
        for name, instead in self.unused().items():
            value = getattr(self.runtime, name)
            if value != getattr(RuntimeConfig, name):
                raise UserError(
                    f'runtime.{name}={value} would be ignored in these runs: {instead}; leave'
                    ' it out'
                )

    def encoder(self, source: ModelConfig) -> ModelConfig:
        """Return the encoder to train: `source` with the dropouts, BiLSTM and tuning of this run.

        UserError where the tuning does not fit its shape.
        """
        # The source's dropouts hold unless this run has its own; a BiLSTM that the source has
        # stays.
        names = ('hidden_dropout', 'attention_dropout', 'retvec')
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        shape = dataclasses.replace(source, **changes, bilstm=self.bilstm or source.bilstm)
        shape.check_apart(self.optimizer.layer_decay, self.optimizer.freeze_layers)
        return shape.tuned(self.tuning)


# The rows of the paper's Table 7: what the tagger reads of the encoder.
FeatureSet = Literal['embeddings', 'second_to_last', 'last', 'sum_last4', 'concat_last4', 'sum_all']


@dataclass(frozen=True)
class FeatureConfig(FinetuneConfig):
    """One run of the feature-based approach: a fresh BiLSTM on outputs of a frozen encoder.

    Paper section 5.3, Table 7. head_dropout is that before each layer of the BiLSTM and before the
    classifier.
    """

    features: FeatureSet = option(
        'concat_last4',
        "what of the encoder is read: the embeddings' or a block's output, or several blocks',"
        ' summed with learned weights',
    )
    lstm_layers: int = option(2, 'layers of the BiLSTM', within=COUNT)
    lstm_width: int = option(768, 'its width in each direction', within=COUNT)

    def check(self) -> None:
        """Raise UserError where the fields contradict each other."""
        super().check()

        # Settings inherited from fine-tuning that would have no effect on a frozen encoder are
        # refused rather than ignored.
        for name in ('hidden_dropout', 'attention_dropout', 'bilstm', 'retvec', 'init'):
            self._require(
                getattr(self, name) == getattr(FinetuneConfig, name),
                name,
                'left alone: it is for fine-tuning the encoder',
            )
        if self.tuning.method != 'full':
            raise UserError('tuning: it is for fine-tuning the encoder, and this one is frozen')
        o = self.optimizer
        if (o.layer_decay, o.freeze_embeddings, o.freeze_layers) != (1.0, False, 0):
            raise UserError(
                'optimizer: layer_decay, freeze_embeddings and freeze_layers are for fine-tuning:'
                ' this encoder is frozen'
            )

    def unused(self) -> dict[str, str]:
        """Return, as fine-tuning's, what the feature-based approach does not read."""
        frozen = 'the encoder is frozen, and its outputs are computed once; it is for fine-tuning'
        return super().unused() | dict.fromkeys(('remat', 'scan_layers', 'attention'), frozen)


Config = PretrainConfig | FinetuneConfig
# What 'kind' says in config.json. FeatureConfig is a FinetuneConfig: hence `type(...) is` below.
_KINDS: dict[str, type[Config]] = {
    'pretrain': PretrainConfig,
    'finetune': FinetuneConfig,
    'feature_based': FeatureConfig,
}


def dumps(config: Config) -> str:
    """Return a configuration as the text of a workdir's config.json, which `loads` reads."""
    kind = next(k for k, cls in _KINDS.items() if type(config) is cls)
    return json.dumps({'kind': kind, **to_dict(config)}, indent=2) + '\n'


def hash_config(config: Config) -> str:
    """Return sixteen hex digits that name a configuration."""
    return hashlib.sha256(dumps(config).encode()).hexdigest()[:16]


def loads(text: str | bytes, path: str = 'config.json') -> Config:
    """Return what `dumps` wrote. Raises UserError, naming `path`, for anything else."""
    try:
        data = parse(text)
    except ValueError as error:  # no JSON, or not UTF-8
        raise UserError(f'{path}: not a saved configuration ({error})') from error
    return from_saved(data, path)


def from_saved(data: Any, path: str) -> Config:
    """Return the configuration in parsed JSON; UserError, naming `path`, for anything else."""
    # The kind decides the class; what is wrong inside is reported after the file's name.
    kind = str(data.get('kind')) if isinstance(data, dict) else ''
    if kind not in _KINDS:
        names = ', '.join(f'"{name}"' for name in _KINDS)
        raise UserError(f'{path}: not a saved configuration (its "kind" is none of {names})')
    try:
        return _KINDS[kind].from_json({k: v for k, v in data.items() if k != 'kind'})
    except UserError as error:
        raise UserError(f'{path}: {error}') from error


def read(path: Any) -> Config:
    """Return the configuration in a saved file, a path of pathlib's kind, or raise UserError."""
    with reading(path):
        text = path.read_bytes()
    return loads(text, str(path))
