"""ELECTRA (Clark et al. 2020): encoders that tell which tokens a small generator has replaced."""

from __future__ import annotations

from typing import Any

from bert_jax.configs.presets.bert import make_encoder
from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    ReplacedTokensConfig,
    RuntimeConfig,
)


def make_shape(num_layers: int, hidden_size: int, **others: Any) -> ModelConfig:
    """Return a discriminator of ELECTRA."""
    settings = {'family': 'electra', 'hidden_act': 'gelu_erf'}
    return make_encoder(num_layers, hidden_size, **settings, **others)


def make_run(
    name: str, model: ModelConfig, phase: Phase, peak_lr: float, generator_size: float
) -> PretrainConfig:
    """Return a run of the recipe: Adam without bias correction, 10,000 steps of warm-up."""
    return PretrainConfig(
        name=name,
        model=model,
        phases=(phase,),
        objective='replaced_tokens',
        optimizer=OptimizerConfig(peak_lr=peak_lr, warmup_steps=10_000),
        replaced_tokens=ReplacedTokensConfig(generator_size=generator_size),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )


def electra_small() -> PretrainConfig:
    r"""Return ELECTRA-small (12 layers, H=256, E=128): 13,483,008 parameters.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128 \
            --masking=dynamic --objective=full_sentences
        bert-pretrain --config=electra_small --data=records128 --workdir=DIR

    13,549,057 with its head for replaced tokens; its generator of width 64 has 4,620,026 of which
    it shares the tables.

    Recipe: google-research/electra configure_pretraining.py: rate 5e-4, 128 rows a step, 1 million
    steps. The released model has a generator of its own width
    (--set replaced_tokens.generator_size=1). The rate rises by equal steps in warm-up; there its
    decay is in that too.

    Hardware: the paper's run took four days on one V100; this one has not been made here.
    """
    model = make_shape(12, 256, embedding_size=128)
    return make_run('electra_small', model, Phase(128, 1_000_000, 128), 5e-4, 0.25)


def electra_base() -> PretrainConfig:
    """Return ELECTRA-base (12 layers, H=768): 108,891,648 parameters.

        bert-pretrain --config=electra_base --data=records512 --workdir=DIR

    109,483,009 with its head for replaced tokens; its generator of width 256 has 33,740,602 of
    which it shares the tables. Recipe: as for electra_small, with rate 2e-4, 256 rows of 512
    tokens, 766,000 steps. This run has not been made here.
    """
    return make_run('electra_base', make_shape(12, 768), Phase(512, 766_000, 256), 2e-4, 1 / 3)


def electra_large() -> PretrainConfig:
    """Return ELECTRA-large (24 layers, H=1024): 334,092,288 parameters.

        bert-pretrain --config=electra_large --data=records512 --workdir=DIR

    335,142,913 with its head for replaced tokens; its generator of width 256 has 51,295,290 of
    which it shares the tables. Recipe: as for electra_base, with 2,048 rows and 400,000 steps
    (1,750,000 of the released model). It predicts a quarter of the tokens: make the records with
    --masked_lm_prob=0.25. This run has not been made here.
    """
    return make_run('electra_large', make_shape(24, 1024), Phase(512, 400_000, 2048), 2e-4, 0.25)
