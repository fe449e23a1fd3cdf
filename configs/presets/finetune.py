"""Fine-tuning recipes: the paper's for every task (sections 4, 5.3, A.3), and others by name.

    bert-finetune --task=mrpc --data_dir=glue/MRPC --init_from=WORKDIR --workdir=DIR
    [--recipe=readme]

bert-finetune takes its task's recipe without `--config`. Where the paper chose on dev among
several values the recipe holds one of them, and --sweep=glue (configs/overrides.py) the others. A
change of tuning.method brings that method's own rates, and leaves the task its length, batch and
epochs: so runs that differ in their method have the same budget.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, TypeVar

from bert_jax.configs import overrides
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.model_config import FAMILIES, RecipeName
from bert_jax.configs.model.tuning_config import Method
from bert_jax.configs.schema import (
    FeatureConfig,
    FeatureSet,
    FinetuneConfig,
    OptimizerConfig,
    RuntimeConfig,
)

C = TypeVar('C', bound=FinetuneConfig)
_RUNTIME = RuntimeConfig(log_every=50, keep_checkpoints=1)


def _make_recipe(
    name: str,
    peak_lr: float,
    batch_size: int,
    epochs: float,
    max_seq_length: int = 128,
    **others: Any,
) -> FinetuneConfig:
    """Make a recipe with 10 % warm-up and AdamW without bias correction, as the original has.

    That is run_classifier.py and run_squad.py of google-research/bert.
    """
    optimizer = OptimizerConfig(peak_lr=peak_lr, warmup_steps=0)
    return FinetuneConfig(
        name, 0, max_seq_length, batch_size, epochs, optimizer=optimizer, runtime=_RUNTIME, **others
    )


# Section 4.1: batch 32, 3 epochs; 2e-5 is one of the four learning rates tried.
GLUE = _make_recipe('glue', peak_lr=2e-5, batch_size=32, epochs=3.0)
# Sections 4.2 and 4.3; lengths are run_squad.py's. There is no dropout before a span's outputs.
_make_squad_recipe = functools.partial(_make_recipe, max_seq_length=384, head_dropout=0.0)
SQUAD_V1 = _make_squad_recipe('squad_v1', peak_lr=5e-5, batch_size=32, epochs=3.0)
SQUAD_V2 = _make_squad_recipe('squad_v2', peak_lr=5e-5, batch_size=48, epochs=2.0)
# Section 4.4.
SWAG = _make_recipe('swag', peak_lr=2e-5, batch_size=16, epochs=3.0)
# Rerankers are none of the paper's: sentence-transformers' training_ms_marco_bce.py.
RANKING = _make_recipe('ranking', peak_lr=2e-5, batch_size=32, epochs=1.0)
# Section 5.3 names no values: these are of appendix A.3's ranges. The context of the document fills
# 512 pieces.
CONLL = _make_recipe('conll2003', peak_lr=5e-5, batch_size=32, epochs=3.0, max_seq_length=512)
# Section 5.3 has the shape of the BiLSTM and says nothing of its training: Adam, and dropout of one
# half as LSTM taggers have it (Lample et al. 2016). Most sentences are short and a few are not, so
# there are several lengths.
FEATURE_BASED = FeatureConfig(
    'feature_based',
    batch_size=32,
    epochs=10.0,
    head_dropout=0.5,
    length_buckets=3,
    optimizer=OptimizerConfig('adamw', 1e-3, 'linear', warmup_steps=0, weight_decay=0.0),
    runtime=_RUNTIME,
)

# README of google-research/bert: "Sentence (and sentence-pair) classification tasks", "SQuAD 1.1",
# "SQuAD 2.0".
_README = {
    'mrpc': _make_recipe('readme', peak_lr=2e-5, batch_size=32, epochs=3.0),
    'squad_v1': _make_squad_recipe('readme', peak_lr=3e-5, batch_size=12, epochs=2.0),
    'squad_v2': _make_squad_recipe('readme', peak_lr=3e-5, batch_size=24, epochs=2.0),
}


class MethodRecipe(NamedTuple):
    """What a method of tuning is trained with in place of a task's own rates.

    Attributes:
      source: the program or paper that has these values, or why they are none's.
      settings: as --set takes them.
    """

    source: str
    settings: tuple[str, ...]


def _make_method_recipe(
    source: str,
    peak_lr: float,
    weight_decay: float,
    schedule: str = 'linear',
    warmup_fraction: float = 0.06,
) -> MethodRecipe:
    """Make a recipe with PyTorch's AdamW."""
    settings = (
        f'optimizer.peak_lr={peak_lr}',
        'optimizer.algorithm=adamw',
        f'optimizer.schedule={schedule}',
        f'warmup_fraction={warmup_fraction}',
        f'optimizer.weight_decay={weight_decay}',
    )
    return MethodRecipe(source, settings)


