"""What --init_from and --workdir name: shape, weights and tokenizer of a trained model.

There are five kinds of sources:

  DIR                                a workdir of bert-pretrain or bert-finetune: its newest
                                     checkpoint; DIR/checkpoints/STEP: that one
  DIR                                a Hugging Face BERT, ALBERT or RoBERTa directory (config.json)
  DIR, or DIR/bert_model.ckpt        a Google TensorFlow checkpoint (bert_config.json; of ALBERT
                                     model.ckpt-best, albert_config.json)
  DIR                                an adapter of Hugging Face's peft (adapter_config.json), which
                                     names its base model: that may be any of the others
  google-bert/bert-base-uncased      a model on the Hugging Face Hub, or an adapter, downloaded once

Owns how these are distinguished and read, and how what a source lacks is made. It must not know
what is done with it.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError, check_regular_files, reading
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import FeatureConfig, ModelConfig, PretrainConfig
from bert_jax.conversion import google, huggingface, model_hub, peft, sentence_transformers
from bert_jax.conversion.trained_model import (
    Model,
    Reading,
    assemble_tuned,
    check_arrays,
    check_parts,
    fold_tuned,
)
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model.heads import Pretraining
from bert_jax.runs.workdir import word_vectors
from bert_jax.runs.workdir.workdir import MEND, Workdir
from bert_jax.train.checkpoint import load_params
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.pretraining_objectives import MaskedLMObjective, choose_objective
from bert_jax.train.state import init_params
from bert_jax.train.task_heads import HEADS

# For messages: what a path could have been.
# Fields of a model that came later than fingerprints.
_LATER = ('sentence', 'chosen', 'beside')
_KINDS = (
    'a workdir of bert-pretrain or bert-finetune, a Hugging Face BERT or peft directory, or a'
    ' Google checkpoint with its bert_config.json'
)

_BEING_READ: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar(
    'sources that are being read, each the encoder of the one before', default=()
)


class Source(NamedTuple):
    """A trained model and its tokenizer.

    bert: shape, parameters (numpy) and what its head is for; where: the source, and step: of which
    step; made: the parts that it lacked and that were made fresh.
    """

    bert: Model
    tokenizer: Tokenizer
    where: str
    step: int
    made: tuple[str, ...] = ()

    @property
    def model(self) -> ModelConfig:
        """Return the encoder's shape."""
        return self.bert.config

    @property
    def params(self) -> dict[str, Any]:
        """Return the encoder's parameters, and those of the heads that are there."""
        return self.bert.params

    def changed(self, **fields: Any) -> Source:
        """Return the source with other `fields` of its model."""
        return self._replace(bert=self.bert._replace(**fields))

    def fingerprint(self) -> str:
        """Return 24 hex digits that change with any weight, setting, label or entry.

        A path and a step do not name a model: other weights may lie in the same folder tomorrow.
        """
        # Everything but the arrays, whose repr would leave out most of their numbers.
        fields = self.bert._replace(params={}, beside={})._asdict().items()
        # Models that lack a field which came later keep the digits they had before it.
        given = (f'{name}={value!r}' for name, value in fields if value or name not in _LATER)
        facts = f'(Model({", ".join(given)}), {self.tokenizer.fingerprint!r})'
        digest = hashlib.sha256(facts.encode())

        # Path, shape and type before the bytes: two layouts of the same bytes are two models.
        for path, array in group_by_path(self.params).items():
            digest.update(repr((path, array.shape, str(array.dtype))).encode())
            digest.update(np.asarray(array).tobytes())
        return digest.hexdigest()[:24]


def read_shape(name: str) -> ModelConfig:
    """Read the shape of a source's encoder, without its weights."""
    with reading(name), _not_within_itself(name):
        check_regular_files(name)
        prefix = google.find_prefix(name)
        if prefix:
            return google.read_shape(prefix)
        if not epath.Path(name).exists() and model_hub.is_name(name):
            return read_shape(model_hub.fetch(name))
        if peft.is_directory(name):
            return read_shape(peft.read_base_name(name))
        if huggingface.is_directory(name):
            return huggingface.read_shape(name)
        workdir, step = split_step(name)
        workdir.check(_KINDS)
        step = workdir.newest_step() if step is None else step
        return workdir.model_config(step).tuned(TuningConfig())


def load_source(name: str | os.PathLike[str], print_map: bool = False) -> Source:
    """Read a source; where it has no pooler make a fresh one, which the log names."""
    source = read_source(name, print_map)
    return complete(source, HEADS['encoder'].of(source.model.family).parts)


