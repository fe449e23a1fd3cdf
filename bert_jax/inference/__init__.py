"""A trained model in memory: `Predictor` answers, `Bert` gives arrays."""

from bert_jax.inference.bert import Bert
from bert_jax.inference.predictor import Predictor

__all__ = ['Bert', 'Predictor']
