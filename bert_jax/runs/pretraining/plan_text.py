"""A plan in words: what bert-plan prints of the data that it also writes as JSON.

Owns the wording and the units; it computes nothing but shares. Sizes are of one chip, but for those
of checkpoints, which are of the whole state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bert_jax.costs import estimate
from bert_jax.costs.step_costs import format_bytes

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
        f'chip {chip["name"]}: {_si(chip["peak_flops"])}FLOP/s bf16,'
        f' {format_bytes(chip["hbm_usable"])}'
        f' usable at {_si(chip["hbm_bandwidth"])}B/s, links {_si(chip["ici"])}B/s out;'
        f' {chip["source"]}'
    )
    yield from (f'WARNING {warning}' for warning in plan['warnings'])

    # Then each phase, whose step has its own length and batch.
    for i, phase in enumerate(plan['phases']):
        yield from _phase_lines(i, phase, plan)

    # Then the run. A phase that does not fit has no time, so there is no sum either.
    saved = plan['checkpoints']
    yield ''
    yield (
        f'checkpoints    {format_bytes(saved["bytes"])} each; {format_bytes(saved["kept"])} of disk'
        ' for the newest (runtime.keep_checkpoints), the best and one being written'
    )
    beyond = [f'phase {i}' for i, phase in enumerate(plan['phases']) if _highest_mfu(phase, plan)]
    for name, total in plan.get('schedule', {}).items():
        title = 'at the floors' if name == 'floor' else f'at {plan["mfu"]:.0%} MFU (assumed)'
        if name == 'mfu' and beyond:
            yield f'whole run {title}: out of reach in {" and ".join(beyond)}, see there'
            continue
        price = f', price {total["price"]:,.0f}' if 'price' in total else ''
        yield (
            f'whole run {title}: {_hours(total["hours"])}, {total["chip_hours"]:,.0f}'
            f' chip-hours{price}'
        )
    if missing := plan.get('not_compiled'):
        yield f'\nNOT COMPILED ({missing}). What stands above follows from shapes alone:'
        yield (
            'gradients, activations and logits are estimated, workspace is not in it, and whether'
            ' the run fits is not known.'
        )


def _highest_mfu(phase: Plan, plan: Plan) -> float | None:
    """Return the most MFU that the floors leave; None where --mfu is not beyond that."""
    highest = phase['floor_s']['compute'] / max(phase['floor_s'].values())
    return highest if highest < 0.999 * plan['mfu'] else None


def _phase_lines(i: int, phase: Plan, plan: Plan) -> Iterator[str]:
    """Yield the work of a phase, the memory of a step, its floors and its time."""
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
    yield from _memory_lines(phase, plan['chip'])

    # No step is faster than its work at the chip's peak in each of the three.
    title = 'step at least'  # of the first line alone
    for name, rate, unit in (
        ('compute', 'peak_flops', 'FLOP'),
        ('memory', 'hbm_bandwidth', 'B'),
        ('interconnect', 'ici', 'B'),
    ):
        seconds, figure = phase['floor_s'][name], plan['chip'][rate]
        yield (
            f'  {title:<14} {name} {1e3 * seconds:.3g} ms: {_si(seconds * figure)}{unit} at'
            f' {_si(figure)}{unit}/s'
        )
        title = ''

    highest = _highest_mfu(phase, plan)
    for name, total in plan.get('schedule', {}).items():
        title = 'at the floor' if name == 'floor' else f'at {plan["mfu"]:.0%} MFU'
        if name == 'mfu' and highest is not None:
            yield f'  {title:<14} out of reach: {highest:.0%} at most'
            continue
        row = total['phases'][i]
        yield (
            f'  {title:<14} {1e3 * row["step_s"]:.3g} ms a step, {row["tokens_per_s"]:,.0f}'
            f' tokens/s, {_hours(row["hours"])}'
        )


def _memory_lines(phase: Plan, chip: Plan) -> Iterator[str]:
    """Yield the memory, in one of three forms: compiled, compiled and refused, or estimated."""
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


def _si(value: float) -> str:
    # Thousands up to peta; what is larger stays in peta.
    for unit in ('', 'k', 'M', 'G', 'T'):
        if abs(value) < 1000:
            return f'{value:.4g} {unit}'
        value /= 1000
    return f'{value:.4g} P'


def _hours(hours: float) -> str:
    return f'{hours:,.1f} hours' if hours >= 1 else f'{60 * hours:.1f} minutes'
