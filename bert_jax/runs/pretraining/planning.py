"""The whole plan of a pre-training run: what bert-plan prints, and writes as JSON.

Owns what is asked, the order in which bert_jax/costs answers it, phase by phase, and the words and
units of what is printed. What is heavy is imported inside functions, for --help reads the options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
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

# A plan as JSON, or a part of it.
Plan = dict[str, Any]
_BUFFERS = 5  # of the largest are shown


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is planned besides the configuration, and how long it may take.

    Attributes:
      topology: chips and wiring, as in v5e:16x16 or, as gcloud calls it, v5litepod-256; a wrong
        name lists those that exist.
      mfu: share of the chips' peak that the run is assumed to reach: a guess.
      price_per_chip_hour: what a chip costs for an hour, in any currency.
      tokens: plan the steps that bert-pretrain --tokens would choose, for full rows.
      hours: plan the steps that fit into so many hours at --mfu.
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
    tokens: float | None = option(None, bounds=(0, None))
    hours: float | None = option(None, bounds=(0, None))
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


def fit_budget(config: PretrainConfig, topology: Topology, options: PlanOptions) -> PretrainConfig:
    """Return the settings with the steps that a budget of tokens or hours buys, if there is one."""
    from bert_jax.runs.pretraining import budget

    label = budget.make_label(options.tokens, options.hours)
    if not label:
        return config
    config = dataclasses.replace(config, budget=label)
    if options.tokens is not None:
        return budget.fit_tokens(config, options.tokens, [])
    assert options.hours is not None, 'one of both'
    report, _ = make_plan(config, topology, dataclasses.replace(options, compile=False))
    seconds = []
    for phase, row in zip(config.phases, report['schedule']['mfu']['phases'], strict=True):
        sizes = phase.batch_size // (phase.batch_warmup_from or phase.batch_size)
        seconds.append([row['step_s'] * (i + 1) / sizes for i in range(sizes)])
    return budget.fit_hours(config, options.hours, seconds)


def make_plan(
    config: PretrainConfig, topology: Topology, options: PlanOptions
) -> tuple[dict[str, Any], list[UserError]]:
    """Plan the whole run; return JSON data, and the refusals of the phases that do not fit.

    Where there are any it has no schedule.
    """
    from bert_jax.costs import compiled, estimate
    from bert_jax.runs.pretraining import budget

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
    report = _list_facts(config, topology) | {
        'compiled': not missing,
        'phases': phases,
        'tokens': budget.count_tokens(config),
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


def _list_facts(config: PretrainConfig, topology: Topology) -> dict[str, Any]:
    """Return what is planned on what, in the order in which it is read."""
    from bert_jax.costs import estimate
    from bert_jax.model import partition
    from bert_jax.train.pretraining_program import PretrainingSetup

    abstract = estimate.make_abstract_mesh(config, topology)
    setup = PretrainingSetup.from_config(config)
    departures = setup.list_departures(abstract)
    warnings = [*partition.list_unsplit(config.model, config.runtime), *departures]
    chip = 'name peak_flops hbm hbm_usable hbm_bandwidth ici source'.split()
    return {
        'config': config.name,
        'topology': topology.name,
        'gcloud': topology.gcloud,
        'chips': topology.chips,
        'hosts': topology.chips // topology.chips_per_host,
        'mesh': dict(abstract.shape),
        'warnings': warnings,
        'chip': {name: getattr(topology.chip, name) for name in chip},
        'parameters': setup.count_parameters(),
    }


def format_plan(plan: Plan) -> Iterator[str]:
    """Yield the lines that bert-plan prints of a plan.

    Sizes are of one chip, but for those of checkpoints, which are of the whole state.
    """
    from bert_jax.costs.step_costs import format_bytes

    # First what is planned and on what: every number below is relative to it.
    chip, mesh = plan['chip'], ' x '.join(f'{axis} {n}' for axis, n in plan['mesh'].items())
    yield f'{plan["config"]} on {plan["topology"]}: {plan["chips"]} chips, mesh {mesh}'
    called = f', gcloud {plan["gcloud"]}' if plan['gcloud'] else ''
    yield f'{plan["hosts"]} host(s) with {plan["chips"] // plan["hosts"]} chip(s) each{called}'
    yield f'{plan["parameters"]:,} parameters'
    yield (
        f'chip {chip["name"]}: {_format_si(chip["peak_flops"])}FLOP/s bf16,'
        f' {format_bytes(chip["hbm_usable"])}'
        f' usable at {_format_si(chip["hbm_bandwidth"])}B/s, links'
        f' {_format_si(chip["ici"])}B/s out; {chip["source"]}'
    )
    yield from (f'WARNING {warning}' for warning in plan['warnings'])

    # Then each phase, whose step has its own length and batch.
    for i, phase in enumerate(plan['phases']):
        yield from _format_phase(i, phase, plan)

    # Then the run. A phase that does not fit has no time, so there is no sum either.
    saved = plan['checkpoints']
    yield ''
    yield (
        f'checkpoints    {format_bytes(saved["bytes"])} each; {format_bytes(saved["kept"])} of disk'
        ' for the newest (runtime.keep_checkpoints), the best and one being written'
    )
    yield f'tokens         {plan["tokens"]:.3g} in all, of full rows'
    beyond = [
        f'phase {i}' for i, phase in enumerate(plan['phases']) if _find_highest_mfu(phase, plan)
    ]
    for name, total in plan.get('schedule', {}).items():
        title = 'at the floors' if name == 'floor' else f'at {plan["mfu"]:.0%} MFU (assumed)'
        if name == 'mfu' and beyond:
            yield f'whole run {title}: out of reach in {" and ".join(beyond)}, see there'
            continue
        price = f', price {total["price"]:,.0f}' if 'price' in total else ''
        yield (
            f'whole run {title}: {_format_hours(total["hours"])}, {total["chip_hours"]:,.0f}'
            f' chip-hours{price}'
        )
    missing = plan.get('not_compiled')
    if missing:
        yield f'\nNOT COMPILED ({missing}). What stands above follows from shapes alone:'
        yield (
            'gradients, activations and logits are estimated, workspace is not in it, and whether'
            ' the run fits is not known.'
        )


def _find_highest_mfu(phase: Plan, plan: Plan) -> float | None:
    """Return the most MFU that the floors leave; None where --mfu is not beyond that."""
    highest = phase['floor_s']['compute'] / max(phase['floor_s'].values())
    return highest if highest < 0.999 * plan['mfu'] else None


def _format_phase(i: int, phase: Plan, plan: Plan) -> Iterator[str]:
    """Yield the work of a phase, the memory of a step, its floors and its time."""
    yield ''
    yield (
        f'phase {i}: seq_len {phase["seq_len"]}, batch {phase["batch_size"]:,}'
        f' ({phase["batch_per_chip"]:g} a chip), {phase["max_predictions"]} masked positions,'
        f' {phase["steps"]:,} steps'
    )
    yield (
        f'  FLOPs          {_format_si(phase["flops_per_token"])}FLOP a token,'
        f' {_format_si(phase["flops_per_step"])}FLOP a step (the model)'
    )
    yield from _format_phase_memory(phase, plan['chip'])

    # No step is faster than its work at the chip's peak in each of the three.
    title = 'step at least'  # of the first line alone
    for name, rate, unit in (
        ('compute', 'peak_flops', 'FLOP'),
        ('memory', 'hbm_bandwidth', 'B'),
        ('interconnect', 'ici', 'B'),
    ):
        seconds, figure = phase['floor_s'][name], plan['chip'][rate]
        yield (
            f'  {title:<14} {name} {1e3 * seconds:.3g} ms: {_format_si(seconds * figure)}{unit} at'
            f' {_format_si(figure)}{unit}/s'
        )
        title = ''

    highest = _find_highest_mfu(phase, plan)
    for name, total in plan.get('schedule', {}).items():
        title = 'at the floor' if name == 'floor' else f'at {plan["mfu"]:.0%} MFU'
        if name == 'mfu' and highest is not None:
            yield f'  {title:<14} out of reach: {highest:.0%} at most'
            continue
        row = total['phases'][i]
        yield (
            f'  {title:<14} {1e3 * row["step_s"]:.3g} ms a step, {row["tokens_per_s"]:,.0f}'
            f' tokens/s, {_format_hours(row["hours"])}'
        )


def _format_phase_memory(phase: Plan, chip: Plan) -> Iterator[str]:
    """Yield the memory, in one of three forms: compiled, compiled and refused, or estimated."""
    from bert_jax.costs import estimate
    from bert_jax.costs.step_costs import format_bytes

    memory = phase['memory']
    state = (
        f'  memory         parameters {format_bytes(memory["parameters"])}, optimizer'
        f' {format_bytes(memory["optimizer"])}, batch {format_bytes(memory["batch"])}'
    )
    if 'total' in memory:
        # What is left of the total has no name (program, padding of buffers).
        named = sum(memory[k] for k in ('parameters', 'optimizer', 'batch', 'temporary'))
        yield (
            f'{state}, activations and workspace {format_bytes(memory["temporary"])}, program'
            f' and padding {format_bytes(memory["total"] - named)}:'
            f' {format_bytes(memory["total"])}, left {format_bytes(memory["left"])}'
        )
        if len(phase['layers_compiled']) > 1:
            shallow = ' and '.join(map(str, phase['layers_compiled']))
            yield (
                f'                 compiled with {shallow} layers, from which the rest follows to'
                ' about a tenth (--all_layers compiles them all)'
            )
        yield from (f'  WARNING        {warning}' for warning in phase['warnings'])
        return

    yield state
    parts = sorted(phase['estimate'].items(), key=lambda part: -part[1])
    listed = ', '.join(f'{name} {format_bytes(count)}' for name, count in parts)
    total = format_bytes(sum(phase['estimate'].values()))
    if 'needs' in phase:  # the compiler has said both sizes
        needs, has = format_bytes(phase['needs']), format_bytes(phase['has'])
        yield f'  DOES NOT FIT   it needs {needs}, and there is {has}'
    yield f'  estimated      {listed}: about {total}'
    if phase.get('buffers'):
        yield '  the largest buffers, as the compiler lists them:'
        for buffer in phase['buffers'][:_BUFFERS]:
            yield (
                f'    {buffer["count"]} x {buffer["shape"]}, {format_bytes(buffer["bytes"])}'
                f' in all: {buffer["origin"] or "not named"}'
            )
    change = phase['likely_change']
    if change == {}:
        return
    likely = 'no change of these settings is enough: take more chips or a smaller batch_size'
    if change is not None:
        likely = f'by estimate this fits: {estimate.format_settings(change)}'
    if 'needs' not in phase:
        likely = f'that is more than {format_bytes(chip["hbm_usable"])}; {likely}'
    yield f'  WARNING        {likely}'


def _format_si(value: float) -> str:
    # Thousands up to peta; what is larger stays in peta.
    for unit in ('', 'k', 'M', 'G', 'T'):
        if abs(value) < 1000:
            return f'{value:.4g} {unit}'
        value /= 1000
    return f'{value:.4g} P'


def _format_hours(hours: float) -> str:
    return f'{hours:,.1f} hours' if hours >= 1 else f'{60 * hours:.1f} minutes'
