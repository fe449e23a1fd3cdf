"""A trained model in memory: `Predictor` answers, `Bert` gives arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert
    from bert_jax.inference.predictor import Predictor

__all__ = ['Bert', 'Predictor']


def __getattr__(name: str) -> Any:
    """Import either, and with it jax, when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{name.lower()}'), name)
