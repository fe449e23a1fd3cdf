"""Directories of models of late interaction: sentence-transformers' and PyLate's.

Owns their settings of rows, in two spellings, and what they say of their modules. Both are read as
sentence-transformers 6.2 reads them (its multi_vector_encoder/model.py:1062-1174). They are written
as its own.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.late_interaction import LateInteractionConfig, LateInteractionSettings
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.conversion import module_folders as folders
from bert_jax.conversion.trained_model import Model, Reading

_PREFIXES = {'query': 'query_prefix', 'document': 'document_prefix'}
# What a file of PyLate has; without any of these queries have no masks.
_OF_PYLATE = {
    'query_length', 'document_length', 'do_query_expansion', 'attend_to_expansion_tokens',
    'skiplist_words', *_PREFIXES.values(),
}  # fmt: skip
_OF_TOKENS = {'module_input_name': 'token_embeddings', 'module_output_name': 'token_embeddings'}
_KINDS = ('Transformer', 'Dense', 'MultiVectorMask', 'Normalize')
# The values that a setting may have; where a file does not say it, it is None.
_BUILT: Mapping[str, tuple[Any, ...]] = {
    'module_input_name': (None, 'token_embeddings'),
    'keep_only_token_ids': (None,),
    'skiplist_tasks': (None, ['document']),
    'similarity_fn_name': (None, 'cosine', 'dot', 'MaxSim', 'maxsim'),
    'token': (None, '<mask>', '[MASK]'),
}


class MultiVectorFolder(folders.FolderKind):
    """A vector of each token: a Transformer, a layer, which tokens are scored, and a norm.

    Attributes:
      built: the modules that a directory has; the norm may be absent.
    """

    model_type = 'MultiVectorEncoder'
    vectors: ClassVar[type[VectorsConfig] | None] = LateInteractionConfig
    package = 'sentence_transformers.multi_vector_encoder.model'  # which has all of them
    built: ClassVar[tuple[str, ...]] = _KINDS

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of late interaction.

        Raises:
          UserError: a module or a setting has no counterpart here.
        """
        paths = folders.find_modules(folder, self.built, _KINDS[3:])
        file = folder / folders.SETTINGS
        settings = _read(file)
        stated = self.read_modules(paths, settings)
        rows = _read_rows(settings) | folders.read_settings(folder / folders.LENGTH)
        model, limit = reading.model, reading.model.config.max_position
        kernel_DH = folders.read_dense(paths['Dense'], model.config.hidden_size)
        has_markers = not settings.keys().isdisjoint(_PREFIXES.values())
        prompts, length = _read_prompts(settings, file), folders.read_max_length(folder, limit)
        try:
            kept = _make_settings(len(kernel_DH), rows, stated)
            vectors = LateInteractionConfig(kept, has_markers, tuple(prompts.items()), length)
            vectors.check_encoder(model.config, limit)
        except UserError as error:
            raise UserError(f'{file}: {error}') from None
        params = {**model.params, 'projection': {'kernel': np.array(kernel_DH.T, np.float32)}}
        reading = reading._replace(
            model=model._replace(params=params),
            names={**reading.names, folders.WEIGHT: 'projection/kernel'},
        )
        return folders.with_vectors(reading, vectors, settings)

    def read_modules(
        self, paths: Mapping[str, epath.Path], settings: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return class -> settings of the modules, by their folders and those of the model."""
        return {kind: _read(paths[kind] / 'config.json') for kind in _KINDS[1:] if kind in paths}

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write the layer, which tokens are scored, and the norm where there is one."""
        settings = _get_vectors(model).settings
        kernel_HD = np.asarray(model.params['projection']['kernel'], np.float32)
        folders.write_dense(folder, 1, kernel_HD.T, _OF_TOKENS)
        folders.write_module(folder, 2, 'MultiVectorMask', {'skiplist_words': settings.skipped})
        if not settings.normalize:
            return list(_KINDS[:3])
        folders.write_module(folder, 3, 'Normalize', _OF_TOKENS)
        return list(_KINDS)

    def describe(self, model: Model) -> dict[str, Any]:
        """Return the prompts that begin with an entry of the vocabulary."""
        vectors = _get_vectors(model)
        if not (vectors.markers and vectors.prompts):
            return {}
        prefixes = {key: vectors.prompt(name) for name, key in _PREFIXES.items()}
        # Else it takes such a folder for one of PyLate, whose queries have masks.
        return {**prefixes, 'query_expansion': None}

    def describe_rows(self, model: Model) -> dict[str, Any]:
        """Return the lengths of queries and documents, and the masks behind queries."""
        vectors, rows = _get_vectors(model), super().describe_rows(model)
        for name in _PREFIXES:
            rows[f'{name}_length'] = vectors.row(name, model.config.max_position).length
        settings = vectors.settings
        if settings.masks_to:
            expansion = {'strategy': settings.query_expansion, 'length': settings.masks_to}
            rows['query_expansion'] = {**expansion, 'attend': settings.attend}
        return rows


class PyLateFolder(MultiVectorFolder):
    """What PyLate writes up to its release 3: a Transformer and a layer."""

    model_type = 'ColBERT'
    vectors = None
    built = _KINDS[:2]

    def read_modules(
        self, paths: Mapping[str, epath.Path], settings: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return the same with what PyLate does without modules: it skips marks, and has a norm."""
        words = settings.get('skiplist_words')
        mask = {'skiplist_words': list(string.punctuation) if words is None else words}
        return super().read_modules(paths, settings) | {
            'MultiVectorMask': mask,
            'Normalize': _OF_TOKENS,
        }


def _read(file: epath.Path) -> dict[str, Any]:
    """Return the settings in a file. UserError where one has a value that is not built here."""
    settings = folders.read_settings(file)
    _check(file, settings)
    return settings


def _check(file: Any, settings: Mapping[str, Any]) -> None:
    for name in settings.keys() & _BUILT:
        if settings[name] not in _BUILT[name]:
            raise UserError(
                f'{file}: {name}={settings[name]!r} is not built here: only {_BUILT[name][-1]!r} is'
            )


def _read_rows(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what PyLate says of rows as sentence-transformers does."""
    names = ('query_length', 'document_length', 'query_expansion')
    rows = {name: settings[name] for name in names if name in settings}
    has_masks = settings.get('do_query_expansion') is not False
    if 'query_expansion' not in rows and has_masks and _OF_PYLATE & settings.keys():
        attend = bool(settings.get('attend_to_expansion_tokens'))
        length = rows.pop('query_length', None) or 32
        rows['query_expansion'] = {'strategy': 'fixed', 'length': length, 'attend': attend}
    return rows


def _read_prompts(settings: Mapping[str, Any], file: epath.Path) -> dict[str, str]:
    """Return name -> text of the prompts, behind PyLate's prefixes."""
    prompts = dict(folders.read_prompts(settings, file))
    for name, key in _PREFIXES.items():
        prefix = settings.get(key) or ''
        if not isinstance(prefix, str):
            raise UserError(f'{file}: {key}={prefix!r}: must be a text')
        prompts[name] = prefix + prompts.get(name, '').removeprefix(prefix)
    return prompts


def _make_settings(
    width: int, rows: Mapping[str, Any], stated: Mapping[str, Mapping[str, Any]]
) -> LateInteractionSettings:
    """Return what files say of rows and of modules; UserError where it is not built here."""
    skip = stated['MultiVectorMask'].get('skiplist_words') or []
    if not isinstance(skip, list) or not all(isinstance(word, str) for word in skip):
        raise UserError(f'skiplist_words={skip!r}: must be a list of words')
    expansion = rows.get('query_expansion') or {}
    if not isinstance(expansion, dict):
        raise UserError(f'query_expansion={expansion!r}: must be an object')
    _check('query_expansion', expansion)
    return LateInteractionSettings(
        width=width,
        # Else it is of a vector of the text.
        normalize='module_input_name' in stated.get('Normalize', {}),
        # One word of this name would be taken for all marks.
        skip=' '.join(skip * 2 if skip == ['punctuation'] else skip),
        query_length=rows.get('query_length'),
        document_length=rows.get('document_length'),
        query_expansion=expansion.get('strategy', 'none'),
        expansion_length=expansion.get('length', 32),
        attend=expansion.get('attend', False),
    )


def _get_vectors(model: Model) -> LateInteractionConfig:
    assert isinstance(model.sentence, LateInteractionConfig)
    return model.sentence
