"""The whole plan of a pre-training run as data: what bert-plan prints and writes as JSON.

Owns what is asked and the order in which bert_jax/costs answers it, phase by phase. It prints
nothing and must not know the wording, which is plan_text.py's. What is heavy is imported
inside functions, for --help reads the options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_jax.cli import app
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.options import check_intervals, option

if TYPE_CHECKING:
    from bert_jax.configs.schema import PretrainConfig
    from bert_jax.costs.chips import Topology
    from bert_jax.costs.estimate import Task


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is planned besides the configuration, and how long it may take.

    Attributes:
      topology: chips and wiring, as in v5e:16x16 or, as gcloud calls it, v5litepod-256; a wrong
        name lists those that exist.
      mfu: share of the chips' peak that the run is assumed to reach: a guess.
      price_per_chip_hour: what a chip costs for an hour, in any currency.
      max_predictions: masked positions a row, once a phase; by default 15 %, rounded up.
      compile: compile the step, which takes minutes for a large model; without, only what shapes
        tell.
      all_layers: compile all layers of an unrolled model for a TPU, a quarter of an hour for
        BERT-large; by default two and four are compiled, from which the rest follows.
      json: also write the plan to this file.
    """

    topology: str
    mfu: float = option(0.4, within='(0, 1]')
    price_per_chip_hour: float | None = option(None, within='[0, inf)')
    max_predictions: tuple[int, ...] = ()
    compile: bool = True
    all_layers: bool = False
    json: str | None = None

    def __post_init__(self) -> None:
        check_intervals(self)


def check_json(path: str) -> None:
    """Raise UserError where --json cannot be written, in an object store as on a disk."""
    app.check_output_file('json', path)
    if '://' in path:
        from etils import epath

        with reading(f'--json={path}', 'name a bucket that is there, or a local file'):
            epath.Path(path).parent.exists()


def make_plan(
    config: PretrainConfig, topology: Topology, options: PlanOptions
) -> tuple[dict[str, Any], list[UserError]]:
    """Plan the whole run; return JSON data, and the refusals of the phases that do not fit.

    Where there are any it has no schedule.
    """
    from bert_jax.costs import compiled, estimate

    # Whether anything can be compiled here, and if not, why: said again below the plan.
    missing = '--nocompile was given' if not options.compile else compiled.find_obstacle(topology)
    if not missing:
        logging.info(
            f'compiling {len(config.phases)} train step(s) for {topology.name}: seconds if small,'
            ' minutes if large'
        )

    # Phase by phase: each has its own length, batch and program.
    predictions = estimate.choose_predictions(config, options.max_predictions)
    refusals: list[UserError] = []
    phases = []
    for phase, count in zip(config.phases, predictions, strict=True):
        task = estimate.Task(config, phase, count, topology)
        phases.append(_plan_phase(task, options.all_layers, not missing, refusals))
    size = phases[0]['checkpoint_bytes']
    report = _facts(config, topology) | {
        'compiled': not missing,
        'phases': phases,
        'mfu': options.mfu,
        'price_per_chip_hour': options.price_per_chip_hour,
        # The newest ones are kept, the best, and one that is being written.
        'checkpoints': {'bytes': size, 'kept': size * (config.runtime.keep_checkpoints + 2)},
    }
    if missing:
        report['not_compiled'] = missing
    # Without a step's time for every phase there is no time for the run.
    if not refusals:
        report['schedule'] = estimate.make_schedule(
            phases, topology.chips, options.mfu, options.price_per_chip_hour
        )
    return report, refusals


def _plan_phase(
    task: Task, all_layers: bool, compiling: bool, refusals: list[UserError]
) -> dict[str, Any]:
    """Plan one phase; what does not fit is added to `refusals`."""
    from bert_jax.costs import compiled, estimate

    # First what shapes tell; it is there whether or not anything is compiled.
    chip = task.topology.chip
    planned = estimate.analyse(task) | {'estimate': estimate.estimate_memory(task)}
    if not compiling:
        planned['likely_change'] = estimate.find_likely_change(task, chip.hbm_usable)
        return planned

    # The compiler's word where there is one. A phase that does not fit is no error yet: the others
    # are planned as well.
    try:
        of_step = compiled.compile_for_memory(task, all_layers)
    except compiled.DoesNotFit as refused:
        refusals.append(refused)
        change = estimate.find_likely_change(task, refused.has, refused.needs)
        planned |= {'needs': refused.needs, 'has': refused.has, 'buffers': refused.buffers}
        return planned | {'likely_change': change}
    used = planned['memory'] | of_step['memory']
    # Temporaries are written and read, besides the arguments and the outputs.
    traffic = used['arguments'] + used['outputs'] + 2 * used['temporary']
    planned['floor_s']['memory'] = traffic / chip.hbm_bandwidth
    return planned | of_step | {'memory': used}


def _facts(config: PretrainConfig, topology: Topology) -> dict[str, Any]:
    """Return what is planned on what, in the order in which it is read."""
    from bert_jax.costs import estimate, flops
    from bert_jax.model import partition
    from bert_jax.train.pretraining_program import departures

    abstract = estimate.make_abstract_mesh(config, topology)
    warnings = partition.left_whole(config.model, config.runtime), departures(config, abstract)
    chip = 'name peak_flops hbm hbm_usable hbm_bandwidth ici source'.split()
    return {
        'config': config.name,
        'topology': topology.name,
        'gcloud': topology.gcloud,
        'chips': topology.chips,
        'hosts': topology.chips // topology.chips_per_host,
        'mesh': dict(abstract.shape),
        'warnings': [*warnings[0], *warnings[1]],
        'chip': {name: getattr(topology.chip, name) for name in chip},
        'parameters': flops.count_parameters(config.model),
    }
