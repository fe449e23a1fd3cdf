"""The heads of models that search: what makes vectors of texts, and what compares texts.

Each is a class that says all that the project knows of it (head_base.py); the table that has them
is in task_heads.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from scipy import sparse

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.late_interaction import LateInteractionConfig
from bert_jax.configs.model.sentence import SentenceConfig, VectorsConfig
from bert_jax.configs.model.vector_kinds import SparseConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model import heads
from bert_jax.model.text_vectors import TokenTexts, read_vectors
from bert_jax.train.head_base import ExampleScript, HubCard, TaskHead
from bert_jax.train.losses.multiple_negatives import make_vector_objective
from bert_jax.train.losses.objective import Batch, Objective
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.losses.splade import make_splade_objective


class VectorHead(TaskHead):
    """A head that makes vectors of texts, of one kind.

    Attributes:
      whole_batch: whether each of its losses compares the examples of a batch.
    """

    vectors: ClassVar[type[VectorsConfig]]
    whole_batch: ClassVar[bool] = False
    fits_whole_words = False
    sections: ClassVar[tuple[str, ...]] = ('embedding',)

    def check_settings(self, settings: LossSettings, config: ModelConfig) -> None:
        """Raise UserError where an encoder of `config` cannot give such vectors."""
        settings.embedding.check_one_vector(self.name)
        if settings.embedding.loss == 'cosine':
            raise UserError(
                f'embedding.loss=cosine brings cosines to labels, and tasks of kind {self.name}'
                ' compare texts by sums of products: take embedding.loss=cosent'
            )

    def describe_vectors(
        self, settings: LossSettings, prompts: Mapping[str, str], max_seq_length: int
    ) -> VectorsConfig:
        """Return how a text becomes vectors: the last of the sections says it."""
        return getattr(settings, self.sections[-1]).vectors(tuple(prompts.items()), max_seq_length)

    def decode(self, result: Any, batch: Batch, n_best: int) -> dict[str, jax.Array]:
        """Return what the model gives, of each text one array."""
        return {'sentence_embedding': result}

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
        return {'vectors': read_vectors(self.keep_values(by_text), self.vectors.similarity)}

    def make_objective(self, model: Any, settings: LossSettings) -> Objective:
        """Return the objective of such vectors."""
        return make_vector_objective(model, settings.embedding)


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

    def check_settings(self, settings: LossSettings, config: ModelConfig) -> None:
        """Raise UserError where the vectors are cut to more numbers than there are."""
        settings.embedding.check_width(config.hidden_size)


class SparseEmbedding(VectorHead):
    """A weight of a text for each entry of the vocabulary."""

    name = 'sparse_embedding'
    module = heads.SparseEncoder
    parts = ('mlm',)
    architecture = 'BertForMaskedLM'
    output_names = ('sentence_embedding',)
    vectors = SparseConfig
    whole_batch = True
    sections = ('embedding', 'sparse')
    script = ExampleScript(
        "weights = out['sentence_embedding'][0]\n"
        'for i in np.argsort(-weights)[: int((weights > 0).sum())]:\n'
        '    print(tokenizer.id_to_token(int(i)), round(float(weights[i]), 4))',
        "'a text'",
    )
    card = HubCard(
        'feature-extraction',
        'gives each text a weight for each entry of its vocabulary, most of them 0',
        'from sentence_transformers import SparseEncoder\n\n'
        "model = SparseEncoder({name!r})\nprint(model.decode(model.encode(['A text.'])))",
    )

    def keep_values(self, outputs: Mapping[str, np.ndarray]) -> sparse.csr_array:
        """Return the weights [N, V] that are not 0."""
        return sparse.csr_array(super().keep_values(outputs))

    def join_values(self, parts: Sequence[Any]) -> sparse.csr_array:
        """Return the weights of all texts."""
        return sparse.csr_array(sparse.vstack(parts, 'csr'))

    def make_objective(self, model: Any, settings: LossSettings) -> Objective:
        """Return a loss of such vectors, with what their weights cost."""
        return make_splade_objective(model, settings.embedding, settings.sparse)


class LateInteraction(VectorHead):
    """A vector of each token of a text, compared by MaxSim."""

    name = 'late_interaction'
    module = heads.MultiVectorEncoder
    parts = ('projection',)
    architecture = 'BertModel'
    output_names = ('token_embeddings', 'scored')
    vectors = LateInteractionConfig
    sections = ('embedding', 'late_interaction')
    script = ExampleScript(
        "print(out['token_embeddings'][0][out['scored'][0] > 0].tolist())",
        "'a text'",
    )
    card = HubCard(
        'sentence-similarity',
        'gives each token of a text a vector, by which documents are found',
        'from sentence_transformers import MultiVectorEncoder\n\n'
        'model = MultiVectorEncoder({name!r})\n'
        "print(model.similarity(model.encode_query(['A question?']),"
        " model.encode_document(['A text.'])))",
    )

    def read_outputs(self, result: Any, config: ModelConfig) -> tuple[jax.Array, ...]:
        """Return the vectors of all tokens, and which of them are scored."""
        return tuple(result)

    def decode(self, result: Any, batch: Batch, n_best: int) -> dict[str, jax.Array]:
        """Return the same by their names."""
        return dict(zip(self.output_names, result, strict=True))

    def keep_values(self, outputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return of each text the vectors [T, D] of its scored tokens."""
        vectors_NTD, scored_NT = (outputs[name] for name in self.output_names)
        return [v_TD[is_scored_T > 0] for v_TD, is_scored_T in zip(vectors_NTD, scored_NT)]

    def join_values(self, parts: Sequence[Any]) -> list[np.ndarray]:
        """Return the vectors of all texts."""
        return list(itertools.chain.from_iterable(parts))

    def make_objective(self, model: Any, settings: LossSettings) -> Objective:
        """Return the objective of such vectors."""
        # On a TPU a masked token would see the masked ones alone, and they are scored here.
        if model.kernel == 'tpu' and settings.late_interaction.masks_to:
            model = model.clone(kernel='xla')
        return make_vector_objective(model, settings.embedding, TokenTexts)
