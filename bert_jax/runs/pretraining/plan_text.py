"""A plan in words: what bert-plan prints of the data that it also writes as JSON.

Owns the wording and the units; it computes nothing but shares. Sizes are of one chip, but for those
of checkpoints, which are of the whole state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bert_jax.costs import overheads, search
from bert_jax.costs.memory import size

# A plan as JSON, or a part of it.
Plan = dict[str, Any]
_BUFFERS = 5  # of the largest are shown


def lines(plan: Plan) -> Iterator[str]:
    """Yield the lines of the whole plan."""
    # First what is planned and on what: every number below is relative to it.
    chip, mesh = plan['chip'], ' x '.join(f'{axis} {n}' for axis, n in plan['mesh'].items())
    yield f'{plan["config"]} on {plan["topology"]}: {plan["chips"]} chips, mesh {mesh}'
    called = f', gcloud {plan["gcloud"]}' if plan['gcloud'] else ''
    yield f'{plan["hosts"]} host(s) with {plan["chips"] // plan["hosts"]} chip(s) each{called}'
    yield f'{plan["parameters"]:,} parameters'
    yield (
        f'chip {chip["name"]}: {_si(chip["peak_flops"])}FLOP/s bf16, {size(chip["hbm_usable"])}'
        f' usable at {_si(chip["hbm_bandwidth"])}B/s, links {_si(chip["ici"])}B/s out;'
        f' {chip["source"]}'
    )
    yield from (f'WARNING {warning}' for warning in plan['warnings'])

    # Then each phase, whose step has its own length and batch.
    for i, phase in enumerate(plan['phases']):
        yield from _phase(i, phase, plan)

    # Then what the run takes besides its steps, and last their sum. A phase that does not fit has
    # no time, so there is no sum either.
    yield ''
    yield from _between_steps(plan)
    yield from _whole_run(plan)
    if missing := plan.get('not_compiled'):
        yield f'\nNOT COMPILED ({missing}). What stands above follows from shapes alone:'
        yield (
            'activations are estimated, workspace and collectives are not in it, and whether the'
            ' run fits is not known.'
        )


def _between_steps(plan: Plan) -> Iterator[str]:
    """Yield what is on the disk, what is evaluated, how long the plan itself took."""
    saved = plan['checkpoints']
    yield (
        f'checkpoints    {size(saved["bytes"])} each; {size(saved["kept"])} of disk for the newest'
        f' (runtime.keep_checkpoints), the best and one being written; {saved["count"]:,} saves'
    )
    between = '' if saved['between_s'] is None else f', one every {_seconds(saved["between_s"])}'
    yield (
        f'               a save is written in {_seconds(saved["save_s"])}, at'
        f' {_si(saved["write_rate"])}B/s a host (--write_rate, a guess), while training goes'
        f' on{between}'
    )
    if saved['advised']:
        waits = ', and training waits for them' if saved['save_s'] > saved['between_s'] else ''
        yield (
            f'               WARNING that is too often{waits}:'
            f' --set runtime.checkpoint_every={saved["advised"]}'
        )
    if evaluations := plan.get('evaluations'):
        batches = f'at most {evaluations["batches"]:,} batches' if evaluations['batches'] else 'all'
        time = (
            f': {_hours(evaluations["hours"])}, at a third of a step for a batch (a guess)'
            if evaluations['batches']
            else ''
        )
        yield (
            f'evaluations    {evaluations["count"]:,} of {batches}, where records are held'
            f' out{time}'
        )
        if evaluations['share'] > overheads.MUCH:
            yield (
                f'               WARNING that is {evaluations["share"]:.0%} of the time of the'
                ' steps: raise runtime.eval_every, or lower runtime.eval_batches'
            )
    if 'planned_in_s' in plan:
        yield f'this plan      took {_seconds(plan["planned_in_s"])}'


def _whole_run(plan: Plan) -> Iterator[str]:
    """Yield what the run reads, and its time and price by each guess that is within reach."""
    if 'schedule' not in plan:
        return
    bytes_read = sum(phase['bytes_read_per_step'] * phase['steps'] for phase in plan['phases'])
    yield f'whole run reads at most {_si(bytes_read)}B of records'
    titles = {
        'floor': 'at the floors',
        'mfu': f'at {plan["mfu"]:.0%} MFU (assumed)',
        'libtpu': "by libtpu's estimate (no chip has confirmed it)",
    }
    beyond = [i for i, phase in enumerate(plan['phases']) if _highest_mfu(phase, plan)]
    for name, total in plan['schedule'].items():
        if name == 'mfu' and beyond:
            phases = ' and '.join(f'phase {i}' for i in beyond)
            yield f'whole run {titles[name]}: out of reach in {phases}, see there'
            continue
        price = f', price {total["price"]:,.0f}' if 'price' in total else ''
        yield (
            f'whole run {titles[name]}: {_hours(total["hours"])}, {total["chip_hours"]:,.0f}'
            f' chip-hours{price}'
        )


def _highest_mfu(phase: Plan, plan: Plan) -> float | None:
    """Return the most MFU that the floors leave; None where --mfu is not beyond that."""
    highest = phase['floor_s']['compute'] / max(phase['floor_s'].values())
    return highest if highest < 0.999 * plan['mfu'] else None


def _phase(i: int, phase: Plan, plan: Plan) -> Iterator[str]:
    # The work: counted from the model's shape, and then what the compiler counts.
    yield ''
    yield (
        f'phase {i}: seq_len {phase["seq_len"]}, batch {phase["batch_size"]:,}'
        f' ({phase["batch_per_chip"]:g} a chip), {phase["max_predictions"]} masked positions,'
        f' {phase["steps"]:,} steps'
    )
    yield (
        f'  FLOPs          {_si(phase["flops_per_token"])}FLOP a token,'
        f' {_si(phase["flops_per_step"])}FLOP a step (the model)'
    )
    if 'compiler' in phase:
        yield from _compiled(phase, plan['chips'])
    yield from _memory(phase, plan['chip'])
    yield from _floors(phase, plan['chip'])

    # Last the time, and what a search has found in place of these settings.
    if 'schedule' in plan:
        yield from _times(i, phase, plan)
    if 'search' in phase:
        yield (
            '  search, each compiled, best first: by the highest floor or the estimate of libtpu,'
            ' whichever is longer'
        )
        yield (
            '  (rows a chip at a time, remat, mesh data x fsdp x model; a step takes at least the'
            ' first time if all floors overlap, the second if none does):'
        )
        yield from (f'    {search.describe(row)}' for row in phase['search'])


def _compiled(phase: Plan, chips: int) -> Iterator[str]:
    compiler = phase['compiler']
    once = '; it counts what loops once' if compiler['counts_loops_once'] else ''
    total = compiler['flops_per_chip'] * chips
    yield (
        f'  compiler says  {_si(total)}FLOP a step, {_si(compiler["bytes_per_chip"])}B moved a'
        f' chip{once}'
    )
    if len(phase['layers_compiled']) > 1:
        shallow = ' and '.join(map(str, phase['layers_compiled']))
        yield (
            f'                 of {shallow} layers, from which the rest follows to about a'
            ' tenth (--all_layers compiles them all)'
        )
    if libtpu := phase['libtpu']:
        unpriced = ', '.join(f'{n:,} x {kind}' for kind, n in libtpu['unpriced'].items())
        yield (
            f'  libtpu says    {1e3 * libtpu["step_s"]:.3g} ms a step, an estimate that no chip'
            ' has confirmed'
        )
        yield f'                 without any time for {unpriced or "nothing"}'


def _memory(phase: Plan, chip: Plan) -> Iterator[str]:
    """Yield the memory, in one of three forms: compiled, compiled and refused, or estimated."""
    memory = phase['memory']
    state = (
        f'parameters {size(memory["parameters"])}, optimizer {size(memory["optimizer"])}, batch'
        f' {size(memory["batch"])}'
    )

    # Compiled: what is left of the total has no name (program, padding of buffers).
    if 'total' in memory:
        named = sum(memory[k] for k in ('parameters', 'optimizer', 'batch', 'temporary'))
        yield (
            f'  memory         {state}, activations and workspace {size(memory["temporary"])},'
            f' program and padding {size(memory["total"] - named)}: {size(memory["total"])}, left'
            f' {size(memory["left"])}'
        )

        # What goes over the links in a step, by the mesh axes that it goes over.
        for row in phase['collectives']:
            axes = '+'.join(row['axes']) or '?'
            yield (
                f'  {row["kind"]:<18} over {axes} ({row["chips"]} chips): {row["count"]} a step,'
                f' {_si(row["bytes"])}B'
            )
        yield from (f'  WARNING        {warning}' for warning in phase['warnings'])
        return

    yield f'  memory         {state}'
    # Refused: the compiler has said both sizes.
    if 'needs' in phase:
        yield from _refused(phase)
        return
    yield f'  estimated      {_parts(phase["estimate"])}'
    if (change := phase['likely_change']) != {}:
        likely = 'no change of these settings is enough'
        if change is not None:
            likely = f'by estimate this fits: {search.settings(change)}'
        yield f'  WARNING        that is more than {size(chip["hbm_usable"])}; {likely}'


def _floors(phase: Plan, chip: Plan) -> Iterator[str]:
    """Yield the floors: no step is faster than its work at the chip's peak in each of the three."""
    rates = {
        'compute': ('peak_flops', 'FLOP'),
        'memory': ('hbm_bandwidth', 'B'),
        'interconnect': ('ici', 'B'),
    }
    title = 'step at least'  # of the first line alone
    for name, seconds in phase['floor_s'].items():
        figure, unit = rates[name]
        yield (
            f'  {title:<14} {name} {1e3 * seconds:.3g} ms: {_si(seconds * chip[figure])}{unit} at'
            f' {_si(chip[figure])}{unit}/s'
        )
        title = ''


