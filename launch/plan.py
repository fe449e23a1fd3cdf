"""Before paying: what a pre-training run needs and costs on TPUs or GPUs, told without having them.

  python -m launch.plan --config=bert_large --topology=v5e:16x16 [--set a.b=c ...] [--search=N] \\
      [--json=FILE]

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from absl import logging

from configs.errors import UserError
from configs.options import check_intervals, option, required
from configs.schema import PretrainConfig
from launch import app, flags

if TYPE_CHECKING:
    from bert_jax.costs.chips import Topology

app.define_config_flags()


@dataclass(frozen=True)
class Options:
    """What is planned beside the run's configuration, and how long it may take."""

    topology: str = required(
        'chips and wiring, as in v5e:16x16; a wrong name lists those that exist'
    )
    mfu: float = option(
        0.4,
        "share of the chips' peak that the run is assumed to reach, for the second estimate of"
        ' time',
        within='(0, 1]',
    )
    price_per_chip_hour: float | None = option(
        None, 'what a chip costs for an hour, in any currency', within='[0, inf)'
    )
    max_predictions: tuple[int, ...] = option(
        (), 'masked positions a row, once a phase; by default 15 %, rounded up'
    )
    compile: bool = option(
        True,
        'compile the step, which takes minutes for a large model; without, only what shapes tell',
    )
    tries: int = option(
        4,
        'compilations spent on changes that make a phase fit which does not; 0: none',
        bounds=(0, None),
    )
    search: int = option(
        0,
        'compilations spent, for each phase, on finding the fastest accumulation, remat and mesh;'
        ' 0: none',
        bounds=(0, None),
    )
    json: str | None = option(None, 'also write the plan to this file')

    def __post_init__(self) -> None:
        check_intervals(self)


flags.define(Options)


def main(argv: Sequence[str]) -> int:
    """Prints the plan, and writes it where --json says.

    UserError, after that, where a phase does not fit.
    """
    del argv
    options = flags.read(Options)
    if options.json is not None:  # before the minutes of compiling
        app.check_output_file('json', options.json)

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
    from launch.pretraining import plan_text

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
    report, refusals = make_plan(config, where, options, compiling=not missing)
    print('\n'.join(plan_text.lines(report)))
    if missing:
        print(f'\nNOT COMPILED ({missing}). What stands above follows from shapes alone:')
        print(
            'activations are estimated, workspace and collectives are not in it, and whether the'
            ' run fits is not known.'
        )
    if options.json:
        from etils import epath

        from configs.files.atomic import atomic_write

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


def make_plan(
    config: PretrainConfig, where: Topology, options: Options, compiling: bool
) -> tuple[dict[str, Any], list[UserError]]:
    """The whole plan as JSON data, and the refusals of the phases that do not fit.

    Where there are any it has no schedule.
    """
    from bert_jax.costs import flops, plan, search
    from bert_jax.model import splits
    from input_pipeline.records.fields import RecordSpec, most_bytes

    # Phase by phase: each has its own length, batch and program.
    chip, phases = where.chip, []
    refusals: list[UserError] = []
    for phase, count in zip(
        config.phases, plan.predictions_of(config, options.max_predictions), strict=True
    ):
        # First what shapes tell; it is there whether or not anything is compiled.
        task = search.Task(config, phase, count, where)
        planned = plan.analytic(*task)
        planned['estimate'] = search.estimate(task).parts
        if compiling:
            # The compiler's word where there is one. A phase that does not fit is no error yet: the
            # others are planned as well.
            try:
                planned |= plan.compiled(*task)
            except plan.DoesNotFit as refused:
                refusals.append(refused)
                planned |= {
                    'needs': refused.needs,
                    'has': refused.has,
                    'buffers': [vars(one) for one in refused.buffers],
                }
                planned['changes'] = search.smallest_changes(task, refused, options.tries)
        else:
            planned['likely_change'] = search.likely_change(task)

        # An upper bound: records are of variable length, and these are the longest there can be.
        planned['bytes_read_per_step'] = phase.batch_size * most_bytes(
            RecordSpec(phase.seq_len, count, 'static'), config.model.vocab_size
        )
        if options.search:
            planned['search'] = search.search(task, options.search)
        phases.append(planned)

    # The whole, in the order in which it is read.
    whole_plan = {
        'config': config.name,
        'topology': where.name,
        'chips': where.chips,
        'mesh': dict(plan.abstract_mesh(config, where).shape),
        'warnings': splits.left_whole(config.model, config.runtime),
        'compiled': compiling,
        'chip': {
            k: getattr(chip, k)
            for k in ('name', 'peak_flops', 'hbm', 'hbm_usable', 'hbm_bandwidth', 'ici', 'source')
        },
        'parameters': flops.parameter_count(config.model),
        'phases': phases,
        'mfu': options.mfu,
        'price_per_chip_hour': options.price_per_chip_hour,
    }

    # Without a step's time for every phase there is no time for the run.
    if not refusals:
        whole_plan['schedule'] = plan.schedule(
            phases, where.chips, options.mfu, options.price_per_chip_hour
        )
    return whole_plan, refusals


if __name__ == '__main__':
    app.run(main)
