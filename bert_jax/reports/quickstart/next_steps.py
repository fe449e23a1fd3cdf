"""What to do after the quickstart: commands on the folders that it has made, which run as printed.

Owns which commands are named. How one is written so that a shell takes it is commands.py's.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from bert_jax.configs.files.json_object import read_object
from bert_jax.reports.quickstart.commands import command
from bert_jax.reports.quickstart.text_split import HELD_OUT

# How much longer the next pre-training is.
LONGER = 4


def next_steps(folders: dict[str, Path], results: dict[str, Any]) -> dict[str, str]:
    """Return four commands by what they do.

    They fill a mask, find near sentences, answer a file, pre-train for longer.

    Args:
      folders: those of the stages, by name.
      results: as results.json has them.
    """
    pretrained, sweep = folders['pretrain'], folders['finetune']
    workdir = f'--workdir={pretrained}'
    held_out = folders['text'] / HELD_OUT
    with open(held_out, encoding='utf-8') as file:
        sentence = file.readline().strip()
    texts = [f'{text["before"]}[MASK]{text["after"]}' for text in results['samples']['texts']]
    masked = texts[0] if texts else f'{sentence} [MASK]'

    # Of most examples the run of the first seed: nothing was selected.
    tuned = next(
        run['name']
        for run in read_object(sweep / 'sweep.json')['runs']
        if run['settings']['init'] == 'source'
        and run['settings']['train_examples'] == results['finetuning']['rows'][-1]['train_examples']
    )
    config = read_object(pretrained / 'config.json')
    steps = LONGER * sum(phase['steps'] for phase in config['phases'])
    commands = {
        'fill in a masked word': ('fill_mask', workdir, masked),
        'find held-out sentences near to one': (
            'nearest',
            workdir,
            f'--input={held_out}',
            sentence,
        ),
        'answer a file of texts with a fine-tuned model': (
            'predict',
            f'--workdir={sweep / "runs" / tuned}',
            f'--input={folders["task"] / "held_out.jsonl"}',
            f'--output={pretrained.parent / "answers.jsonl"}',
        ),
        f'pre-train {LONGER} times as long': (
            'pretrain',
            f'--config={config["name"]}',
            f'--data={folders["records"]}',
            f'--workdir={pretrained.parent / "longer"}',
            f'--steps={steps}',
        ),
    }
    return {meaning: shlex.join(command(*words)) for meaning, words in commands.items()}
