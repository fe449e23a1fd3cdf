"""Directories of models of late interaction: sentence-transformers', PyLate's and Stanford's.

Owns their settings of rows, in three spellings, and the layer that makes vectors of tokens. All are
read as sentence-transformers 6.2 reads them (its multi_vector_encoder/model.py:1124-1185 and
:1356-1413). They are written as its own.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.model.late_interaction import LateInteractionConfig, LateInteractionSettings
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.conversion import module_folders as folders
from bert_jax.conversion.module_folders import read_settings
from bert_jax.conversion.trained_model import Model, Reading
from bert_jax.conversion.weight_files import read_tensors

STANFORD = 'HF_ColBERT'
_WEIGHT = 'linear.weight'
_PREFIXES = {'query': 'query_prefix', 'document': 'document_prefix'}
# What a file of PyLate has; without any of these queries have no masks.
_OF_PYLATE = {
    'query_length', 'document_length', 'query_expansion', 'do_query_expansion',
    'attend_to_expansion_tokens', 'skiplist_words', *_PREFIXES.values(),
}  # fmt: skip
_OF_TOKENS = {'module_input_name': 'token_embeddings', 'module_output_name': 'token_embeddings'}
_KINDS = ('Transformer', 'Dense', 'MultiVectorMask', 'Normalize')
# The values that a setting may have; where a file does not say it, it is None.
_BUILT: Mapping[str, tuple[Any, ...]] = {
    'bias': (False,),
    'use_residual': (None, False),
    'module_input_name': (None, 'token_embeddings'),
    'activation_function': ('torch.nn.Identity', folders.IDENTITY),
    'keep_only_token_ids': (None,),
    'skiplist_tasks': (None, ['document']),
    'similarity_fn_name': (None, 'cosine', 'dot', 'MaxSim', 'maxsim'),
    'similarity': (None, 'cosine'),
    'token': (None, '<mask>', '[MASK]'),
}


class MultiVectorFolder(folders.FolderKind):
    """A vector of each token: a Transformer, a layer, which tokens are scored, and a norm.

    Attributes:
      built: the modules that a directory may have.
    """

    model_type = 'MultiVectorEncoder'
    vectors: ClassVar[type[VectorsConfig] | None] = LateInteractionConfig
    package = 'sentence_transformers.multi_vector_encoder.model'  # which has all of them
    built: ClassVar[tuple[tuple[str, ...], ...]] = (_KINDS[:3], _KINDS)

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of late interaction.

        Raises:
          UserError: a module or a setting has no counterpart here.
        """
        modules = folders.read_modules(folder)
        kinds = tuple(kind for kind, _ in modules)
        if kinds not in self.built or modules[0].path:
            raise UserError(
                f'{folder / folders.MODULES}: modules {", ".join(kinds) or "none"}: only'
                f' {", ".join(_KINDS)} are built here, in that order and the first in the folder'
                ' itself'
            )
        stated = {kind: _read(folder / path / 'config.json') for kind, path in modules[1:]}
        rows = read_settings(folder / folders.LENGTH)
        if 'MultiVectorMask' in stated:
            rows['skip'] = stated['MultiVectorMask'].get('skiplist_words') or []
            # Else it is of a vector of the text.
            rows['normalize'] = 'module_input_name' in stated.get('Normalize', {})
        layer_folder = folder / modules[1].path
        # Where it is missing it is another.
        activation = stated['Dense'].get('activation_function')
        _check(layer_folder / 'config.json', {'activation_function': activation})
        tensors, _ = read_tensors(layer_folder, 'model.safetensors', 'pytorch_model.bin')
        if tensors.keys() != {_WEIGHT}:
            raise UserError(f'{layer_folder}: its weights are not {_WEIGHT} alone')
        return _join(folder / folders.SETTINGS, reading, None, rows, tensors[_WEIGHT].T)

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write the layer, which tokens are scored, and the norm where there is one."""
        kernel_HD = np.asarray(model.params['projection']['kernel'], np.float32)
        settings, (H, D) = _get_vectors(model).settings, kernel_HD.shape
        layer = {'in_features': H, 'out_features': D, 'bias': False, **_OF_TOKENS}
        contents: dict[str, Any] = {
            'Dense': layer | {'activation_function': folders.IDENTITY},
            'MultiVectorMask': {'skiplist_words': settings.skipped},
        }
        if settings.normalize:
            contents['Normalize'] = _OF_TOKENS
        for number, (kind, content) in enumerate(contents.items(), 1):
            path = folders.make_module_folder(folder, number, kind)
            folders.write_json(path / 'config.json', content)
        kernel = {_WEIGHT: np.ascontiguousarray(kernel_HD.T)}
        weights = safetensors.numpy.save(kernel, {'format': 'pt'})
        atomic_write(folder / '1_Dense' / 'model.safetensors', weights)
        return ['Transformer', *contents]

    def describe(self, model: Model) -> dict[str, Any]:
        """Return the class, and the prompts that begin with an entry of the vocabulary."""
        settings: dict[str, Any] = {'model_type': self.model_type}
        vectors = _get_vectors(model)
        if vectors.markers and vectors.prompts:
            settings |= {key: vectors.prompt(name) for name, key in _PREFIXES.items()}
            # Else it takes such a folder for one of PyLate, whose queries have masks.
            settings['query_expansion'] = None
        return settings

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
    built = (_KINDS[:2],)


class StanfordFolder(folders.FolderKind):
    """Stanford's ColBERT: a layer beside the encoder's arrays, and settings of the training."""

    model_type = STANFORD

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of late interaction."""
        file = folder / 'artifact.metadata'
        stated = _read(file)
        # As PyLate says it.
        settings: dict[str, Any] = {
            'query_prefix': f'{stated.get("query_token_id") or "[unused0]"} ',
            'document_prefix': f'{stated.get("doc_token_id") or "[unused1]"} ',
            'query_length': stated.get('query_maxlen'),
            'document_length': stated.get('doc_maxlen'),
            'attend_to_expansion_tokens': stated.get('attend_to_mask_tokens'),
            'skiplist_words': None if stated.get('mask_punctuation', True) else [],
        }
        return _join(file, reading, settings, {}, reading.model.params['projection']['kernel'])