def read_source(name: str | os.PathLike[str], print_map: bool = False) -> Source:
    """Read a source as it is; with print_map print every name there and its array here.

    UserError, in one line, where it is none of the four kinds, cannot be read, is damaged, or its
    vocabulary is of another size.
    """
    name = os.fspath(name)
    with reading(name), _not_within_itself(name):
        return _read_source(name, print_map)


@contextlib.contextmanager
def _not_within_itself(name: str) -> Iterator[None]:
    """Raise UserError where a source that is being read names itself as its encoder.

    An adapter, and a tuned run, name the encoder that they belong to.
    """
    path, above = _make_absolute(name), _BEING_READ.get()
    if path in above:
        raise UserError(f'{name} names itself as the encoder that it belongs to')
    token = _BEING_READ.set((*above, path))
    try:
        yield
    finally:
        _BEING_READ.reset(token)


def read_tuned(wheres: Sequence[str]) -> tuple[Source, list[Source]]:
    """Read the encoder that several runs were tuned on, and these runs, by workdirs.

    Arrays that a run has not trained are the encoder's own objects. UserError as `read_source`, and
    where a run was not tuned, or on another encoder than the first.
    """
    # All of them before any weights: which encoder each belongs to.
    first: dict[str, Any] | None = None
    for name in wheres:
        workdir = Workdir(name)
        workdir.check('a workdir of bert-finetune or bert-pretrain')
        if workdir.model_config().tuning.method == 'full':
            raise UserError(
                f'{name} has trained all of its weights, and so has none to share: serve it by'
                ' itself'
            )
        entries = workdir.data(init_from=str, init_fingerprint=str)
        first = first or entries
        if entries['init_fingerprint'] != first['init_fingerprint']:
            raise UserError(
                f'{name} was tuned on the encoder of {entries["init_from"]}, and {wheres[0]} on'
                f' another, that of {first["init_from"]}: serve them apart'
            )

    # The first says where the encoder is, and that it still is the one.
    encoder, sources = _read_encoder(Workdir(wheres[0])), []
    for name in wheres:
        with reading(name):
            sources.append(_read_source(name, False, encoder))
    return encoder, sources


def _read_source(name: str, print_map: bool, encoder: Source | None = None) -> Source:
    workdir = None
    # By the files that lie there: Google's prefix may end in .ckpt and is no folder, so it is
    # first; a name on the Hub counts only where no folder has that name.
    folder, prefix = epath.Path(name), google.find_prefix(name)
    if not prefix and not folder.exists() and model_hub.is_name(name):
        folder = epath.Path(model_hub.fetch(name))
        name = f'{name.partition("@")[0]}@{folder.name}'  # the revision that it is
    check_regular_files(epath.Path(prefix).parent if prefix else folder)
    sentence_transformers.find_kind(folder)
    if prefix:
        reading, step, folder = google.read(prefix), 0, epath.Path(prefix).parent
    elif peft.is_directory(folder):
        return _read_adapter(name, folder, print_map)
    elif huggingface.is_directory(folder):
        reading, step = huggingface.read(folder), 0
        if sentence_transformers.is_directory(folder):
            reading = sentence_transformers.add_modules(folder, reading)
    elif '://' not in name and epath.Path(name).is_file():
        raise UserError(f'{name} is a file: name its folder; expected {_KINDS}')
    else:
        workdir, named = split_step(name)
        workdir.check(_KINDS)
        reading, step = _read_workdir(workdir, named, encoder)
        folder = workdir.tokenizer_folder

    # What was read is logged before the tokenizer is checked: it helps with that mistake.
    _log_found(name, reading, print_map)

    # Another size means another vocabulary: ids would point at the wrong rows, or beyond the table.
    tokenizer, wanted = Tokenizer.load(folder), reading.model.config.vocab_size
    reading.model.config.check_reads(tokenizer.kind, name)
    more = wanted - tokenizer.vocab_size
    if not reading.model.config.holds(tokenizer.vocab_size):
        mend = f'restore the right one in {folder}'
        if more > 0:
            # A line for an added token would be a word piece, not what the model was trained with.
            mend += (
                f'; where {more} tokens were added to it, the added_tokens.json or tokenizer.json'
                ' that names them too; where its table was only padded, and beyond the next'
                ' multiple of 64 or 128, cut it by'
                f' model.resize_token_embeddings({tokenizer.vocab_size}) in transformers'
            )
        raise UserError(
            f'{name}: its tokenizer has {tokenizer.vocab_size} entries but its model {wanted}:'
            f' {mend}'
        )
    if more:
        logging.info(f'{name}: {more} rows of its word table are of no entry: kept')

    # What is computed from the vocabulary is in no file; of an encoder that was given it is there.
    model = reading.model
    if workdir:
        word_vectors.check_vocabulary(workdir, model.config, tokenizer)
    if encoder is None:
        params = word_vectors.filled_in(model.params, model.config, tokenizer)
        model = model._replace(params=params)
    if workdir:
        _check_whole(workdir, model)
    return Source(model, tokenizer, _make_absolute(name), step)


