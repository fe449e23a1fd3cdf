"""MPNet (Song et al. 2020): RoBERTa's encoder with a number for each distance."""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets.bert import make_encoder
from bert_jax.configs.presets.roberta import roberta_base
from bert_jax.configs.schema import PretrainConfig


def mpnet_base() -> PretrainConfig:
    """Return MPNet-base (12 layers, H=768, A=12): 109,486,464 parameters with its pooler.

    Recipe: that of roberta_base, on masked words. MPNet's own objective, permuted words, is not
    built here. Never run here.
    """
    model = make_encoder(
        12,
        768,
        vocab_size=30527,
        type_vocab_size=0,
        hidden_act='gelu_erf',
        layer_norm_eps=1e-5,
        family='mpnet',
        positions='relative_bias',
    )
    return dataclasses.replace(roberta_base(), name='mpnet_base', model=model)
