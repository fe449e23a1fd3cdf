"""What of a model's word vectors follows from a run's vocabulary, put in where it is not stored.

Owns the way from a tokenizer to the arrays of a model that are computed and to the characters that
a batch needs, and that a run keeps its vocabulary. Which arrays those are, and who reads
characters, is configs/model/embedding_kinds.py's, how a spelling becomes a vector
input_pipeline/tokenizer/spelling.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.model_config import ModelConfig
from bert_jax.input_pipeline.tokenizer import spelling
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model.embeddings import pad_vocab
from bert_jax.runs.workdir.workdir import Workdir

_NAMED = 5  # groups of pieces alike that the log names


def filled_in(
    params: Mapping[str, Any], config: ModelConfig, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return a model's parameters with those that follow from the vocabulary, as numpy arrays.

    Without any such they are as they were. The log says how many pieces are spelled so that their
    vectors are equal.
    """
    paths = config.words.computed
    if not paths:
        return dict(params)
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    vectors = spelling.vectors(pieces, config.embedding_width, config.hash_ngrams)
    if groups := spelling.alike(pieces, vectors):
        named = ', '.join(' = '.join(group) for group in groups[:_NAMED])
        logging.info(
            f'{config.embedding} embeddings: {sum(map(len, groups))} of {len(pieces)} pieces have'
            f' the vector of another: {named}{" and so on" if len(groups) > _NAMED else ""}'
        )

    # Rows that pad the vocabulary are zero, as those of a trained table.
    table = np.zeros((pad_vocab(config.vocab_size), config.embedding_width), np.float32)
    table[: len(vectors)] = vectors
    whole = traverse_util.flatten_dict(dict(params), sep='/') | dict.fromkeys(paths, table)
    return traverse_util.unflatten_dict(whole, sep='/')


def inputs(
    config: ModelConfig, tokenizer: Tokenizer
) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return what makes of a batch of a tokenizer's ids a batch that the model reads.

    What it reads besides the ids is added (configs/model/embedding_kinds.py).
    """
    return lambda batch: config.words.batch(batch, tokenizer)


def identity(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, str]:
    """Return what data.json says of the vocabulary that vectors are computed from, if any."""
    return {'tokenizer': tokenizer.fingerprint} if config.words.computed else {}


def check_vocabulary(workdir: Workdir, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """UserError where the vectors of the run's model would come from another `tokenizer` now."""
    if not config.words.computed:
        return
    if workdir.data(tokenizer=str)['tokenizer'] != tokenizer.fingerprint:
        raise UserError(
            f'{workdir}: its word vectors are computed from the vocabulary, and'
            f' {workdir.tokenizer_folder} holds another than it was trained with: put that back'
            ' from a copy'
        )
