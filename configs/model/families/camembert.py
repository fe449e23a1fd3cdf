"""CamemBERT, Martin et al. 2020: RoBERTa on unigram pieces; transformers models/camembert."""

from __future__ import annotations

from bert_jax.configs.model.families import roberta

# Its first entries are those of fairseq's dictionary; those of its rows come behind them.
FAMILY = roberta.make_relative(
    'CamemBERT', 'camembert', 'Camembert', bos_token_id=5, eos_token_id=6
)
