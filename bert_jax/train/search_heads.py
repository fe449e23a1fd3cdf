"""The heads of models that search: what makes vectors of texts, and what compares texts.

Each is a class that says all that the project knows of it (head_base.py); the table that has them
is in task_heads.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax.configs.model.sentence import SentenceConfig, VectorsConfig
from bert_jax.model import heads
from bert_jax.model.text_vectors import PRODUCTS, Comparison, read_vectors
from bert_jax.train.head_base import ExampleScript, HubCard, TaskHead
from bert_jax.train.losses.multiple_negatives import make_vector_objective
from bert_jax.train.losses.objective import Batch, Objective
from bert_jax.train.losses.settings import LossSettings


class VectorHead(TaskHead):
    """A head that makes vectors of texts, of one kind.

    Attributes:
      comparison: how its losses compare the texts of a batch.
      similarity: what scores of a dev split compare them by.
    """

    vectors: ClassVar[type[VectorsConfig]]
    comparison: ClassVar[Comparison] = PRODUCTS
    similarity: ClassVar[str] = 'cosine'
    fits_whole_words = False

    def describe_vectors(
        self, settings: LossSettings, prompts: Mapping[str, str], max_seq_length: int
    ) -> VectorsConfig:
        """Return how a text becomes vectors in a model that was trained so."""
        raise NotImplementedError

    def keep_values(self, outputs: Mapping[str, np.ndarray]) -> Any:
        """Return what the outputs of some texts say of them, as `Bert.embed` returns it.

        Args:
          outputs: what `decode` gives, [N, ...] for N texts, on the host.
        """
        (values,) = outputs.values()
        return values

    def join_values(self, parts: Sequence[Any]) -> Any:
        """Return the values of all texts; each part is of `keep_values`."""
        return np.concatenate(parts)

    def read_host(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Return {'vectors': those of all N C texts}, of outputs [N, C, ...]."""
        by_text = {name: array.reshape(-1, *array.shape[2:]) for name, array in outputs.items()}
        return {'vectors': read_vectors(self.keep_values(by_text), self.similarity)}

    def make_objective(self, model: Any, settings: LossSettings) -> Objective:
        """Return the objective of such vectors."""
        return make_vector_objective(model, settings.embedding, self.comparison)


class Embedding(VectorHead):
    """A vector of a text."""

    name = 'embedding'
    module = heads.SentenceEncoder
    parts = ()
    architecture = 'BertModel'
    output_names = ('sentence_embedding',)
    vectors = SentenceConfig
    script = ExampleScript("print(out['sentence_embedding'][0].tolist())", "'a text'")
    card = HubCard(
        'sentence-similarity',
        'gives each text a vector, and texts of like meaning like vectors',
        'from sentence_transformers import SentenceTransformer\n\n'
        "model = SentenceTransformer({name!r})\nprint(model.encode(['A text.', 'Another.']))",
    )

    def decode(self, result: Any, batch: Batch, n_best: int) -> dict[str, jax.Array]:
        """Return the vectors."""
        return {'sentence_embedding': result}

    def describe_vectors(
        self, settings: LossSettings, prompts: Mapping[str, str], max_seq_length: int
    ) -> SentenceConfig:
        """Return how a text becomes a vector."""
        return settings.embedding.sentence(prompts, max_seq_length)
