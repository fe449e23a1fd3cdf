"""The whole plan of a pre-training run as data: what bert-plan prints and writes as JSON.

Owns what is asked (Options) and the order in which bert_jax/costs answers it, phase by phase. It
prints nothing and must not know the wording, which is plan_text.py's. What is heavy is imported
inside functions, for --help reads the options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bert_jax.cli import app
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.options import check_intervals, option, required

if TYPE_CHECKING:
    from bert_jax.configs.schema import PretrainConfig
    from bert_jax.costs.chips import Topology


@dataclass(frozen=True)
class Options:
    """What is planned beside the run's configuration, and how long it may take."""

    topology: str = required(
        'chips and wiring, as in v5e:16x16 or, as gcloud calls it, v5litepod-256; a wrong name'
        ' lists those that exist'
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
        'changes compiled to make a phase fit which does not; 0: none',
        bounds=(0, None),
    )
    search: int = option(
        0,
        'settings compiled, for each phase, to find the fastest accumulation, remat and mesh;'
        ' 0: none',
        bounds=(0, None),
    )
    all_layers: bool = option(
        False,
        'compile all layers of an unrolled model for a TPU, a quarter of an hour for BERT-large;'
        ' by default two and four are compiled, from which the rest follows',
    )
    write_rate: float = option(
        200e6,
        'bytes/s that a host writes a checkpoint with; the default is a guess',
        within='(0, inf)',
    )
    json: str | None = option(None, 'also write the plan to this file')

    def __post_init__(self) -> None:
        check_intervals(self)


def check_json(path: str) -> None:
    """UserError where --json cannot be written, in an object store as on a disk."""
    app.check_output_file('json', path)
    if '://' in path:
        from etils import epath

        with reading(f'--json={path}', 'name a bucket that is there, or a local file'):
            epath.Path(path).parent.exists()


def make_plan(
    config: PretrainConfig, where: Topology, options: Options, compiling: bool
) -> tuple[dict[str, Any], list[UserError]]:
    """The whole plan as JSON data, and the refusals of the phases that do not fit.

    Where there are any it has no schedule.
    """
    from bert_jax.costs import flops, overheads, plan, search
    from bert_jax.input_pipeline.records.fields import RecordSpec, most_bytes
    from bert_jax.model import partition
    from bert_jax.train.program import departures

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
                planned |= plan.compiled(*task, all_layers=options.all_layers)
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
    abstract, hosts = plan.abstract_mesh(config, where), where.chips // where.chips_per_host
    mesh = dict(abstract.shape)
    whole_plan: dict[str, Any] = {
        'config': config.name,
        'topology': where.name,
        'gcloud': where.gcloud,
        'chips': where.chips,
        'hosts': hosts,
        'mesh': mesh,
        'warnings': [
            *partition.left_whole(config.model, config.runtime),
            *departures(config, abstract),
        ],
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
    step_s = None
    if not refusals:
        schedule = plan.schedule(phases, where.chips, options.mfu, options.price_per_chip_hour)
        whole_plan['schedule'] = schedule
        # Beside the steps: by libtpu's estimate of them where there is one, or else the floors.
        likely = schedule.get('libtpu', schedule['floor'])['phases']
        for planned, row in zip(phases, likely, strict=True):
            planned['host_reads'] = overheads.reading(planned, where, mesh, row['step_s'])
        step_s = [row['step_s'] for row in likely]
        whole_plan['evaluations'] = overheads.evaluations(config, phases, step_s)
    whole_plan['checkpoints'] = overheads.checkpoints(
        config, phases, hosts, options.write_rate, step_s
    )
    return whole_plan, refusals
