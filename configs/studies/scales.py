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

from typing import Any

from bert_jax.configs import overrides
from bert_jax.configs.presets import bert_base
from bert_jax.configs.presets.shapes import encoder
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig
from bert_jax.configs.studies.study import Changes, Column, HeldOut, Row, Study

# Section 4.1.
GLUE_RATES = (5e-5, 4e-5, 3e-5, 2e-5)
# Checkpoints at the cpu scale, for studies that look at steps: a tenth of a run each.
CPU_KEPT = 1100


def paper() -> PretrainConfig:
    """Return BERT-base as published, with a checkpoint kept every 100,000 steps."""
    return overrides.apply(bert_base.get_config(), ['runtime.keep_every=100000'])


def cpu() -> PretrainConfig:
    """Return the recipe above."""
    return PretrainConfig(
        name='study_cpu',
        model=encoder(
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


# The vocabulary and the passes over the text of the cpu scale: two passes over 54 MB.
CPU_VOCABULARY: Changes = {'vocab_size': 8000}
CPU_RECORDS: Changes = {'segment': True, 'dupe_factor': 2}
PAPER_VOCABULARY: Changes = {'vocab_size': 30522}
# Named entities are told by capitals: section 5.3 has a vocabulary that keeps them.
PAPER_CASED: Changes = {'vocab_size': 28996, 'lower_case': False}


def paper_study(
    title: str,
    columns: tuple[Column | HeldOut, ...],
    rows: tuple[Row, ...],
    vocabulary: Changes = PAPER_VOCABULARY,
    **others: Any,
) -> Study:
    """Return a study at the paper scale."""
    return Study(title, paper(), columns, rows, vocabulary, **others)


def cpu_study(
    title: str,
    columns: tuple[Column | HeldOut, ...],
    rows: tuple[Row, ...],
    records: Changes = CPU_RECORDS,
    **others: Any,
) -> Study:
    """Return a study at the cpu scale."""
    return Study(title, cpu(), columns, rows, CPU_VOCABULARY, records, **others)


def paper_glue(task: str, name: str, examples: int) -> Column:
    """Return a GLUE task by accuracy, as tables 5, 6 and 8 have it."""
    return Column(task, name, 'accuracy', learning_rates=GLUE_RATES, examples=examples)


MNLI = paper_glue('mnli', 'MNLI-m', 392_702)
QNLI = paper_glue('qnli', 'QNLI', 104_743)
MRPC = paper_glue('mrpc', 'MRPC', 3_668)
SST2 = paper_glue('sst2', 'SST-2', 67_349)
# Section 4.2 names one rate; its F1 is per cent already.
SQUAD = Column('squad_v1', 'SQuAD', 'f1', factor=1.0, examples=87_599)
# Section 5.3 names no rate: those of appendix A.3.
NER = Column('conll2003', 'NER', 'entity_f1', learning_rates=(5e-5, 3e-5, 2e-5), examples=14_041)

_CPU: Changes = {
    'max_seq_length': 64,
    'length_buckets': 3,
    'optimizer.algorithm': 'adamw',
    'optimizer.schedule': 'linear',
    'hidden_dropout': 0.1,
    'attention_dropout': 0.1,
    'runtime.matmul_dtype': 'bfloat16',
}
# Small encoders want larger rates than the paper's; these are half an order of magnitude apart.
_CPU_RATES = (1e-3, 3e-4, 1e-4)


def cpu_column(task: str, name: str, metric: str, examples: int, **changes: int) -> Column:
    """Return a task that is fine-tuned at the cpu scale."""
    return Column(
        task,
        name,
        metric,
        learning_rates=_CPU_RATES,
        finetuning={**_CPU, **changes},
        bilstm={'max_seq_length': 64, 'lstm_width': 128},
        examples=examples,
    )


CPU_MRPC = cpu_column('mrpc', 'MRPC', 'accuracy', 3_668)
CPU_STSB = cpu_column('stsb', 'STS-B', 'spearman', 5_749)
CPU_SST2 = cpu_column('sst2', 'SST-2', 'accuracy', 67_349, train_examples=10_000)
CPU_NER = cpu_column('conll2003_sentences', 'NER', 'entity_f1', 14_041)
