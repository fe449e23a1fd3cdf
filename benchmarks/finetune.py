"""Fine-tune in PyTorch what bert-finetune has learnt: same examples, weights and settings.

  python -m benchmarks.finetune --runs=WORKDIR --task=mrpc --data_dir=glue/MRPC --init_from=ENCODER
      --json=FILE [--seeds=0,1,2,3,4]

WORKDIR is that of a sweep of bert-finetune over seeds; each of PyTorch's runs has its settings,
which must be those that both know: algorithm adamw, schedule linear, nothing frozen. transformers'
tokenizer cuts the texts and its model learns from them; the task's own scorer scores both. Rows are
padded to the longest of their batch. A seed that is in the JSON file is not run again. Scored pairs
of an embedding task are learnt by sentence-transformers' own trainer.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags, logging

from benchmarks import machine
from bert_jax.configs.errors import UserError

_RUNS = flags.DEFINE_string('runs', None, 'workdir of the sweep', required=True)
_TASK = flags.DEFINE_string(
    'task',
    None,
    'a classification or regression task of one text or two, or scored pairs of an embedding task',
    required=True,
)
_DATA_DIR = flags.DEFINE_string('data_dir', '', 'folder of its files')
_INIT_FROM = flags.DEFINE_string(
    'init_from', None, 'the Hugging Face directory that the sweep began from', required=True
)
_SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2', '3', '4'], "seeds of PyTorch's runs")
_JSON = flags.DEFINE_string('json', None, 'file with the scores of each seed', required=True)

# Only what both programs have: else a difference of means would be one of recipes.
_RECIPE = {'init': 'source', 'select': 'last', 'patience': 0, 'bilstm': False, 'length_buckets': 1}
_OPTIMIZER = {
    'algorithm': 'adamw',
    'schedule': 'linear',
    'end_lr': 0.0,
    'layer_decay': 1.0,
    'freeze_layers': 0,
    'freeze_embeddings': False,
}


def main(argv: Sequence[str]) -> None:
    """Run the seeds that are missing and print both means and their difference."""
    del argv
    from benchmarks import sentence_training
    from bert_jax.input_pipeline.tasks.load_task import load_task

    task = load_task(_TASK.value, _DATA_DIR.value)
    config, ours = read_sweep(pathlib.Path(_RUNS.value))

    # The report is written after each seed: a run of hours goes on where it ended.
    file = pathlib.Path(_JSON.value)
    report: dict[str, Any] = {'task': task.name, 'machine': {}, 'seeds': {}}
    if file.exists():
        report = json.loads(file.read_text())
    for seed in _SEEDS.value:
        if seed in report['seeds']:
            continue
        started = time.perf_counter()
        if task.kind == 'embedding':
            metrics = sentence_training.run(task, config, int(seed), _INIT_FROM.value)
        else:
            metrics = run(task, config, int(seed))
        report['seeds'][seed] = {'metrics': metrics, 'seconds': time.perf_counter() - started}
        packages = ('torch', 'transformers', 'sentence-transformers', 'numpy')
        report['machine'] = machine.describe(*packages)
        file.write_text(json.dumps(report, indent=1) + '\n')
        logging.info('seed %s: %s in %.0f s', seed, metrics, report['seeds'][seed]['seconds'])
    theirs = [row['metrics'] for row in report['seeds'].values()]
    for metric in task.metrics:
        print(compare(metric, [row[metric] for row in ours], [row[metric] for row in theirs]))


def read_sweep(folder: pathlib.Path) -> tuple[Any, list[dict[str, float]]]:
    """Return (settings of the sweep's runs, {metric: value} of each on the dev split).

    UserError where the runs differ in more than the seed, or this loop has no such setting.
    """
    from bert_jax.configs import schema

    if not (folder / 'sweep.json').exists():
        raise UserError(
            f'--runs={folder}: no sweep.json in it: name the workdir of a finished bert-finetune'
            ' --sweep'
        )
    rows = json.loads((folder / 'sweep.json').read_text())['runs']
    if others := {name for row in rows for name in row['settings']} - {'seed'}:
        raise UserError(
            f'--runs={folder}: its runs differ in {", ".join(sorted(others))}: name a sweep over'
            ' seeds alone'
        )
    config = schema.read(folder / 'runs' / rows[0]['name'] / 'config.json')
    for part, wanted in ((config, _RECIPE), (config.optimizer, _OPTIMIZER)):
        for name, value in wanted.items():
            if getattr(part, name) != value:
                raise UserError(f'--runs={folder}: this loop needs {name}={value}')
    return config, [row['metrics'] for row in rows]


def compare(metric: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return a line of text: both means, their difference, and its standard error."""
    both = (ours, theirs)
    means = [statistics.fmean(values) for values in both]
    # Of one run there is no deviation.
    deviations = [statistics.stdev(values) if len(values) > 1 else math.nan for values in both]

    # Standard error of a difference of two independent means: sqrt(sd1^2 / n1 + sd2^2 / n2).
    error = math.sqrt(sum(sd**2 / len(values) for sd, values in zip(deviations, both)))
    shown = [
        f'{mean:.4f} (sd {sd:.4f}, {len(values)} seeds)'
        for mean, sd, values in zip(means, deviations, both)
    ]
    return (
        f'{metric}: ours {shown[0]}, PyTorch {shown[1]}; difference {means[0] - means[1]:+.4f}, its'
        f' standard error {error:.4f}'
    )


def run(task: Any, config: Any, seed: int) -> dict[str, float]:
    """Fine-tune in PyTorch on all its devices; return the dev metrics after the last step."""
    import torch
    import transformers

    from benchmarks.sentence_training import dropout_rates
    from bert_jax.input_pipeline.tasks.batching import draw_subset
    from bert_jax.runs.finetuning.finetuner import total_steps

    torch.manual_seed(seed)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    tokenizer = transformers.AutoTokenizer.from_pretrained(_INIT_FROM.value)
    is_regression = task.kind == 'regression'
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        _INIT_FROM.value,
        classifier_dropout=config.head_dropout,
        # The fastest attention that people have by default.
        attn_implementation='sdpa',
        num_labels=task.num_outputs,
        problem_type='regression' if is_regression else None,
        **dropout_rates(config),
    ).to(device)

    # Texts are cut by the reference's tokenizer, longest first, as ours cuts them.
    def encode(examples: Sequence[Any]) -> list[dict[str, list[int]]]:
        texts = [(e.text,) if e.text_b is None else (e.text, e.text_b) for e in examples]
        cut = {'truncation': 'longest_first', 'max_length': config.max_seq_length}
        return [tokenizer(*text, **cut) for text in texts]

    def pad(rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
        # Padding to the longest row of the batch, as transformers' own loop does.
        arrays = tokenizer.pad(rows, return_tensors='pt')
        return {name: value.to(device) for name, value in arrays.items()}

    # The same examples as ours, but an order of PyTorch's: seeds are compared by their mean.
    examples = draw_subset(task.examples('train'), config.train_examples, seed)
    rows = encode(examples)
    dtype = torch.float32 if is_regression else torch.long
    labels = torch.tensor([e.label for e in examples], dtype=dtype)
    steps = total_steps(len(examples), config)
    # A fresh permutation for each epoch; the last steps may end within one.
    order = torch.cat([torch.randperm(len(examples)) for _ in range(math.ceil(config.epochs))])
    batches = order[: steps * config.batch_size].reshape(steps, config.batch_size)
    # A generator: rows are padded and moved when their step comes.
    inputs = (
        pad([rows[i] for i in indices]) | {'labels': labels[indices].to(device)}
        for indices in batches
    )
    train(model, inputs, config.optimizer, steps, int(steps * config.warmup_fraction))

    model.eval()
    dev = task.examples(task.selection_split)
    rows = encode(dev)
    with torch.inference_mode():
        logits = torch.cat(
            [model(**pad(rows[i : i + 64])).logits.cpu() for i in range(0, len(rows), 64)]
        )
    return task.score(dev, task.decode(dev, {}, {'logits': logits.numpy()}))


def train(
    model: Any, batches: Iterable[dict[str, Any]], o: Any, steps: int, warmup: int
) -> list[tuple[Any, Any]]:
    """Train in PyTorch; [(loss, norm of the gradient before it is clipped)] of every step.

    batches: what the model takes, with its labels; o: an OptimizerConfig. Biases and layer norms do
    not decay.
    """
    import torch
    import transformers

    # Biases and norms do not decay: google-research/bert's rule, by the names of transformers.
    groups = [
        {'params': [], 'weight_decay': o.weight_decay},
        {'params': [], 'weight_decay': 0.0},
    ]
    for name, parameter in model.named_parameters():
        groups[name.endswith('bias') or 'LayerNorm' in name]['params'].append(parameter)
    optimizer = torch.optim.AdamW(groups, lr=o.peak_lr, betas=(o.b1, o.b2), eps=o.eps)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps)
    model.train()
    # Losses stay on the device: to read one would make the host wait for each step.
    seen = []
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        # clip_grad_norm_ returns the norm before clipping.
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
        seen.append((loss.detach(), norm))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return seen


if __name__ == '__main__':
    machine.run(main)
