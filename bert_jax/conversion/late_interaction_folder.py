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
from bert_jax.conversion.module_folders import (
    IDENTITY,
    LENGTH,
    MODULES,
    SETTINGS,
    FolderKind,
    make_module_folder,
    read_max_length,
    read_modules,
    read_prompts,
    read_settings,
    write_json,
)
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
_EXPANSION = {'strategy': 'query_expansion', 'length': 'expansion_length', 'attend': 'attend'}
_OF_TOKENS = {'module_input_name': 'token_embeddings', 'module_output_name': 'token_embeddings'}


class MultiVectorFolder(FolderKind):
    """A vector of each token: a Transformer, a layer, which tokens are scored, and a norm."""

    model_type = 'MultiVectorEncoder'
    vectors = LateInteractionConfig
    package = 'sentence_transformers.base.modules'
    elsewhere: ClassVar[Mapping[str, str]] = {
        'MultiVectorMask': 'sentence_transformers.multi_vector_encoder.modules'
    }
    behind: ClassVar[tuple[list[str], ...]] = (
        ['MultiVectorMask'],
        ['MultiVectorMask', 'Normalize'],
    )

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of late interaction.

        Raises:
          UserError: a module or a setting has no counterpart here.
        """
        modules, file = read_modules(folder), folder / SETTINGS
        kinds = [kind for kind, _ in modules]
        begins = kinds[:2] == ['Transformer', 'Dense'] and not modules[0].path
        if not begins or sorted(kinds[2:]) not in self.behind:
            raise UserError(
                f'{folder / MODULES}: modules {", ".join(kinds) or "none"}: only Transformer in the'
                ' folder itself, Dense, MultiVectorMask and Normalize are built here, in that order'
            )
        settings = read_settings(file)
        _check(file, settings, similarity_fn_name=(None, 'maxsim', 'MaxSim', 'cosine', 'dot'))
        places = {kind: folder / path for kind, path in modules}
        prompts = dict(read_prompts(settings, file))
        for name, key in _PREFIXES.items():
            prefix = settings.get(key) or ''
            prompts[name] = prefix + (prompts.get(name) or '').removeprefix(prefix)
        rows = {**_read_pylate(settings), **read_settings(folder / LENGTH)}
        rows['skip'] = self.read_skipped(places, settings)
        rows['normalize'] = self.is_normal(places)
        has_markers = any(key in settings for key in _PREFIXES.values())
        return _join(file, reading, rows, prompts, has_markers, _read_layer(places['Dense']))

    def is_normal(self, places: Mapping[str, epath.Path]) -> bool:
        """Tell whether vectors have length one."""
        if 'Normalize' not in places:
            return False
        file = places['Normalize'] / 'config.json'
        _check(file, read_settings(file), module_input_name=('token_embeddings',))
        return True

    def read_skipped(self, places: Mapping[str, epath.Path], settings: Mapping[str, Any]) -> Any:
        """Return the tokens of documents that are not scored; None: what PyLate leaves out."""
        file = places['MultiVectorMask'] / 'config.json'
        mask = read_settings(file)
        _check(file, mask, keep_only_token_ids=(None,), skiplist_tasks=(None, ['document']))
        return mask.get('skiplist_words') or []

    def write_modules(self, folder: epath.Path, model: Model) -> list[str]:
        """Write the layer, which tokens are scored, and the norm where there is one."""
        settings, kernel_HD = _get_settings(model), model.params['projection']['kernel']
        H, D = kernel_HD.shape
        dense = {'in_features': H, 'out_features': D, 'bias': False}
        path = make_module_folder(folder, 1, 'Dense')
        write_json(path / 'config.json', dense | {'activation_function': IDENTITY} | _OF_TOKENS)
        kernel = {_WEIGHT: np.ascontiguousarray(np.transpose(kernel_HD), np.float32)}
        weights = safetensors.numpy.save(kernel, {'format': 'pt'})
        atomic_write(path / 'model.safetensors', weights)
        mask = {'skiplist_words': settings.skipped, 'skiplist_tasks': ['document']}
        write_json(make_module_folder(folder, 2, 'MultiVectorMask') / 'config.json', mask)
        kinds = ['Transformer', 'Dense', 'MultiVectorMask']
        if settings.normalize:
            kinds.append('Normalize')
            write_json(make_module_folder(folder, 3, 'Normalize') / 'config.json', _OF_TOKENS)
        return kinds

    def describe(self, model: Model) -> dict[str, Any]:
        """Return the class, and the markers: prompts that begin with an entry of the vocabulary."""
        settings: dict[str, Any] = {'model_type': self.model_type}
        vectors = model.sentence
        assert isinstance(vectors, LateInteractionConfig)
        if vectors.markers and vectors.prompts:
            settings |= {key: vectors.prompt(name) for name, key in _PREFIXES.items()}
            # Else it takes such a folder for one of PyLate, whose queries have masks.
            settings['query_expansion'] = None
        return settings

    def describe_rows(self, model: Model) -> dict[str, Any]:
        """Return the lengths of queries and documents, and the masks behind queries."""
        settings, limit = _get_settings(model), model.config.max_position
        rows: dict[str, Any] = {}
        for name in _PREFIXES:
            assert model.sentence is not None
            rows[f'{name}_length'] = model.sentence.row(name, limit).length
        if settings.masks_to:
            rows['query_expansion'] = {
                'strategy': settings.query_expansion,
                'length': settings.masks_to,
                'attend': settings.attend,
            }
        return rows


class PyLateFolder(MultiVectorFolder):
    """What PyLate writes up to its release 3: a Transformer and a layer."""

    model_type = 'ColBERT'
    vectors = None
    behind = ([],)

    def is_normal(self, places: Mapping[str, epath.Path]) -> bool:
        """Return True: it is no module there."""
        return True

    def read_skipped(self, places: Mapping[str, epath.Path], settings: Mapping[str, Any]) -> Any:
        """Return the tokens of documents that are not scored."""
        words = settings.get('skiplist_words')
        return list(string.punctuation) if words is None else words


class StanfordFolder(FolderKind):
    """Stanford's ColBERT: a layer beside the encoder's arrays, and settings of the training."""

    model_type = STANFORD

    def add(self, folder: epath.Path, reading: Reading) -> Reading:
        """Return what was read of a directory's weights as a model of late interaction."""
        file = folder / 'artifact.metadata'
        stated = read_settings(file)
        _check(file, stated, similarity=(None, 'cosine'))
        expansion = {
            'strategy': 'fixed',
            'length': stated.get('query_maxlen') or 32,
            'attend': bool(stated.get('attend_to_mask_tokens')),
        }
        skip = list(string.punctuation) if stated.get('mask_punctuation', True) else []
        rows = {'document_length': stated.get('doc_maxlen'), 'query_expansion': expansion}
        prompts = {
            'query': (stated.get('query_token_id') or '[unused0]') + ' ',
            'document': (stated.get('doc_token_id') or '[unused1]') + ' ',
        }
        layer = reading.model.params['projection']['kernel']
        return _join(file, reading, rows | {'skip': skip}, prompts, True, layer)


