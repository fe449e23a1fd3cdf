"""Hugging Face directories of BERT and its relatives: config.json and safetensors, in and out.

Owns transformers' layouts and settings. What a family calls its arrays is in
configs/model/families, what any format has in common in parameters.py.

Theirs: kernels [out, in], and the family's name before the encoder's in every class but that of the
bare encoder, as in `bert.`.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.model.families.family import Family, TransformersNames
from bert_jax.configs.model.model_config import FAMILIES
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import cross_encoder_folder, parameters, trained_model
from bert_jax.conversion.parameters import Layout, NameOf, Tensors
from bert_jax.conversion.trained_model import Model, Reading
from bert_jax.conversion.weight_files import read_tensors
from bert_jax.train.head_base import PARTS
from bert_jax.train.task_heads import CLASSES, HEADS, select_of_task

# Settings: ours -> theirs. Where an old config.json leaves one out, transformers' default holds.
_SETTINGS = {
    'vocab_size': 'vocab_size',
    'hidden_size': 'hidden_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'intermediate_size': 'intermediate_size',
    'max_position': 'max_position_embeddings',
    'type_vocab_size': 'type_vocab_size',
    'hidden_act': 'hidden_act',
    'hidden_dropout': 'hidden_dropout_prob',
    'attention_dropout': 'attention_probs_dropout_prob',
    'initializer_range': 'initializer_range',
    'layer_norm_eps': 'layer_norm_eps',
}
_DEFAULTS = {theirs: getattr(ModelConfig(), ours) for ours, theirs in _SETTINGS.items()}
_DEFAULTS['hidden_act'] = 'gelu'
_ACTIVATION_OUT = {'gelu_tanh': 'gelu_new', 'gelu_erf': 'gelu', 'relu': 'relu', 'silu': 'silu'}
_ACTIVATION_IN = {theirs: ours for ours, theirs in _ACTIVATION_OUT.items()} | {
    'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_python': 'gelu_erf',
    'swish': 'silu',
}  # fmt: skip
# Settings of transformers' BERT that change the model in ways that are not built here, and the
# value they must have.
_FIXED = {
    'position_embedding_type': ('absolute', None),
    'is_decoder': (False, None),
    'add_cross_attention': (False, None),
    'pruned_heads': ({}, None),
}
# Where a config.json says what a kind of task needs besides: {our head: its chosen options}.
_CHOSEN = 'task_specific_params'
# {model_type: family}; BERT's first files had no type.
BY_TYPE = {family.transformers.model_type: name for name, family in FAMILIES.items()}
_FIRST = 'bert'

# The files of weights.
_FILES = ('model.safetensors', 'pytorch_model.bin')
# not learned; files of some versions hold them
_BUFFERS = ('embeddings.position_ids', 'embeddings.token_type_ids')


def is_directory(folder: epath.PathLike) -> bool:
    """Tell whether a folder holds a config.json that is not one of this project's workdirs."""
    # Our workdirs hold a config.json too, with a 'kind', which transformers' never has.
    path = epath.Path(folder) / 'config.json'
    return path.exists() and 'kind' not in read_object(path)


def read_shape(path: epath.PathLike) -> ModelConfig:
    """Return the encoder's shape, by config.json alone; UserError where that is of no BERT."""
    return _make_config(_read_stated(epath.Path(path)))