def _check_whole(workdir: Workdir, model: Model) -> None:
    """Raise UserError where a workdir lacks arrays, or holds those of another shape.

    Here for all commands: what is found missing later would be zeros, or a traceback.
    """
    settings = workdir.config_file
    if not isinstance(workdir.config(), PretrainConfig):
        settings = workdir.data_file  # a fine-tuned run has the shape there, and all of its head
        check_parts(model, str(workdir), MEND)
    check_arrays(model, str(workdir), os.fspath(settings))


def _make_absolute(name: str) -> str:
    """Return the same as an absolute path, for commands that run elsewhere later."""
    if '://' not in name and epath.Path(name).exists():
        return os.path.abspath(name)
    return name


def _read_adapter(name: str, folder: epath.Path, print_map: bool) -> Source:
    """Return an adapter of peft on the model that it names; the tokenizer is that model's."""
    named = peft.read_base_name(folder)
    try:
        base = make_plain(read_source(named))
    except UserError as error:
        raise UserError(
            f'{name} is an adapter for {named}: {error}; its new place is base_model_name_or_path'
            f' in {folder / "adapter_config.json"}'
        ) from error
    reading = peft.read(folder, base.bert)
    _log_found(name, reading, print_map)
    return Source(reading.model, base.tokenizer, _make_absolute(name), 0)


def find_base(name: str) -> str:
    """Return the encoder that the weights of a tuned run, or of an adapter, belong to, by its name.

    UserError where there is none.
    """
    with reading(name):
        adapter = _find_adapter(name)
        if adapter is not None:
            return peft.read_base_name(adapter)
        workdir = Workdir(name)
        workdir.check('a workdir that bert-finetune has tuned, or an adapter of peft')
        return workdir.data(init_from=str)['init_from']


def list_saved(name: str) -> list[str]:
    """Return the modules that an adapter of peft holds whole; of other sources none."""
    adapter = _find_adapter(name)
    if adapter is None:
        return []
    return peft.list_saved(adapter)


def _find_adapter(name: str) -> str | None:
    """Return the folder of the adapter of peft that is there, or on the Hub, if any."""
    if model_hub.is_name(name) and not epath.Path(name).exists():
        name = model_hub.fetch(name)
    return name if peft.is_directory(name) else None


def is_hugging_face(name: str) -> bool:
    """Tell whether transformers finds a model by that name: a folder of theirs or on the Hub."""
    if epath.Path(name).exists():
        return huggingface.is_directory(name) and not peft.is_directory(name)
    return model_hub.is_name(name)


def complete(source: Source, parts: Sequence[str], seed: int = 0) -> Source:
    """Return the source with those of `parts` that it lacks made fresh from `seed`."""
    lacking = [part for part in parts if part not in source.bert.parts]
    if not lacking:
        return source
    logging.warning(
        f'{source.where}: {source.bert.architecture} has no {", ".join(lacking)}: made fresh'
    )

    # The whole model is made and the missing parts taken from it: compiled, that is fast enough,
    # and each part comes out as in training from scratch.
    fresh = jax.device_get(jax.jit(lambda: init_params(Pretraining(source.model), seed))())
    params = dict(source.params)
    for part in lacking:
        # The pooler lies inside the encoder, heads outside. Copies: the source stays as it is.
        if part == 'pooler':
            params['encoder'] = {**params['encoder'], 'pooler': fresh['encoder']['pooler']}
        else:
            params[part] = fresh[part]
    return source.changed(params=params)._replace(made=(*source.made, *lacking))


def split_step(name: str) -> tuple[Workdir, int | None]:
    """Return the workdir, and the STEP of DIR/checkpoints/STEP or None."""
    path = epath.Path(name)
    if path.parent.name == 'checkpoints' and path.name.isdecimal():
        return Workdir(path.parent.parent), int(path.name)
    return Workdir(name), None


