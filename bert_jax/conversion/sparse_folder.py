"""Directories of sentence-transformers' SparseEncoder: a weight for each entry of the vocabulary.

Owns the pooling of logits, in the spellings of releases 5 and 6. They are written as release 5.0
has them, which 6 reads too.
"""

from __future__ import annotations

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.vector_kinds import SparseConfig
from bert_jax.conversion.module_folders import (
    LENGTH,
    SETTINGS,
    FolderKind,
    find_modules,
    read_max_length,
    read_prompts,
    read_settings,
    with_vectors,
    write_module,
)
from bert_jax.conversion.trained_model import Model, Reading

_POOLING = 'SpladePooling'


class SparseFolder(FolderKind):
    """A weight for each entry: a Transformer with its masked-LM head, and its pooling."""

    model_type = 'SparseEncoder'
    vectors = SparseConfig
    package = 'sentence_transformers.sparse_encoder.models'

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of sparse vectors.

        Raises:
          UserError: a module or a setting has no counterpart here, or there is no masked-LM head.
        """
        paths = find_modules(folder, ('Transformer', _POOLING))
        settings = read_settings(folder / SETTINGS)
        task = read_settings(folder / LENGTH).get('transformer_task', 'fill-mask')
        has_head = task == 'fill-mask' and 'mlm' in reading.model.parts
        if not has_head or settings.get('max_active_dims'):
            raise UserError(
                f'{folder}: only a Transformer for fill-mask is built here, with that head and'
                f' without max_active_dims: this one is for {task}'
            )
        pooling = read_settings(paths[_POOLING] / 'config.json')
        sparse = SparseConfig(
            pooling.get('pooling_strategy', 'max'),
            pooling.get('activation_function', 'relu'),
            tuple(read_prompts(settings, folder / SETTINGS).items()),
            read_max_length(folder, reading.model.config.max_position),
            settings.get('similarity_fn_name') or 'dot',
        )
        return with_vectors(reading, sparse, settings)

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write the pooling."""
        assert isinstance(model.sentence, SparseConfig)
        pooling = {
            'pooling_strategy': model.sentence.pooling,
            'activation_function': model.sentence.activation,
            'word_embedding_dimension': model.config.vocab_size,
        }
        write_module(folder, 1, _POOLING, pooling)
        return ['MLMTransformer', _POOLING]