def _refused(phase: Plan) -> Iterator[str]:
    """Yield what takes the memory of a phase that does not fit, and what was tried."""
    # The two sizes first, then where the memory goes, then what would help.
    yield f'  DOES NOT FIT   it needs {size(phase["needs"])}, and there is {size(phase["has"])}'
    yield f'  estimated      {_parts(phase["estimate"])}'
    if phase['buffers']:
        yield '  the largest buffers, as the compiler lists them:'
    for buffer in phase['buffers'][:_BUFFERS]:
        yield (
            f'    {buffer["count"]} x {buffer["shape"]}, {size(buffer["bytes"])} in all:'
            f' {buffer["origin"] or "not named"}'
        )

    # --tries=0, or there is nothing left to change.
    if not phase['changes']:
        yield '  no change was tried'
        return
    yield (
        '  changes of the settings that keep the result, each compiled (rows a chip at a time,'
        ' remat, mesh data x fsdp x model):'
    )
    yield from (f'    {search.describe(row)}' for row in phase['changes'])
    if not any(row['fits'] for row in phase['changes']):
        yield '    none of them fits: give more --tries, more chips or a smaller batch_size'


def _parts(estimate: dict[str, float]) -> str:
    """Return the estimate's parts, largest first, and their sum."""
    parts = sorted(estimate.items(), key=lambda part: -part[1])
    listed = ', '.join(f'{name} {size(count)}' for name, count in parts)
    return f'{listed}: about {size(sum(estimate.values()))}'


