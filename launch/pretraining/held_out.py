"""The held-out MLM and NSP measures of a pre-training workdir, on the records of a split.

Owns that evaluation alone; what is measured is in bert_jax/train/losses.py.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.mesh import sharding
from bert_jax.model import heads
from bert_jax.train import loop, losses
from bert_jax.train.checkpoint import load_params
from bert_jax.train.step import make_eval_step
from configs import schema
from configs.errors import UserError
from input_pipeline.records.shards import Manifest
from input_pipeline.records.stream import RecordStream
from launch.finetuning.batch_runner import eval_batch_size
from launch.finetuning.evaluation import check_writable, config_hash, write_result
from launch.pretraining.record_checks import check_model_reads
from launch.workdir.workdir import Workdir


def evaluate(folder: str, data: str, split: str) -> dict[str, Any]:
    """Measures of the newest checkpoint over all records of the split; also written to
    eval/SPLIT.json.
    """
    workdir = Workdir(folder)
    config = workdir.config()
    if not isinstance(config, schema.PretrainConfig):
        raise UserError(
            f'--workdir={workdir} is fine-tuned, and --data is for workdirs of launch.pretrain:'
            ' leave --data out'
        )
    check_writable(workdir)
    manifest = Manifest.load(data)
    if manifest.tokenizer_fingerprint != workdir.tokenizer().fingerprint:
        raise UserError(
            f'--data={data} was made with another tokenizer than --workdir={workdir} was trained'
            f' with: make it with {workdir}/tokenizer'
        )
    if manifest.seq_len > config.model.max_position:
        raise UserError(
            f'--data={data}: seq_len={manifest.seq_len} is beyond the position table'
            f' (model.max_position={config.model.max_position})'
        )
    check_model_reads(config.model, manifest, data)
    if not manifest.records(split):
        raise UserError(
            f'--data={data} has no records of split {split!r}: make them with --eval_fraction or'
            ' --eval_input'
        )
    params, step = load_params(workdir)
    mesh = sharding.make_mesh(config.runtime)
    model = heads.Pretraining(
        config.model,
        jnp.dtype(config.runtime.compute_dtype),
        config.runtime.remat,
        config.runtime.scan_layers,
    )
    eval_step = jax.jit(
        make_eval_step(
            losses.pretraining_objective(model, nsp=manifest.objective in ('nsp', 'sop'))
        )
    )
    size = eval_batch_size(mesh, manifest.seq_len, manifest.records(split))
    stream = RecordStream(
        data, split, size, config.seed, config.runtime.decoder, sharding.local_rows(mesh, size)
    )
    params = jax.device_put(params, sharding.shardings(params, mesh))
    with jax.set_mesh(mesh):
        measures = loop.evaluate(
            eval_step, params, (sharding.place(batch, mesh, size) for batch in stream.evaluation())
        )
    report = {
        'split': split,
        'metrics': measures,
        'records': manifest.records(split),
        'step': step,
        'config_hash': config_hash(config),
    }
    return write_result(workdir, split, report)
