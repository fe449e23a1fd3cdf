"""XLM-R, Conneau et al. 2020: RoBERTa on unigram pieces; transformers models/xlm_roberta."""

from __future__ import annotations

from bert_jax.configs.model.families import roberta

FAMILY = roberta.make_relative('XLM-R', 'xlm-roberta', 'XLMRoberta')
