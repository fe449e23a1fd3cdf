"""The methods of tuning by name: a class for each value of `tuning.method`."""

from __future__ import annotations

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.peft.adamix import AdaMix
from bert_jax.model.peft.bitfit import BitFit
from bert_jax.model.peft.houlsby import Houlsby
from bert_jax.model.peft.ia3 import IA3
from bert_jax.model.peft.lora import LoRA
from bert_jax.model.peft.method import Method
from bert_jax.model.peft.pfeiffer import Pfeiffer
from bert_jax.model.peft.spafit import SPAFIT

METHODS: dict[str, type[Method]] = {
    'full': Method,
    'bitfit': BitFit,
    'lora': LoRA,
    'houlsby': Houlsby,
    'pfeiffer': Pfeiffer,
    'ia3': IA3,
    'adamix': AdaMix,
    'spafit': SPAFIT,
}


def method_of(config: ModelConfig) -> Method:
    """Return the method by which a model is tuned."""
    return METHODS[config.tuning.method](config)
