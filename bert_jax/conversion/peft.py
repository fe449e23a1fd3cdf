"""Adapters of Hugging Face's peft: adapter_config.json and adapter_model.safetensors.

Owns peft's names of arrays, and what of a model its files hold; no code of peft is used. Must not
know where a base model is, nor tokenizers; its settings are peft_settings.py's, and transformers'
own names huggingface.py's.

Theirs: `base_model.model.` before the names of transformers' class. The arrays of a method stand at
the module that they change; biases, and modules that were trained whole, under their own names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from etils import epath
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import parse_object, read_object
from bert_jax.configs.model.model_config import FAMILIES
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.conversion import huggingface, trained_model
from bert_jax.conversion.parameters import Layout, Tensors, join_names
from bert_jax.conversion.peft_settings import (
    IA3_SHAPES,
    bind_names,
    check_method,
    choose_architecture,
    describe_class,
    describe_method,
    find_task,
    make_tuning,
    parse_added,
    read_method,
)
from bert_jax.conversion.trained_model import Model, Reading
from bert_jax.conversion.weight_files import read_tensors
from bert_jax.model.tuning import find_neutral, is_added
from bert_jax.train.head_base import PARTS
from bert_jax.train.task_heads import CLASSES

_CONFIG = 'adapter_config.json'
_FILES = ('adapter_model.safetensors', 'adapter_model.bin')
_PREFIX = 'base_model.model.'

# Settings of a model that are of training alone.
_OF_TRAINING = ('hidden_dropout', 'attention_dropout', 'initializer_range')

# What stands between a module that was trained whole and those that it holds.
_WITHIN = re.compile(r'\.modules_to_save\.[^.]+\.(?=[^.]+\.[^.]+$)')


def is_directory(path: epath.PathLike) -> bool:
    """Tell whether `path` holds an adapter_config.json."""
    return (epath.Path(path) / _CONFIG).exists()


def read_base_name(path: epath.PathLike) -> str:
    """Return the model that an adapter is for; NAME@REVISION where it names both.

    UserError where it names none, or another adapter.
    """
    file = epath.Path(path) / _CONFIG
    settings = read_object(file)
    name, revision = settings.get('base_model_name_or_path'), settings.get('revision')
    if not isinstance(name, str) or not name:
        raise UserError(f'{file}: add base_model_name_or_path, the model that it was tuned on')
    if is_directory(name):
        raise UserError(f'{file} is for {name}, which is an adapter too: merge that one first')
    return f'{name}@{revision}' if revision else name


def list_saved(path: epath.PathLike) -> list[str]:
    """Return the modules that an adapter's file holds whole, by the ends of their names."""
    file = epath.Path(path) / _CONFIG
    named = read_object(file).get('modules_to_save') or []
    if not isinstance(named, list) or not all(isinstance(module, str) for module in named):
        raise UserError(f'{file}: modules_to_save={named!r}: must be a list of names of modules')
    return named


def read(path: epath.PathLike, base: Model) -> Reading:
    """Read an adapter onto its base model, which must have no tuning of its own.

    Raises:
      UserError: in one line, where its method is not built here, anything does not fit the base, or
        it notes that it is of another.
    """
    # Settings, then arrays: the method's, and those that take the place of the base's own.
    folder, file = epath.Path(path), epath.Path(path) / _CONFIG
    settings = read_object(file)
    method = read_method(settings, file)
    by_file_name, remarks = read_tensors(folder, *_FILES)
    notes = _read_notes(folder)
    _check_base(base, notes, folder)
    names, ignored = _canonicalize(by_file_name, base.config.traits.transformers.base_module)
    architecture = choose_architecture(settings, base, file)
    noted = notes.get('architecture', architecture)
    if noted != architecture:
        raise UserError(
            f'{file}: its arrays are of {noted}, and it says {architecture} (task_type,'
            ' auto_mapping): put back what was there'
        )
    name_of, outputs = bind_names(base.config.family, architecture), base.outputs
    arrays = {canonical: by_file_name[name] for canonical, name in names.items()}
    tensors = _add_to_base(arrays, base, architecture, file, names)
    ((bias,), _) = name_of('classifier/bias')
    if bias.name in tensors:
        outputs = len(tensors[bias.name])

    # The method's options follow from the settings, and from the matrices that have arrays.
    try:
        tuning = make_tuning(method, settings, tensors)
        config = base.config.tuned(tuning)
    except UserError as error:
        raise UserError(f'{file}: {error}') from None
    if method == 'LORA':
        _fold_pooler(tensors, tuning)
    else:
        _flatten(tensors, names, file)

    # From here on as any other model: names, shapes and numbers are checked, the base's too.
    layout = Layout(config, CLASSES[architecture].parts, outputs, name_of)
    _fill(tensors, layout)
    tree = layout.to_tree(tensors, names, str(folder), _CONFIG)

    # peft has no place for these: ours are a note, others' may be the base model's.
    labels = tuple(notes.get('labels', base.labels))
    model = Model(
        config,
        tree,
        architecture,
        labels if len(labels) == outputs else (),
        notes.get('head_dropout', base.head_dropout),
        notes.get('problem_type', base.problem_type),
        chosen=notes.get('chosen', {}),
    )
    ours = layout.our_names()
    held = {name: ours[canonical] for canonical, name in names.items() if canonical in ours}
    return Reading(model, held, ignored, tuple(remarks))


