"""What the losses of tasks are told besides the model and the batch.

Owns the one object that a run hands to its head; each head reads its own field of it.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_jax.configs.model.late_interaction import LateInteractionSettings
from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.configs.model.vector_kinds import SparseTraining
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.train.losses.task_losses import ClassTargets


class LossSettings(NamedTuple):
    """The settings of all losses.

    Attributes:
      targets: how classes are learnt.
      embedding: how vectors of texts are trained.
      sparse: how sparse ones are made, and what their weights cost.
      late_interaction: how those of tokens are made.
      ranking: how scores of documents are trained.
    """

    targets: ClassTargets = ClassTargets()
    embedding: EmbeddingConfig = EmbeddingConfig()
    sparse: SparseTraining = SparseTraining()
    late_interaction: LateInteractionSettings = LateInteractionSettings()
    ranking: RankingConfig = RankingConfig()

    @classmethod
    def of(cls, config: FinetuneConfig, targets: ClassTargets | None = None) -> LossSettings:
        """Return those of a run's settings; its targets follow from the examples too."""
        return cls(
            targets or ClassTargets(),
            config.embedding,
            config.sparse,
            config.late_interaction,
            config.ranking,
        )
