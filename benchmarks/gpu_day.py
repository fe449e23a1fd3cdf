"""Everything that a GPU has to show, in ten or in thirty minutes: one command, one JSON, one page.

  python -m benchmarks.gpu_day --text='text/*.txt' --output=gpu_day
  python -m benchmarks.gpu_day --text='text/*.txt' --mrpc=glue/MRPC --output=gpu_day --minutes=30

Ten minutes are for what the defaults rest on:
  records    a vocabulary and records of 128 and 512 pieces from the text (on the CPU);
  resume     with --deterministic, a run that is killed ends with the bits of one that is not;
  attention  at 512 the fused kernel (cudnn) learns what plain attention does;
  speed128   benchmarks.train_step --sweep with four layers: attention, dropout's bits, the loop;
  speed512   the same at 512;
  modern1024 the step of ModernBERT, of four layers, in packed rows of 1,024, beside transformers'
             with SDPA;
  modern8192 the same at 8,192.
Thirty add what they are for:
  pretrain   for as long as there is time, killed once on the way, and taken up again;
  mrpc       fine-tuning from the result and, beside it, from random weights.

Each part is a command as a user would type it, in a process of its own, with its output in
OUTPUT/logs. A part that fails, or has no time left, is said and the others go on; gpu_day.json is
written after each. Needs neither TensorFlow nor a network. On a CPU the same is done by a small
model (what is for GPUs alone is left out), which is how the script itself is tested.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from bert_jax.cli import app
from bert_jax.configs.errors import UserError

_TEXT = flags.DEFINE_multi_string('text', [], 'raw text, globs; documents between blank lines')
_MRPC = flags.DEFINE_string('mrpc', None, "folder of MRPC's own files; none: that part is left out")
_OUTPUT = flags.DEFINE_string('output', 'gpu_day', 'folder of everything that is made')
_MINUTES = flags.DEFINE_integer('minutes', 10, 'time for all of it', lower_bound=1)
_PRESET = flags.DEFINE_string('preset', None, 'the model (default: bert_base, on a CPU bert_tiny)')

# Tokens of a batch whose steps are timed on a GPU, and the layers: all of bert_base take a GPU's
# compiler a minute for each choice, and ten minutes are to do.
TOKENS, LAYERS = 1 << 15, 4
# Tokens of each example in ModernBERT's packed rows.
EXAMPLE = 256
# How far the mean loss of 20 steps in bfloat16 may be from that of another kernel.
CLOSE = 0.02


class OutOfTime(Exception):
    """A part did not end within what was left."""


class Day:
    """Runs commands against the clock and keeps what they found.

    Attributes:
      output: the folder. deadline: when all must have ended, by time.monotonic.
      found: what gpu_day.json holds.
    """

    def __init__(self, output: Path, minutes: float):
        self.output, self.deadline = output, time.monotonic() + 60 * minutes
        self.found: dict[str, Any] = {'parts': {}}
        (output / 'logs').mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Return seconds that are left."""
        return self.deadline - time.monotonic()

    def part(self, name: str, make: Callable[[Day], dict[str, Any]]) -> bool:
        """Run one part, print a line and write the JSON; tell whether it succeeded."""
        start = time.monotonic()
        try:
            figures = {'state': 'done', **make(self)}
        except OutOfTime:
            figures = {'state': 'no time left'}
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            figures = {'state': 'failed', 'error': str(error)}
        figures['seconds'] = round(time.monotonic() - start, 1)
        self.found['parts'][name] = figures
        (self.output / 'gpu_day.json').write_text(json.dumps(self.found, indent=1) + '\n')
        state, *result = figures.items()
        print(f'{name}: {state[1]}', *(f'{k} {v}' for k, v in result), sep=', ', flush=True)
        return state[1] == 'done'

    def run(self, log: str, module: str, *arguments: str, kill_at: int = 0) -> None:
        """Run `python -m MODULE ...` to its end; RuntimeError with its last line where it fails.

        kill_at: it is killed, by SIGKILL, as soon as its --workdir holds a checkpoint of that step
        or a later one; RuntimeError where it ends before.
        """
        command = [sys.executable, '-m', module, *arguments]
        workdir = next((a.partition('=')[2] for a in arguments if a.startswith('--workdir=')), '')
        path = self.output / 'logs' / f'{log}.log'
        with open(path, 'a') as file:
            file.write(f'$ {" ".join(command)}\n')
            file.flush()
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None:
                    if self.left <= 0:
                        raise OutOfTime
                    if kill_at and newest_step(workdir) >= kill_at:
                        process.kill()
                        process.wait()
                        return
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.2)
            finally:
                process.kill()
                process.wait()
        if kill_at or process.returncode:
            last = path.read_text().rstrip().rpartition('\n')[2]
            early = 'ended before it could be killed' if kill_at else last
            raise RuntimeError(f'{module}: exit code {process.returncode}: {early} ({path})')


