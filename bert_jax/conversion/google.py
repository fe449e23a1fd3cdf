"""Google's checkpoints of BERT and ALBERT (TensorFlow 1), read and written.

They are bert_config.json and bert_model.ckpt; of ALBERT albert_config.json and model.ckpt-best.
The references' variable names and settings are the families' (configs/model/families). Must not
know tokenizers, workdirs or what the weights are for; the bytes of the files are
tensor_bundle.py's, and what any format has in common parameters.py's.

Theirs: kernels [in, out] as ours, but the weights of NSP, classifier and span heads [out, in];
`gelu` is the tanh form, and the epsilon of layer normalisation is 1e-12, which no file says
(modeling.py:264, :362).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.model.model_config import FAMILIES
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import parameters, tensor_bundle, trained_model
from bert_jax.conversion.parameters import Layout
from bert_jax.conversion.trained_model import Model, Reading
from bert_jax.train.task_heads import CLASSES, HEADS

# the end of a file's name after the prefix
_FILE = re.compile(r'(?<=.)\.(index|meta|data-\d{5}-of-\d{5})$')
_ACTIVATIONS = {'gelu_tanh': 'gelu', 'relu': 'relu'}
# In no file of settings: their code has it as a constant (modeling.py:362).
_LAYER_NORM_EPS = 1e-12

# The families that have been released so.
RELEASES = {name: family.google for name, family in FAMILIES.items() if family.google}
# State of the optimizer: that of the reference's Adam and of TensorFlow's own, and numbers by
# themselves.
_SLOTS = re.compile(
    r'.+/(adam_m|adam_v|Adam|Adam_1)'
    r'|(.+/)?(global_step|beta[12]_power|(current_)?loss_scale|(num_)?(good|bad)_steps)'
)
# What any other optimizer (LAMB, Adafactor, LARS, ...) calls its state, below the variable that it
# is of.
_SLOT_OF = re.compile(
    r'(?i).*(adam|lamb|lars|adafactor|moment|rmsprop|adagrad|adadelta|ftrl|average|accum|slot).*|.*_(m|v|vr|vc)|[mv]|vr|vc'
)


def find_prefix(source: epath.PathLike) -> str | None:
    """Return the common beginning of the files of the checkpoint that a path names, if any.

    `source`: a folder with a bert_config.json or albert_config.json, the beginning of the files'
    names (DIR/bert_model.ckpt), or one of the files. Such a file beside a config.json and no
    checkpoint is left over, as in folders of the Hub. UserError where a folder has several
    checkpoints, none of them bert_model.ckpt or model.ckpt-best.
    """
    # The most exact reading first: one of the files, or their common beginning; then a folder.
    path = epath.Path(source)
    # Any of the three files stands for all: the ending goes.
    path = path.with_name(_FILE.sub('', path.name)) if path.name else path
    if path.name and path.with_name(path.name + '.index').exists():
        return str(path)
    family = _find_family(path)
    if family is None:
        return None
    usual = RELEASES[family].checkpoint
    if (path / f'{usual}.index').exists():
        return str(path / usual)

    # A folder with a checkpoint of another name: right if it is the only one.
    stems = sorted(p.name.removesuffix('.index') for p in path.glob('*.index'))
    if not stems and (path / 'config.json').exists():
        return None
    if len(stems) != 1:
        listed = ', '.join(stems) or 'no .index file'
        raise UserError(
            f'{path}: {len(stems)} checkpoints in it ({listed}): name one, as {path}/{usual}'
        )
    return str(path / stems[0])


def _find_family(folder: epath.Path) -> str | None:
    """Return the family whose file of settings is in a folder."""
    for family, release in RELEASES.items():
        if (folder / release.config).exists():
            return family
    return None


def read_shape(prefix: str) -> ModelConfig:
    """Return the encoder's shape, by the file of settings of the checkpoint `prefix` alone."""
    folder = epath.Path(prefix).parent
    family = _find_family(folder)
    if family is None:
        first, *others = (release.config for release in RELEASES.values())
        raise UserError(
            f'{folder / first}: no such file, nor {", ".join(others)}: copy the one (and the'
            ' vocabulary) that the checkpoint was trained with beside it'
        )
    return _read_config(folder / RELEASES[family].config, family)


def read(prefix: str) -> Reading:
    """Read the checkpoint `prefix` with the file of settings in its folder.

    Raises:
      UserError: in one line, where anything does not fit.
    """
    # Settings before weights: shapes are checked against them.
    config = read_shape(prefix)
    release = RELEASES[config.family]
    bundle = tensor_bundle.Bundle(prefix)
    if any('.ATTRIBUTES/' in name for name in bundle.variables):
        raise UserError(
            f'{prefix}: saved by TensorFlow 2 as a graph of objects: only checkpoints of TensorFlow'
            ' 1 can be read'
        )

    # Optimizer state is known by its name and left out before anything is read: in LAMB's and
    # Adam's checkpoints it is two thirds of the bytes.
    slots, tensors = [], {}
    for name in bundle.variables:
        if _is_slot(name, bundle.variables):
            slots.append(name)
        else:
            tensors[name] = bundle.read(name)

    # What stands on the encoder follows from the names that are there; a task's number of outputs
    # from its bias; shapes from both.
    file = str(epath.Path(prefix).with_name(release.config))
    parts = parameters.find_parts(tensors, config, release.array, file)
    outputs = 2
    if 'output_bias' in tensors:
        outputs = tensors['output_bias'].size
    layout = Layout(config, parts, outputs, release.array)
    params = layout.to_tree(tensors, {}, prefix, release.config)

    # The first head whose parts are all there; weights of an encoder alone are BertModel's.
    head = HEADS['encoder']
    for other in HEADS.values():
        if other.is_in(config.family) and other.google and set(other.google) <= set(parts):
            head = other
            break
    architecture = head.class_in(config.family)

    # What was changed on the way is told.
    remarks = []
    dtypes = {str(array.dtype) for array in tensors.values()} - {'float32'}
    if dtypes:
        remarks.append(f'{", ".join(sorted(dtypes))} variables are read as float32')
    if slots:
        remarks.append(
            f'{len(slots)} variables of the optimizer ({slots[0]}, ...) are ignored: training'
            ' starts with fresh moments'
        )
    model = Model(config, params, architecture)
    return Reading(model, layout.our_names(), tuple(slots), tuple(remarks))


