"""A source made to fit a run: its shape, heads, words and sizes, as the run asks for them.

ModernBERT's large model began from its base model, whose matrices were repeated
(AnswerDotAI/ModernBERT initialization.py, model.py: centre tiling; no rescaling). DistilBERT began
from every second block of its teacher. A phase of a pre-training that is a run of its own begins
with the moments of the one before, and with a schedule that starts again.

Owns what training may ask of a model that it starts from, and of a network of words
(bert-pretrain retvec). How a source is read, and how a part that it lacks is made, is source.py's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from absl import logging
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.model.embedding_kinds import OF_WORDS, Retvec
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, PretrainConfig
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.tokenizer import extension
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model.embeddings import pad_vocab
from bert_jax.model.heads import Pretraining
from bert_jax.runs.sources.source import (
    Source,
    complete,
    make_plain,
    read_shape,
    read_source,
    split_step,
)
from bert_jax.runs.workdir import word_vectors
from bert_jax.runs.workdir.workdir import MEND, Workdir
from bert_jax.train.checkpoint import list_saved_steps, load_opt_state, load_params
from bert_jax.train.optimizer import OF_VOCABULARY, is_stacked
from bert_jax.train.state import (
    TrainState,
    compute_parameter_shapes,
    load_moments,
    load_params_into,
)
from bert_jax.train.task_heads import HEADS, choose_pretraining_head

# Settings of the model that training may choose again, whatever it begins with.
FREE = (
    'hidden_dropout', 'attention_dropout', 'attention_output_dropout', 'initializer_range',
    'initialization',
)  # fmt: skip
# Those that a run may set otherwise, and that are the source's where it does not.
RESETTABLE = ('rope_theta', 'local_rope_theta')
# Settings of the model in which the new one may differ, by the name of the way (`--init_by`).
_SIZES = {
    'tiling': ('hidden_size', 'num_layers', 'num_heads', 'intermediate_size'),
    'layers': ('num_layers',),
}
_FLAG = '--init_by=weights_and_moments'
# How weights are made of a source's (`--init_by`).
InitBy = Literal['weights', 'weights_and_moments', 'tiling', 'layers']
ListHeads = Callable[[ModelConfig, Collection[str]], list[str]]


def list_shape_settings(
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
    if workdir and list_saved_steps(workdir):
        shape = Workdir(workdir).model_config().tuned(TuningConfig())
    elif is_word_network(init_from):
        # It has no encoder: all but the kind of word vectors is the preset's.
        settings = [f'model.embedding={OF_WORDS}']
        if data:
            settings.append(f'model.vocab_size={Manifest.load(data[0]).vocab_size}')
        return settings
    else:
        shape = read_shape(init_from)
        # Rows beyond the vocabulary, which only pad the source's word table, stay.
        if data:
            entries = Manifest.load(data[0]).vocab_size
            if not shape.holds(entries):
                shape = dataclasses.replace(shape, vocab_size=entries)
    # All of them: what a saved file leaves out as a default the preset may have otherwise.
    chosen = (*FREE, *_SIZES.get(init_by, ()))
    settings = [f'model.{name}={v}' for name, v in vars(shape).items() if name not in chosen]
    logging.info(f'{init_from}: {", ".join(settings)}')
    return settings


def read_for_pretraining(
    name: str,
    tokenizer: Tokenizer,
    config: ModelConfig,
    seed: int,
    print_map: bool = False,
    init_by: InitBy = 'weights',
    list_heads: ListHeads | None = None,
) -> Source:
    """Read what pre-training goes on from, with the vocabulary of `tokenizer`.

    With init_by=tiling its matrices are tiled to the sizes of `config`; with init_by=layers as many
    of its blocks are taken as `config` has.

    UserError where the source is a model of another shape, or the vocabulary is not the source's or
    an extension of it.
    """
    source = make_plain(read_source(name, print_map))
    return fit_for_pretraining(source, tokenizer, config, seed, init_by, list_heads)


def fit_for_pretraining(
    source: Source,
    tokenizer: Tokenizer,
    config: ModelConfig,
    seed: int,
    init_by: InitBy = 'weights',
    list_heads: ListHeads | None = None,
) -> Source:
    """Return `read_for_pretraining`, of a source that was read and is plain.

    list_heads: as MaskedLMObjective.list_heads; None: the head of masked words and pairs.
    """
    # Heads of a task have no place in pre-training; its own heads are made where they lack.
    bare = HEADS['encoder'].of(config.family).parts
    heads = choose_pretraining_head(config).parts
    if list_heads is not None:
        heads = tuple(list_heads(config, source.bert.parts))
    parts = tuple(dict.fromkeys((*bare, *heads)))

    # The vocabulary first: it may add rows, and so change the shape that is compared below.
    source = drop_word_table(extend_vocabulary(source, tokenizer), config)
    if init_by in _SIZES:
        source = resize(source, config, init_by)

    # All differences in one message, in the form in which they can be added to the command.
    differ = []
    for name, value in vars(source.model).items():
        if value != getattr(config, name) and name not in (*FREE, *RESETTABLE):
            differ.append(f'--set model.{name}={value}')
    if differ:
        raise UserError(
            f'--init_from={source.where} is of another model than --set asks for: leave those'
            f' settings out, or give {" ".join(differ)}'
        )

    unused = [part for part in source.bert.parts if part not in parts]
    if unused:
        logging.info(f'{source.where}: its {", ".join(unused)} is not used')
    source = complete(source, parts, seed)

    # Only what the program knows: an unused head would not match the state's tree.
    params = {name: source.params[name] for name in ('encoder', *parts) if name != 'pooler'}
    if 'pooler' not in parts:  # a task's own, where the bare encoder has none
        below = params['encoder'].items()
        params['encoder'] = {name: leaf for name, leaf in below if name != 'pooler'}
    return source.changed(params=params)


def check_pooler(source: Source, tuning: TuningConfig) -> None:
    """Raise UserError where the pooler is fresh and tuning would leave it so."""
    stays = tuning.method != 'full' and tuning.option('pooler') == 'frozen'
    of_task = source.model.traits.class_head.place == 'task'
    if stays and (of_task or 'pooler' in source.made):
        raise UserError(
            f'{source.where} has no pooler, and a fresh one that stays as it is tells the'
            ' classifier nothing: --set tuning.pooler=trained'
        )


def extend_vocabulary(source: Source, tokenizer: Tokenizer) -> Source:
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

    def grow(table: np.ndarray) -> np.ndarray:
        # The table is padded to a multiple (see pad_vocab); padding stays zero.
        rows = np.zeros((pad_vocab(size), *table.shape[1:]), table.dtype)
        rows[:old_rows] = table[:old_rows]
        for entry, pieces in new.items():
            # Reads the old table, so one new entry never depends on another.
            rows[entry] = table[pieces or slice(old_size)].mean(0)
        return rows

    # What is computed from the vocabulary is computed again.
    config = dataclasses.replace(source.model, vocab_size=size)
    flat = traverse_util.flatten_dict(source.params, sep='/')
    flat |= {path: grow(flat[path]) for path in flat if path.endswith(OF_VOCABULARY)}
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


def drop_word_table(source: Source, config: ModelConfig) -> Source:
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


def resize(source: Source, config: ModelConfig, way: str) -> Source:
    """Return the source with those sizes of `config` that are the way's.

    tiling: its matrices are tiled, its blocks repeated; of the arrays those of a pre-training model
    stay. layers: as many of its blocks as `config` has, as far apart as they can be, the first and
    the last among them: 0, 2, 4, 7, 9 and 11 of twelve (transformers' DistilBERT,
    extract_distilbert.py). UserError where that cannot be.
    """
    old, new, is_tiled = source.model.own_blocks, config.num_layers, way == 'tiling'
    if is_tiled and source.model.bilstm:  # whose gates share an array
        raise UserError(f'--init_by=tiling: {source.where} has a BiLSTM, which cannot be tiled')
    if not is_tiled and (new > old or old != source.model.num_layers):
        raise UserError(
            f'--init_by=layers: {source.where} has {old} blocks of its own, and'
            f' model.num_layers={new} asks for as many of them'
        )
    sizes = {name: getattr(config, name) for name in _SIZES[way]}
    model = dataclasses.replace(source.model, **sizes)
    shapes = group_by_path(compute_parameter_shapes(Pretraining(model)))
    if is_tiled:
        chosen = repeat_blocks(old, model.own_blocks)
    else:
        chosen = np.linspace(0, old - 1, new).round().astype(int).tolist()

    # What the first block of a family lacks, a stack of that block alone does not have.
    leaves = {}
    for path, array in group_by_path(source.params).items():
        leaf = np.asarray(array)
        if path in shapes:
            shape, first = shapes[path].shape, 0
            if is_stacked(path):
                leaf, first = leaf[_list_rows(chosen, old - len(leaf), shape[0])], 1
            leaves[path] = _tile(leaf, shape, first)
        elif not is_tiled and not is_stacked(path):
            leaves[path] = leaf
    for path, wanted in shapes.items():
        if is_stacked(path) and path not in leaves:  # a norm, which changes nothing so
            leaves[path] = np.full(wanted.shape, float(path.endswith('scale')), np.float32)
    params = traverse_util.unflatten_dict(leaves, sep='/')
    if is_tiled:
        params = word_vectors.filled_in(params, model, source.tokenizer)
    return source.changed(config=model, params=params)


def _tile(old: np.ndarray, shape: tuple[int, ...], first: int) -> np.ndarray:
    """Return [..., r, c]: the old array in the middle, repeated on all sides from axis `first`."""
    for axis in range(first, old.ndim):
        size, before = shape[axis], old.shape[axis]
        old = np.take(old, (np.arange(size) - (size - before) // 2) % before, axis)
    return old


def repeat_blocks(old: int, new: int) -> list[int]:
    """Return the block, of `old`, that each of `new` blocks is made of."""
    return [min(round(i * old / new), old - 1) for i in range(new)]


def _list_rows(chosen: Sequence[int], lacking: int, count: int) -> list[int]:
    """Return the rows of a stack whose first `lacking` blocks have none, for the last `count`.

    A block that is made of such a one takes the row of the next.
    """
    return [max(0, number - lacking) for number in chosen[len(chosen) - count :]]


def check_moments(name: str, tokenizer: Tokenizer, optimizer: OptimizerConfig) -> None:
    """Raise UserError where the source has no moments, or those of another optimizer or words."""
    workdir, _ = split_step(name)
    file = workdir.config_file
    # A directory of Hugging Face has a config.json too.
    is_workdir = file.exists() and 'kind' in read_object(file, MEND)
    begun = workdir.config() if is_workdir else None
    if not isinstance(begun, PretrainConfig) or begun.tuning.method != 'full':
        raise UserError(
            f'{_FLAG}: {name} has no moments of a whole model: name a workdir of bert-pretrain, or'
            ' take --init_by=weights'
        )
    if begun.optimizer.algorithm != optimizer.algorithm:
        raise UserError(
            f'{_FLAG}: {name} was trained with optimizer.algorithm={begun.optimizer.algorithm},'
            f' whose moments are not those of {optimizer.algorithm}: take the same, or'
            ' --init_by=weights'
        )
    if workdir.tokenizer().fingerprint != tokenizer.fingerprint:
        raise UserError(
            f'{_FLAG}: the vocabulary of --data is not that of {name}, whose moments are of its own'
            ' words: take --init_by=weights'
        )


def put_moments_into(state: TrainState, name: str, step: int) -> TrainState:
    """Return `state` with the moments of a source at a step of its, let pass by `check_moments`."""
    workdir, _ = split_step(name)
    return load_moments(state, load_opt_state(workdir, step), f'{_FLAG}: {name}')


def is_word_network(name: str | None) -> bool:
    """Tell whether that is a workdir of bert-pretrain retvec."""
    if not name:
        return False
    # Of the workdirs those alone have words in their data.json.
    workdir = Workdir(name)
    return workdir.data_file.exists() and 'words' in workdir.data()


def put_network_into(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a model's parameters with the network of that workdir, placed as they were.

    Raises:
      UserError: it has no checkpoint yet.
    """
    network, _ = load_params(name)
    embeddings = load_params_into(
        params['encoder']['embeddings'], network, f'--init_from={name}', Retvec.network
    )
    return {**params, 'encoder': {**params['encoder'], 'embeddings': embeddings}}