def read(directory: epath.PathLike) -> Reading:
    """Read a directory of transformers.

    Raises:
      UserError: in one line, where it is no BERT, is damaged, or anything in it does not fit.
    """
    folder = epath.Path(directory)

    # Settings, then tensors by their names in the file, then by names without that of the family,
    # which differ by class and version.
    stated = _read_stated(folder)
    settings, architecture, config = stated.settings, stated.architecture, _make_config(stated)
    theirs, name_of = config.traits.transformers, bind_names(config.family, architecture)
    by_file_name, remarks = read_tensors(folder, *_FILES)
    names = _canonicalize(by_file_name, theirs, folder)
    tensors = {canonical: by_file_name[name] for canonical, name in names.items()}

    # What is no weight of ours goes: buffers that are counted, not learned, and the decoder's
    # copies of the word table and its bias.
    ignored = []
    patterns = (*_BUFFERS, *theirs.ignored, *theirs.displaced(architecture))
    for name in list(tensors):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            ignored.append(names[name])
            del tensors[name]
    if config.traits.masked_lm.is_tied:
        _untie(tensors, names, theirs, folder)
    first = _find_first_position(config.traits, {**theirs.defaults, **settings})
    _move_positions(tensors, name_of, config.traits.first_position - first)

    # What stands on the encoder, and with how many outputs, decides which arrays must be there.
    parts = parameters.find_parts(tensors, config, name_of, str(stated.file))
    remarks += _remark_on_heads(theirs, names, architecture, parts)
    labels = _read_labels(stated)
    outputs = len(labels) or settings.get('num_labels', 2)
    if _has_score_alone(architecture):
        outputs = 1
    if 'projection' in parts:
        ((piece,), _) = name_of('projection/kernel')
        outputs = len(tensors[piece.name])
    layout = Layout(config, parts, outputs, name_of)
    model = Model(
        config,
        layout.to_tree(tensors, names, str(folder), 'config.json'),
        architecture,
        labels if select_of_task(parts) else (),
        settings.get(*theirs.head_dropout),
        settings.get('problem_type') if select_of_task(parts) else None,
    )
    of_tasks = settings.get(_CHOSEN)
    if architecture in CLASSES and isinstance(of_tasks, dict):
        chosen = of_tasks.get(model.head)
        if isinstance(chosen, dict):
            model = model._replace(chosen=chosen)
    if architecture == HEADS['classifier'].class_in(config.family):
        named = cross_encoder_folder.read_activation(settings)
        model = cross_encoder_folder.add_activation(model, named, stated.file)
    ours = {names[name]: path for name, path in layout.our_names().items()}
    return Reading(model, ours, tuple(ignored), tuple(remarks))


def _remark_on_heads(
    theirs: TransformersNames, names: Mapping[str, str], architecture: str, parts: Iterable[str]
) -> list[str]:
    """Say which heads of a file are left out, and which of its class it lacks.

    names: canonical -> as in the file. Buffers are no weights, and many files lack the pooler.
    """
    remarks, left_out = [], []
    for pattern in theirs.ignored:
        left_out += [names[name] for name in fnmatch.filter(names, pattern)]
    if left_out:
        listed = parameters.join_names(left_out)
        remarks.append(f'left out, since no model here reads it: {listed}')
    if architecture in CLASSES:
        lacking = {*CLASSES[architecture].parts} - {*parts, 'pooler'}
        if lacking:
            remarks.append(
                f'config.json says {architecture}, and the weights lack its'
                f' {", ".join(sorted(lacking))}: the encoder alone can be used'
            )
    return remarks


