"""How a run is carried out: devices, arithmetic, memory, checkpoints and logging.

Owns the settings of `runtime`. What a run learns is in configs/schema.py.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Literal

from bert_jax.configs.errors import require_extra
from bert_jax.configs.options import COUNT, COUNT_OR_0, newer, option
from bert_jax.configs.section import Section

_runtime = functools.partial(option, kind='runtime')
# What draws the bits of dropout (bert_jax/model/dropout.py).
Generator = Literal['threefry', 'threefry13', 'threefry_8bit', 'threefry13_8bit', 'rbg']
# What products of matrices read (bert_jax/model/blocks/matmul.py).
MatmulDtype = Literal['auto', 'float32', 'bfloat16']
# Where metrics go besides the workdir (bert_jax/runs/workdir/trackers.py).
Tracker = Literal['wandb', 'mlflow', 'tensorboard']


@dataclass(frozen=True)
class RuntimeConfig(Section):
    """How a run is carried out: only `dropout_rng` changes the result beyond float noise."""

    removed = types.MappingProxyType(
        {
            'decoder': 'records are read by numpy, to the same batches',
            'decoding_processes': 'one thread reads records fast enough',
            'gradient_exchange': 'gradients are always added up by a reduce-scatter',
        }
    )
    replaced = types.MappingProxyType(
        {
            ('attention', 'tpu_fused'): ('xla', 'its kernel is gone, and xla draws the same masks'),
        }
    )

    data_parallel: int | None = _runtime(
        None,
        'devices on the mesh axis `data`; none: all that the other axes leave',
        within=COUNT,
    )
    fsdp: int = _runtime(1, 'devices over which parameters and moments are split', within=COUNT)
    shard_optimizer: bool | None = _runtime(
        None,
        'weights and moments are split over `data` too, and each device updates its share; none: on'
        ' TPUs, where no other axis splits the mesh',
    )
    model_parallel: int = _runtime(1, 'devices over which each layer is split', within=COUNT)
    accumulation: int = _runtime(
        1,
        'micro-batches a step; gradients are summed before clipping',
        within=COUNT,
    )
    compute_dtype: Literal['float32', 'bfloat16'] = _runtime(
        'float32',
        'arithmetic of the layers; parameters, softmax, norms and loss stay float32',
    )
    matmul_dtype: MatmulDtype | None = newer(
        'auto',
        'what products of dense layers and of the vocabulary read in training, their sums in'
        ' float32; auto: bfloat16 on CPUs that have AMX or avx512_bf16, chosen once for a run;'
        ' float32, none: what compute_dtype says',
        kind='runtime',
        before=None,
    )
    # Older runs go on with whole logits: blocks round otherwise.
    vocabulary_loss: Literal['auto', 'whole', 'blocks'] = newer(
        'auto',
        'how the loss over the vocabulary is computed; whole: from all logits at once; blocks: of'
        ' some rows after the other, so that all logits are never in memory; auto: blocks where a'
        ' device has more than 1 GiB of them',
        kind='runtime',
        before='whole',
    )
    remat: Literal['none', 'dots', 'full'] = _runtime(
        'none', 'what the backward pass recomputes, to save memory'
    )
    scan_layers: bool = _runtime(
        False,
        'loop over the layers instead of unrolling them: compiles faster, runs slower',
    )
    attention: Literal['auto', 'xla', 'cudnn', 'tpu_splash', 'tpu_flash'] = _runtime(
        'auto',
        'what computes attention; cudnn (GPU) and tpu_splash (TPU) are fused kernels without'
        ' dropout on probabilities; auto: where it can be had, cudnn from 128 tokens on and'
        ' tpu_splash from 512, else xla;'
        ' tpu_flash: what tpu_splash was called before',
    )
    dropout_rng: Generator = option(
        'threefry',
        "generator of dropout's bits: threefry13 has 13 rounds instead of 20; 8bit: of 8 bits a"
        ' place instead of 16, so that a rate of 0.1 is 26/256; rbg may be faster, and its masks'
        ' change with runtime.accumulation',
    )
    compilation_cache: str | None = _runtime(
        'auto',
        "folder that keeps compiled programs for later runs; auto: the user's cache, but not for"
        ' several processes; none: they are not kept',
    )
    log_every: int = _runtime(100, 'steps between log lines', within=COUNT)
    eval_every: int = _runtime(
        10_000, 'steps between evaluations on held-out records', within=COUNT
    )
    eval_batches: int = _runtime(
        100,
        'held-out batches an evaluation reads at most; 0: all of them',
        within=COUNT_OR_0,
    )
    checkpoint_every: int = _runtime(1_000, 'steps between checkpoints', within=COUNT)
    keep_checkpoints: int = _runtime(3, 'newest checkpoints kept, besides the best', within=COUNT)
    keep_every: int | None = newer(
        None,
        'checkpoints of steps that are a multiple of it are kept for good, besides; none: no'
        ' others are',
        kind='runtime',
        within=COUNT,
    )
    track: Tracker | None = newer(
        None,
        'where metrics go besides the workdir: to Weights & Biases (wandb) or to MLflow (mlflow),'
        ' each installed by its extra; tensorboard: no further, for its files are always written',
        kind='runtime',
    )
    max_bad_steps: int = _runtime(
        10, 'non-finite steps in a row after which training stops', within=COUNT
    )
    on_full_disk: Literal['stop', 'continue'] = _runtime(
        'stop',
        'when there is no room for a checkpoint: stop, or train on and try again at the next',
    )
    stall_minutes: float = _runtime(
        30.0,
        'a process in which no step is done for so long ends, to be started again '
        '(bert-jax supervise); 0: never',
        within='[0, 525600]',
    )

    def check(self) -> None:
        """Raise UserError where the fields contradict each other."""
        self._require(
            not (self.keep_every or 0) % self.checkpoint_every,
            'keep_every',
            f'a multiple of checkpoint_every={self.checkpoint_every}',
        )


def check_tracker(track: Tracker | None) -> None:
    """Raise UserError, in a line that says how it is installed, where a tracker is not there."""
    if track in ('wandb', 'mlflow'):
        require_extra(f'--track={track}', track, track)
