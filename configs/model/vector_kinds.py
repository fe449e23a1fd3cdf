"""What makes sparse vectors of texts, one number for each entry of the vocabulary (SPLADE).

Owns the settings that are kept with such a model, and those of its training, by the names of
sentence-transformers. How logits are pooled is bert_jax/model/heads.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.configs.model.sentence import Prompts, Similarity, VectorsConfig
from bert_jax.configs.options import FROM_0, newer
from bert_jax.configs.section import Section

SparsePooling = Literal['max', 'sum']
Activation = Literal['relu', 'log1p_relu']


@dataclass(frozen=True)
class SparseConfig(VectorsConfig):
    """Describe how a text becomes one weight for each entry of the vocabulary.

    Attributes:
      pooling: how the weights of its pieces become one.
      activation: of the logits, before the logarithm that all have.
      prompts, max_seq_length, similarity: as of every kind.
    """

    pooling: SparsePooling = 'max'
    activation: Activation = 'relu'
    prompts: Prompts = ()
    max_seq_length: int | None = None
    similarity: Similarity = 'dot'

    def __post_init__(self) -> None:
        self._settle(pooling=SparsePooling, activation=Activation, similarity=Similarity)

    def describe(self, width: int) -> list[tuple[str, Any]]:
        """Return (what, value) for a model card."""
        return [('pooling', self.pooling), ('activation', self.activation)]


@dataclass(frozen=True)
class SparseTraining(Section):
    """How a model of sparse vectors is fine-tuned; other tasks do not read it."""

    pooling: SparsePooling = newer('max', "how the weights of a text's pieces become one")
    activation: Activation = newer('relu', 'log1p_relu: with a second logarithm')
    document_weight: float = newer(
        0.08, 'what the FLOPS of documents count in the loss', within=FROM_0
    )
    query_weight: float = newer(0.1, 'what the FLOPS of queries count', within=FROM_0)

    def vectors(self, prompts: Prompts, max_seq_length: int) -> SparseConfig:
        """Return what is kept with a model that was fine-tuned so."""
        return SparseConfig(self.pooling, self.activation, prompts, max_seq_length)