def write(
    path: epath.PathLike, model: Model, token_ids: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Write model.safetensors, then config.json, into a directory.

    token_ids: the tokenizer's special tokens, as pad_token_id; None: the family's usual ones.
    Returns the parts that the model's class has no place for, which are left out. UserError where
    the class needs a part that the model lacks.
    """
    theirs = model.config.traits.transformers
    trained_model.check_fixed(token_ids or {}, theirs.fixed, path)
    left_out = trained_model.list_left_out(model, str(path), theirs.settings)
    model = trained_model.add_mapping(model)
    folder = epath.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    ours = make_tensors(model, CLASSES[model.architecture].parts)
    first = _find_first_position(model.config.traits, {**theirs.written, **(token_ids or {})})
    name_of = bind_names(model.config.family, model.architecture)
    _move_positions(ours, name_of, first - model.config.traits.first_position)
    tensors = {theirs.full(name, model.architecture): array for name, array in ours.items()}
    # Weights first: a folder whose config.json is there is whole.
    atomic_write(folder / 'model.safetensors', safetensors.numpy.save(tensors, {'format': 'pt'}))
    write_settings(folder, model, token_ids)
    return left_out


def write_settings(
    folder: epath.Path, model: Model, token_ids: Mapping[str, int] | None = None
) -> None:
    """Write config.json alone; arguments as of `write`, whose checks are passed."""
    model = trained_model.add_mapping(model)
    settings = _make_settings(model)
    for name, number in settings.items():
        if name.endswith('_token_id'):
            number = (token_ids or {}).get(name, number)
            # torch refuses a number that is of no row, but transformers wants one for a mask
            is_row = number < model.config.vocab_size or name == 'mask_token_id'
            settings[name] = number if is_row else None
    first = _find_first_position(model.config.traits, settings)
    settings['max_position_embeddings'] = first + model.config.max_position
    is_number = model.row.problem_type == 'regression' and model.outputs == 1
    if is_number or 'activation' in model.chosen:
        settings |= cross_encoder_folder.describe_cross_encoder(model)
    atomic_write(folder / 'config.json', json.dumps(settings, indent=2) + '\n')


def bind_names(family: str, architecture: str) -> NameOf:
    """Return the names in a class of transformers, without the module around the encoder."""
    return functools.partial(FAMILIES[family].transformers.array, architecture=architecture)


def make_tensors(model: Model, parts: Iterable[str]) -> Tensors:
    """Return a model's arrays of the encoder and of these parts by their names in its class."""
    name_of = bind_names(model.config.family, model.architecture)
    return Layout(model.config, parts, model.outputs, name_of).to_tensors(model.params)


class _Stated(NamedTuple):
    """What a config.json states: all its settings, our family, and the class of transformers."""

    file: epath.Path
    settings: dict[str, Any]
    family: str
    architecture: str


def _read_stated(folder: epath.Path) -> _Stated:
    """Read the config.json of a folder. UserError where that is of no family of ours."""
    file = folder / 'config.json'
    if not file.exists():
        raise UserError(f'{folder}: no config.json in it: not a Hugging Face model directory')
    settings = read_object(file)
    kind = settings.get('model_type', _FIRST)
    family = BY_TYPE.get(str(kind))
    names = FAMILIES[family or _FIRST].transformers
    named = settings.get('architectures') or [names.bare]  # absent in files of an encoder alone
    if not isinstance(named, list) or not isinstance(named[0], str):
        raise UserError(f'{file}: architectures={named!r}: must be a list of the names of classes')
    described = f'{folder}: config.json describes {named[0]} (model_type {kind!r})'
    if family is None:
        types = ', '.join(f'"{model_type}"' for model_type in BY_TYPE)
        raise UserError(f'{described}, which is not BERT: only model_type {types} can be read')
    if not named[0].startswith(names.prefix):
        raise UserError(
            f'{described}, but the classes of that type begin with {names.prefix}: one of the two'
            ' is wrong'
        )
    return _Stated(file, settings, family, named[0])


def _read_labels(stated: _Stated) -> tuple[str, ...]:
    """Return the names of the outputs, in the order of their numbers."""
    named = stated.settings.get('id2label') or {}
    if not isinstance(named, dict) or not all(isinstance(label, str) for label in named.values()):
        raise UserError(f'{stated.file}: id2label={str(named)[:80]}: must give each number a name')
    try:
        return tuple(named[key] for key in sorted(named, key=int))  # JSON's keys are text
    except ValueError:
        raise UserError(
            f'{stated.file}: id2label has keys that are no numbers: {", ".join(named)}'
        ) from None


def _has_score_alone(architecture: str) -> bool:
    """Tell whether a class has one output, a score that no label names."""
    head = CLASSES.get(architecture)
    return head is not None and bool(select_of_task(head.parts)) and not head.labelled


def _make_config(state: _Stated) -> ModelConfig:
    """Return the encoder's shape. UserError where it is not built here."""
    file, settings, family, architecture = state
    traits = FAMILIES[family]
    names = traits.transformers
    parts = CLASSES[architecture].parts if architecture in CLASSES else PARTS
    stated = {**_DEFAULTS, **names.defaults, **settings}
    # What no part of the class reads may have any value.
    for name, part in names.read_with.items():
        if part not in parts:
            stated.pop(name, None)
    trained_model.check_fixed(stated, {**_FIXED, **names.fixed}, file)
    values = {ours: stated[theirs] for ours, theirs in _name_settings(names).items()}
    try:
        values |= {**names.shape, **names.read(stated)}
        if 'hidden_act' in names.shape:  # by our name there
            values['hidden_act'] = _ACTIVATION_OUT[names.shape['hidden_act']]
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f'{file}: {error}') from None
    pad_id = stated.get('pad_token_id')
    if traits.first_position and (not isinstance(pad_id, int) or pad_id < 0):
        raise UserError(f'{file}: pad_token_id={pad_id!r}: positions count on from it: a number')
    rows, first = values['max_position'], _find_first_position(traits, stated)
    if isinstance(rows, int):  # any other type is refused with its name
        if 0 < rows <= first:
            raise UserError(
                f'{file}: max_position_embeddings={rows}: with pad_token_id={pad_id} the first'
                f' {first} rows are of no text, so it must be greater than {first}'
            )
        values['max_position'] = rows - first
    return trained_model.make_model_config(values | {'family': family}, _ACTIVATION_IN, file)


