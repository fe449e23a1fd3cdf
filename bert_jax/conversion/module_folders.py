"""What all directories of sentence-transformers have: a list of modules, and files of settings.

Owns the form of these files, and what a kind of model says of its own (`FolderKind`). The kinds
have files of their own; their table is sentence_transformers.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.configs.errors import UserError, check_regular_files
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import parse, read_object
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.conversion.trained_model import Model, Reading
from bert_jax.conversion.weight_files import read_tensors

MODULES = 'modules.json'
SETTINGS, LENGTH = 'config_sentence_transformers.json', 'sentence_bert_config.json'
IDENTITY = 'torch.nn.modules.linear.Identity'
WEIGHT = 'linear.weight'  # of a dense layer


class Module(NamedTuple):
    """A module of a directory: its class, without the package, and its folder; '' for itself."""

    kind: str
    path: str


class FolderKind:
    """A class of sentence-transformers whose directories are read and written.

    Attributes:
      model_type: its name in the settings.
      vectors: what is kept of its vectors; None where it makes none.
      package: of its modules, where they are written.
    """

    model_type: ClassVar[str]
    vectors: ClassVar[type[VectorsConfig] | None] = None
    package: ClassVar[str] = 'sentence_transformers.models'

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights with what its modules say.

        Raises:
          UserError: a module or a setting has no counterpart here.
        """
        raise NotImplementedError

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write the modules' own folders, NUMBER_CLASS each; return their classes in order.

        The first is the Transformer, which is in the directory itself.
        """
        raise NotImplementedError

    def fits(self, model: Model) -> bool:
        """Tell whether a model is written so."""
        return self.vectors is not None and type(model.sentence) is self.vectors

    def describe_rows(self, model: Model) -> dict[str, Any]:
        """Return what the settings of the Transformer say: the longest row."""
        assert model.sentence is not None
        length = model.sentence.longest(model.config.max_position)
        return {'max_seq_length': length, 'do_lower_case': False}

    def describe(self, model: Model) -> dict[str, Any]:
        """Return what the settings say besides what all kinds say."""
        return {}


def read_modules(folder: epath.Path) -> list[Module]:
    """Return the modules of a directory, in order.

    MLMTransformer, as release 5 called a Transformer with a masked-LM head, is one.
    """
    file = folder / MODULES
    try:
        listed = parse(file.read_bytes())
        ordered = sorted(listed, key=lambda module: module['idx'])
        modules = []
        for module in ordered:
            kind = module['type'].rpartition('.')[2].removeprefix('MLM')
            modules.append(Module(kind, module['path']))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f'{file}: is no list of modules: download it again') from None
    for _, path in modules:
        # A file from elsewhere: it cannot lead to another folder.
        if not isinstance(path, str) or not re.fullmatch(r'(?!\.\.?$)[^/\\\0]*', path):
            raise UserError(f'{file}: path={path!r}: must be the name of a folder beside it')
        check_regular_files(folder / path)
    return modules


def read_max_length(folder: epath.Path, limit: int) -> int | None:
    """Return the longest row in word pieces: their own file says it, or the tokenizer's."""
    settings = read_settings(folder / LENGTH)
    tokenizer = read_settings(folder / 'tokenizer_config.json')
    if settings.get('do_lower_case') and tokenizer.get('do_lower_case') is False:
        raise UserError(
            f'{folder / LENGTH}: do_lower_case=true, and its tokenizer tells cases apart: that is'
            ' not built here'
        )
    length = settings.get('max_seq_length') or tokenizer.get('model_max_length')
    return min(int(length), limit) if isinstance(length, int | float) and length >= 3 else None


def find_modules(
    folder: epath.Path, built: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, epath.Path]:
    """Return class -> folder of a directory's modules.

    UserError where they are not those `built`, in that order, or the first is in another folder.
    """
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    if (
        kinds != [kind for kind in built if kind in kinds or kind not in optional]
        or modules[0].path
    ):
        raise UserError(
            f'{folder / MODULES}: modules {", ".join(kinds) or "none"}: only {", ".join(built)} are'
            ' built here, in that order and the first in the folder itself'
        )
    return {module.kind: folder / module.path for module in modules}


def read_dense(folder: epath.Path, width: int) -> np.ndarray:
    """Return the kernel [D, width] of a linear layer. UserError where it does anything else."""
    settings = read_settings(folder / 'config.json')
    # Where the activation is missing it is another.
    is_linear = settings.get('activation_function') in ('torch.nn.Identity', IDENTITY)
    if is_linear and not (settings.get('bias') or settings.get('use_residual')):
        tensors, _ = read_tensors(folder, 'model.safetensors', 'pytorch_model.bin')
        if tensors.keys() == {WEIGHT} and tensors[WEIGHT].shape[1:] == (width,):
            return tensors[WEIGHT]
    raise UserError(
        f'{folder}: a dense layer that has more than {WEIGHT} of {width} columns, or an activation'
        ' or a residual, is not built here'
    )


def write_dense(
    folder: epath.Path, number: int, kernel_DH: np.ndarray, settings: Mapping[str, Any]
) -> None:
    """Write a linear layer as the module of a number, with more of its settings."""
    D, H = kernel_DH.shape
    layer = {'in_features': H, 'out_features': D, 'bias': False, 'activation_function': IDENTITY}
    path = write_module(folder, number, 'Dense', {**layer, **settings})
    weights = safetensors.numpy.save({WEIGHT: np.ascontiguousarray(kernel_DH)}, {'format': 'pt'})
    atomic_write(path / 'model.safetensors', weights)


def write_module(
    folder: epath.Path, number: int, kind: str, settings: Mapping[str, Any]
) -> epath.Path:
    """Write the settings of a module into its folder, and return that."""
    path = folder / name_module(number, kind)
    path.mkdir(exist_ok=True)
    write_json(path / 'config.json', settings)
    return path


def name_module(number: int, kind: str) -> str:
    """Return the name of a module's folder."""
    return f'{number}_{kind}' if number else ''


def read_settings(file: epath.Path) -> dict[str, Any]:
    """Return the object in a file, an empty one where there is no file."""
    return read_object(file) if file.exists() else {}


def read_prompts(settings: Mapping[str, Any], file: epath.Path) -> dict[str, str]:
    """Return name -> text of the prompts that a file has. UserError where they are none."""
    prompts = settings.get('prompts') or {}
    if not isinstance(prompts, dict) or not all(isinstance(t, str) for t in prompts.values()):
        raise UserError(f'{file}: prompts={prompts!r}: must give each name a text')
    return prompts


def with_vectors(reading: Reading, vectors: VectorsConfig, settings: Mapping[str, Any]) -> Reading:
    """Return a model of vectors; a prompt that theirs takes by itself is a remark."""
    remarks, name = reading.remarks, settings.get('default_prompt_name')
    if name:
        remarks += (f'the prompt {name!r} is not taken by itself here: name it',)
    return reading._replace(model=reading.model._replace(sentence=vectors), remarks=remarks)


def write_json(file: epath.Path, content: Any) -> None:
    """Write a file of settings."""
    atomic_write(file, json.dumps(content, indent=2, ensure_ascii=False) + '\n')
