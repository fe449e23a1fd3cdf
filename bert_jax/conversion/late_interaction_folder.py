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
_PUNCTUATION = list(string.punctuation)
_PREFIXES = {'query': 'query_prefix', 'document': 'document_prefix'}
# What a file of PyLate has; without any of these queries have no masks.
_OF_PYLATE = {
    'query_length', 'document_length', 'query_expansion', 'do_query_expansion',
    'attend_to_expansion_tokens', 'skiplist_words', *_PREFIXES.values(),
}  # fmt: skip
_OF_TOKENS = {'module_input_name': 'token_embeddings', 'module_output_name': 'token_embeddings'}
_KINDS = ('Transformer', 'Dense', 'MultiVectorMask', 'Normalize')
# What a file may say; what it does not say is None.
_BUILT: Mapping[str, tuple[Any, ...]] = {
    'Dense': (
        ('bias', False),
        ('use_residual', None, False),
        ('module_input_name', None, 'token_embeddings'),
        ('activation_function', folders.IDENTITY, 'torch.nn.Identity'),
    ),
    'MultiVectorMask': (('keep_only_token_ids', None), ('skiplist_tasks', None, ['document'])),
    'Normalize': (('module_input_name', 'token_embeddings'),),
    folders.SETTINGS: (('similarity_fn_name', None, 'cosine', 'dot', 'MaxSim', 'maxsim'),),
    'query_expansion': (('token', None, '<mask>', '[MASK]'),),
    'artifact.metadata': (('similarity', None, 'cosine'),),
}


