"""The heads of models that search: what makes vectors of texts, and what compares texts.

Each is a class that says all that the project knows of it (head_base.py); the table that has them
is in task_heads.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.model import heads
from bert_jax.train.head_base import ExampleScript, HubCard, TaskHead
from bert_jax.train.losses.multiple_negatives import make_vector_objective
from bert_jax.train.losses.objective import Batch, Objective
from bert_jax.train.losses.settings import LossSettings


class Embedding(TaskHead):
    """A vector of a text."""

    name = 'embedding'
    module = heads.SentenceEncoder
    parts = ()
    architecture = 'BertModel'
    output_names = ('sentence_embedding',)
    fits_whole_words = False
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

    def make_objective(self, model: Any, settings: LossSettings) -> Objective:
        """Return the objective of sentence vectors."""
        return make_vector_objective(model, settings.embedding)
