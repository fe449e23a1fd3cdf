"""How a student learns from a teacher in pre-training: the settings.

Owns their names. What is minimised is bert_jax/train/losses/distillation.py's, what the teacher
gives bert_jax/runs/pretraining/teacher.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bert_jax.configs.options import ABOVE_0, COUNT, FROM_0, option
from bert_jax.configs.section import Section

Method = Literal['distilbert', 'minilm']


@dataclass(frozen=True)
class DistillationConfig(Section):
    """Which teacher a run of pre-training has, and what the student copies."""

    teacher: str = option(
        '', 'the model that the student learns from, as --init_from names it; empty: none'
    )
    method: Method = option(
        'distilbert',
        "distilbert: the teacher's distribution over masked tokens and the direction of its last"
        ' states; minilm: the relations of queries, keys and values in one block',
    )
    temperature: float = option(
        2.0, 'distilbert: divides the logits of both before the softmax', within=ABOVE_0
    )
    soft_weight: float = option(
        5.0, "distilbert: the weight of the teacher's distribution", within=FROM_0
    )
    cosine_weight: float = option(
        1.0, 'distilbert: the weight of the last states; 0 where the widths differ', within=FROM_0
    )
    masked_lm_weight: float | None = option(
        None,
        'the weight of the masked-LM loss; none: 2 for distilbert, 0 for minilm',
        within=FROM_0,
    )
    relation_heads: int = option(
        12, 'minilm: heads that relations are taken in; divides both widths', within=COUNT
    )
    teacher_block: int = option(
        -1, "minilm: the teacher's block, from 0; -1: the last", within='[-1, 2147483647]'
    )