def _times(i: int, phase: Plan, plan: Plan) -> Iterator[str]:
    # The same step by several guesses.
    titles = {
        'floor': 'at the floor',
        'mfu': f'at {plan["mfu"]:.0%} MFU',
        'libtpu': 'by libtpu',
    }
    highest = _highest_mfu(phase, plan)
    for name, total in plan['schedule'].items():
        row = total['phases'][i]
        # What is beyond what the plan itself finds has no time.
        if name == 'mfu' and highest is not None:
            yield f'  {titles[name]:<14} out of reach: {highest:.0%} at most'
            continue
        reached = phase['floor_s']['compute'] / row['step_s']
        note = f' ({reached:.0%} MFU)' if name == 'libtpu' else ''
        yield (
            f'  {titles[name]:<14} {1e3 * row["step_s"]:.3g} ms a step, {row["tokens_per_s"]:,.0f}'
            f' tokens/s, {_hours(row["hours"])}{note}'
        )
    reads = phase['host_reads']
    yield (
        f'  each host      reads at most {_si(reads["bytes_per_s"])}B/s of records,'
        f' {reads["rows_per_s"]:,.0f} rows/s, where a step takes {1e3 * reads["step_s"]:.3g} ms'
    )


def _si(value: float) -> str:
    # Thousands up to peta; what is larger stays in peta.
    for unit in ('', 'k', 'M', 'G', 'T'):
        if abs(value) < 1000:
            return f'{value:.4g} {unit}'
        value /= 1000
    return f'{value:.4g} P'


def _seconds(seconds: float) -> str:
    return f'{seconds:.3g} s' if seconds < 120 else _hours(seconds / 3600)


def _hours(hours: float) -> str:
    return f'{hours:,.1f} hours' if hours >= 1 else f'{60 * hours:.1f} minutes'
