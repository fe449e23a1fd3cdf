"""DeBERTa-v2 and -v3 (He et al. 2021): scores of attention with products of distances."""

from __future__ import annotations

from typing import Any

from bert_jax.configs.presets.bert import make_encoder
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig


def make_run(
    name: str,
    num_layers: int,
    hidden_size: int,
    rate: tuple[float, int] = (1e-4, 256),
    **others: Any,
) -> PretrainConfig:
    """Return a run on masked words with the rate, batch and steps of DeBERTa-v3.

    microsoft/DeBERTa's scripts of replaced tokens: 512 tokens, a million steps. Its own objective
    is not that of this run.

    Args:
      name: the preset's.
      num_layers: blocks.
      hidden_size: their width; a head has 64 of it.
      rate: the highest rate, and the rows of a step.
      others: settings of the encoder that are not those of version 3.
    """
    peak_lr, batch_size = rate
    settings: dict[str, Any] = {
        'vocab_size': 128100,
        'type_vocab_size': 0,
        'hidden_act': 'gelu_erf',
        'layer_norm_eps': 1e-7,
        'family': 'deberta_v2',
        'positions': 'disentangled',
    }
    return PretrainConfig(
        name=name,
        model=make_encoder(num_layers, hidden_size, **settings | others),
        phases=(Phase(seq_len=512, steps=1_000_000, batch_size=batch_size),),
        optimizer=OptimizerConfig('adamw', peak_lr, 'linear', warmup_steps=10_000),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )


def deberta_v3_xsmall() -> PretrainConfig:
    """Return DeBERTa-v3-xsmall (12 layers, H=384, A=6): 70,682,112 parameters.

    Recipe: see make_run. Never run here.
    """
    return make_run('deberta_v3_xsmall', 12, 384, rate=(3e-4, 64))


def deberta_v3_small() -> PretrainConfig:
    """Return DeBERTa-v3-small (6 layers, H=768, A=12): 141,304,320 parameters.

    Recipe: see make_run. Never run here.
    """
    return make_run('deberta_v3_small', 6, 768)


def deberta_v3_base() -> PretrainConfig:
    """Return DeBERTa-v3-base (12 layers, H=768, A=12): 183,831,552 parameters.

    Recipe: see make_run. Never run here.
    """
    return make_run('deberta_v3_base', 12, 768)


def deberta_v3_large() -> PretrainConfig:
    """Return DeBERTa-v3-large (24 layers, H=1024, A=16): 434,012,160 parameters.

    Recipe: see make_run. Never run here.
    """
    return make_run('deberta_v3_large', 24, 1024)


def mdeberta_v3_base() -> PretrainConfig:
    """Return mDeBERTa-v3-base (12 layers, H=768, A=12): 278,218,752 parameters.

    Recipe: see make_run. Never run here.
    """
    return make_run('mdeberta_v3_base', 12, 768, vocab_size=251000)


def deberta_v2_xlarge() -> PretrainConfig:
    """Return DeBERTa-v2-xlarge (24 layers, H=1536, A=24): 884,593,152 parameters.

    Recipe: see make_run. Never run here.
    """
    return make_run('deberta_v2_xlarge', 24, 1536, convolution=3)


def deberta_v2_xxlarge() -> PretrainConfig:
    """Return DeBERTa-v2-xxlarge (48 layers, H=1536, A=24): 1,564,549,632 parameters.

    Recipe: see make_run. Never run here.
    """
    return make_run('deberta_v2_xxlarge', 48, 1536, convolution=3)
