"""How a directory of sentence-transformers says what makes one vector of a text, in and out.

Owns the files that lie beside those of transformers: modules.json, a folder for each module, and
two files of settings. They are written in the spelling of its releases 2 to 4, which 5 and 6 read
too; both spellings are read. Weights and tokenizer are those of transformers (huggingface.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.configs.errors import UserError, check_regular_files
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import parse, read_object
from bert_jax.configs.model.sentence import SentenceConfig, VectorsConfig
from bert_jax.conversion.trained_model import Model, Reading
from bert_jax.train.task_heads import HEADS

MODULES = 'modules.json'
_SETTINGS, _LENGTH = 'config_sentence_transformers.json', 'sentence_bert_config.json'
# Ours -> theirs: as the releases up to 5.2 call it, each a flag, and as later ones do.
_POOLINGS = {
    'cls': ('cls_token', 'cls'),
    'mean': ('mean_tokens', 'mean'),
    'max': ('max_tokens', 'max'),
    'mean_sqrt_len': ('mean_sqrt_len_tokens', 'mean_sqrt_len_tokens'),
    'weighted_mean': ('weightedmean_tokens', 'weightedmean'),
    'last': ('lasttoken', 'lasttoken'),
}
_FLAG = 'pooling_mode_'
_IDENTITY = 'torch.nn.modules.linear.Identity'
_CROSS = 'CrossEncoder'
# What may stand on a cross-encoder's outputs: its name -> ours.
_ACTIVATIONS = {
    _IDENTITY: 'identity',
    'torch.nn.modules.activation.Sigmoid': 'sigmoid',
    'torch.nn.Identity': 'identity',
    'torch.nn.Sigmoid': 'sigmoid',
}
# The first release whose directories look so: no reader takes this one for newer than itself.
_VERSION = '2.7.0'


def is_directory(folder: epath.PathLike) -> bool:
    """Tell whether a folder is one of sentence-transformers."""
    return (epath.Path(folder) / MODULES).exists()


def check_kind(folder: epath.Path) -> None:
    """Raise UserError for a directory of a class of sentence-transformers that is not read."""
    kind = _read_object(folder / _SETTINGS).get('model_type') or 'SentenceTransformer'
    if kind not in ('SentenceTransformer', _CROSS):
        raise UserError(
            f'{folder / _SETTINGS}: this is a {kind} of sentence-transformers: only'
            f' SentenceTransformer and {_CROSS} are read here'
        )


def add_modules(path: epath.PathLike, reading: Reading) -> Reading:
    """Return what was read of a directory's weights as a sentence encoder or a cross-encoder.

    Raises:
      UserError: a module, a pooling, an activation or a setting has no counterpart here.
    """
    folder = epath.Path(path)
    if _read_object(folder / _SETTINGS).get('model_type') == _CROSS:
        return _add_scores(folder, reading)
    return _add_sentence(folder, reading)


def read_activation(settings: Mapping[str, Any]) -> Any:
    """Return the name of a cross-encoder's activation in a config.json, or None."""
    of_release_4 = settings.get('sentence_transformers')
    named = of_release_4.get('activation_fn') if isinstance(of_release_4, dict) else None
    return named or settings.get('sbert_ce_default_activation_function')


def add_activation(model: Model, named: Any, file: epath.Path) -> Model:
    """Return a classifier whose answers have an activation.

    Args:
      model: the classifier.
      named: the activation as `file` names it, or None.
      file: where it stands, in errors.

    Raises:
      UserError: it is not built here. No name is imported.
    """
    if named is None:
        return model
    activation = _ACTIVATIONS.get(named) if isinstance(named, str) else None
    if activation is None:
        raise UserError(
            f'{file}: the activation of its scores is {str(named)[:80]!r}: only torch.nn.Identity'
            ' and torch.nn.Sigmoid are built here'
        )
    chosen = {**model.chosen, 'activation': activation}
    # Several numbers, each with a sigmoid, are labels that do not exclude one another.
    if activation == 'sigmoid' and model.outputs > 1:
        return model._replace(chosen=chosen, problem_type='multi_label_classification')
    if activation == 'identity':  # as classifiers and regressions are without it
        del chosen['activation']
    return model._replace(chosen=chosen)


