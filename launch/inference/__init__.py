"""A trained model that answers: `from launch.inference import Predictor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launch.inference.predictor import Predictor

__all__ = ['Predictor']


def __getattr__(name: str) -> type[Predictor]:
    """Imports the predictor, and with it jax, when it is first asked for."""
    if name != 'Predictor':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from launch.inference.predictor import Predictor

    return Predictor
