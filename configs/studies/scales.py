"""What the shipped studies share: the recipe and the tasks of each of the two scales.

paper: the published sizes, steps, batch and tasks, for accelerators. Tasks and learning rates are
those of sections 4 and 5, rates chosen on dev.

cpu: a small encoder (4 layers, H=128) on 22.5 million word pieces, for two cores. Rows of 32 and
then of 64, most rows short as in the paper; the rate, initialisation and Adam's constants are those
of configs/presets/quickstart.py, and for its reasons. No dropout in pre-training, where the text is
read a few times only; fine-tuning has the paper's 0.1. Products read bfloat16, as on the paper's
TPUs.

Which tasks stand in for the paper's at the cpu scale was settled by what is small and by what each
can show, before any was run: MRPC and SST-2 are columns of the paper's own tables, with training
sets of a few thousand (10,000 of SST-2's); STS-B is a pair task like MNLI and QNLI, whose graded
scores of 1,500 pairs are less coarse than yes and no; named entities, a decision for each word that
needs both sides, stand for SQuAD's spans, whose rows of 384 the encoder does not take.
"""

from __future__ import annotations

import functools

from bert_jax.configs import overrides
from bert_jax.configs.presets.bert import bert_base, make_encoder
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig
from bert_jax.configs.studies.study import Column, Study

# Checkpoints at the cpu scale, for studies that look at steps: a tenth of a run each.
CPU_KEPT = 1100


def paper() -> PretrainConfig:
    """Return BERT-base as published, with a checkpoint kept every 100,000 steps."""
    return overrides.apply(bert_base(), ['runtime.keep_every=100000'])


def cpu() -> PretrainConfig:
    """Return the recipe above."""
    return PretrainConfig(
        name='study_cpu',
        model=make_encoder(
            4,
            128,
            vocab_size=8000,
            max_position=64,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.05,
        ),
        phases=(Phase(32, 5000, 64), Phase(64, 6000, 32)),
        optimizer=OptimizerConfig(
            peak_lr=1.2e-3, warmup_steps=500, schedule='linear', b2=0.98, eps=1e-7
        ),
        runtime=RuntimeConfig(
            matmul_dtype='bfloat16',
            log_every=100,
            eval_every=CPU_KEPT,
            eval_batches=50,
            checkpoint_every=CPU_KEPT,
            keep_every=CPU_KEPT,
            keep_checkpoints=1,
        ),
    )


paper_study = functools.partial(Study, pretraining=paper(), vocabulary={'vocab_size': 30522})
# Two passes over 54 MB.
CPU_RECORDS = {'segment': True, 'dupe_factor': 2}
cpu_study = functools.partial(
    Study, pretraining=cpu(), vocabulary={'vocab_size': 8000}, records=CPU_RECORDS
)
# Named entities are told by capitals: section 5.3 has a vocabulary that keeps them.
PAPER_CASED = {'vocab_size': 28996, 'lower_case': False}

# Section 4.1, with the accuracy of tables 5, 6 and 8.
_glue = functools.partial(Column, metric='accuracy', learning_rates=(5e-5, 4e-5, 3e-5, 2e-5))
MNLI = _glue('mnli', 'MNLI-m')
QNLI = _glue('qnli', 'QNLI')
MRPC = _glue('mrpc', 'MRPC')
SST2 = _glue('sst2', 'SST-2')
# Section 4.2 names one rate; its F1 is per cent already.
SQUAD = Column('squad_v1', 'SQuAD', 'f1', factor=1.0)
# Section 5.3 names no rate: those of appendix A.3.
NER = Column('conll2003', 'NER', 'entity_f1', learning_rates=(5e-5, 3e-5, 2e-5))

CPU_FINETUNING = {
    'max_seq_length': 64,
    'length_buckets': 3,
    'optimizer.algorithm': 'adamw',
    'optimizer.schedule': 'linear',
    'hidden_dropout': 0.1,
    'attention_dropout': 0.1,
    'runtime.matmul_dtype': 'bfloat16',
}
# Small encoders want larger rates than the paper's; these are half an order of magnitude apart.
_cpu_column = functools.partial(
    Column,
    learning_rates=(1e-3, 3e-4, 1e-4),
    finetuning=CPU_FINETUNING,
    bilstm={'max_seq_length': 64, 'lstm_width': 128},
)
CPU_MRPC = _cpu_column('mrpc', 'MRPC', 'accuracy')
CPU_STSB = _cpu_column('stsb', 'STS-B', 'spearman')
CPU_SST2 = _cpu_column(
    'sst2', 'SST-2', 'accuracy', finetuning={**CPU_FINETUNING, 'train_examples': 10_000}
)
CPU_NER = _cpu_column('conll2003_sentences', 'NER', 'entity_f1')
CPU_TASKS = (CPU_STSB, CPU_MRPC, CPU_SST2, CPU_NER)
