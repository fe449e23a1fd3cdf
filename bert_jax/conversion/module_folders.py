"""What all directories of sentence-transformers have: a list of modules, and files of settings.

Owns the form of these files, and what a kind of model says of its own (`FolderKind`). The kinds
have files of their own; their table is sentence_transformers.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError, check_regular_files
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import parse, read_object
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.conversion.trained_model import Model, Reading

MODULES = 'modules.json'
SETTINGS, LENGTH = 'config_sentence_transformers.json', 'sentence_bert_config.json'
IDENTITY = 'torch.nn.modules.linear.Identity'


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
    """Return the modules of a directory, in order."""
    file = folder / MODULES
    try:
        listed = parse(file.read_bytes())
        ordered = sorted(listed, key=lambda module: module['idx'])
        modules = [Module(m['type'].rpartition('.')[2], m['path']) for m in ordered]
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


def make_module_folder(folder: epath.Path, number: int, kind: str) -> epath.Path:
    """Make the folder of a module, and return it; that of the first is the directory itself."""
    path = folder / name_module(number, kind)
    path.mkdir(exist_ok=True)
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
