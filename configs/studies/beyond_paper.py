"""Studies beside the paper's: BERT's relatives, ModernBERT's parts, a small language.

Each function is a study by its scale: `bert-study --study` takes its name.
"""

from __future__ import annotations

from dataclasses import replace

from bert_jax.configs import overrides
from bert_jax.configs.schema import Phase
from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import HeldOut, Row, Study

_SENTENCES = {
    'objective': 'full_sentences',
    'across_documents': True,
    'masking': 'dynamic',
    'mask_rule': 'roberta',
}
_ORDER = {'objective': 'sop', 'ngram': 3}
_ROBERTA_MODEL = {
    'model.family': 'roberta',
    'model.type_vocab_size': 1,
    'model.hidden_act': 'gelu_erf',
    'model.layer_norm_eps': 1e-5,
}


def make_rows_of_relatives(byte_bpe: int, unigram: int, embedding_size: int) -> tuple[Row, ...]:
    """Return the rows, with the sizes of the relatives' vocabularies and of ALBERT's embeddings."""
    bytes_ = {'model': 'byte_bpe', 'vocab_size': byte_bpe}
    pieces = {'model': 'unigram', 'vocab_size': unigram}
    albert = {'model.family': 'albert', 'model.embedding_size': embedding_size}
    shared = {**albert, 'model.num_groups': 1}
    return (
        Row('BERT'),
        Row("BERT on RoBERTa's records", records=_SENTENCES),
        Row('RoBERTa', vocabulary=bytes_, records=_SENTENCES, pretraining=_ROBERTA_MODEL),
        Row('ALBERT without sharing', vocabulary=pieces, records=_ORDER, pretraining=albert),
        Row('ALBERT', vocabulary=pieces, records=_ORDER, pretraining=shared),
    )


def relatives() -> dict[str, Study]:
    """Return BERT beside RoBERTa's recipe and ALBERT: the same text, steps and tasks.

    RoBERTa's recipe comes in two parts: its records (whole sentences across documents, no pairs,
    masks drawn anew each time) under BERT's own encoder and vocabulary, and then all of it, with
    its encoder and byte-level pieces that keep capitals. ALBERT comes with its records and
    vocabulary (order of sentences, n-grams masked, SentencePiece), once with blocks of their own
    and once with one block for all layers. The optimizer is the same in all rows: what the
    relatives changed in it are rates and batches for runs a thousand times as long, and LAMB is for
    those batches.

    Sequences are what rows have in common. Pieces are not words: a vocabulary that cuts words finer
    shows a model less text in as many sequences, and the table says how many pieces each has read.
    """
    return {
        'paper': scales.paper_study(
            'BERT, RoBERTa and ALBERT of the same size and steps, BERT-base',
            (scales.MNLI, scales.MRPC, scales.SST2, scales.SQUAD),
            make_rows_of_relatives(50265, 30000, 128),
        ),
        'cpu': scales.cpu_study(
            'BERT, RoBERTa and ALBERT of the same size and steps, 4 layers of 128',
            scales.CPU_TASKS,
            make_rows_of_relatives(8000, 8000, 64),
        ),
    }


_ROTARY = {'model.positions': 'rotary'}
# Two thirds of 512.
_GATED = {'model.feed_forward': 'geglu', 'model.intermediate_size': 341}
_PRE_AND_LOCAL = {'model.norm': 'pre', 'model.local_window': 8}
_REMAINDER = {
    'model.family': 'modernbert',
    'model.use_bias': False,
    'model.type_vocab_size': 0,
    'model.hidden_act': 'gelu_erf',
    'model.layer_norm_eps': 1e-5,
    'model.initialization': 'full_megatron',
}

_LOSS = HeldOut('mlm_loss', 'held-out loss')
_MODERNBERT_ROWS = (
    Row('BERT'),
    Row('Rotary positions', pretraining=_ROTARY),
    Row('GeGLU', pretraining=_GATED),
    Row('Pre-norm and local attention', pretraining=_PRE_AND_LOCAL),
    Row('ModernBERT', pretraining={**_ROTARY, **_GATED, **_PRE_AND_LOCAL, **_REMAINDER}),
)
# Of cpu_fifth: a fifth of the steps. Products are in float32, as they are on a CPU without AMX.
_FIFTH = (
    'phases.0.steps=1000',
    'phases.1.steps=1200',
    'optimizer.warmup_steps=100',
    'runtime.matmul_dtype=none',
)
_FLOAT32 = {**scales.CPU_FINETUNING, 'runtime.matmul_dtype': None}


