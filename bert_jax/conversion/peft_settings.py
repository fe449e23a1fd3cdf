"""What peft's adapter_config.json says, by our own settings, both ways.

Owns the names and values of its settings, which of its methods are ours too, and which of its tasks
stands for which head. Must not know arrays: peft.py reads and writes those.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.families import bert
from bert_jax.configs.model.tuning_config import MATRICES, TuningConfig
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
MODULES = {
    name: str(bert.ARRAYS[f'encoder/layers/{name}'])
    for name in MATRICES
    if f'encoder/layers/{name}' in bert.ARRAYS
}
# (IA)3 scales keys and values, as a column, and what these two read, as a row.
IA3_SHAPES = {'key': (-1, 1), 'value': (-1, 1), 'output': (1, -1), 'attention_output': (1, -1)}


def _find_tasks() -> dict[str, str]:
    """Return their tasks, and the head of ours that each stands for: the first of its class."""
    tasks: dict[str, str] = {}
    for name, head in HEADS.items():
        if head.peft_task is not None:
            tasks.setdefault(head.peft_task, name)
    return tasks


# Other classes are named in auto_mapping.
_TASKS = _find_tasks()


def check_method(tuning: TuningConfig) -> None:
    """UserError where peft has no such method."""
    if tuning.method not in ('lora', 'spafit', 'ia3'):
        adapters = 'peft has no such adapters: --format=stablehlo writes them'
        why = _NOT_THEIRS.get(tuning.method, adapters)
        raise UserError(f'--format=peft cannot write tuning.method={tuning.method}: {why}')


def read_method(settings: Mapping[str, Any], file: epath.Path) -> str:
    """LORA or IA3. UserError for another method, and for a variant of one, by name."""
    method = settings.get('peft_type')
    if method not in ('LORA', 'IA3'):
        raise UserError(f'{file}: peft_type={method!r} is not built here: only LORA and IA3 are')
    strange = [
        f'{name}={str(value)[:40]}'
        for name, value in settings.items()
        if name not in _KNOWN and value not in (None, False, '', {}, [])
    ]
    if (start := settings.get('init_lora_weights')) is not None and start not in _STARTS:
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
    architecture = named or base.architecture
    family = base.config.family
    if task:  # one that has no class is refused below, by name
        architecture = HEADS[_TASKS[task]].class_in(family) if task in _TASKS else task
    classes = [name for name, head in CLASSES.items() if head.class_in(family) == name]
    if architecture not in classes:
        raise UserError(
            f'{file}: it is for {architecture}, which is none of {", ".join((*_TASKS, *classes))}'
        )
    return architecture


def make_tuning(method: str, settings: Mapping[str, Any], matrices: list[str]) -> TuningConfig:
    """Our options for theirs. UserError where they are none, or nothing is adapted."""
    if not matrices:
        raise UserError(f'there are no arrays of {method} for any of {", ".join(MATRICES)}')
    if method == 'LORA':
        defaults = {'r': 8, 'lora_alpha': 8, 'lora_dropout': 0.0}  # peft's own
        given = {name: settings.get(name, default) for name, default in defaults.items()}
        # Of a null our own default would be taken, which scales the update by another factor.
        if nulls := [name for name, value in given.items() if value is None]:
            raise UserError(f'{", ".join(nulls)}=null: it must be a number')
        rank, alpha, rate = given.values()
        return TuningConfig(
            method='lora', rank=rank, alpha=alpha, lora_dropout=rate, matrices=','.join(matrices)
        )
    if other := [name for name in matrices if name not in IA3_SHAPES]:
        raise UserError(f'it scales {", ".join(other)}: here (IA)3 has {", ".join(IA3_SHAPES)}')
    return TuningConfig(method='ia3', vectors='peft' if 'attention_output' in matrices else 'paper')


def find_task(model: Model) -> str | None:
    """Their task for the model's class, None for a class that they have no task for."""
    heads = {HEADS[head].class_in(model.config.family): task for task, head in _TASKS.items()}
    return heads.get(model.architecture)


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
        paper = tuning.option('vectors') == 'paper'
        matrices = [name for name in IA3_SHAPES if not (paper and name == 'attention_output')]
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
    too_many = 'output' in matrices and 'attention_output' not in matrices
    excluded = _list_targets(['attention_output']) if too_many else None
    return {**method, 'target_modules': _list_targets(matrices), 'exclude_modules': excluded}


def _list_targets(matrices: Collection[str]) -> list[str]:
    """Return the ends of modules' names, as in peft's own defaults: 'query', 'output.dense'."""
    block = 'encoder.layer.{}.'
    ends = (MODULES[name].removeprefix(block) for name in matrices)
    return [end.removeprefix('attention.self.') for end in ends]
