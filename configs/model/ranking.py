"""How a reranker is fine-tuned: its losses by name, and what each of them reads.

Owns the settings of a cross-encoder's training. The formulas are
bert_jax/train/losses/ranking.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import ABOVE_0, COUNT, option
from bert_jax.configs.section import Section

Loss = Literal[
    'binary_cross_entropy',
    'list_cross_entropy',
    'lambda',
    'ranknet',
    'margin_mse',
    'multiple_negatives',
]


class Reads(NamedTuple):
    """What a loss reads.

    Attributes:
      examples: the kinds of examples, as input_pipeline/tasks/ranking.py calls them.
      settings: those of RankingConfig that it has besides.
      in_order: whether a list must have documents of different grades.
      most: the greatest grade that may be.
      in_batch: whether the documents of other examples of the batch are negatives.
      teacher: whether it reads the scores of another model.
      to_grades: whether it brings logits to the grades, and so is not 0 at its best.
    """

    examples: tuple[str, ...]
    settings: tuple[str, ...] = ()
    in_order: bool = True
    most: float = math.inf
    in_batch: bool = False
    teacher: bool = False
    to_grades: bool = False


_LISTS = 'lists', 'triplets'
LOSSES: dict[Loss, Reads] = {
    'binary_cross_entropy': Reads(
        ('labelled pairs', 'scored pairs', *_LISTS), ('pos_weight',), in_order=False, most=1.0
    ),
    'list_cross_entropy': Reads(_LISTS, to_grades=True),
    'lambda': Reads(_LISTS, ('k',)),
    'ranknet': Reads(_LISTS, ('k',)),
    'margin_mse': Reads(_LISTS, teacher=True),
    'multiple_negatives': Reads(
        ('pairs', 'triplets'), ('num_negatives', 'scale'), in_order=False, in_batch=True
    ),
}


@dataclass(frozen=True)
class RankingConfig(Section):
    """How a reranker is fine-tuned; other tasks do not read it."""

    loss: Loss = option(
        'binary_cross_entropy',
        'binary_cross_entropy: each pair by itself; list_cross_entropy, lambda, ranknet: lists;'
        " margin_mse: lists with a teacher's scores; multiple_negatives: anchors with positives,"
        ' and documents of the batch',
    )
    pos_weight: float = option(
        1.0, 'binary_cross_entropy: what a relevant pair counts', within=ABOVE_0
    )
    k: int | None = option(
        None,
        'lambda, ranknet: only pairs of which one is among the first so many; none: all',
        within=COUNT,
    )
    num_negatives: int = option(
        4, 'multiple_negatives: how many documents of the batch are drawn', within=COUNT
    )
    scale: float = option(
        10.0, "multiple_negatives: what the logit's sigmoid is multiplied by", within=ABOVE_0
    )

    @property
    def reads(self) -> Reads:
        """Return what the loss reads."""
        return LOSSES[self.loss]

    def check(self) -> None:
        """Raise UserError where a setting is given that the loss does not read."""
        for name in ('pos_weight', 'k', 'num_negatives', 'scale'):
            is_read = name in self.reads.settings
            is_given = getattr(self, name) != getattr(RankingConfig, name)
            self._require(is_read or not is_given, name, f'left out: loss={self.loss} has none')

    def check_batch(self, batch_size: int, accumulation: int) -> None:
        """Raise UserError where a batch of that size cannot be computed so."""
        if self.reads.in_batch and batch_size < 2:
            raise UserError(
                f'batch_size={batch_size}: ranking.loss={self.loss} draws documents of other'
                ' examples of the batch: raise it'
            )
        if self.k is not None and accumulation > 1:
            raise UserError(
                f'runtime.accumulation={accumulation} cuts the batch that ranking.k={self.k} counts'
                ' in: set it to 1'
            )
