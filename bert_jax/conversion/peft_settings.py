"""What peft's adapter_config.json says, by our own settings, and peft's names of arrays, both ways.

Owns the names and values of its settings, which of its methods are ours too, what these call their
arrays, and which of its tasks stands for which head. Must not know files: peft.py reads and writes
those.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.families import bert
from bert_jax.configs.model.families.family import ArrayName, Piece
from bert_jax.configs.model.tuning_config import MATRICES, TuningConfig
from bert_jax.conversion import huggingface
from bert_jax.conversion.parameters import NameOf
from bert_jax.conversion.trained_model import Model
from bert_jax.train.task_heads import CLASSES, HEADS

# Settings that are read here, or say how the arrays were made or, again, which they are. Any other
# changes what is computed, and must be off.
_KNOWN = """
    peft_type peft_version task_type auto_mapping inference_mode
    base_model_name_or_path revision target_modules exclude_modules
    feedforward_modules modules_to_save layers_to_transform layers_pattern bias
    r lora_alpha lora_dropout init_lora_weights init_ia3_weights eva_config
    megatron_core qalora_group_size
""".split()
# Values of init_lora_weights that leave the base model as it is. The others move a part of its
# weights into the update, which then belongs to no model that could be named.
_STARTS = (True, False, 'gaussian', 'orthogonal', 'eva')
# Why a method of ours is none of theirs.
_NOT_THEIRS = {
    'full': 'all weights are trained: --format=huggingface writes them',
    'bitfit': 'peft trains biases beside LoRA alone: --format=huggingface writes plain weights',
}

# Their module of a matrix, {} for the block's number; equal in all families with `has_peft`.
# BERT's own, as transformers has it: no gate, which is left out at the door.
MODULES: dict[str, str] = {}
for _matrix in MATRICES:
    if f'encoder/layers/{_matrix}' in bert.ARRAYS:
        MODULES[_matrix] = str(bert.ARRAYS[f'encoder/layers/{_matrix}'])
# A method's own arrays: the end of our path of each -> the end of their name. What is before it
# names the matrix.
_ENDS = {
    '_lora_a/kernel': '.lora_A.weight',
    '_lora_b/kernel': '.lora_B.weight',
    '_ia3/scale': '.ia3_l',
}
_ADDED = re.compile(r'(encoder\.layer\.(\d+)\..+)(\.lora_A\.weight|\.lora_B\.weight|\.ia3_l)')
# (IA)3 scales keys and values, as a column, and what these two read, as a row.
IA3_SHAPES = {'key': (-1, 1), 'value': (-1, 1), 'output': (1, -1), 'attention_output': (1, -1)}
# Their tasks, and the head of ours that each stands for: the first of its class. Other classes are
# named in auto_mapping.
_TASKS: dict[str, str] = {}
for _head in HEADS:
    _task = HEADS[_head].peft_task
    if _task is not None:
        _TASKS.setdefault(_task, _head)


class AddedArray(NamedTuple):
    """What the name of a method's own array says: its block, our matrix, and their module."""

    block: int
    matrix: str
    module: str


def parse_added(name: str) -> AddedArray | None:
    """Return what the name of a method's own array says; None for any other array."""
    match = _ADDED.fullmatch(name)
    if match is not None:
        for matrix, module in MODULES.items():
            if match[1] == module.format(match[2]):
                return AddedArray(int(match[2]), matrix, match[1])
    return None


def bind_names(family: str, architecture: str) -> NameOf:
    """Return the names of plain models, and those of the method's own arrays too."""
    plain = huggingface.bind_names(family, architecture)

    def name_of(path: str) -> ArrayName:
        for end, theirs in _ENDS.items():
            if path.endswith(end):
                matrix = path.removesuffix(end).rpartition('/')[2]
                return ArrayName((Piece(MODULES[matrix] + theirs),), end != '_ia3/scale')
        return plain(path)

    return name_of


def check_method(tuning: TuningConfig) -> None:
    """Raise UserError where peft has no such method."""
    if tuning.method not in ('lora', 'spafit', 'ia3'):
        adapters = 'peft has no such adapters: --format=stablehlo writes them'
        why = _NOT_THEIRS.get(tuning.method, adapters)
        raise UserError(f'--format=peft cannot write tuning.method={tuning.method}: {why}')


