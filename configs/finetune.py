"""The paper's fine-tuning recipes (sections 4.1 to 4.3, appendix A.3), one for each task.

    python -m launch.finetune --task=mrpc --data_dir=glue/MRPC --init_from=WORKDIR --workdir=DIR

launch.finetune takes its task's recipe without `--config`. The paper chose among a few learning
rates on dev: --sweep="optimizer.peak_lr=5e-5,4e-5,3e-5,2e-5" (with seed=0,1,2 for small sets). BERT-base on
MRPC: F1 86.7 on dev in the paper, 88.97 (sd 0.72 over 5 seeds) elsewhere; minutes on one accelerator.
"""

from __future__ import annotations

from configs.schema import FinetuneConfig, OptimizerConfig, RuntimeConfig

_RUNTIME = RuntimeConfig(log_every=50, keep_checkpoints=1)
GLUE = FinetuneConfig(name='glue', optimizer=OptimizerConfig(peak_lr=2e-5, warmup_steps=0), runtime=_RUNTIME)
# Section 4.2; S, stride and lengths are run_squad.py's. There is no head dropout in a span model.
SQUAD_V1 = FinetuneConfig(
    name='squad_v1',
    max_seq_length=384,
    batch_size=32,
    epochs=3.0,
    head_dropout=0.0,
    optimizer=OptimizerConfig(peak_lr=5e-5, warmup_steps=0),
    runtime=_RUNTIME,
)
# Section 4.3
SQUAD_V2 = FinetuneConfig(
    name='squad_v2',
    max_seq_length=384,
    batch_size=48,
    epochs=2.0,
    head_dropout=0.0,
    optimizer=OptimizerConfig(peak_lr=5e-5, warmup_steps=0),
    runtime=_RUNTIME,
)


def recipe(task_name: str, kind: str = 'classification') -> FinetuneConfig:
    """The paper's settings for a task; a user's own task gets those of its kind's best-known one."""
    if task_name == 'squad_v2':
        return SQUAD_V2
    return SQUAD_V1 if kind == 'span' else GLUE


def get_config() -> FinetuneConfig:
    """The settings for GLUE, as a start for other tasks."""
    return GLUE