def _add_scores(folder: epath.Path, reading: Reading) -> Reading:
    """Return a cross-encoder: a classifier with its activation and its longest row."""
    model, file = reading.model, folder / _SETTINGS
    architecture = HEADS['classifier'].class_in(model.config.family)
    if _read_modules(folder) != [('Transformer', '')] or model.architecture != architecture:
        raise UserError(
            f'{folder / MODULES}: a {_CROSS} is read here whose one module is a Transformer in the'
            f' folder itself, of the class {architecture}'
        )
    settings = _read_object(file)
    name = settings.get('default_prompt_name')
    if name:
        raise UserError(
            f'{file}: default_prompt_name={name!r}: a {_CROSS} has no prompts here: set it to null'
        )
    named = settings.get('activation_fn') or read_activation(_read_object(folder / 'config.json'))
    if named is None and model.outputs == 1:  # as there, where nothing is said
        named = 'torch.nn.Sigmoid'
    model = add_activation(model, named, file)
    chosen = {'activation': 'identity', **model.chosen}
    length = _read_max_length(folder, model.config.max_position)
    if length:
        chosen['max_seq_length'] = length
    return reading._replace(model=model._replace(chosen=chosen))


def _add_sentence(folder: epath.Path, reading: Reading) -> Reading:
    """Return what was read of a directory's weights as a sentence encoder.

    Raises:
      UserError: a module, a pooling or a setting has no counterpart here.
    """
    modules = _read_modules(folder)
    kinds = [kind for kind, _ in modules]
    # In this order, and a cut where numbers are left out before vectors get length one.
    built = ('Transformer', 'Pooling', 'Dense', 'Normalize')
    optional = ('Dense', 'Normalize')
    if kinds != [kind for kind in built if kind in kinds or kind not in optional]:
        raise UserError(
            f'{folder / MODULES}: modules {", ".join(kinds) or "none"}: only Transformer, Pooling'
            ' and Normalize are built here, in that order'
        )
    if modules[0][1]:
        raise UserError(
            f'{folder / MODULES}: its Transformer is in {modules[0][1]}: only one that is in the'
            ' folder itself is read'
        )
    settings = _read_object(folder / _SETTINGS)
    prompts = settings.get('prompts') or {}
    if not isinstance(prompts, dict) or not all(isinstance(t, str) for t in prompts.values()):
        raise UserError(f'{folder / _SETTINGS}: prompts={prompts!r}: must give each name a text')
    remarks, name = reading.remarks, settings.get('default_prompt_name')
    if name:
        remarks += (f'the prompt {name!r} is not taken by itself here: name it',)
    width = reading.model.config.hidden_size
    sentence = SentenceConfig(
        _read_pooling(folder / modules[1][1] / 'config.json', prompts),
        'Normalize' in kinds,
        _read_cut(folder / modules[2][1], width) if 'Dense' in kinds else None,
        tuple(prompts.items()),
        _read_max_length(folder, reading.model.config.max_position),
        settings.get('similarity_fn_name') or 'cosine',
    )
    model = reading.model._replace(sentence=sentence)
    return reading._replace(model=model, remarks=remarks)


def write(folder: epath.Path, sentence: VectorsConfig, width: int, max_position: int) -> None:
    """Write what makes one vector of a text beside the weights and the tokenizer.

    Args:
      folder: the directory.
      sentence: the settings.
      width: of the encoder's states.
      max_position: word pieces of the longest row that the encoder reads.
    """
    assert isinstance(sentence, SentenceConfig)
    dim, kinds = sentence.truncate_dim, ['Transformer', 'Pooling']
    # Theirs cuts after all modules, ours before vectors get length one: a product that keeps the
    # first numbers is the same to every release.
    if dim and dim < width:
        kinds.append('Dense')
    if sentence.normalize:
        kinds.append('Normalize')
    modules = []
    for number, kind in enumerate(kinds):
        path = f'{number}_{kind}' if number else ''
        (folder / path).mkdir(exist_ok=True)
        type_ = f'sentence_transformers.models.{kind}'
        modules.append({'idx': number, 'name': str(number), 'path': path, 'type': type_})
    pooling: dict[str, Any] = {'word_embedding_dimension': width}
    for name, (flag, _) in _POOLINGS.items():
        pooling[_FLAG + flag] = name == sentence.pooling
    pooling['include_prompt'] = True
    _write_json(folder / modules[1]['path'] / 'config.json', pooling)
    if dim is not None and 'Dense' in kinds:
        dense = {'in_features': width, 'out_features': dim, 'bias': False}
        path = folder / modules[2]['path']
        _write_json(path / 'config.json', dense | {'activation_function': _IDENTITY})
        kernel = {'linear.weight': np.eye(dim, width, dtype=np.float32)}
        atomic_write(path / 'model.safetensors', safetensors.numpy.save(kernel, {'format': 'pt'}))
    length = sentence.longest(max_position)
    _write_json(folder / _LENGTH, {'max_seq_length': length, 'do_lower_case': False})
    settings = {
        '__version__': {'sentence_transformers': _VERSION},
        'prompts': dict(sentence.prompts),
        'default_prompt_name': None,
        'similarity_fn_name': sentence.similarity,
    }
    _write_json(folder / _SETTINGS, settings)
    # Last: a folder that has it is whole.
    _write_json(folder / MODULES, modules)


