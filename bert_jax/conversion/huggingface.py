"""Hugging Face directories of BERT and its relatives: config.json and safetensors, in and out.

Owns transformers' layouts, settings and files of weights. What a family calls its arrays is in
configs/model/families, what any format has in common in parameters.py.

Theirs: kernels [out, in], and the family's name before the encoder's in every class but that of the
bare encoder, as in `bert.`.
"""

from __future__ import annotations

import collections
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.model.families.family import Family, TransformersNames
from bert_jax.configs.model.families.registry import FAMILIES
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import parameters, sentence_transformers, shape_settings
from bert_jax.conversion.parameters import Layout, Model, NameOf, Reading, Tensors, brief
from bert_jax.train.head_base import PARTS
from bert_jax.train.task_heads import CLASSES, HEADS, of_task

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
_ACTIVATION_OUT = {'gelu_tanh': 'gelu_new', 'gelu_erf': 'gelu', 'relu': 'relu'}
_ACTIVATION_IN = {theirs: ours for ours, theirs in _ACTIVATION_OUT.items()} | {
    'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_python': 'gelu_erf',
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
# The types of safetensors that numpy, with ml_dtypes, can hold.
_DTYPES = {
    'F64': np.float64,
    'F32': np.float32,
    'F16': np.float16,
    'BF16': ml_dtypes.bfloat16,
    'I64': np.int64,
    'I32': np.int32,
}


def is_directory(folder: epath.PathLike) -> bool:
    """Tell whether a folder holds a config.json that is not one of this project's workdirs."""
    # Our workdirs hold a config.json too, with a 'kind', which transformers' never has.
    path = epath.Path(folder) / 'config.json'
    return path.exists() and 'kind' not in read_object(path)


def shape(path: epath.PathLike) -> ModelConfig:
    """Return the encoder's shape, by config.json alone; UserError where that is of no BERT."""
    folder = epath.Path(path)
    return _model_config(_settings(folder), folder / 'config.json')


def read(directory: epath.PathLike) -> Reading:
    """Read a directory of transformers.

    Raises:
      UserError: in one line, where it is no BERT, is damaged, or anything in it does not fit.
    """
    folder = epath.Path(directory)

    # Settings, then tensors by their names in the file, then by names without that of the family,
    # which differ by class and version.
    settings = _settings(folder)
    config = _model_config(settings, folder / 'config.json')
    architecture = _architecture(settings, folder / 'config.json')
    theirs, name_of = config.traits.transformers, names_in(config.family, architecture)
    by_file_name, remarks = tensors_in(folder, *_FILES)
    names = _canonical(by_file_name, theirs, folder)
    tensors = {canonical: by_file_name[name] for canonical, name in names.items()}

    # What is no weight of ours goes: buffers that are counted, not learned, and the decoder's
    # copies of the word table and its bias.
    unused = (*_BUFFERS, *theirs.displaced(architecture))
    ignored = tuple(names[n] for n in unused if tensors.pop(n, None) is not None)
    _untie(tensors, names, name_of, folder)
    first = _first_position(config.traits, {**theirs.defaults, **settings})
    _move_positions(tensors, name_of, config.traits.first_position - first)

    # What stands on the encoder, and with how many outputs, decides which arrays must be there.
    parts = parameters.parts_of(tensors, config, name_of, str(folder / 'config.json'))
    labels = _labels(settings, folder)
    outputs = 1 if _scores_alone(architecture) else len(labels) or settings.get('num_labels', 2)
    layout = Layout(config, parts, outputs, name_of)
    model = Model(
        config,
        layout.to_tree(tensors, names, str(folder), 'config.json'),
        architecture,
        labels if of_task(parts) else (),
        settings.get(*theirs.head_dropout),
        settings.get('problem_type') if of_task(parts) else None,
    )
    if architecture in CLASSES and isinstance(of_tasks := settings.get(_CHOSEN), dict):
        chosen = of_tasks.get(model.head)
        model = model._replace(chosen=chosen if isinstance(chosen, dict) else {})
    if architecture == HEADS['classifier'].class_in(config.family):
        named = sentence_transformers.activation_in(settings)
        model = sentence_transformers.with_activation(model, named, folder / 'config.json')
    ours = {names[name]: path for name, path in layout.our_names().items()}
    return Reading(model, ours, ignored, tuple(remarks))


def write(
    path: epath.PathLike, model: Model, token_ids: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Write model.safetensors, then config.json, into a directory.

    token_ids: the tokenizer's special tokens, as pad_token_id; None: the family's usual ones.
    Returns the parts that the model's class has no place for, which are left out. UserError where
    the class needs a part that the model lacks.
    """
    theirs = model.config.traits.transformers
    left_out = parameters.left_out(model, str(path), theirs.settings)
    model = parameters.with_mapping(model)
    folder = epath.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    ours = tensors_of(model, CLASSES[model.architecture].parts)
    first = _first_position(model.config.traits, {**theirs.written, **(token_ids or {})})
    name_of = names_in(model.config.family, model.architecture)
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
    model = parameters.with_mapping(model)
    settings = _their_settings(model)
    for name in [name for name in settings if name.endswith('_token_id')]:
        number = (token_ids or {}).get(name, settings[name])
        # torch refuses a number that is of no row
        settings[name] = number if number < model.config.vocab_size else None
    first = _first_position(model.config.traits, settings)
    settings['max_position_embeddings'] = first + model.config.max_position
    is_number = model.row.problem_type == 'regression' and model.outputs == 1
    if is_number or 'activation' in model.chosen:
        settings |= sentence_transformers.as_cross_encoder(model)
    atomic_write(folder / 'config.json', json.dumps(settings, indent=2) + '\n')


def names_in(family: str, architecture: str) -> NameOf:
    """Return the names in a class of transformers, without the module around the encoder."""
    return functools.partial(FAMILIES[family].transformers.array, architecture=architecture)


def tensors_of(model: Model, parts: Iterable[str]) -> Tensors:
    """Return a model's arrays of the encoder and of these parts by their names in its class."""
    name_of = names_in(model.config.family, model.architecture)
    return Layout(model.config, parts, model.outputs, name_of).to_tensors(model.params)


def _settings(folder: epath.Path) -> dict[str, Any]:
    if not (folder / 'config.json').exists():
        raise UserError(f'{folder}: no config.json in it: not a Hugging Face model directory')
    settings = read_object(folder / 'config.json')
    kind = settings.get('model_type', _FIRST)
    architecture = _architecture(settings, folder / 'config.json')
    family = BY_TYPE.get(str(kind))
    if family is None or not architecture.startswith(FAMILIES[family].transformers.prefix):
        types = ', '.join(f'"{model_type}"' for model_type in BY_TYPE)
        raise UserError(
            f'{folder}: config.json describes {architecture} (model_type {kind!r}), which is not'
            f' BERT: only model_type {types} can be read'
        )
    return settings


def _architecture(settings: Mapping[str, Any], file: epath.Path) -> str:
    """Return the class of transformers that a config.json names."""
    # Absent in files of an encoder alone.
    family = BY_TYPE.get(str(settings.get('model_type')), _FIRST)
    named = settings.get('architectures') or [FAMILIES[family].transformers.bare]
    if not isinstance(named, list) or not isinstance(named[0], str):
        raise UserError(f'{file}: architectures={named!r}: must be a list of the names of classes')
    return named[0]


def _labels(settings: Mapping[str, Any], folder: epath.Path) -> tuple[str, ...]:
    # The names of the outputs, in the order of their numbers; JSON's keys are text.
    named = settings.get('id2label') or {}
    if not isinstance(named, dict) or not all(isinstance(label, str) for label in named.values()):
        raise UserError(
            f'{folder / "config.json"}: id2label={str(named)[:80]}: must give each number a name'
        )
    try:
        return tuple(named[key] for key in sorted(named, key=int))
    except ValueError:
        raise UserError(
            f'{folder / "config.json"}: id2label has keys that are no numbers: {", ".join(named)}'
        ) from None


def _scores_alone(architecture: str) -> bool:
    """Whether a class has one output, a score that no label names."""
    head = CLASSES.get(architecture)
    return head is not None and bool(of_task(head.parts)) and not head.labelled


def _model_config(settings: Mapping[str, Any], file: epath.Path) -> ModelConfig:
    family = BY_TYPE[settings.get('model_type', _FIRST)]
    of_family = FAMILIES[family].transformers
    head = CLASSES.get(_architecture(settings, file))
    parts = head.parts if head else PARTS
    stated = {**_DEFAULTS, **of_family.defaults, **settings}
    # What no part of the class reads may have any value.
    for name, part in of_family.read_with.items():
        if part not in parts:
            stated.pop(name, None)
    shape_settings.check_fixed(stated, {**_FIXED, **of_family.fixed}, file)
    values = {ours: stated[theirs] for ours, theirs in _named(of_family).items()}
    try:
        values |= {**of_family.shape, **of_family.read(stated)}
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f'{file}: {error}') from None
    pad_id = stated.get('pad_token_id')
    if FAMILIES[family].first_position and (not isinstance(pad_id, int) or pad_id < 0):
        raise UserError(f'{file}: pad_token_id={pad_id!r}: positions count on from it: a number')
    if isinstance(values['max_position'], int):  # any other type is refused with its name
        values['max_position'] -= _first_position(FAMILIES[family], stated)
    return shape_settings.model_config(values | {'family': family}, _ACTIVATION_IN, file)


def _first_position(family: Family, settings: Mapping[str, Any]) -> int:
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


def _named(of_family: TransformersNames) -> dict[str, str]:
    """Return {setting of ModelConfig: what a family calls it} for all that one name says."""
    named = {**_SETTINGS, **of_family.settings}
    return {ours: theirs for ours, theirs in named.items() if theirs}


def _their_settings(model: Model) -> dict[str, Any]:
    # Their class, our sizes, and what our model always is. The dropout before a classifier is
    # stated in every class: tasks that begin with this model read it.
    family = model.config.traits.transformers
    called, default = family.head_dropout
    rate = model.head_dropout
    if rate is None and default is not None:  # where null would not be the encoder's own
        rate = model.config.hidden_dropout
    named = _named(family)
    ours = {theirs: getattr(model.config, name) for name, theirs in named.items()}
    act = _ACTIVATION_OUT[model.config.hidden_act]
    is_learned = model.config.positions == 'learned'
    learned = {'position_embedding_type': 'absolute'} if is_learned else {}
    settings = {
        'architectures': [model.architecture],
        'model_type': family.model_type,
        **ours,
        named['hidden_act']: act,
        **learned,
        called: rate,
        **family.written,
        **family.write(vars(model.config) | {'hidden_act': act}),
        'tie_word_embeddings': True,
        'dtype': 'float32',
    }

    # Names of outputs: transformers wants one for each, and makes these up where there are none.
    if of_task(CLASSES[model.architecture].parts):
        labels = model.labels or tuple(f'LABEL_{i}' for i in range(model.outputs))
        if not _scores_alone(model.architecture):
            settings['id2label'] = {str(i): label for i, label in enumerate(labels)}
            settings['label2id'] = {label: i for i, label in enumerate(labels)}
        settings['problem_type'] = model.problem_type
    if model.chosen:
        settings[_CHOSEN] = {model.head: dict(model.chosen)}
    return settings


def tensors_in(folder: epath.Path, safe: str, pickled: str) -> tuple[Tensors, list[str]]:
    """Every tensor in the directory, by its name there, and what is to be said of them.

    safe, pickled: how the file of tensors is called, in either format. UserError where there is
    none, or it is damaged.
    """
    # safetensors before pickles, one file before shards; the first that is there is read.
    for file, read_file in ((safe, _read_safetensors), (pickled, _read_pickle)):
        index = folder / f'{file}.index.json'
        if (folder / file).exists():
            tensors = read_file(folder / file)
            break
        if index.exists():
            tensors = _read_shards(index, read_file)
            break
    else:
        other = [name for name in ('tf_model.h5', 'flax_model.msgpack') if (folder / name).exists()]
        beside = f' ({other[0]} is not read)' if other else ''
        raise UserError(f'{folder}: no {safe} or {pickled} in it{beside}: download the weights too')

    # Everything becomes float32; half-precision files are read, and it is said.
    floats = collections.Counter(
        str(t.dtype) for t in tensors.values() if not np.issubdtype(t.dtype, np.integer)
    )
    return tensors, [
        f'{count} tensors are {dtype}: read as float32'
        for dtype, count in floats.items()
        if dtype != 'float32'
    ]


def _read_shards(index: epath.Path, read_file: Callable[[epath.Path], Tensors]) -> Tensors:
    """Return the tensors of all files that an index names."""
    tensors: Tensors = {}
    places = read_object(index).get('weight_map')
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UserError(
            f'{index}: its weight_map does not give every tensor the name of a file: download it'
            ' again'
        )

    # The index is a file from elsewhere: a name in it must be one of a file beside it, so that it
    # cannot lead to another folder.
    for file in sorted(set(places.values())):
        is_beside = '\0' not in file and epath.Path(file).name == file
        if not (is_beside and (index.parent / file).is_file()):
            raise UserError(
                f'{index} names {file}, which is not beside it: download that shard too'
            )
        tensors |= read_file(index.parent / file)
    if differ := set(places) ^ set(tensors):
        raise UserError(f'{index}: it and the shards do not hold the same names: {brief(differ)}')
    return tensors


def _read_safetensors(file: epath.Path) -> Tensors:
    # [(name, {dtype, shape, data})]: bytes, of which numpy makes arrays without copying.
    try:
        views = safetensors.deserialize(file.read_bytes())
    except OSError as error:
        raise UserError(f'{file}: cannot be read ({error.strerror or error})') from None
    except safetensors.SafetensorError as error:
        raise UserError(
            f'{file}: not a whole safetensors file ({error}): download it again'
        ) from error
    if other := {view['dtype'] for _, view in views} - set(_DTYPES):
        raise UserError(
            f'{file}: tensors of type {", ".join(sorted(other))}: only {", ".join(_DTYPES)} can be'
            ' read'
        )
    return {
        name: np.frombuffer(view['data'], _DTYPES[view['dtype']]).reshape(view['shape'])
        for name, view in views
    }


def _read_pickle(file: epath.Path) -> Tensors:
    """Return what torch's reader of tensors alone, which runs no code, finds in a .bin file."""
    try:
        import torch
    except ImportError:
        raise UserError(
            f'{file}: only safetensors are read without PyTorch: where torch and transformers are'
            ' installed, convert it with AutoModel.from_pretrained(DIR).save_pretrained(DIR), or'
            ' install torch here'
        ) from None

    # weights_only refuses code in the pickle.
    try:
        tensors = torch.load(str(file), map_location='cpu', weights_only=True)
    except Exception as error:  # whatever damage or code in it raises
        raise UserError(
            f'{file}: torch cannot read it as plain tensors ({type(error).__name__}): it is damaged'
            ' or not to be trusted'
        ) from error

    # From here on: a dictionary of names and plain tensors, or a refusal that says what it was.
    plain = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not plain or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        held = f'a {type(tensors).__name__}'
        if isinstance(tensors, dict):
            held += f' of {", ".join(sorted(map(str, tensors)))[:120]}'
        raise UserError(
            f'{file}: holds {held}, and not a dictionary of tensors: save the state_dict of the'
            ' model alone, or the model with save_pretrained(DIR)'
        )
    if odd := [
        name
        for name, t in tensors.items()
        if t.layout != torch.strided or t.is_quantized or t.is_complex()
    ]:
        raise UserError(
            f'{file}: {odd[0]} is a sparse, quantised or complex tensor: save it as plain numbers'
        )

    # numpy has no bfloat16, nor float8: those go through float32, which holds all their values.
    numpy_has = (torch.float16, torch.float32, torch.float64)
    arrays = {}
    for name, t in tensors.items():
        narrow = t.is_floating_point() and t.dtype not in numpy_has
        arrays[name] = (t.detach().float() if narrow else t.detach()).numpy()
    return arrays


def _canonical(
    in_file: Iterable[str], theirs: TransformersNames, folder: epath.Path
) -> dict[str, str]:
    """{name without the family's and with weight and bias for gamma and beta: that in the file}."""
    old = {'gamma': 'weight', 'beta': 'bias'}
    names: dict[str, str] = {}
    for name in in_file:
        canonical = re.sub(
            r'(?<=LayerNorm\.)(gamma|beta)$',
            lambda m: old[m.group()],
            name.removeprefix(theirs.base_module),
        )
        if canonical in names:
            raise UserError(
                f'{folder}: {name} and {names[canonical]} are two names of one array: remove one of'
                ' them'
            )
        names[canonical] = name
    return names


def _untie(tensors: Tensors, names: dict[str, str], name_of: NameOf, folder: epath.Path) -> None:
    """Take out the masked-LM decoder's copies of the word table and the output bias.

    UserError where they differ from those.
    """
    # Tied arrays are one here. A copy that is equal goes; one that differs is another model; where
    # the copy alone is saved it stands for the original.
    (table,), _ = name_of('encoder/embeddings/word')
    (bias,), _ = name_of('mlm/bias')
    decoder = f'{bias.name.removesuffix("bias").removesuffix("decoder.")}decoder'
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
