"""The moments of another run: every number of its checkpoint, whatever clips or stacks here."""

from __future__ import annotations

import dataclasses
import shutil

import jax
import numpy as np

from bert_jax.mesh import construction
from bert_jax.model import layout
from bert_jax.runs.sources import fitting
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.pretraining_program import PretrainingSetup
from tests.helpers.refusals import refused


def adam_of(state):
    return next(entry for entry in state.opt_state if hasattr(entry, 'mu'))


def test_moments_are_those_of_the_checkpoint(encoder, tmp_path):
    shutil.copytree(encoder, tmp_path / 'run', ignore=shutil.ignore_patterns('checkpoints'))
    config, rng = Workdir(encoder).config(), np.random.default_rng(0)
    mesh = construction.make_mesh(construction.fit_to_devices(config.runtime))
    state = PretrainingSetup.from_config(config).make_state(mesh)
    drawn = jax.tree.map(
        lambda x: rng.integers(1, 99, x.shape).astype(x.dtype), jax.device_get(state.opt_state)
    )
    there = state._replace(opt_state=drawn, step=np.int32(9))
    with Checkpoints(tmp_path / 'run') as checkpoints:
        checkpoints.save(there, {'kind': 'pretrain'})

    here = dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, clip_norm=None, freeze_embeddings=True),
        runtime=dataclasses.replace(config.runtime, scan_layers=not config.runtime.scan_layers),
    )
    got = fitting.put_moments_into(
        PretrainingSetup.from_config(here).make_state(mesh), str(tmp_path / 'run'), 9
    )
    assert int(got.step) == 0 and int(adam_of(got).count) == int(adam_of(there).count)
    for name in ('mu', 'nu'):
        want, mine = (layout.stack_blocks(getattr(adam_of(s), name)) for s in (there, got))
        jax.tree.map(np.testing.assert_array_equal, mine, want)


def test_what_has_no_such_moments_is_refused(encoder, tmp_path):
    workdir = Workdir(encoder)
    config, tokenizer = workdir.config(), workdir.tokenizer()
    fitting.check_moments(str(encoder), tokenizer, config.optimizer)
    other = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, algorithm='lamb_albert')
    )
    (tmp_path / 'theirs').mkdir()
    (tmp_path / 'theirs' / 'config.json').write_text('{"model_type": "modernbert"}')
    for name, settings, said in (
        (str(tmp_path / 'theirs'), config, 'has no moments of a whole model'),
        (str(tmp_path), config, 'has no moments of a whole model: name a workdir of bert-pretrain'),
        (str(encoder), other, 'whose moments are not those of lamb_albert'),
    ):
        with refused(said):
            fitting.check_moments(name, tokenizer, settings.optimizer)