def is_cross_encoder(model: Model) -> bool:
    """Tell whether a model scores pairs: its scores have an activation, or none by name."""
    return 'activation' in model.chosen


def write_cross_encoder(folder: epath.Path, model: Model) -> None:
    """Write what makes a CrossEncoder of the weights and the tokenizer, as release 6.2 does.

    Earlier ones read config.json alone.
    """
    transformer = {
        'transformer_task': 'sequence-classification',
        'modality_config': {'text': {'method': 'forward', 'method_output_name': 'logits'}},
        'module_output_name': 'scores',
    }
    _write_json(folder / _LENGTH, transformer)
    settings = {
        '__version__': {'sentence_transformers': '6.2.0'},
        'model_type': _CROSS,
        'activation_fn': _name_activation(model),
        'prompts': {},
        'default_prompt_name': None,
    }
    _write_json(folder / _SETTINGS, settings)
    # Last: a folder that has it is whole.
    type_ = 'sentence_transformers.base.modules.transformer.Transformer'
    _write_json(folder / MODULES, [{'idx': 0, 'name': '0', 'path': '', 'type': type_}])


def _name_activation(model: Model) -> str:
    ours = model.chosen.get('activation', 'identity')
    return next(name for name, activation in _ACTIVATIONS.items() if activation == ours)


def describe_cross_encoder(model: Model) -> dict[str, Any]:
    """Return what config.json says so that a CrossEncoder gives a model's scores as we do."""
    name = _name_activation(model)
    return {
        'sentence_transformers': {'activation_fn': name},
        'sbert_ce_default_activation_function': name,  # of the releases up to 3
    }


def _read_modules(folder: epath.Path) -> list[tuple[str, str]]:
    """Return (class, folder) of each module, in order."""
    file = folder / MODULES
    try:
        listed = parse(file.read_bytes())
        ordered = sorted(listed, key=lambda module: module['idx'])
        modules = [(module['type'].rpartition('.')[2], module['path']) for module in ordered]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f'{file}: is no list of modules: download it again') from None
    for _, path in modules:
        # A file from elsewhere: it cannot lead to another folder.
        if not isinstance(path, str) or not re.fullmatch(r'(?!\.\.?$)[^/\\\0]*', path):
            raise UserError(f'{file}: path={path!r}: must be the name of a folder beside it')
        check_regular_files(folder / path)
    return modules


def _read_pooling(file: epath.Path, prompts: Mapping[str, str]) -> Any:
    """Return the one pooling that a file names, in either spelling."""
    settings = _read_object(file)
    mode = settings.get('pooling_mode')
    modes = [mode] if isinstance(mode, str) else list(mode or ())
    for key, is_on in settings.items():
        if key.startswith(_FLAG) and is_on is True:
            modes.append(key.removeprefix(_FLAG))
    ours = {theirs: name for name, both in _POOLINGS.items() for theirs in both}
    if len(modes) != 1 or modes[0] not in ours:
        raise UserError(
            f'{file}: pooling {" and ".join(map(str, modes)) or "of no kind"}: one of'
            f' {", ".join(_POOLINGS)} is built here'
        )
    if settings.get('include_prompt') is False and any(prompts.values()):
        raise UserError(
            f'{file}: include_prompt=false: prompts are pooled here as all of a text is'
        )
    return ours[modes[0]]


def _read_cut(folder: epath.Path, width: int) -> int:
    """Return how many first numbers a dense module keeps; UserError where it does anything else."""
    settings, file = _read_object(folder / 'config.json'), folder / 'model.safetensors'
    if settings.get('activation_function') == _IDENTITY and file.exists():
        kernel = safetensors.numpy.load(file.read_bytes()).get('linear.weight', np.zeros((1, 1)))
        rows = len(kernel)
        if not settings.get('bias') and np.array_equal(kernel, np.eye(rows, width)):
            return rows
    raise UserError(f'{folder}: a dense layer on the vector is not built here')


def _read_max_length(folder: epath.Path, limit: int) -> int | None:
    """Return the longest row in word pieces: their own file says it, or the tokenizer's."""
    settings = _read_object(folder / _LENGTH)
    tokenizer = _read_object(folder / 'tokenizer_config.json')
    if settings.get('do_lower_case') and tokenizer.get('do_lower_case') is False:
        raise UserError(
            f'{folder / _LENGTH}: do_lower_case=true, and its tokenizer tells cases apart: that is'
            ' not built here'
        )
    length = settings.get('max_seq_length') or tokenizer.get('model_max_length')
    return min(int(length), limit) if isinstance(length, int | float) and length >= 3 else None


def _read_object(file: epath.Path) -> dict[str, Any]:
    return read_object(file) if file.exists() else {}


def _write_json(file: epath.Path, content: Any) -> None:
    atomic_write(file, json.dumps(content, indent=2, ensure_ascii=False) + '\n')
