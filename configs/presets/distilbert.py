"""DistilBERT (Sanh et al. 2019): every second block of a BERT, which learns from that BERT."""

from __future__ import annotations

from bert_jax.configs.presets.bert import make_encoder
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig


def distilbert_base() -> PretrainConfig:
    """Return DistilBERT-base, uncased (6 layers, H=768, A=12): 66,362,880 parameters.

    66,985,530 with the masked-LM head. 65,190,912 with the cased vocabulary of 28,996 entries
    (`--set model.vocab_size=28996`), 134,734,080 with the multilingual one of 119,547.

    The authors' runs had a teacher (`distillation.teacher`, docs/distillation.md), and batches of
    up to 4,000 rows; rate and warm-up are written down from memory of their code, and the steps
    are about three epochs of BERT's text. Never run here.
    """
    model = make_encoder(
        6,
        768,
        hidden_act='gelu_erf',
        type_vocab_size=0,
        attention_output_dropout=0.0,
        family='distilbert',
    )
    return PretrainConfig(
        name='distilbert_base',
        model=model,
        phases=(Phase(seq_len=512, steps=6000, batch_size=4000),),
        optimizer=OptimizerConfig('adamw', 5e-4, 'linear', warmup_steps=300, clip_norm=5.0),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )
