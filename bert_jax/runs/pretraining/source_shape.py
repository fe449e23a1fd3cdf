"""The shape of a run that goes on from trained weights: the source's, in place of its preset's.

Owns which settings of `model` are the source's; all others are the run's own. Must not know
weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from absl import logging

from bert_jax.configs.model.embeddings import OF_WORDS
from bert_jax.configs.model.tuning import TuningConfig
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.runs.sources import fitting, source, tiling, word_network
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint


def shape_settings(
    init_from: str,
    data: Sequence[str],
    workdir: str | None,
    init_by: fitting.InitBy = 'weights',
) -> list[str]:
    """Return the model of `init_from` as changes of a configuration, its vocabulary that of `data`.

    Dropouts and initializer_range are not among them, nor are the sizes that `init_by` makes.
    A run with a checkpoint in `workdir` keeps the model that it has.

    UserError where `init_from` names no model that can be read.
    """
    # A checkpoint is further than the source, which may be gone by now.
    if workdir and checkpoint.saved_steps(workdir):
        shape = Workdir(workdir).model_config().tuned(TuningConfig())
    elif word_network.is_workdir(init_from):
        # It has no encoder: all but the kind of word vectors is the preset's.
        vocabulary = [f'model.vocab_size={Manifest.load(data[0]).vocab_size}'] if data else []
        return [f'model.embedding={OF_WORDS}', *vocabulary]
    else:
        shape = source.shape_of(init_from)
        # Rows beyond the vocabulary, which only pad the source's word table, stay.
        if data and not shape.holds(entries := Manifest.load(data[0]).vocab_size):
            shape = dataclasses.replace(shape, vocab_size=entries)
    # All of them: what a saved file leaves out as a default the preset may have otherwise.
    chosen = (*fitting.FREE, *tiling.SIZES.get(init_by, ()))
    settings = [f'model.{name}={v}' for name, v in vars(shape).items() if name not in chosen]
    logging.info(f'{init_from}: {", ".join(settings)}')
    return settings