def is_stanford(folder: epath.Path) -> bool:
    """Tell whether a folder is one of Stanford's ColBERT."""
    return STANFORD in (read_settings(folder / 'config.json').get('architectures') or ())


def _read(file: epath.Path) -> dict[str, Any]:
    """Return the settings in a file. UserError where one has a value that is not built here."""
    settings = read_settings(file)
    _check(file, settings)
    return settings


def _check(file: epath.Path, settings: Mapping[str, Any]) -> None:
    for name in settings.keys() & _BUILT:
        if settings[name] not in _BUILT[name]:
            raise UserError(
                f'{file}: {name}={settings[name]!r} is not built here: only {_BUILT[name][-1]!r} is'
            )


def _read_pylate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what PyLate says of rows as sentence-transformers does, 'skip' besides."""
    rows = {name: settings[name] for name in _OF_PYLATE & settings.keys()}
    if rows and 'query_expansion' not in rows and rows.get('do_query_expansion') is not False:
        attend = bool(rows.get('attend_to_expansion_tokens'))
        length = rows.pop('query_length', None) or 32
        rows['query_expansion'] = {'strategy': 'fixed', 'length': length, 'attend': attend}
    words = rows.get('skiplist_words')
    return rows | {'skip': list(string.punctuation) if words is None else words}


def _join(
    file: epath.Path,
    reading: Reading,
    settings: Mapping[str, Any] | None,
    rows: Mapping[str, Any],
    kernel_HD: np.ndarray,
) -> Reading:
    """Return what was read with the layer that makes vectors of tokens, and with its settings.

    Args:
      file: the file of settings.
      reading: the encoder.
      settings: its contents as PyLate has them; None: as they are.
      rows: what counts more, as sentence-transformers spells it; besides 'skip' and 'normalize'.
      kernel_HD: the layer.
    """
    settings = _read(file) if settings is None else settings
    rows = {**_read_pylate(settings), **rows}
    prompts = dict(folders.read_prompts(settings, file))
    for name, key in _PREFIXES.items():
        prefix = settings.get(key) or ''
        prompts[name] = prefix + (prompts.get(name) or '').removeprefix(prefix)
    skip, expansion = rows['skip'], rows.get('query_expansion') or {}
    _check(file, expansion)
    if not isinstance(skip, list) or not all(isinstance(word, str) for word in skip):
        raise UserError(f'{file}: skiplist_words={skip!r}: must be a list of words')
    limit = reading.model.config.max_position
    try:
        kept = LateInteractionSettings(
            width=kernel_HD.shape[1],
            normalize=rows.get('normalize', True),
            # One word of this name would be taken for all marks.
            skip=' '.join(skip * 2 if skip == ['punctuation'] else skip),
            query_length=rows.get('query_length'),
            document_length=rows.get('document_length'),
            query_expansion=expansion.get('strategy', 'none'),
            expansion_length=expansion.get('length', 32),
            attend=expansion.get('attend', False),
        )
        has_markers = not settings.keys().isdisjoint(_PREFIXES.values())
        length = folders.read_max_length(file.parent, limit)
        vectors = LateInteractionConfig(kept, has_markers, tuple(prompts.items()), length)
        vectors.check_encoder(reading.model.config, limit)
    except UserError as error:
        raise UserError(f'{file}: {error}') from None
    params = {**reading.model.params, 'projection': {'kernel': np.array(kernel_HD, np.float32)}}
    reading = reading._replace(
        model=reading.model._replace(params=params),
        names={**reading.names, _WEIGHT: 'projection/kernel'},
    )
    return folders.with_vectors(reading, vectors, settings)


def _get_vectors(model: Model) -> LateInteractionConfig:
    assert isinstance(model.sentence, LateInteractionConfig)
    return model.sentence
