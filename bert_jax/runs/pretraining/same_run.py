"""What must be the same in all processes of a run: settings, records, program.

Owns which settings may differ from host to host. Must not know how the processes compare them
(bert_jax/mesh/process_group.py).
"""

from __future__ import annotations

import importlib.metadata
import os
import time
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bert_jax.cli import log
from bert_jax.configs import schema
from bert_jax.runs.workdir.changes import leaves

if TYPE_CHECKING:
    from bert_jax.runs.sources.source import Source
    from bert_jax.runs.workdir.workdir import Workdir

# Names and JSON values, which must be alike in all processes.
Facts = dict[str, Any]
# How a host reads its records, where it keeps compiled programs, and when it gives itself up.
FREE_SETTINGS = ('runtime.compilation_cache', 'runtime.stall_minutes')
# Paths of records and text, which each host may have in a place of its own.
FREE_OPTIONS = ('input', 'eval_input', 'tokenizer')
# Another version may compute another number from the same program.
_LIBRARIES = 'jax jaxlib libtpu flax optax orbax-checkpoint numpy'.split()
# Where a process is, and what it keeps or prints on its own host.
_FREE_VARIABLES = tuple(
    (
        'JAX_COORDINATOR_ JAX_LOCAL_DEVICE_IDS JAX_PROCESS_ JAX_NUM_PROCESSES JAX_LOG JAX_DUMP_'
        ' JAX_COMPILATION_CACHE_ JAX_ENABLE_COMPILATION_CACHE JAX_PERSISTENT_CACHE_'
        ' JAX_DEBUG_LOG JAX_TRACEBACK_FILTERING JAX_CUDA_VISIBLE_DEVICES JAX_ROCM_VISIBLE_DEVICES'
    ).split()
)


def describe_process(config: schema.Config, records: Iterable[Any], named: Facts) -> Facts:
    """Return {name: JSON value} of all that decides what a process computes.

    records: the `Records` of each phase; named: further values, by the flag they come from.
    """
    # Every setting by its dotted name, so that a difference has the name that --set takes.
    settings = leaves(schema.to_dict(config))
    deciding = {name: value for name, value in settings.items() if name not in FREE_SETTINGS}

    # Records by what they are and not where they lie: each host may have its own copy.
    for number, phase in enumerate(records):
        manifest = phase.manifest
        facts = {
            **phase.identity(),
            'tokenizer_fingerprint': manifest.tokenizer_fingerprint,
            'max_predictions': manifest.max_predictions,
            'masking': manifest.masking,
            'max_packs': manifest.max_packs,
            'options': {k: v for k, v in manifest.options.items() if k not in FREE_OPTIONS},
        }
        deciding |= {f'--data: phase {number}: {name}': value for name, value in facts.items()}
    return deciding | _describe_program() | named


def _describe_program() -> Facts:
    """Our source by file, the versions beneath it, the variables that change what jax compiles."""
    facts: Facts = {}

    # By file, so that the message names the file that one host has not updated.
    # Folders that a checkout links are named, for `rglob` follows no links.
    folders = [log.ROOT, *(path for path in log.ROOT.iterdir() if path.is_symlink())]
    for path in sorted({path for folder in folders for path in folder.rglob('*.py')}):
        name = f'source of {path.relative_to(log.ROOT).as_posix()}'
        facts[name] = f'{zlib.crc32(path.read_bytes()):08x}'
    for library in _LIBRARIES:
        try:
            facts[f'version of {library}'] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            facts[f'version of {library}'] = None

    # jax reads its configuration from JAX_*; a few of them are a process's own affair.
    for name, value in os.environ.items():
        if name.startswith('JAX_') and not name.startswith(_FREE_VARIABLES):
            facts[name] = value

    # Flags that change numbers or programs; dumps go to a folder of the host and change nothing.
    for name in ('XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'NVIDIA_TF32_OVERRIDE'):
        words = [w for w in os.environ.get(name, '').split() if not w.startswith('--xla_dump')]
        facts[name] = ' '.join(words)
    return facts


def describe_start(workdir: Workdir, start: Source | None) -> Facts:
    """Return {name: JSON value}: from which checkpoint or weights a process is about to go on."""
    from bert_jax.train.checkpoint import list_saved_steps, take_fingerprints

    facts: Facts = {'checkpoints in --workdir': list_saved_steps(workdir)}

    # A checksum of fingerprints in place of gigabytes of weights.
    if start:
        text = repr(sorted(take_fingerprints(start.params).items()))
        facts['weights of --init_from'] = f'{zlib.crc32(text.encode()):08x}'
    return facts


def describe_claim(workdir: Workdir, patience_s: float = 30.0) -> Facts:
    """Return {name: JSON value}: what a process finds in the workdir that the first has claimed.

    A file system between hosts may take a while to show it.
    """
    # Asked twice a second: network file systems keep what they saw for some seconds.
    path, deadline = workdir.config_file, time.monotonic() + patience_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    checksum = f'{zlib.crc32(path.read_bytes()):08x}' if path.exists() else None
    return {'config.json in --workdir': checksum}
