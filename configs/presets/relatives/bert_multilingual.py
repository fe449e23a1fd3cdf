r"""Multilingual BERT, cased (12 layers, H=768, A=12): 177,853,440 parameters with its pooler.

    bert-train-vocab --input=de=GLOB --input=ko=GLOB ... --vocab_size=119547 \
        --nolower_case --output=DIR
    bert-preprocess --input=de=GLOB --input=ko=GLOB ... --tokenizer=DIR \
        --output=records128 --seq_len=128
    bert-pretrain --config=bert_multilingual --data=records128 --data=records512 ...

178,566,653 in pre-training. The shape is that of the released multi_cased_L-12_H-768_A-12:
BERT-Base with 119,547 entries, 99 of them [unused]. Its page (google-research/bert multilingual.md)
names no recipe but the sampling of languages, S=0.7, the default of both commands above; the one
here is BERT-Base's.
Its checkpoints, Google's and Hugging Face's, are read by --init_from as BERT's are.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets import bert_base
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    base = bert_base.get_config()
    model = dataclasses.replace(base.model, vocab_size=119_547)
    return dataclasses.replace(base, name='bert_multilingual', model=model)