# --- the parts -------------------------------------------------------------------------


def records(day: Day) -> dict[str, Any]:
    """Make a vocabulary and records of both lengths; return how many examples."""
    text, vocabulary = [f'--input={text}' for text in _TEXT.value], f'{day.output}/vocabulary'
    if not os.path.exists(vocabulary):
        day.run('records', 'bert_jax.launch.train_vocab', *text, f'--output={vocabulary}')
    counts = {}
    for length in (128, 512):
        folder = f'{day.output}/records{length}'
        day.run(
            'records',
            'bert_jax.launch.preprocess',
            *text,
            '--segment',
            f'--tokenizer={vocabulary}',
            f'--output={folder}',
            f'--seq_len={length}',
            '--dupe_factor=2',
            '--eval_fraction=0.05',
        )
        manifest = json.loads(Path(folder, 'manifest.json').read_text())
        counts[f'examples_{length}'] = manifest['statistics']['records']['train']['examples']
    return counts


def resume(day: Day) -> dict[str, Any]:
    """Run 60 deterministic steps twice, once killed after the 20th, and compare the bits."""
    settings = ['runtime.checkpoint_every=20', 'runtime.log_every=1', *layers(day)]
    for name, kill_at in (('alone', 0), ('killed', 20), ('killed', 0)):
        pretrain(day, 'resume', f'resume/{name}', 128, 60, settings, kill_at, '--deterministic')

    # Each checkpoint names the fingerprint of every array's bits.
    ends = [
        json.loads((day.output / f'resume/{name}/checkpoints/60/meta/metadata').read_text())
        for name in ('alone', 'killed')
    ]
    equal = ends[0]['fingerprints'] == ends[1]['fingerprints']
    if not equal:
        raise RuntimeError('the resumed run ends with other bits than the one left alone')
    return {'equal_bits': equal, 'arrays': len(ends[0]['fingerprints'])}


def attention(day: Day) -> dict[str, Any]:
    """Return the mean loss of 20 steps at 512, without dropout, by plain and by fused attention."""
    settings = ['model.attention_dropout=0', 'model.hidden_dropout=0', 'runtime.log_every=20']
    settings += layers(day)
    losses = {}
    for kernel in ('xla', 'cudnn') if on_gpu(day) else ('xla',):
        name = f'attention/{kernel}'
        pretrain(day, 'attention', name, 512, 20, [*settings, f'runtime.attention={kernel}'])
        lines = metrics(day.output / name)
        losses[kernel] = next(line['loss'] for line in lines if line['split'] == 'train')
    apart = max(losses.values()) - min(losses.values())
    if apart > CLOSE:
        raise RuntimeError(f'losses are {apart:.4f} apart, more than {CLOSE}: {losses}')
    return losses


def speed_at(length: int, day: Day) -> dict[str, Any]:
    """Run benchmarks.train_step --sweep at one length; return our sequences a second."""
    path = day.output / f'train_step_{length}.json'
    # 32 thousand tokens fill a GPU; the largest batch would take two more compilations to find.
    choices = (
        [
            '--sweep',
            f'--batch_size={TOKENS // length}',
            '--seconds=1',
            f'--set=model.num_layers={LAYERS}',
        ]
        if on_gpu(day)
        else ['--notorch', '--batch_size=2', '--seconds=0.1']
    )
    case = f'--cases={preset(day)}:{length}'
    day.run(
        f'speed{length}', 'benchmarks.train_step', case, '--rounds=3', f'--json={path}', *choices
    )
    return programs(path)


def modern_at(length: int, day: Day) -> dict[str, Any]:
    """Measure ModernBERT's step on packed rows of a length, 30 % masked; sequences a second."""
    path = day.output / f'modern_{length}.json'
    choices = (
        [
            f'--cases=modernbert_base:{length}',
            f'--batch_size={TOKENS // length}',
            '--seconds=1',
            f'--set=model.num_layers={LAYERS}',
        ]
        if on_gpu(day)
        else [
            f'--cases=modernbert_tiny_cpu:{length}',
            '--notorch',
            '--batch_size=2',
            '--seconds=0.1',
            '--set=model.num_layers=2',
            '--set=model.vocab_size=500',
        ]
    )
    packed = f'--packed={max(2, length // EXAMPLE)}'
    day.run(
        f'modern{length}',
        'benchmarks.train_step',
        packed,
        '--masked_share=0.3',
        '--rounds=3',
        f'--json={path}',
        *choices,
    )
    return programs(path)


def programs(path: Path) -> dict[str, Any]:
    """Return the sequences a second of each program of the one case in a file."""
    [case] = json.loads(path.read_text())['cases']
    return {
        name: round(program['sequences_a_second'], 1) for name, program in case['programs'].items()
    }


def pretraining(day: Day) -> dict[str, Any]:
    """Train as many steps as three quarters of the time allow, killed at half of them."""
    # The rate was measured with fewer layers.
    rate = day.found['parts']['speed128']['ours'] * (LAYERS / 12 if on_gpu(day) else 1)
    size = 256 if on_gpu(day) else 8
    # A quarter is left for starting twice, for evaluation and for fine-tuning.
    steps = max(40, int(0.75 * day.left * rate / size) // 20 * 20)
    settings = [
        f'runtime.checkpoint_every={steps // 4}',
        f'runtime.eval_every={steps // 2}',
        f'runtime.log_every={max(1, steps // 50)}',
        f'optimizer.warmup_steps={steps // 10}',
    ]
    for kill_at in (steps // 2, 0):
        pretrain(day, 'pretrain', 'pretrain', 128, steps, settings, kill_at, size=size)
    lines = metrics(day.output / 'pretrain')
    trained = [line for line in lines if line['split'] == 'train']
    scored = [line for line in lines if line['split'] == 'eval'][-1]
    return {
        'steps': steps,
        'batch_size': size,
        'sequences_per_s': trained[-1]['sequences_per_s'],
        'mfu': trained[-1].get('mfu'),
        'mlm_loss': scored['mlm_loss'],
        'nats_gained': scored['nats_gained'],
    }


def mrpc(day: Day) -> dict[str, Any]:
    """Score MRPC from the pre-trained weights and from random ones, three seeds each."""
    day.run(
        'mrpc',
        'bert_jax.launch.finetune',
        '--task=mrpc',
        f'--data_dir={_MRPC.value}',
        f'--init_from={day.output}/pretrain',
        f'--workdir={day.output}/mrpc',
        '--sweep=init=source,random;seed=0,1,2',
        f'--set=runtime.compute_dtype={dtype(day)}',
        *(() if on_gpu(day) else ('--set=train_examples=64', '--set=max_seq_length=32')),
    )
    runs = json.loads((day.output / 'mrpc' / 'sweep.json').read_text())['runs']
    return {run['name']: {k: round(v, 4) for k, v in run['metrics'].items()} for run in runs}


# --- what they share -------------------------------------------------------------------


def pretrain(
    day: Day,
    log: str,
    name: str,
    length: int,
    steps: int,
    settings: Sequence[str],
    kill_at: int = 0,
    *options: str,
    size: int = 0,
) -> None:
    """Run bert-pretrain on the records of that length, in OUTPUT/name."""
    vocabulary = json.loads((day.output / f'records{length}' / 'manifest.json').read_text())
    phase = {'seq_len': length, 'steps': steps, 'batch_size': size or (32 if on_gpu(day) else 8)}
    settings = [
        f'model.vocab_size={vocabulary["vocab_size"]}',
        f'phases={json.dumps([phase])}',
        f'runtime.compute_dtype={dtype(day)}',
        'optimizer.warmup_steps=5',
        *settings,
    ]
    day.run(
        log,
        'bert_jax.launch.pretrain',
        f'--config={preset(day)}',
        f'--data={day.output}/records{length}',
        f'--workdir={day.output}/{name}',
        *(f'--set={setting}' for setting in settings),
        *options,
        kill_at=kill_at,
    )


def on_gpu(day: Day) -> bool:
    """Tell whether there is a GPU."""
    return day.found['backend'] == 'gpu'


def layers(day: Day) -> list[str]:
    """Return the setting that makes the model of a GPU compile in time."""
    return [f'model.num_layers={LAYERS}'] if on_gpu(day) else []


def preset(day: Day) -> str:
    """Return the model that everything is shown with."""
    return _PRESET.value or ('bert_base' if on_gpu(day) else 'bert_tiny')


def dtype(day: Day) -> str:
    """Return the arithmetic of the layers."""
    return 'bfloat16' if on_gpu(day) else 'float32'


def newest_step(workdir: str) -> int:
    """Return the newest checkpoint in a run's folder; 0 where there is none."""
    # By name: what reads checkpoints would take the GPU for this process too.
    names = [path.name for path in Path(workdir, 'checkpoints').glob('*')]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def metrics(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


def write_page(day: Day) -> None:
    """Write day.html: the machine, and a table of each part's figures."""
    from bert_jax.reports.page.parts import Table, render

    rows = lambda facts: [(name, str(value)) for name, value in facts.items()]
    machine = Table('Machine', ('what', 'is'), rows(day.found['machine']))
    parts = [
        Table(name, ('figure', 'value'), rows(figures))
        for name, figures in day.found['parts'].items()
    ]
    title = f'{day.found["device"]}: {_MINUTES.value} minutes'
    (day.output / 'day.html').write_text(render(title, [('Figures', [machine, *parts])]))


def main(argv: Sequence[str]) -> None:
    """Run the parts in order, each while there is time."""
    del argv
    if not _TEXT.value:
        raise UserError('--text is required: raw text, documents between blank lines')
    from benchmarks import machine

    # The device is looked at by a child: this process would take the GPU's memory from the others.
    day = Day(Path(_OUTPUT.value), _MINUTES.value)
    look = 'import jax; print(jax.default_backend(), jax.devices()[0].device_kind, sep="\\n")'
    looked = subprocess.run(
        [sys.executable, '-c', look], capture_output=True, text=True, check=True
    )
    day.found['backend'], day.found['device'] = looked.stdout.split('\n')[:2]
    packages = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'torch', 'transformers')
    day.found['machine'] = {'device': day.found['device'], **machine.describe(*packages)}

    # The rest reads the records.
    if day.part('records', records):
        parts = [('resume', resume), ('attention', attention)]
        for length in (128, 512) if on_gpu(day) else (128,):
            parts.append((f'speed{length}', functools.partial(speed_at, length)))
        for length in (1024, 8192) if on_gpu(day) else (128,):
            parts.append((f'modern{length}', functools.partial(modern_at, length)))
        for name, part in parts:
            day.part(name, part)
        if _MINUTES.value >= 30 and day.part('pretrain', pretraining) and _MRPC.value:
            day.part('mrpc', mrpc)
    write_page(day)
    print(f'{day.output}/gpu_day.json and {day.output}/day.html')


if __name__ == '__main__':
    app.run(main)
