"""A source made to fit a run: its shape, and heads and words as the run asks for them.

Owns what training may ask of a model that it starts from. How a source is read, and how a part that
it lacks is made, is source.py's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from absl import logging
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.embeddings import OF_WORDS
from bert_jax.configs.model.tuning import TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.tokenizer import extension
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model.embeddings import padded_vocab
from bert_jax.runs.sources import tiling, word_network
from bert_jax.runs.sources.source import Source, complete, plain, read_source, shape_of
from bert_jax.runs.workdir import word_vectors
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import saved_steps
from bert_jax.train.optimizer import OF_VOCABULARY
from bert_jax.train.task_heads import HEADS, pretraining_head

# Settings of the model that training may choose again, whatever it begins with.
FREE = (
    'hidden_dropout', 'attention_dropout', 'attention_output_dropout', 'initializer_range',
    'initialization',
)  # fmt: skip
# Those that a run may set otherwise, and that are the source's where it does not.
RESETTABLE = ('rope_theta', 'local_rope_theta')
# How weights are made of a source's (`--init_by`).
InitBy = Literal['weights', 'weights_and_moments', 'tiling', 'layers']


def shape_settings(
    init_from: str,
    data: Sequence[str],
    workdir: str | None,
    init_by: InitBy = 'weights',
) -> list[str]:
    """Return the model of `init_from` as changes of a configuration, its vocabulary that of `data`.

    Dropouts and initializer_range are not among them, nor are the sizes that `init_by` makes.
    A run with a checkpoint in `workdir` keeps the model that it has.

    UserError where `init_from` names no model that can be read.
    """
    # A checkpoint is further than the source, which may be gone by now.
    if workdir and saved_steps(workdir):
        shape = Workdir(workdir).model_config().tuned(TuningConfig())
    elif word_network.is_workdir(init_from):
        # It has no encoder: all but the kind of word vectors is the preset's.
        vocabulary = [f'model.vocab_size={Manifest.load(data[0]).vocab_size}'] if data else []
        return [f'model.embedding={OF_WORDS}', *vocabulary]
    else:
        shape = shape_of(init_from)
        # Rows beyond the vocabulary, which only pad the source's word table, stay.
        if data and not shape.holds(entries := Manifest.load(data[0]).vocab_size):
            shape = dataclasses.replace(shape, vocab_size=entries)
    # All of them: what a saved file leaves out as a default the preset may have otherwise.
    chosen = (*FREE, *tiling.SIZES.get(init_by, ()))
    settings = [f'model.{name}={v}' for name, v in vars(shape).items() if name not in chosen]
    logging.info(f'{init_from}: {", ".join(settings)}')
    return settings


def for_pretraining(
    name: str,
    tokenizer: Tokenizer,
    config: ModelConfig,
    seed: int,
    print_map: bool = False,
    init_by: InitBy = 'weights',
) -> Source:
    """Read what pre-training goes on from, with the vocabulary of `tokenizer`.

    With init_by=tiling its matrices are tiled to the sizes of `config`; with init_by=layers as many
    of its blocks are taken as `config` has.

    UserError where the source is a model of another shape, or the vocabulary is not the source's or
    an extension of it.
    """
    return as_pretraining(plain(read_source(name, print_map)), tokenizer, config, seed, init_by)


def as_pretraining(
    source: Source,
    tokenizer: Tokenizer,
    config: ModelConfig,
    seed: int,
    init_by: InitBy = 'weights',
) -> Source:
    """Return `for_pretraining`, of a source that was read and is plain."""
    # The vocabulary first: it may add rows, and so change the shape that is compared below.
    source = with_embedding(with_vocabulary(source, tokenizer), config)
    if init_by in tiling.SIZES:
        source = tiling.resized(source, config, init_by)

    # All differences in one message, in the form in which they can be added to the command.
    if differ := [
        f'--set model.{name}={value}'
        for name, value in vars(source.model).items()
        if value != getattr(config, name) and name not in (*FREE, *RESETTABLE)
    ]:
        raise UserError(
            f'--init_from={source.where} is of another model than --set asks for: leave those'
            f' settings out, or give {" ".join(differ)}'
        )

    # Heads of a task have no place in pre-training; its own heads are made where they lack.
    bare = HEADS['encoder'].of(config.family).parts
    parts = tuple(dict.fromkeys((*bare, *pretraining_head(config).parts)))
    if unused := [part for part in source.bert.parts if part not in parts]:
        logging.info(f'{source.where}: its {", ".join(unused)} is not used')
    source = complete(source, parts, seed)

    # Only what the program knows: an unused head would not match the state's tree.
    return source.changed(
        params={name: source.params[name] for name in ('encoder', *parts) if name != 'pooler'}
    )


def check_pooler(source: Source, tuning: TuningConfig) -> None:
    """Raise UserError where the pooler is fresh and tuning would leave it so."""
    stays = tuning.method != 'full' and tuning.option('pooler') == 'frozen'
    if stays and ('pooler' in source.made or source.model.traits.pooler_of_task):
        raise UserError(
            f'{source.where} has no pooler, and a fresh one that stays as it is tells the'
            ' classifier nothing: --set tuning.pooler=trained'
        )


def with_vocabulary(source: Source, tokenizer: Tokenizer) -> Source:
    """Return the source with rows for the entries that only `tokenizer` has.

    A new row is the mean of the rows of the pieces that spelled the entry before, or of all rows
    where none did. UserError where the vocabulary is not the source's, with [unused] slots taken or
    entries appended.
    """
    if tokenizer.fingerprint == source.tokenizer.fingerprint:
        return source

    # id -> the pieces that spelled the entry before; taken slots and appended entries alike.
    try:
        new = extension.find_new_entries(source.tokenizer, tokenizer)
    except UserError as error:
        raise UserError(
            f'the vocabulary of --data is not that of {source.where}, nor an extension of it:'
            f' {error}; make the records with the tokenizer there, or with one that'
            ' bert-train-vocab --extend makes of it'
        ) from None

    # Rows that pad the source's table are there for new entries, and stay where there are fewer.
    old_size, old_rows = source.tokenizer.vocab_size, source.model.vocab_size
    size = old_rows if source.model.holds(tokenizer.vocab_size) else tokenizer.vocab_size

    def grown(table: np.ndarray) -> np.ndarray:
        # The table is padded to a multiple (see padded_vocab); padding stays zero.
        rows = np.zeros((padded_vocab(size), *table.shape[1:]), table.dtype)
        rows[:old_rows] = table[:old_rows]
        for entry, pieces in new.items():
            # Reads the old table, so one new entry never depends on another.
            rows[entry] = table[pieces or slice(old_size)].mean(0)
        return rows

    # What is computed from the vocabulary is computed again.
    config = dataclasses.replace(source.model, vocab_size=size)
    flat = traverse_util.flatten_dict(source.params, sep='/')
    flat |= {path: grown(flat[path]) for path in flat if path.endswith(OF_VOCABULARY)}
    params = word_vectors.filled_in(traverse_util.unflatten_dict(flat, sep='/'), config, tokenizer)

    # How many start from a real guess is worth a line: a mean of all rows says nothing yet.
    slots = sum(entry < old_size for entry in new)
    unspelled = sum(not pieces for pieces in new.values())
    logging.info(
        f'{source.where}: {len(new)} new words, {slots} in [unused] slots, {len(new) - slots}'
        f' appended: a row starts as the mean of the pieces that spelled it ({unspelled}: of all'
        ' rows)'
    )
    return source.changed(config=config, params=params)._replace(tokenizer=tokenizer, made=())


def with_embedding(source: Source, config: ModelConfig) -> Source:
    """Return a source that computes its word vectors, where `config` does, in place of a table.

    The table goes on as the decoder of the masked-LM head, if there is one, so that the head begins
    with the words that it knows. Any other source as it is.
    """
    if source.model.words.computed or not config.words.computed:
        return source
    params = dict(source.params)
    if 'mlm' in params:
        table = params['encoder']['embeddings']['word']
        params['mlm'] = {**params['mlm'], 'decoder': table}
    settings = {name: getattr(config, name) for name in ('embedding', *config.words.options)}
    model = dataclasses.replace(source.model, **settings)
    params = word_vectors.filled_in(params, model, source.tokenizer)
    logging.info(f'{source.where}: its word vectors give way to computed ones')
    return source.changed(config=model, params=params)