def modernbert() -> dict[str, Study]:
    """Return BERT, ModernBERT, and the three changes between them, each by itself.

    All rows read the same records, of WordPiece and without pairs: ModernBERT has no segments and
    no question about pairs. So their held-out losses compare, and 15 % is masked for all. The first
    row is "No NSP" of pretraining_tasks. STS-B is left out: no row without that question has learnt
    it at this size (docs/results.md, Table 5). Batch, rate, optimizer and the deviation of fresh
    weights are the same too: the study is about the architecture, and ModernBERT's recipe is for
    longer runs.

    A gated feed-forward part has three matrices for two. At two thirds of the width it has as many
    weights, to 42 in a block. A window is an eighth of the longest row on each side, as 128 would
    be of ModernBERT's first 1,024 (it has 64, and 64 of 8,192 in the end). Its last row adds what
    is small: no biases, no segments, the exact GELU, another epsilon, smaller fresh weights where
    blocks write, the missing norm of the first block and one head for all.
    """
    whole = scales.cpu_study(
        'BERT, ModernBERT and the changes between them, 4 layers of 128',
        (_LOSS, scales.CPU_MRPC, scales.CPU_SST2, scales.CPU_NER),
        _MODERNBERT_ROWS,
        records={**scales.CPU_RECORDS, 'objective': 'full_sentences'},
        seeds=(0, 1),
    )
    fewer = {**_FLOAT32, 'train_examples': 4_000}
    fifth = replace(
        whole,
        pretraining=overrides.apply(whole.pretraining, _FIFTH),
        columns=(
            _LOSS,
            replace(scales.CPU_MRPC, learning_rates=(3e-4,), finetuning=_FLOAT32),
            replace(scales.CPU_NER, learning_rates=(3e-4,), finetuning=fewer),
        ),
        records={**whole.records, 'dupe_factor': 1},
    )
    return {'cpu': whole, 'cpu_fifth': fifth}


_ALONE, _AMONG = 'alone', 'among'
_LANGUAGE_ROWS = (
    Row('Korean alone', _ALONE, records={'language_repeats': ('ko=1',)}),
    Row('alone x4', _ALONE, records={'language_repeats': ('ko=4',)}),
    Row('30 % of all', _AMONG, records={'language_repeats': ('ko=4', 'en=0.23', 'de=0.23')}),
    Row('10 % of all', _AMONG, records={'language_repeats': ('ko=4', 'en=0.88', 'de=0.88')}),
    *(Row(f'S {s:g}', _AMONG, records={'language_exponent': s}) for s in (0.3, 0.5, 0.7, 1.0)),
)


def small_language() -> dict[str, Study]:
    r"""Return a small language beside large ones, at the same compute: is it better off alone?

    Poro's question (arXiv 2404.01856), asked of an encoder: Korean with 2 MB of text alone, with
    four passes over it, and among English and German, where it is about 30 and about 10 % of the
    tokens, or as much as the exponents 0.3 to 1 give. Judged by the loss on held-out Korean. All
    rows have one vocabulary, --tokenizer, or their losses would be of other pieces.

      --corpus=alone=ko=KOREAN \
      --corpus=among=ko=KOREAN --corpus=among=en=ENGLISH --corpus=among=de=GERMAN

    KOREAN the same 2 MB in both. The shares of 30 and 10 % were worked out for 54 MB of English and
    11 MB of German, at five bytes a word piece or so; what they came to is in each manifest.json.
    With so few pieces alone, a row goes through its records many times: that is the price of being
    small.

    Half of the steps of the other studies at this scale: eight rows, and the small text is read
    more than ten times in them already.
    """
    return {
        'cpu': Study(
            'A small language beside large ones, 4 layers of 128',
            (
                HeldOut('mlm_loss', 'Korean nats', language='ko'),
                HeldOut('mlm_accuracy', 'Korean accuracy', 100.0, language='ko'),
            ),
            _LANGUAGE_ROWS,
            replace(scales.cpu(), phases=(Phase(32, 2500, 64), Phase(64, 3000, 32))),
            records={'segment': True, 'dupe_factor': 1, 'eval_fraction': 0.05},
        ),
    }
