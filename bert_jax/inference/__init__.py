"""A trained model in memory: `Predictor` answers, `Bert` gives arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert
    from bert_jax.inference.predictor import Predictor

__all__ = ['Bert', 'Predictor']


def __getattr__(name: str) -> Any:
    """Imports either, and with it jax, when it is first asked for."""
    if name == 'Bert':
        from bert_jax.inference.bert import Bert

        return Bert
    if name == 'Predictor':
        from bert_jax.inference.predictor import Predictor

        return Predictor
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