class MultiVectorFolder(folders.FolderKind):
    """A vector of each token: a Transformer, a layer, which tokens are scored, and a norm.

    Attributes:
      fewest: how many modules there are at least.
      most: how many there may be.
    """

    model_type = 'MultiVectorEncoder'
    vectors: ClassVar[type[VectorsConfig] | None] = LateInteractionConfig
    package = 'sentence_transformers.base.modules'
    elsewhere: ClassVar[Mapping[str, str]] = {
        'MultiVectorMask': 'sentence_transformers.multi_vector_encoder.modules'
    }
    fewest: ClassVar[int] = 3
    most: ClassVar[int] = 4

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of late interaction.

        Raises:
          UserError: a module or a setting has no counterpart here.
        """
        modules, file = folders.read_modules(folder), folder / folders.SETTINGS
        kinds = tuple(kind for kind, _ in modules)
        count = len(kinds)
        if kinds != _KINDS[:count] or modules[0].path or not self.fewest <= count <= self.most:
            raise UserError(
                f'{folder / folders.MODULES}: modules {", ".join(kinds) or "none"}: only'
                f' {", ".join(_KINDS)} are built here, in that order and the first in the folder'
                ' itself'
            )
        stated = {kind: _read(folder / path / 'config.json', kind) for kind, path in modules[1:]}
        settings = _read(file, folders.SETTINGS)
        rows = self.complete(settings) | read_settings(folder / folders.LENGTH)
        if 'MultiVectorMask' in stated:
            rows['skip'] = stated['MultiVectorMask'].get('skiplist_words')
            rows['normalize'] = 'Normalize' in stated
        prompts = dict(folders.read_prompts(settings, file))
        for name, key in _PREFIXES.items():
            prefix = settings.get(key) or ''
            prompts[name] = prefix + (prompts.get(name) or '').removeprefix(prefix)
        rows['markers'] = not settings.keys().isdisjoint(_PREFIXES.values())
        tensors, _ = read_tensors(
            folder / modules[1].path, 'model.safetensors', 'pytorch_model.bin'
        )
        if tensors.keys() != {_WEIGHT}:
            raise UserError(f'{folder / modules[1].path}: its weights are not {_WEIGHT} alone')
        return _join(file, reading, rows, prompts, tensors[_WEIGHT].T)

    def complete(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what PyLate says of rows as sentence-transformers does, 'skip' besides."""
        rows = {name: settings[name] for name in _OF_PYLATE & settings.keys()}
        if rows and 'query_expansion' not in rows and rows.get('do_query_expansion') is not False:
            attend = bool(rows.get('attend_to_expansion_tokens'))
            length = rows.pop('query_length', None) or 32
            rows['query_expansion'] = {'strategy': 'fixed', 'length': length, 'attend': attend}
        return rows

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
        vectors, rows = _get_vectors(model), dict[str, Any]()
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
    fewest = most = 2

    def complete(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what it says of rows, and the tokens that it leaves out by itself."""
        words = settings.get('skiplist_words')
        return super().complete(settings) | {'skip': _PUNCTUATION if words is None else words}


class StanfordFolder(folders.FolderKind):
    """Stanford's ColBERT: a layer beside the encoder's arrays, and settings of the training."""

    model_type = STANFORD

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of late interaction."""
        file = folder / 'artifact.metadata'
        stated = _read(file, file.name)
        rows = {
            'document_length': stated.get('doc_maxlen'),
            'query_expansion': {
                'strategy': 'fixed',
                'length': stated.get('query_maxlen') or 32,
                'attend': bool(stated.get('attend_to_mask_tokens')),
            },
            'skip': _PUNCTUATION if stated.get('mask_punctuation', True) else [],
        }
        prompts = {
            'query': f'{stated.get("query_token_id") or "[unused0]"} ',
            'document': f'{stated.get("doc_token_id") or "[unused1]"} ',
        }
        return _join(file, reading, rows, prompts, reading.model.params['projection']['kernel'])


def is_stanford(folder: epath.Path) -> bool:
    """Tell whether a folder is one of Stanford's ColBERT."""
    return STANFORD in (read_settings(folder / 'config.json').get('architectures') or ())


def _read(file: epath.Path, kind: str) -> dict[str, Any]:
    """Return the settings in a file. UserError where one has a value that is not built here."""
    settings = read_settings(file)
    _check(file, settings, kind)
    return settings


def _check(file: epath.Path, settings: Mapping[str, Any], kind: str) -> None:
    for name, *values in _BUILT.get(kind, ()):
        if settings.get(name) not in values:
            raise UserError(
                f'{file}: {name}={settings.get(name)!r} is not built here: only {values[-1]!r} is'
            )


def _join(
    file: epath.Path,
    reading: Reading,
    rows: Mapping[str, Any],
    prompts: Mapping[str, str],
    kernel_HD: np.ndarray,
) -> Reading:
    """Return what was read with the layer that makes vectors of tokens, and with its settings.

    Args:
      file: the file of settings, in errors.
      reading: the encoder.
      rows: its settings as sentence-transformers spells them; besides 'skip', 'normalize' and
        'markers', which is whether prompts begin with entries of the vocabulary.
      prompts: name -> text.
      kernel_HD: the layer.
    """
    skip, expansion = rows.get('skip') or [], rows.get('query_expansion') or {}
    limit = reading.model.config.max_position
    _check(file, expansion, 'query_expansion')
    if not isinstance(skip, list) or not all(isinstance(word, str) for word in skip):
        raise UserError(f'{file}: skiplist_words={skip!r}: must be a list of words')
    try:
        settings = LateInteractionSettings(
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
        length, markers = folders.read_max_length(file.parent, limit), rows.get('markers', True)
        vectors = LateInteractionConfig(settings, markers, tuple(prompts.items()), length)
        vectors.check_encoder(reading.model.config, limit)
    except UserError as error:
        raise UserError(f'{file}: {error}') from None
    params = {**reading.model.params, 'projection': {'kernel': np.array(kernel_HD, np.float32)}}
    model = reading.model._replace(sentence=vectors, params=params)
    return reading._replace(model=model, names={**reading.names, _WEIGHT: 'projection/kernel'})


def _get_vectors(model: Model) -> LateInteractionConfig:
    assert isinstance(model.sentence, LateInteractionConfig)
    return model.sentence