# As the programs' own scripts have them, for BERT-base and RoBERTa-base. Where a source says
# nothing of a setting it stays the task's.
METHODS: dict[Method, MethodRecipe] = {
    # The defaults of its options; the rate stays the same throughout.
    'bitfit': _make_method_recipe(
        'benzakenelad/BitFit run_glue.py and GLUEvaluator.py', 1e-3, 0, 'constant', 0
    ),
    # MRPC's; RTE has 5e-4.
    'lora': _make_method_recipe('microsoft/LoRA examples/NLU/roberta_base_mrpc.sh', 4e-4, 0.1),
    # README's rate with BERT's own optimizer, which the task's recipe has.
    'houlsby': MethodRecipe('google-research/adapter-bert README', ('optimizer.peak_lr=3e-4',)),
    'pfeiffer': _make_method_recipe(
        'microsoft/LoRA examples/NLU/adapter_pfeiffer_roberta_large_mnli.sh',
        3e-4,
        0,
        warmup_fraction=0.1,
    ),
    # There with Adafactor, and with losses for scored choices that a classifier has no use for.
    'ia3': _make_method_recipe('r-three/t-few configs/ia3.json', 3e-3, 0),
    'adamix': _make_method_recipe('microsoft/AdaMix bert_base_mnli_expert_soup.sh', 4e-4, 0.1),
    'spafit': _make_method_recipe('LoRA (none of its own is known)', 4e-4, 0.1),
}


def apply_changes(config: C, changes: Iterable[str] = (), **of_other_flags: Iterable[str]) -> C:
    """Apply changes, where a change of tuning.method brings that method's recipe first.

    So the changes win over the recipe, whatever their order, and the recipe over `config`.
    UserError as there.
    """
    # The last change of the method is the one that holds; one that is none is apply's to refuse.
    changes = list(changes)
    method: str = config.tuning.method
    for change in itertools.chain(changes, *of_other_flags.values()):
        name, _, value = change.partition('=')
        if name.strip() == 'tuning.method':
            method = value.strip()

    # To the method that it has already a configuration has its own rates.
    if method in METHODS and method != config.tuning.method:
        changes = [*METHODS[method].settings, *changes]
    return overrides.apply(config, changes, **of_other_flags)


def choose_recipe(
    task: str,
    kind: str = 'classification',
    source: RecipeName = 'paper',
) -> FinetuneConfig:
    """Return the settings of `source` for a task; UserError where it has none for it.

    From the paper, a user's own task gets those of its kind's best-known one.
    """
    # The paper's by name where a task has its own, else by its kind; pairs of sentences are GLUE's.
    if source == 'paper':
        named = {
            'squad_v2': SQUAD_V2,
            'conll2003_sentences': dataclasses.replace(CONLL, max_seq_length=128),
        }
        by_kind = {'span': SQUAD_V1, 'choice': SWAG, 'tagging': CONLL, 'ranking': RANKING}
        return named.get(task) or by_kind.get(kind, GLUE)

    family_recipe = None
    tasks: Collection[str] = _README
    if source in FAMILIES:
        family_recipe = FAMILIES[source].recipe
    if family_recipe is not None:
        tasks = family_recipe.tasks
    if task not in tasks:
        raise UserError(f'--recipe={source}: it has none for {task}, only for {", ".join(tasks)}')
    if family_recipe is None:
        return _README[task]

    peak_lr, batch_size, epochs, warmup_fraction, decay = family_recipe.tasks[task]
    config = _make_recipe(
        source,
        peak_lr,
        batch_size,
        epochs,
        family_recipe.max_seq_length,
        warmup_fraction=warmup_fraction,
    )
    optimizer = dataclasses.replace(config.optimizer, **family_recipe.optimizer)
    if decay is not None:
        optimizer = dataclasses.replace(optimizer, weight_decay=decay)
    return dataclasses.replace(config, optimizer=optimizer)


def choose_feature_recipe(task: str, features: FeatureSet) -> FeatureConfig:
    """Return the settings of the feature-based approach for a tagging task.

    The encoder reads the same rows as in fine-tuning.
    """
    return dataclasses.replace(
        FEATURE_BASED,
        features=features,
        max_seq_length=choose_recipe(task, 'tagging').max_seq_length,
    )


def finetune() -> FinetuneConfig:
    """Return the settings for GLUE, as a start for other tasks."""
    return GLUE