def read_method(settings: Mapping[str, Any], file: epath.Path) -> str:
    """Return LORA or IA3. UserError for another method, and for a variant of one, by name."""
    method = settings.get('peft_type')
    if method not in ('LORA', 'IA3'):
        raise UserError(f'{file}: peft_type={method!r} is not built here: only LORA and IA3 are')
    strange = []
    for name, value in settings.items():
        if name not in _KNOWN and value not in (None, False, '', {}, []):
            strange.append(f'{name}={str(value)[:40]}')
    start = settings.get('init_lora_weights')
    if start is not None and start not in _STARTS:
        strange.append(f'init_lora_weights={start}')
    if strange:
        raise UserError(
            f'{file}: {", ".join(strange)}: not built here; merge it into its model with peft, by'
            ' merge_and_unload(), and read that'
        )
    return method


def choose_architecture(settings: Mapping[str, Any], base: Model, file: epath.Path) -> str:
    """Return transformers' class: that of the task, or the one that is named itself."""
    task, mapping = settings.get('task_type'), settings.get('auto_mapping')
    named = mapping.get('base_model_class') if isinstance(mapping, dict) else None
    family = base.config.family
    if task in _TASKS:
        architecture = HEADS[_TASKS[task]].class_in(family)
    else:  # a task that has no class is refused below, by name
        architecture = task or named or base.architecture
    classes = [name for name, head in CLASSES.items() if head.class_in(family) == name]
    if architecture not in classes:
        raise UserError(
            f'{file}: it is for {architecture}, which is none of {", ".join((*_TASKS, *classes))}'
        )
    return architecture


def make_tuning(method: str, settings: Mapping[str, Any], names: Iterable[str]) -> TuningConfig:
    """Return our options for theirs.

    Args:
      method: LORA or IA3.
      settings: those of the file.
      names: of arrays, which say the matrices that are adapted.

    Raises:
      UserError: they are no options of ours, or nothing is adapted.
    """
    adapted = {added.matrix for added in map(parse_added, names) if added is not None}
    matrices = [matrix for matrix in MODULES if matrix in adapted]
    if not matrices:
        raise UserError(f'there are no arrays of {method} for any of {", ".join(MATRICES)}')
    if method == 'LORA':
        given: dict[str, Any] = {'r': 8, 'lora_alpha': 8, 'lora_dropout': 0.0}  # peft's defaults
        for name in given:
            given[name] = settings.get(name, given[name])
        # Of a null our own default would be taken, which scales the update by another factor.
        nulls = [name for name, value in given.items() if value is None]
        if nulls:
            raise UserError(f'{", ".join(nulls)}=null: it must be a number')
        return TuningConfig(
            method='lora',
            rank=given['r'],
            alpha=given['lora_alpha'],
            lora_dropout=given['lora_dropout'],
            matrices=','.join(matrices),
        )
    other = [name for name in matrices if name not in IA3_SHAPES]
    if other:
        raise UserError(f'it scales {", ".join(other)}: here (IA)3 has {", ".join(IA3_SHAPES)}')
    return TuningConfig(method='ia3', vectors='peft' if 'attention_output' in matrices else 'paper')


def find_task(model: Model) -> str | None:
    """Return their task for the model's class, None for a class that they have no task for."""
    for task, head in _TASKS.items():
        if HEADS[head].class_in(model.config.family) == model.architecture:
            return task
    return None


def describe_class(model: Model) -> dict[str, Any]:
    """Return what peft wraps: a task of its own, or a class by its name."""
    task = find_task(model)
    name = model.config.traits.transformers.model_type.replace('-', '_')
    library = f'transformers.models.{name}.modeling_{name}'
    mapping = {'base_model_class': model.architecture, 'parent_library': library}
    return {'task_type': task, 'auto_mapping': None if task else mapping}


def describe_method(tuning: TuningConfig) -> dict[str, Any]:
    """Return a method with its options, as peft calls them."""
    if tuning.method == 'ia3':
        matrices = list(IA3_SHAPES)
        if tuning.option('vectors') == 'paper':
            matrices.remove('attention_output')
        rows = [name for name in matrices if IA3_SHAPES[name] == (1, -1)]
        method = {'peft_type': 'IA3', 'feedforward_modules': _list_targets(rows)}
    else:
        matrices = tuning.option('matrices').split(',')
        method = {
            'peft_type': 'LORA',
            'r': tuning.option('rank'),
            'lora_alpha': tuning.option('alpha'),
            'lora_dropout': tuning.option('lora_dropout'),
        }
    # Modules are found by the ends of their names, and 'output.dense' ends the attention's too.
    excluded = None
    if 'output' in matrices and 'attention_output' not in matrices:
        excluded = _list_targets(['attention_output'])
    return {**method, 'target_modules': _list_targets(matrices), 'exclude_modules': excluded}


def _list_targets(matrices: Collection[str]) -> list[str]:
    """Return the ends of modules' names, as in peft's own defaults: 'query', 'output.dense'."""
    return [re.sub(r'encoder\.layer\.{}\.(attention\.self\.)?', '', MODULES[m]) for m in matrices]
