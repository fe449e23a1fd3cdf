"""BERT beside RoBERTa's recipe and ALBERT: the same text, sequences, steps and tasks.

RoBERTa's recipe comes in two parts: its records (whole sentences across documents, no pairs, masks
drawn anew each time) under BERT's own encoder and vocabulary, and then all of it, with its encoder
and byte-level pieces that keep capitals. ALBERT comes with its records and vocabulary (order of
sentences, n-grams masked, SentencePiece), once with blocks of their own and once with one block for
all layers. The optimizer is the same in all rows: what the relatives changed in it are rates and
batches for runs a thousand times as long, and LAMB is for those batches.

Sequences are what rows have in common. Pieces are not words: a vocabulary that cuts words finer
shows a model less text in as many sequences, and the table says how many pieces each has read.
"""

from __future__ import annotations

from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import Row, Study

_SENTENCES = {
    'objective': 'full_sentences',
    'across_documents': True,
    'masking': 'dynamic',
    'mask_rule': 'roberta',
}
_ORDER = {'objective': 'sop', 'ngram': 3}
_ROBERTA = {
    'model.family': 'roberta',
    'model.type_vocab_size': 1,
    'model.hidden_act': 'gelu_erf',
    'model.layer_norm_eps': 1e-5,
}


def make_rows(byte_bpe: int, unigram: int, embedding_size: int) -> tuple[Row, ...]:
    """Return the rows, with the sizes of the relatives' vocabularies and of ALBERT's embeddings."""
    bytes_ = {'model': 'byte_bpe', 'vocab_size': byte_bpe}
    pieces = {'model': 'unigram', 'vocab_size': unigram}
    albert = {'model.family': 'albert', 'model.embedding_size': embedding_size}
    shared = {**albert, 'model.num_groups': 1}
    return (
        Row('BERT'),
        Row("BERT on RoBERTa's records", records=_SENTENCES),
        Row('RoBERTa', vocabulary=bytes_, records=_SENTENCES, pretraining=_ROBERTA),
        Row('ALBERT without sharing', vocabulary=pieces, records=_ORDER, pretraining=albert),
        Row('ALBERT', vocabulary=pieces, records=_ORDER, pretraining=shared),
    )


def get_studies() -> dict[str, Study]:
    """Return the comparison at both scales."""
    return {
        'paper': scales.paper_study(
            'BERT, RoBERTa and ALBERT of the same size and steps, BERT-base',
            (scales.MNLI, scales.MRPC, scales.SST2, scales.SQUAD),
            make_rows(50265, 30000, 128),
        ),
        'cpu': scales.cpu_study(
            'BERT, RoBERTa and ALBERT of the same size and steps, 4 layers of 128',
            scales.CPU_TASKS,
            make_rows(8000, 8000, 64),
        ),
    }
