"""XLM-R (Conneau et al. 2020), CamemBERT (Martin et al. 2020) and BGE-M3: RoBERTa's encoder.

Their pieces are SentencePiece's, of a hundred languages or of French. None was trained here. Their
recipes are RoBERTa's with the steps of their papers, from memory; its rates are not known to be
theirs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.configs.presets.roberta import make_shape, roberta_base, roberta_large
from bert_jax.configs.schema import ModelConfig, Phase, PretrainConfig

_XLMR: dict[str, Any] = {'family': 'xlm_roberta', 'vocab_size': 250_002}
_CAMEMBERT: dict[str, Any] = {'family': 'camembert', 'vocab_size': 32_005}


def _make_run(
    like: PretrainConfig, name: str, model: ModelConfig, steps: int, seq_len: int = 512
) -> PretrainConfig:
    """Return a run like another, with a model and steps of its own."""
    phase = Phase(seq_len=seq_len, steps=steps, batch_size=8192 * 512 // seq_len)
    return dataclasses.replace(like, name=name, model=model, phases=(phase,))


def xlmr_base() -> PretrainConfig:
    """Return XLM-R-base (12 layers, H=768, A=12): 278,043,648 parameters with its pooler.

    1.5 million steps of 8,192 rows.
    """
    model = dataclasses.replace(make_shape(12, 768), **_XLMR)
    return _make_run(roberta_base(), 'xlmr_base', model, 1_500_000)


def xlmr_large() -> PretrainConfig:
    """Return XLM-R-large (24 layers, H=1024, A=16): 559,890,432 parameters with its pooler.

    1.5 million steps of 8,192 rows.
    """
    model = dataclasses.replace(make_shape(24, 1024), **_XLMR)
    return _make_run(roberta_large(), 'xlmr_large', model, 1_500_000)


def bge_m3() -> PretrainConfig:
    """Return the encoder of BGE-M3: XLM-R-large for 8,192 tokens, 567,754,752 parameters.

    Of its own recipe nothing is here: the steps are XLM-R's, with as many tokens in longer rows.
    """
    model = dataclasses.replace(make_shape(24, 1024), max_position=8192, **_XLMR)
    return _make_run(roberta_large(), 'bge_m3', model, 1_500_000, 8192)


def camembert_base() -> PretrainConfig:
    """Return CamemBERT-base (12 layers, H=768, A=12): 110,621,952 parameters with its pooler.

    100,000 steps of 8,192 rows.
    """
    model = dataclasses.replace(make_shape(12, 768), **_CAMEMBERT)
    return _make_run(roberta_base(), 'camembert_base', model, 100_000)


def camembert_large() -> PretrainConfig:
    """Return CamemBERT-large (24 layers, H=1024, A=16): 336,661,504 parameters with its pooler.

    100,000 steps of 8,192 rows.
    """
    model = dataclasses.replace(make_shape(24, 1024), **_CAMEMBERT)
    return _make_run(roberta_large(), 'camembert_large', model, 100_000)