def write(folder_path: epath.PathLike, model: Model) -> tuple[str, ...]:
    """Write the file of settings and the checkpoint into a directory.

    Returns the parts that the model's class has no place for, which are left out. UserError where
    the reference's code has no such head or activation, or another epsilon.
    """
    # First everything that their code could not read back: nothing is written then.
    if model.config.family not in RELEASES:
        raise UserError(
            f'{folder_path}: google-research/bert has no {model.config.traits.name}:'
            ' --format=huggingface writes it'
        )
    release = RELEASES[model.config.family]
    left_out = trained_model.list_left_out(model, str(folder_path), release.settings)
    model = trained_model.drop_mapping(model)
    config = _state_sizes(model.config, str(folder_path))
    head = CLASSES[model.architecture]
    if not head.google:
        alone = HEADS['encoder'].class_in(model.config.family)
        raise UserError(
            f'{model.architecture} cannot be written for {release.code}, which has no such head:'
            f' --architecture={alone} writes the encoder alone'
        )
    if model.config.hidden_act not in _ACTIVATIONS:
        raise UserError(
            f'hidden_act={model.config.hidden_act} cannot be written for {release.code},'
            ' whose gelu is the tanh form: --hidden_act=gelu_tanh writes that instead, which moves'
            ' each activation by up to 5e-4'
        )
    if model.config.layer_norm_eps != _LAYER_NORM_EPS:
        raise UserError(
            f'layer_norm_eps={model.config.layer_norm_eps} cannot be written for {release.code},'
            ' which has 1e-12'
        )

    # Weights before settings: a folder whose config is there is whole.
    folder = epath.Path(folder_path)
    folder.mkdir(parents=True, exist_ok=True)
    # every checkpoint of the reference has a pooler
    parts = set(head.parts)
    if 'pooler' in model.parts:
        parts.add('pooler')
    left_out = tuple(part for part in left_out if part != 'pooler')
    layout = Layout(model.config, parts, model.outputs, release.array)
    tensor_bundle.write(str(folder / release.checkpoint), layout.to_tensors(model.params))
    settings = {theirs: getattr(config, ours) for ours, (theirs, _) in release.settings.items()}
    settings |= {**release.fixed, 'hidden_act': _ACTIVATIONS[model.config.hidden_act]}
    atomic_write(folder / release.config, json.dumps(settings, indent=2, sort_keys=True) + '\n')
    return left_out


def _state_sizes(config: ModelConfig, path: str) -> ModelConfig:
    """Return a shape as its release says it: what is none here by its number.

    Raises:
      UserError: the release has no such encoder.
    """
    if 'embedding_size' not in RELEASES[config.family].settings:
        return config
    if config.embedding_size == config.hidden_size:
        raise UserError(
            f'{path}: model.embedding_size={config.embedding_size} is as wide as the blocks, and'
            ' google-research/albert has no layer between them then: --format=huggingface writes it'
        )
    return dataclasses.replace(
        config, embedding_size=config.embedding_width, num_groups=config.own_blocks
    )


def _is_slot(name: str, names: Collection[str]) -> bool:
    """Tell whether a variable is the optimizer's, by its name or by where it stands."""
    # The reference's own optimizer is known by its names. Any other by where it stands: a variable
    # below a variable of the model can only be its state.
    above, _, last = name.rpartition('/')
    if above in names and _SLOT_OF.fullmatch(last):
        return True
    return _SLOTS.fullmatch(name) is not None


def _read_config(file: epath.Path, family: str) -> ModelConfig:
    settings, release = read_object(file), RELEASES[family]
    fixed = {name: (value,) for name, value in release.fixed.items()}
    trained_model.check_fixed(settings, fixed, file)
    # What the file leaves out has the default of their code, not ours.
    values: dict[str, Any] = {}
    for ours, (theirs, default) in release.settings.items():
        values[ours] = settings.get(theirs, default)
    # Their ALBERT has no layer between two equal widths.
    if values.get('embedding_size') == values['hidden_size']:
        values['embedding_size'] = None
    values |= {'family': family, 'layer_norm_eps': _LAYER_NORM_EPS}
    activations = {theirs: ours for ours, theirs in _ACTIVATIONS.items()}
    return trained_model.make_model_config(values, activations, file)
