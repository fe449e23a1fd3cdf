"""RoBERTa (Liu et al. 2019): BERT's encoder on byte-level pieces, without pairs."""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets.bert import make_encoder
from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)


def make_shape(num_layers: int, hidden_size: int) -> ModelConfig:
    """Return an encoder of RoBERTa."""
    return make_encoder(
        num_layers,
        hidden_size,
        vocab_size=50265,
        type_vocab_size=1,
        hidden_act='gelu_erf',
        layer_norm_eps=1e-5,
        family='roberta',
    )


def make_optimizer(peak_lr: float, warmup_steps: int) -> OptimizerConfig:
    """Return Adam as fairseq's RoBERTa has it, with a rate and a warm-up."""
    return OptimizerConfig(
        'adamw', peak_lr, 'linear', warmup_steps=warmup_steps, b2=0.98, clip_norm=None
    )


def roberta_base() -> PretrainConfig:
    r"""Return RoBERTa-base (12 layers, H=768, A=12): 124,645,632 parameters with its pooler.

        bert-train-vocab --model=byte_bpe --vocab_size=50265 --input=GLOB --output=DIR
        bert-preprocess --input=GLOB --tokenizer=DIR --output=records512 --seq_len=512 \
            --objective=full_sentences --across_documents --masking=dynamic --mask_rule=roberta
        bert-pretrain --config=roberta_base --data=records512 --workdir=DIR

    125,288,025 in pre-training, where no loss reads the 590,592 of the pooler.

    Recipe: that of the paper's final models (Liu et al. 2019, Table 9), 8,192 rows a step, written
    down from memory of it; roberta_base_2k is the one that fairseq's own files have. Adam with bias
    correction, decay 0.98 of the second moment, gradients not clipped, dropout 0.1, always 512
    tokens. Unlike fairseq's, weight decay leaves biases and norms alone, as everywhere here.

    Hardware: the paper's runs took a day on 1,024 V100 GPUs; a batch of 8,192 wants
    runtime.accumulation on less.
    """
    return PretrainConfig(
        name='roberta_base',
        model=make_shape(12, 768),
        phases=(Phase(seq_len=512, steps=500_000, batch_size=8192),),
        optimizer=make_optimizer(peak_lr=6e-4, warmup_steps=24_000),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )


def roberta_base_2k() -> PretrainConfig:
    """Return RoBERTa-base with 2,048 rows a step, as fairseq's own files train it: 125,000 steps.

        bert-pretrain --config=roberta_base_2k --data=records512 --workdir=DIR

    Shape and records: those of the preset roberta_base. Recipe: facebookresearch/fairseq
    examples/roberta/config/pretraining/base.yaml.
    """
    return dataclasses.replace(
        roberta_base(),
        name='roberta_base_2k',
        phases=(Phase(seq_len=512, steps=125_000, batch_size=2048),),
        optimizer=make_optimizer(peak_lr=5e-4, warmup_steps=10_000),
    )


def roberta_large() -> PretrainConfig:
    """Return RoBERTa-large (24 layers, H=1024, A=16): 355,359,744 parameters with its pooler.

        bert-pretrain --config=roberta_large --data=records512 --workdir=DIR

    356,461,657 in pre-training, where no loss reads the 1,049,600 of the pooler. Records: as for
    the preset roberta_base. Recipe: that of the paper's final models (Liu et al. 2019, Table 9),
    8,192 rows a step, written down from memory of it.
    """
    return dataclasses.replace(
        roberta_base(),
        name='roberta_large',
        model=make_shape(24, 1024),
        optimizer=make_optimizer(peak_lr=4e-4, warmup_steps=30_000),
    )
