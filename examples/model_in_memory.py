"""Asks a pre-trained model from Python: states, words for a mask, vectors (docs/extending.md).

    python examples/model_in_memory.py WORKDIR

WORKDIR is a run of `bert-pretrain`, or anything else that `--init_from` takes.
"""

import sys

from bert_jax import Bert

source = sys.argv[1]

bert = Bert.load(source)
rows = bert.tokenize(['One text.', ('A text.', 'Its pair.')], max_length=64, multiple=8)
rows['input_ids'], rows['input_mask'], rows['segment_ids']  # int32 [2, T], numpy
hidden, pooled = bert(rows)  # [2, T, H], [2, H]
logits = bert.mlm_logits(rows)  # [2, T, V]; or at `positions` [2, P]
vectors = bert.embed(['One text.', 'Another.'], layers=(-2, -1), pool='mean')  # [2, 2 H]
words = bert.fill_mask('Paris is the [MASK] of France.', top=3)  # for each mask its best words

print('states of each piece', hidden.shape, 'and of each text', pooled.shape)
print('a logit for each entry of the vocabulary', logits.shape)
print('vectors of two layers', vectors.shape)
print('words for the mask', [guess['token'] for guess in words[0]])
