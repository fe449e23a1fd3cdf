"""Directories of sentence-transformers, in and out: the table of their kinds.

Owns which kind a directory is of, and the files that all of them have beside those of transformers:
modules.json and two files of settings. Weights and tokenizer are those of transformers
(huggingface.py); what a kind has of its own is its class's.
"""

from __future__ import annotations

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.conversion.cross_encoder_folder import CrossEncoderFolder
from bert_jax.conversion.late_interaction_folder import MultiVectorFolder, PyLateFolder
from bert_jax.conversion.module_folders import (
    LENGTH,
    MODULES,
    SETTINGS,
    FolderKind,
    name_module,
    read_settings,
    write_json,
)
from bert_jax.conversion.sentence_folder import SentenceFolder
from bert_jax.conversion.sparse_folder import SparseFolder
from bert_jax.conversion.trained_model import Model, Reading

# The first release whose directories look so: no reader takes this one for newer than itself.
_VERSION = '2.7.0'
_KINDS: tuple[FolderKind, ...] = (
    SentenceFolder(),
    SparseFolder(),
    CrossEncoderFolder(),
    MultiVectorFolder(),
    PyLateFolder(),
)


def is_cross_encoder(model: Model) -> bool:
    """Tell whether a model is written as one that scores pairs."""
    return CrossEncoderFolder().fits(model)


def is_directory(folder: epath.PathLike) -> bool:
    """Tell whether a folder is one of sentence-transformers."""
    return (epath.Path(folder) / MODULES).exists()


def find_kind(folder: epath.Path) -> FolderKind:
    """Return the kind of a directory. UserError for a class of theirs that is not read."""
    file = folder / SETTINGS
    named = read_settings(file).get('model_type') or 'SentenceTransformer'
    for kind in _KINDS:
        if kind.model_type == named:
            return kind
    names = ' and '.join(kind.model_type for kind in _KINDS)
    raise UserError(f'{file}: this is a {named} of sentence-transformers: only {names} are read')


def add_modules(path: epath.PathLike, reading: Reading) -> Reading:
    """Return what was read of a directory's weights as the model that its modules make of it.

    Raises:
      UserError: a module, a pooling, an activation or a setting has no counterpart here.
    """
    folder = epath.Path(path)
    return find_kind(folder).add(folder, reading)


def write(folder: epath.Path, model: Model) -> None:
    """Write what makes vectors of a text, or scores, beside the weights and the tokenizer."""
    (kind,) = (kind for kind in _KINDS if kind.fits(model))
    modules = []
    for number, name in enumerate(kind.write_modules(folder, model)):
        path = name_module(number, name)
        type_ = f'{kind.package}.{name}'
        modules.append({'idx': number, 'name': str(number), 'path': path, 'type': type_})
    write_json(folder / LENGTH, kind.describe_rows(model))
    settings = {
        '__version__': {'sentence_transformers': _VERSION},
        'model_type': kind.model_type,
        'prompts': dict(model.sentence.prompts) if model.sentence else {},
        'default_prompt_name': None,
    }
    if model.sentence:
        settings['similarity_fn_name'] = model.sentence.similarity
    write_json(folder / SETTINGS, settings | kind.describe(model))
    # Last: a folder that has it is whole.
    write_json(folder / MODULES, modules)