def _find_first_position(family: Family, settings: Mapping[str, Any]) -> int:
    """Return the row of their position table that is of a text's first token.

    Where rows of no text are before it, the last of them has the number of the padding token.
    """
    return settings['pad_token_id'] + 1 if family.first_position else 0


def _move_positions(tensors: Tensors, name_of: NameOf, rows: int) -> None:
    """Put so many rows of no text before the position table, or take them away."""
    if not rows:
        return
    (piece,), _ = name_of('encoder/embeddings/position')
    table = tensors.get(piece.name)
    if table is not None and table.ndim == 2:  # else it is refused by its shape
        tensors[piece.name] = np.pad(table, ((max(rows, 0), 0), (0, 0)))[max(-rows, 0) :]


def _name_settings(of_family: TransformersNames) -> dict[str, str]:
    """Return {setting of ModelConfig: what a family calls it} for all that one name says."""
    named = {**_SETTINGS, **of_family.settings}
    return {ours: theirs for ours, theirs in named.items() if theirs}


def _make_settings(model: Model) -> dict[str, Any]:
    # Their class, our sizes, and what our model always is. The dropout before a classifier is
    # stated in every class: tasks that begin with this model read it.
    config, names = model.config, model.config.traits.transformers
    dropout, default = names.head_dropout
    rate = model.head_dropout
    if rate is None and default is not None:  # where null would not be the encoder's own
        rate = config.hidden_dropout
    act = _ACTIVATION_OUT[config.hidden_act]
    settings: dict[str, Any] = {
        'architectures': [model.architecture],
        'model_type': names.model_type,
    }
    for ours, theirs in _name_settings(names).items():
        settings[theirs] = act if ours == 'hidden_act' else getattr(config, ours)
    if config.positions == 'learned':
        settings['position_embedding_type'] = 'absolute'
    settings[dropout] = rate
    settings |= names.written
    settings |= names.write(vars(config) | {'hidden_act': act})
    is_tied = config.traits.masked_lm.is_tied
    settings |= {'tie_word_embeddings': is_tied, 'dtype': 'float32'}

    # Names of outputs: transformers wants one for each, and makes these up where there are none.
    if select_of_task(CLASSES[model.architecture].parts):
        labels = model.labels or tuple(f'LABEL_{i}' for i in range(model.outputs))
        if not _has_score_alone(model.architecture):
            settings['id2label'] = {str(i): label for i, label in enumerate(labels)}
            settings['label2id'] = {label: i for i, label in enumerate(labels)}
        settings['problem_type'] = model.problem_type
    if model.chosen:
        settings[_CHOSEN] = {model.head: dict(model.chosen)}
    return settings


def _canonicalize(
    in_file: Iterable[str], theirs: TransformersNames, folder: epath.Path
) -> dict[str, str]:
    """Return {name without the family's, and with weight and bias for gamma and beta: as it is}."""
    names: dict[str, str] = {}
    for name in in_file:
        canonical = name.removeprefix(theirs.base_module)
        for old, new in (('gamma', 'weight'), ('beta', 'bias')):
            if canonical.endswith(f'LayerNorm.{old}'):
                canonical = canonical.removesuffix(old) + new
        if canonical in names:
            raise UserError(
                f'{folder}: {name} and {names[canonical]} are two names of one array: remove one of'
                ' them'
            )
        names[canonical] = name
    return names


def _untie(
    tensors: Tensors, names: dict[str, str], theirs: TransformersNames, folder: epath.Path
) -> None:
    """Take out the masked-LM decoder's copies of the word table and the output bias.

    UserError where they differ from those.
    """
    # Tied arrays are one here. A copy that is equal goes; one that differs is another model; where
    # the copy alone is saved it stands for the original.
    (table,), _ = theirs.array('encoder/embeddings/word')
    (bias,), _ = theirs.array('mlm/bias')
    decoder = theirs.decoder
    for copy, kept in ((f'{decoder}.weight', table.name), (f'{decoder}.bias', bias.name)):
        if copy in names and kept in names and copy != kept:
            if not np.array_equal(tensors[copy], tensors[kept]):
                raise UserError(
                    f'{folder}: {names[copy]} differs from {names[kept]}, but here they are one'
                    ' array: this model cannot be represented'
                )
            del tensors[copy]
        elif copy in names:
            names[kept], tensors[kept] = names[copy], tensors.pop(copy)