def _check_base(base: Model, notes: Mapping[str, Any], folder: epath.Path) -> None:
    """Raise UserError where a base is not the encoder that an adapter's notes say, or not built."""
    if notes.get('encoder', digest(base)) != digest(base):
        raise UserError(
            f'{folder / _CONFIG}: {read_base_name(folder)} is not the encoder that it was tuned on,'
            ' whose weights are others: name that one as base_model_name_or_path'
        )
    _check_family(base, str(folder / _CONFIG))


def _add_to_base(
    arrays: Tensors, base: Model, architecture: str, file: epath.Path, spelled: Mapping[str, str]
) -> Tensors:
    """Return a base's arrays by their names in a class, an adapter's in their place.

    With them the size of the head is known.

    Raises:
      UserError: the word table of the adapter is not that of the masked-LM head.
    """
    parts = CLASSES[architecture].parts
    tensors = huggingface.make_tensors(base, [part for part in base.parts if part in parts])
    for name in base.config.traits.transformers.displaced(architecture):
        tensors.pop(name, None)
    # Its word table is a copy in peft, and the masked-LM head goes on with the base's.
    ((table,), _) = bind_names(base.config.family, architecture)('encoder/embeddings/word')
    copy = arrays.get(table.name) if 'mlm' in parts else None
    if copy is not None and not np.array_equal(copy, tensors[table.name]):
        raise UserError(
            f'{file}: {spelled[table.name]} was trained apart from the masked-LM head of'
            f' {architecture}, and here they are one array: this adapter cannot be represented'
        )
    return tensors | arrays


def write(
    path: epath.PathLike, model: Model, base: Model, name: str, saved: Sequence[str] = ()
) -> tuple[str, ...]:
    """Write what tuning has added to `base`, and the head, into a directory.

    Args:
      path: the directory.
      model: the tuned model.
      base: the encoder that it was tuned on, as transformers reads it by `name`.
      name: NAME@REVISION of a model on the Hub, or a folder.
      saved: modules of the base that were trained whole, as `list_saved` gives them.

    Returns:
      The parts that the model's class has no place for.

    Raises:
      UserError: peft has no such method, or the base is another.
    """
    folder, tuning = epath.Path(path), model.config.tuning
    check_method(tuning)
    _check_family(model, f'--format=peft: {path}')
    _check_shape(model, base, name)
    left_out = trained_model.list_left_out(model, str(path))
    held = _collect(model, base, name, saved)

    # Arrays first: a folder whose adapter_config.json is there is whole.
    folder.mkdir(parents=True, exist_ok=True)
    notes: dict[str, Any] = {
        'encoder': digest(base),
        'architecture': model.architecture,
        'labels': model.labels,
        'problem_type': model.problem_type,
        'head_dropout': model.head_dropout,
    }
    if model.chosen:
        notes['chosen'] = dict(model.chosen)
    metadata = {'format': 'pt', 'bert_jax': json.dumps(notes)}
    atomic_write(folder / _FILES[0], safetensors.numpy.save(held.arrays, metadata))
    repository, _, revision = name.partition('@')
    settings = {
        'base_model_name_or_path': repository,
        'revision': revision or None,
        'inference_mode': True,
        'modules_to_save': held.modules or None,
        **describe_class(model),
        **describe_method(tuning),
    }
    if tuning.method != 'ia3':
        has_all = len(held.blocks) == model.config.num_layers
        settings['layers_to_transform'] = None if has_all else held.blocks
        settings['bias'] = 'all' if held.has_biases else 'none'
    atomic_write(folder / _CONFIG, json.dumps(settings, indent=2) + '\n')
    return left_out


class _Held(NamedTuple):
    """What an adapter's file holds of a model.

    Attributes:
      arrays: by their names in the file: the method's, those of modules that were trained whole
        and, if any bias was, all of them; all others are the base's.
      modules: those that are in it whole.
      blocks: the numbers of the blocks with an update.
      has_biases: whether it has all biases.
    """

    arrays: Tensors
    modules: list[str]
    blocks: list[int]
    has_biases: bool