def is_stanford(folder: epath.Path) -> bool:
    """Tell whether a folder is one of Stanford's ColBERT."""
    return STANFORD in (read_settings(folder / 'config.json').get('architectures') or ())


def _read_pylate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what PyLate says of rows as sentence-transformers does."""
    if not _OF_PYLATE & settings.keys():
        return {}
    rows = {key: settings[key] for key in ('query_length', 'document_length') if settings.get(key)}
    if 'query_expansion' in settings:
        return rows | {'query_expansion': settings['query_expansion']}
    if settings.get('do_query_expansion') is False:
        return rows
    attend = bool(settings.get('attend_to_expansion_tokens'))
    length = rows.pop('query_length', 32)
    return rows | {'query_expansion': {'strategy': 'fixed', 'length': length, 'attend': attend}}


def _read_layer(folder: epath.Path) -> np.ndarray:
    """Return the kernel [H, D] of a linear layer. UserError where it does anything else."""
    file = folder / 'config.json'
    _check(
        file,
        read_settings(file),
        bias=(False,),
        use_residual=(None, False),
        module_input_name=(None, 'token_embeddings'),
        activation_function=(IDENTITY, 'torch.nn.Identity'),
    )
    tensors, _ = read_tensors(folder, 'model.safetensors', 'pytorch_model.bin')
    if list(tensors) != [_WEIGHT] or tensors[_WEIGHT].ndim != 2:
        raise UserError(f'{folder}: its weights are not {_WEIGHT} alone: download it again')
    return np.ascontiguousarray(tensors[_WEIGHT].T, np.float32)


def _join(
    file: epath.Path,
    reading: Reading,
    rows: Mapping[str, Any],
    prompts: Mapping[str, str],
    has_markers: bool,
    kernel_HD: np.ndarray,
) -> Reading:
    """Return what was read with the layer that makes vectors of tokens, and with its settings.

    Args:
      file: the file of settings, in errors.
      reading: the encoder.
      rows: its settings as sentence-transformers spells them, and 'skip', 'normalize'.
      prompts: name -> text.
      has_markers: whether they begin with entries of the vocabulary.
      kernel_HD: the layer.
    """
    skip, expansion = rows['skip'], rows.get('query_expansion') or {}
    _check(file, expansion, token=(None, '[MASK]', '<mask>'))
    if not isinstance(skip, list) or not all(isinstance(word, str) for word in skip):
        raise UserError(f'{file}: skiplist_words={skip!r}: must be a list of words')
    given = {ours: expansion[key] for key, ours in _EXPANSION.items() if key in expansion}
    try:
        settings = LateInteractionSettings(
            width=kernel_HD.shape[1],
            normalize=rows.get('normalize', True),
            # One word of this name would be taken for all marks.
            skip=' '.join(skip * 2 if skip == ['punctuation'] else skip),
            query_length=rows.get('query_length'),
            document_length=rows.get('document_length'),
            **given,
        )
    except UserError as error:
        raise UserError(f'{file}: {error}') from None
    limit = reading.model.config.max_position
    longest = max(settings.query_length or 0, settings.document_length or 0, settings.masks_to)
    if longest > limit:
        raise UserError(f'{file}: rows of {longest} tokens, and the encoder reads {limit}')
    length = read_max_length(file.parent, limit)
    vectors = LateInteractionConfig(settings, has_markers, tuple(prompts.items()), length)
    params = {**reading.model.params, 'projection': {'kernel': kernel_HD}}
    model = reading.model._replace(sentence=vectors, params=params)
    return reading._replace(model=model, names={**reading.names, _WEIGHT: 'projection/kernel'})


def _get_settings(model: Model) -> LateInteractionSettings:
    """Return the settings of a model of late interaction."""
    assert isinstance(model.sentence, LateInteractionConfig)
    return model.sentence.settings


def _check(file: epath.Path, settings: Mapping[str, Any], **built: tuple[Any, ...]) -> None:
    """Raise UserError where a setting has a value that is not built here; absent is None."""
    for name, values in built.items():
        if settings.get(name) not in values:
            raise UserError(
                f'{file}: {name}={settings.get(name)!r} is not built here: only {values[-1]!r} is'
            )
