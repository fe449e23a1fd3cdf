"""Two encoders that are trained together: one replaces tokens, the other tells which (ELECTRA).

Owns which arrays both have in common, and how each model's own parameters follow from what is
trained. What they minimise is bert_jax/train/losses/replaced_tokens.py's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.heads import Batch, Detector, Pretraining

_DISENTANGLED = 'gradient_disentangled'
# What of the embeddings both models have in common (google-research/electra modeling.py:187-205;
# microsoft/DeBERTa rtd_task.py:55-64, 113-122).
_SHARED = {
    'embeddings': ('word', 'position', 'segment', 'norm'),
    _DISENTANGLED: ('word', 'position'),
}


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """A generator and a detector; `init` and the fields are as of heads.py's models.

    Trained are the detector's parameters, with the generator's under `generator`. Shared tables are
    the detector's; with gradient_disentangled they are the generator's, and what the detector adds
    to them is under `added`.

    Attributes:
      detector: the encoder that is wanted.
      generator: fills in the masks.
      sharing: as ReplacedTokensConfig has it; None: each model has all arrays of its own.
    """

    detector: Detector
    generator: Pretraining
    sharing: str | None

    @property
    def config(self) -> ModelConfig:
        """Return the detector's shape."""
        return self.detector.config

    @property
    def scan(self) -> bool:
        """Tell whether blocks are gone through in a loop."""
        return self.detector.scan

    def clone(self, **fields: Any) -> Self:
        """Return the same with other fields of both models."""
        detector, generator = self.detector.clone(**fields), self.generator.clone(**fields)
        return dataclasses.replace(self, detector=detector, generator=generator)

    def init(self, key: jax.Array, batch: Batch) -> dict[str, Any]:
        """Make what is trained, as {'params': ...}."""
        detector = dict(self.detector.init(key, batch)['params'])
        detector['generator'] = self.generator.init(jax.random.fold_in(key, 1), batch)['params']
        return {'params': self.share(detector)}

    def share(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is trained, of a detector's parameters with a whole generator's.

        With gradient_disentangled the detector's tables become the generator's.
        """
        if self.sharing is None:
            return dict(params)
        shared = _SHARED[self.sharing]
        if self.sharing != _DISENTANGLED:
            generator = _drop_tables(params['generator'], shared)
            return {**params, 'generator': generator}
        tables = params['generator']['encoder']['embeddings']
        added = {name: jnp.zeros_like(tables[name]) for name in shared if name in tables}
        return {**_drop_tables(params, shared), 'added': {'embeddings': added}}

    def split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of the detector and of the generator, each whole."""
        detector, generator = dict(params), params['generator']
        del detector['generator']
        if self.sharing is None:
            return detector, generator
        if self.sharing != _DISENTANGLED:
            tables = detector['encoder']['embeddings']
            shared = {name: tables[name] for name in _SHARED[self.sharing] if name in tables}
            return detector, _put_tables(generator, shared)
        tables, summed = generator['encoder']['embeddings'], {}
        for name, added in detector.pop('added')['embeddings'].items():
            # What the detector learns of the tables stays with what it adds.
            summed[name] = jax.lax.stop_gradient(tables[name]) + added
        return _put_tables(detector, summed), generator


def _drop_tables(params: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return a model's parameters without these of its embeddings."""
    tables = params['encoder']['embeddings']
    kept = {name: table for name, table in tables.items() if name not in names}
    encoder = {name: part for name, part in params['encoder'].items() if name != 'embeddings'}
    if kept:
        encoder['embeddings'] = kept
    return {**params, 'encoder': encoder}


def _put_tables(params: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's parameters with these in its embeddings."""
    encoder = params['encoder']
    embeddings = {**encoder.get('embeddings', {}), **tables}
    return {**params, 'encoder': {**encoder, 'embeddings': embeddings}}
