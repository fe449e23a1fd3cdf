"""Before paying: what a pre-training run needs and costs on TPUs or GPUs, told without having them.

  bert-plan --config=bert_large --topology=v5e:16x16 [--set a.b=c ...] [--search=N] \\
      [--all_layers] [--json=FILE]

With the extra [plan] (pip install '.[plan]') the real train step is compiled for that TPU topology:
memory and collectives are the compiler's. For GPUs (h100:8) it is compiled on a machine that has
them. Elsewhere only what follows from shapes is told. What does not fit is compiled with changes
that make it fit. docs/plan.md explains the lines.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import time
from collections.abc import Sequence

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import PretrainConfig
from bert_jax.runs.pretraining.planning import Options

app.define_config_flags()
flags.define(Options)


def main(argv: Sequence[str]) -> int:
    """Prints the plan, and writes it where --json says.

    UserError, after that, where a phase does not fit.
    """
    del argv
    from bert_jax.runs.pretraining import planning

    options = flags.read(Options)
    began = time.monotonic()
    if options.json is not None:  # before the minutes of compiling
        planning.check_json(options.json)

    # Settings and topology by name, which needs no jax.
    config = app.config_from_flags(PretrainConfig)
    from bert_jax.costs.chips import topology

    where = topology(options.topology)
    # Before jax is imported: on a TPU host the chips are left alone, and of a GPU only what is
    # needed is taken.
    gpu = where.chip.platform == 'gpu' and any(
        importlib.util.find_spec(f'jax_cuda{version}_plugin') for version in (12, 13)
    )
    os.environ['JAX_PLATFORMS'] = 'cuda,cpu' if gpu and glob.glob('/dev/nvidia[0-9]*') else 'cpu'
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')

    from bert_jax.costs import plan
    from bert_jax.runs.pretraining import plan_text

    # Whether anything can be compiled here, and if not, why: said again below the plan.
    missing = '--nocompile was given' if not options.compile else plan.obstacle(where)
    if options.search and missing:
        raise UserError(f'--search compiles, and that cannot be done here: {missing}')
    if not missing:
        logging.info(
            'compiling %d train step(s) for %s: seconds if small, minutes if large',
            len(config.phases),
            where.name,
        )

    # The plan is printed also where a phase does not fit: it says what would help.
    report, refusals = planning.make_plan(config, where, options, compiling=not missing)
    report['planned_in_s'] = time.monotonic() - began
    print('\n'.join(plan_text.lines(report)))
    if missing:
        print(f'\nNOT COMPILED ({missing}). What stands above follows from shapes alone:')
        print(
            'activations are estimated, workspace and collectives are not in it, and whether the'
            ' run fits is not known.'
        )
    if options.json:
        from etils import epath

        from bert_jax.configs.files.atomic import atomic_write

        path = epath.Path(options.json)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(report, indent=2) + '\n')
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f'--json={path}: cannot be written ({reason})') from error

    # Last, so that the plan stands above the error and the exit code is still 2.
    if refusals:
        raise refusals[0]
    return 0


if __name__ == '__main__':
    app.run(main)