def _collect(model: Model, base: Model, name: str, saved: Sequence[str]) -> _Held:
    """Return what an adapter's file holds; arguments as of `write`.

    Raises:
      UserError: other weights than those differ from the base's.
    """
    # Both models by their names there, to be held against each other.
    parts = CLASSES[model.architecture].parts
    name_of = bind_names(model.config.family, model.architecture)
    layout = Layout(model.config, parts, model.outputs, name_of)
    tensors = layout.to_tensors(model.params)
    before = huggingface.make_tensors(base, [part for part in base.parts if part in parts])
    changed, added, biases = set(), {}, set()
    for n, array in tensors.items():
        if n not in before or not np.array_equal(array, before[n]):
            changed.add(n)
        of_method = parse_added(n)
        if of_method is not None:
            added[n] = of_method
        elif n.endswith('.bias') and model.config.tuning.method != 'ia3':
            biases.add(n)

    transformers = model.config.traits.transformers
    full = {n: transformers.full(n, model.architecture) for n in tensors}

    def find_within(modules: Sequence[str]) -> set[str]:
        return {n for n in full if any(f'{module}.' in full[n] for module in modules)}

    modules = _separate(saved, full.values())
    modules += _list_trained_heads(model, layout, changed, find_within(modules))
    whole = find_within(modules)
    biases -= whole
    other = changed - added.keys() - whole - biases
    if other:
        raise UserError(
            f'{name} is not the encoder that it was tuned on ({join_names(other)} are other'
            ' weights): name that one with --base'
        )
    if not changed & biases:
        biases = set()

    # Depth may leave the lower blocks without an update: those are not among its layers.
    blocks = {of_method.block for n, of_method in added.items() if tensors[n].any()}
    arrays, adapted = {}, set()
    for n, of_method in added.items():
        if of_method.block in blocks:
            adapted.add(of_method.module)
        if of_method.block in blocks or n in whole:
            array = tensors[n]
            if n.endswith('.ia3_l'):
                array = array.reshape(IA3_SHAPES[of_method.matrix])
            arrays[_PREFIX + full[n]] = array
    for n in (whole | biases) - added.keys():
        # What was a module's own lies one step deeper once peft has put its arrays beside it.
        module, _, leaf = full[n].rpartition('.')
        if leaf == 'bias' and n.removesuffix('.bias') in adapted:
            module += '.base_layer'
        arrays[f'{_PREFIX}{module}.{leaf}'] = tensors[n]
    return _Held(arrays, modules, sorted(blocks), bool(biases))


def _check_family(model: Model, path: str) -> None:
    """Raise UserError for an encoder whose adapters are not built here."""
    if not model.config.traits.has_peft:
        built = ' and '.join(family.name for family in FAMILIES.values() if family.has_peft)
        raise UserError(
            f'{path}: adapters of peft are built for {built}, and the model is a'
            f' {model.config.traits.name}: --format=huggingface writes plain weights'
        )


def _check_shape(model: Model, base: Model, name: str) -> None:
    """Raise UserError where the encoder of that name has another shape."""
    differ = []
    for setting, ours in vars(model.config.tuned(TuningConfig())).items():
        theirs = getattr(base.config, setting)
        if ours != theirs and setting not in _OF_TRAINING:
            differ.append(f'{setting} is {ours} and {theirs} there')
    if differ:
        raise UserError(f'{name} is not the encoder that it was tuned on ({"; ".join(differ)})')


def digest(model: Model) -> str:
    """Return 24 hex digits that change with any weight of an encoder, its pooler left out."""
    sha = hashlib.sha256()
    for path, leaf in sorted(traverse_util.flatten_dict(model.params['encoder'], sep='/').items()):
        if path.startswith('pooler/'):
            continue
        sha.update(repr((path, leaf.shape)).encode())
        sha.update(np.asarray(leaf, np.float32).tobytes())
    return sha.hexdigest()[:24]


