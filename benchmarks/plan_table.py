"""What BERT-base and -large take of a chip: the table of docs/plan.md, compiled by libtpu.

  python -m benchmarks.plan_table --output=plan_table.jsonl [--configs=bert_base]
  [--topologies=v5e:2x4] [--set a.b=c ...]

For each preset, phase and topology the step is compiled with the paper's batch of 256 and with
LAMB's (64k at S=128, 32k at S=512; You et al. 2020), and a line is appended to --output. A row that
is there is not compiled again, so that the same command goes on where it was interrupted; rows of
other settings stand beside each other. The table of all rows is printed as Markdown.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from bert_jax.costs.memory import GIB
from configs.errors import UserError
from launch import app

_OUTPUT = flags.DEFINE_string(
    'output', 'plan_table.jsonl', 'a line of JSON for each row; what it holds is not compiled again'
)
_CONFIGS = flags.DEFINE_list('configs', ['bert_base', 'bert_large'], 'presets')
_TOPOLOGIES = flags.DEFINE_list(
    'topologies', ['v5e:2x4', 'v5e:16x16', 'v5p:4x4x4', 'v6e:4x4'], 'topologies'
)
_BATCHES = flags.DEFINE_multi_enum('batches', ['paper', 'lamb'], ['paper', 'lamb'], 'batch sizes')
_SET = flags.DEFINE_multi_string(
    'set', [], 'changes one setting of all rows, as in --set runtime.scan_layers=true'
)

LAMB = {128: 65_536, 512: 32_768}  # sequences a step at each length


def main(argv: Sequence[str]) -> None:
    """Compiles what is missing and prints the table."""
    del argv
    # libtpu compiles for chips that are not here; jax itself must not look for one.
    os.environ['JAX_PLATFORMS'] = 'cpu'
    from bert_jax.costs import plan
    from bert_jax.costs.chips import topology

    # Obstacles first: an hour of compiling should not end at the last topology.
    tasks = list(cases())
    for case in tasks:
        if obstacle := plan.obstacle(topology(case['topology'])):
            raise UserError(obstacle)
    file = pathlib.Path(_OUTPUT.value)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    # A row is known by its case; each is on the disk before the next begins.
    for i, case in enumerate(tasks):
        if any(case.items() <= row.items() for row in rows):
            continue
        print(f'{i + 1} of {len(tasks)}: {" ".join(map(str, case.values()))}', flush=True)
        rows.append(case | measure(case))
        with file.open('a') as lines:
            lines.write(json.dumps(rows[-1]) + '\n')
    print('\n'.join(table(rows)))


def cases() -> Iterator[dict[str, Any]]:
    """What a row is of: preset, changes, topology, phase, length, batch; small programs first."""
    from configs.load import load

    for batch in _BATCHES.value:
        for name in _CONFIGS.value:
            for i, phase in enumerate(load(name).phases):
                size = phase.batch_size if batch == 'paper' else LAMB[phase.seq_len]
                for name_of_topology in _TOPOLOGIES.value:
                    yield {
                        'config': name,
                        'set': _SET.value,
                        'topology': name_of_topology,
                        'phase': i,
                        'seq_len': phase.seq_len,
                        'batch': size,
                    }


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of one row; {'rows': None} where nothing fits.

    Accumulation is the least by estimate, and doubled until the compiler accepts the step.
    """
    from bert_jax.costs import plan, search
    from bert_jax.costs.chips import topology
    from configs.load import load
    from configs.overrides import apply

    chips, i = topology(case['topology']), case['phase']
    config = apply(load(case['config']), case['set'])
    # Both phases get LAMB's batch, because both must divide by the accumulation.
    # Both phases, for the check of the configuration looks at both.
    if case['batch'] != config.phases[i].batch_size:
        sizes = enumerate(LAMB[phase.seq_len] for phase in config.phases)
        config = apply(config, [f'phases.{k}.batch_size={size}' for k, size in sizes])
    phase, predictions = config.phases[i], plan.predictions_of(config, [])[i]
    task = search.Task(config, phase, predictions, chips)

    # From the least accumulation up, the first step that the compiler accepts.
    by_accumulation = lambda option: option[0].get('accumulation', 1)
    options = sorted(search.grid(task, ('accumulation',)), key=by_accumulation)
    usable = chips.chip.hbm_usable
    for changes in (changes for changes, estimated in options if estimated.memory() < usable):
        row = search.tried(task, changes)
        if row and row['fits']:
            return {
                'rows': row['rows'],
                **{k: row[k] for k in ('changes', 'needs', 'left', 'floor_s', 'expected_s')},
            }
    return {'rows': None}


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a Markdown table of the rows."""
    yield (
        '| preset | S | batch | topology | changed | rows at a time | needs, GiB | left, GiB | step'
        ' at least, ms | expected, ms |'
    )
    yield '|---|---|---|---|---|---|---|---|---|---|'
    for row in sorted(rows, key=lambda r: (r['config'], r['seq_len'], r['batch'], r['topology'])):
        head = f'| {row["config"]} | {row["seq_len"]} | {row["batch"]:,} | {row["topology"]} |'
        if row['rows'] is None:
            yield f'{head} | | does not fit | | | |'
            continue
        changed = ' '.join([*row['set'], *(f'runtime.{k}={v}' for k, v in row['changes'].items())])
        # The highest floor is the one that bounds the step, and is named beside it.
        longest = max(row['floor_s'], key=row['floor_s'].get)
        low, high = (f'{1e3 * seconds:.3g}' for seconds in row['expected_s'])
        yield (
            f'{head} {changed} | {row["rows"]} | {row["needs"] / GIB:.2f} | {row["left"] / GIB:.2f}'
            f' | {1e3 * row["floor_s"][longest]:.3g} ({longest}) | {low} to {high} |'
        )


if __name__ == '__main__':
    app.run(main)
