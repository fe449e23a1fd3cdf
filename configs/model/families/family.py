"""What a family of encoders is: one entry, which says all that the program asks it by name.

Owns the fields of an entry. A family is a file beside this one, which makes one, and its name in
`FAMILIES` (`__init__.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bert_jax.configs.model.families.names import GoogleNames, TransformersNames


class TaskRecipe(NamedTuple):
    """How a family's own code fine-tunes on a task."""

    peak_lr: float
    batch_size: int
    epochs: float
    warmup_fraction: float
    weight_decay: float | None = None  # None: that of the recipe's optimizer


@dataclass(frozen=True)
class Recipe:
    """The fine-tuning recipe of a family's own code.

    Attributes:
      tasks: task -> its settings.
      max_seq_length: the longest row, in tokens.
      optimizer: settings of OptimizerConfig in which it differs from BERT's.
    """

    tasks: Mapping[str, TaskRecipe]
    max_seq_length: int
    optimizer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """What the encoders of a family have in common that no other setting says.

    Attributes:
      name: for messages.
      transformers: its names in transformers.
      google: its names in the code that released it as a checkpoint of TensorFlow 1, if any.
      recipe: how its own code fine-tunes, if that differs from BERT's; `--recipe` takes it by the
        family's name.
      has_peft: whether adapters of peft are read and written: its blocks must be numbered and
        named as BERT's.
      first_position: the row of the position table that is of a text's first token; those before
        it are of no text, and the last of them is that of all padding.
      pairs: the heads that tell pairs of texts apart, as transformers' classes end; pre-training
        has pairs where there are any.
      pooler_of_task: whether the dense layer on the first token is a part of the classifier, so
        that each task begins with a fresh one and has dropout before it too.
      masked_lm_act: the activation in the masked-LM head; None: that of the encoder.
      shared_head: whether a dense layer with a norm, which pre-training and all tasks share, is
        between the encoder and each head, in place of the pooler.
      has_first_norm: whether the first block normalises what its attention reads; it is asked
        where norms come before sub-layers.
    """

    name: str
    transformers: TransformersNames
    google: GoogleNames | None = None
    recipe: Recipe | None = None
    has_peft: bool = False
    first_position: int = 0
    pairs: tuple[str, ...] = ('ForPreTraining', 'ForNextSentencePrediction')
    pooler_of_task: bool = False
    masked_lm_act: str | None = None
    shared_head: bool = False
    has_first_norm: bool = True

    def class_of(self, bert_class: str) -> str:
        """Return its class of transformers that does what a class of BERT does."""
        return self.transformers.prefix + bert_class.removeprefix('Bert')