def _canonicalize(
    in_file: Collection[str], base_module: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return ({name without what peft puts before and into it: that in the file}, those ignored).

    Without the module around the encoder too, `base_module`.
    """
    names, inner, ignored = {}, {}, []
    for name in in_file:
        bare = _WITHIN.sub('.', name.removeprefix(_PREFIX)).removeprefix(base_module)
        # bias=all writes each copy of a module that was trained whole, beside the module itself.
        if '.modules_to_save.' in bare or '.original_module.' in bare:
            ignored.append(name)
        elif _WITHIN.search(name):
            inner[bare] = name
        else:
            names[re.sub(r'\.base_layer(?=\.(weight|bias)$)', '', bare)] = name
    # Where a module was wrapped and one in it too, peft computes with the copy in the copy.
    ignored += [names[bare] for bare in inner if bare in names]
    names |= inner
    return names, tuple(ignored)


def _read_notes(folder: epath.Path) -> dict[str, Any]:
    """Return what `write` noted in the file of arrays; nothing of other programs' files."""
    file = folder / _FILES[0]
    if not file.exists():
        return {}
    # The format: eight bytes that say how long the header is, then that, as JSON.
    with file.open('rb') as data:
        header = parse_object(data.read(int.from_bytes(data.read(8), 'little')))
    try:
        return parse_object(header.get('__metadata__', {}).get('bert_jax', '{}'))
    except ValueError as error:
        raise UserError(f'{file}: its note of bert_jax is damaged ({error})') from None


def _fold_pooler(tensors: Tensors, tuning: TuningConfig) -> None:
    """Fold an update of the pooler, as target_modules=all-linear makes one, into its weight.

    Here LoRA is of the blocks, and what is trained of the pooler is trained whole.
    """
    whole = 'pooler.dense.weight'
    first, second = 'pooler.dense.lora_A.weight', 'pooler.dense.lora_B.weight'
    if whole in tensors and first in tensors and second in tensors:
        a = np.asarray(tensors.pop(first), np.float32)
        b = np.asarray(tensors.pop(second), np.float32)
        scale = np.float32(tuning.option('alpha') / tuning.option('rank'))
        tensors[whole] = tensors[whole] + scale * np.matmul(b, a)


def _flatten(tensors: Tensors, spelled: Mapping[str, str], file: epath.Path) -> None:
    """Make vectors of the rows and columns of (IA)3.

    UserError where one scales the other side of its product, by feedforward_modules.
    """
    for name, array in tensors.items():
        added = parse_added(name)
        if added is None or not name.endswith('.ia3_l'):
            continue
        tensors[name] = array.reshape(-1)
        if array.shape != tensors[name].reshape(IA3_SHAPES[added.matrix]).shape:
            raise UserError(
                f'{file}: {spelled[name]} has the shape {array.shape}: here (IA)3 scales what keys'
                ' and values give and what the output of a sub-layer reads (feedforward_modules)'
            )


def _fill(tensors: Tensors, layout: Layout) -> None:
    """Give blocks that the method left out arrays that change nothing."""
    # Half of an update is no update: the other half is then missed by name.
    there = {parse_added(name) for name in tensors}
    for path, stored in layout.stored.items():
        if is_added(path):
            for name, shape in stored.shapes().items():
                if parse_added(name) not in there:
                    tensors[name] = np.full(shape, find_neutral(path), np.float32)


def _separate(modules: Sequence[str], names: Collection[str]) -> list[str]:
    """Return those of the modules that hold arrays of these names, none of them within another.

    peft wraps both then, and cannot load its own file: the modules in them stand for those.
    """
    modules_apart: dict[str, None] = {}
    any_module = re.compile(rf'(?:{"|".join(re.escape(module) for module in modules)})\.')
    for module in modules:
        held = [name for name in names if f'{module}.' in name]
        # Of each array the modules that are wrapped, from the outermost to its own.
        wrapped = [any_module.findall(name) for name in held]
        if any(len(of_array) > 1 for of_array in wrapped):
            modules_apart |= dict.fromkeys(name.rpartition('.')[0] for name in held)
        elif held:
            modules_apart[module] = None
    return list(modules_apart)


def _list_trained_heads(
    model: Model, layout: Layout, changed: set[str], whole: set[str]
) -> list[str]:
    """Return the modules of its head that are in the file whole: for a task, and where changed.

    Args:
      model: the tuned model.
      layout: its arrays there.
      changed: names of arrays that differ from the base's.
      whole: names of arrays that are in other such modules already.

    Raises:
      UserError: a head of several modules is not the base's.
    """
    modules: list[str] = []
    for part in CLASSES[model.architecture].parts:
        names: list[str] = []
        for path, stored in layout.stored.items():
            if path.startswith(PARTS[part].path):
                names += stored.shapes()
        # For its own tasks peft takes the head for trained, and asks for it in the file.
        trained = find_task(model) is not None and part != 'pooler'
        untold = set(names) - whole
        if not untold or not (trained or changed.intersection(untold)):
            continue
        module, *others = dict.fromkeys(name.rpartition('.')[0] for name in names)
        if others:
            raise UserError(
                f'--format=peft: the {part} head of {model.architecture} was trained too, which is'
                ' no single module: --format=huggingface writes all of it'
            )
        # RoBERTa's classifier has two layers, of which the first is our pooler.
        modules.append('classifier' if module.startswith('classifier.') else module)
    return list(dict.fromkeys(modules))