def _read_workdir(
    workdir: Workdir, step_named: int | None, encoder: Source | None
) -> tuple[Reading, int]:
    """Read a workdir's newest checkpoint, or that of a named step; return it and its step."""
    # A feature-based run has no encoder of its own: refused before weights are read.
    model, config = workdir.model_config(), workdir.config()
    if isinstance(config, FeatureConfig):
        encoder = workdir.data(init_from=str)['init_from']
        raise UserError(
            f'{workdir} holds a BiLSTM for the features of a frozen encoder and no encoder, which'
            f' is {encoder}'
        )

    # The head is found by the kind of run: pre-training has one, fine-tuning noted its own.
    params, step = load_params(workdir, step_named)
    if isinstance(config, PretrainConfig):
        model = workdir.model_config(step)
    if 'encoder' not in params:
        raise UserError(
            f'{workdir} holds no encoder: a network of words (bert-pretrain retvec) is taken by'
            ' bert-pretrain --init_from alone'
        )
    if model.tuning.method != 'full':
        base = (encoder or _read_encoder(workdir)).params['encoder']
        params, model = assemble_tuned(base, params, model, workdir.name)
    if isinstance(config, PretrainConfig):
        bert = _make_models(choose_objective(config), params, model)
    else:
        data = workdir.data(head=str, labels=list)
        head = HEADS.get(data['head'])
        # a head that has no class: by its own name
        architecture = head.class_in(model.family) if head else data['head']
        problem = head.problem_type if head else None
        of_head = tuple(data['labels']), config.head_dropout, problem
        bert = Model(model, params, architecture, *of_head, chosen=workdir.chosen())
        if head is not None:
            prompts, settings = data.get('options', {}).get('prompts', {}), LossSettings.of(config)
            sentence = head.describe_vectors(settings, prompts, config.max_seq_length)
            chosen = {**head.answer_with(config.max_seq_length), **bert.chosen}
            bert = bert._replace(sentence=sentence, chosen=chosen)

    # Our own names on both sides: --print_map shows a workdir like any other source.
    return Reading(bert, {name: name for name in group_by_path(params)}, (), ()), step


def _make_models(
    objective: MaskedLMObjective, params: dict[str, Any], encoder: ModelConfig
) -> Model:
    """Return what a run of pre-training has trained, with the models beside it."""
    models = []
    for shape, parameters, head in objective.split(params, encoder):
        models.append(Model(shape, parameters, head.class_in(shape.family)))
    bert, *others = models
    return bert._replace(beside=dict(zip(objective.beside, others, strict=True)))


def _read_encoder(workdir: Workdir) -> Source:
    """Return what a tuned run was tuned on, which its workdir does not hold.

    UserError where that is gone, or has other weights now.
    """
    entries = workdir.data(init_from=str, init_fingerprint=str)
    name = entries['init_from']
    try:
        encoder = load_plain(name)
    except UserError as error:
        raise UserError(
            f'{workdir} holds tuned weights alone, for the encoder of {name}:'
            f' {error}; put it back, or name its new place as init_from in {workdir.data_file}'
        ) from error
    # Older versions did not read a cross-encoder's activation, which tuned weights do not need.
    wanted = entries['init_fingerprint']
    is_same = wanted == encoder.fingerprint()
    if not is_same and wanted != encoder.changed(chosen={}).fingerprint():
        raise UserError(
            f'{workdir} holds tuned weights for the encoder of {name}, which has'
            ' other weights now: name a copy of what it was as init_from in'
            f' {workdir.data_file}'
        )
    return encoder


def fold(source: Source) -> Source:
    """Return the source with tuned weights folded into BERT's own; adapters stay."""
    params, model = fold_tuned(source.params, source.model)
    return source.changed(params=params, config=model)


def make_plain(source: Source) -> Source:
    """Return the source in BERT's own weights; UserError where it has adapters."""
    source = fold(source)
    method = source.model.tuning.method
    if method != 'full':
        raise UserError(
            f'{source.where} has adapters ({method}), which are no weights of BERT:'
            ' this takes a model without, or with lora, ia3, spafit or bitfit, which fold into them'
        )
    return source


def load_plain(name: str, print_map: bool = False) -> Source:
    """Return `load_source`, in BERT's own weights; UserError as there and in `make_plain`."""
    return make_plain(load_source(name, print_map))


def _log_found(name: str, reading: Reading, print_map: bool) -> None:
    """Log what was found; with print_map print it name by name."""
    model, heads = reading.model, [part for part in reading.model.parts if part != 'pooler']
    logging.info(
        f'{name}: {model.architecture}, {len(reading.names)} arrays read; heads:'
        f' {", ".join(heads) or "none"}'
    )
    for remark in reading.remarks:
        logging.info(f'{name}: {remark}')
    if print_map:
        print_names(reading)


def print_names(reading: Reading) -> None:
    """Print the whole name map, a line for each name there."""
    for theirs, ours in sorted(reading.names.items()):
        print(f'{theirs}  {ours}')
    for name in sorted(reading.ignored):
        print(f'{name}  (ignored)')
