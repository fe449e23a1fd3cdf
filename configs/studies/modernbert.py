"""BERT, ModernBERT, and the three changes between them, each by itself: what does each one do?

All rows read the same records, of WordPiece and without pairs: ModernBERT has no segments and no
question about pairs. So their held-out losses compare, and 15 % is masked for all. The first row is
"No NSP" of pretraining_tasks. STS-B is left out: no row without that question has learnt it at this
size (docs/results.md, Table 5). Batch, rate, optimizer and the deviation of fresh weights are the
same too: the study is about the architecture, and ModernBERT's recipe is for longer runs.

A gated feed-forward part has three matrices for two. At two thirds of the width it has as many
weights, to 42 in a block. A window is an eighth of the longest row on each side, as 128 would be of
ModernBERT's first 1,024 (it has 64, and 64 of 8,192 in the end). Its last row adds what is small:
no biases, no segments, the exact GELU, another epsilon, smaller fresh weights where blocks write,
the missing norm of the first block and one head for all.
"""

from __future__ import annotations

from dataclasses import replace

from bert_jax.configs import overrides
from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import HeldOut, Row, Study

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
ROWS = (
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


def get_studies() -> dict[str, Study]:
    """Return the comparison for two cores, and the same on a fifth of the text (12 MB)."""
    whole = scales.cpu_study(
        'BERT, ModernBERT and the changes between them, 4 layers of 128',
        (_LOSS, scales.CPU_MRPC, scales.CPU_SST2, scales.CPU_NER),
        ROWS,
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
