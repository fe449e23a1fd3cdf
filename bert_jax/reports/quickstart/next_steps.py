"""What to do after the quickstart: commands on the folders that it has made, which run as printed.

Owns which commands are named. How one is written so that a shell takes it is stages.py's.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.configs.files.json_object import read_object
from bert_jax.reports.quickstart.stages import command
from bert_jax.reports.quickstart.text_split import HELD_OUT

# How much longer the next pre-training is.
LONGER = 4


class Step(NamedTuple):
    """A command, and what it does."""

    meaning: str
    command: str


def next_steps(folders: dict[str, Path], results: dict[str, Any]) -> list[Step]:
    """Four commands: fill a mask, find near sentences, answer a file, pre-train for longer.

    `folders`: those of the stages, by name; `results`: as results.json has them.
    """
    workdir = folders['pretrain'].parent
    with open(folders['text'] / HELD_OUT, encoding='utf-8') as file:
        sentence = file.readline().strip()
    masked = next(
        (f'{text["before"]}[MASK]{text["after"]}' for text in results['samples']['texts']),
        f'{sentence} [MASK]',
    )

    # The sweep of most examples, and of it the run of the first seed: nothing was selected.
    largest = max(
        (name for name in folders if name.startswith('finetune_')),
        key=lambda name: int(name.removeprefix('finetune_')),
    )
    runs = read_object(folders[largest] / 'sweep.json')['runs']
    tuned = next(run['name'] for run in runs if run['settings']['init'] == 'source')
    run = read_object(folders['pretrain'] / 'config.json')
    steps = LONGER * sum(phase['steps'] for phase in run['phases'])
    return [
        Step(
            'fill in a masked word',
            _line('fill_mask', f'--workdir={folders["pretrain"]}', masked),
        ),
        Step(
            'find held-out sentences near to one',
            _line(
                'nearest',
                f'--workdir={folders["pretrain"]}',
                f'--input={folders["text"] / HELD_OUT}',
                sentence,
            ),
        ),
        Step(
            'answer a file of texts with a fine-tuned model',
            _line(
                'predict',
                f'--workdir={folders[largest] / "runs" / tuned}',
                f'--input={folders["task"] / "held_out.jsonl"}',
                f'--output={workdir / "answers.jsonl"}',
            ),
        ),
        Step(
            f'pre-train {LONGER} times as long',
            _line(
                'pretrain',
                f'--config={run["name"]}',
                f'--data={folders["records"]}',
                f'--workdir={workdir / "longer"}',
                f'--set=model.vocab_size={run["model"]["vocab_size"]}',
                f'--set=phases.0.steps={steps}',
                f'--set=optimizer.warmup_steps={LONGER * run["optimizer"]["warmup_steps"]}',
            ),
        ),
    ]


def _line(name: str, *arguments: str) -> str:
    return shlex.join(command(name, *arguments))
