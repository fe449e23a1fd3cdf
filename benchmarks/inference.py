"""Time vectors of sentences beside PyTorch, sentence-transformers and onnxruntime, in turn.

  python -m benchmarks.inference --model=DIR --text=FILE [--sentences=2000] [--rounds=3]
      [--only=ours,torch] [--json=FILE]

DIR is a Hugging Face directory of an encoder. FILE has sentences or paragraphs; what is between a
full stop and the next, and 5 to 60 words long, is a sentence. Every program gives the mean of the
last block's states over the pieces of each:
  ours                   Bert.embed as it is by default; `ours float32` and `ours bfloat16` are
                         told what to compute in
  torch, torch compiled  transformers' model, 32 sentences of like length at a time
  sentence-transformers  SentenceTransformer.encode; with bfloat16 too
  onnxruntime            the same model as torch exports it
What is not installed is left out, which the report says. Throughput is measured on the sentences as
they come, latency on one at a time. All programs run in turn in each round; figures are medians
over the rounds, and CPU time (user and system) is there for a machine that is shared (start it by
`taskset -c 0` there: threads that wait for each other are busy, too). `first` is the first call,
with its compilations. `cosine` is the least cosine with ours.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks import machine
from bert_jax.configs.errors import UserError

_MODEL = flags.DEFINE_string('model', None, 'a Hugging Face directory of an encoder', required=True)
_TEXT = flags.DEFINE_string('text', None, 'file of sentences or paragraphs', required=True)
_SENTENCES = flags.DEFINE_integer('sentences', 2000, 'how many of them', lower_bound=1)
_CALLS = flags.DEFINE_integer('calls', 50, 'calls of one sentence in a round', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'rounds of all programs, in turn', lower_bound=1)
_ONLY = flags.DEFINE_list('only', None, 'programs to measure; default: each as it is by default')
_JSON = flags.DEFINE_string('json', None, 'file to write the figures to')

_BATCH = 32  # of what makes its batches here; sentence-transformers' own default
_INPUTS = ('input_ids', 'attention_mask', 'token_type_ids')
_PACKAGES = ('jax', 'jaxlib', 'numpy', 'torch', 'transformers', 'sentence-transformers')
Embed = Callable[[Sequence[str]], np.ndarray]


def main(argv: Sequence[str]) -> None:
    """Measure every program and print a line for each."""
    del argv
    texts = read_sentences(_TEXT.value, _SENTENCES.value)
    if unknown := set(_ONLY.value or ()) - PROGRAMS.keys():
        raise UserError(f'--only: {min(unknown)!r} is none of {", ".join(PROGRAMS)}')
    names = _ONLY.value or [name for name in PROGRAMS if not name.endswith(('16', '32'))]
    programs, left_out = {}, {}
    for name in names:
        try:
            programs[name] = PROGRAMS[name](_MODEL.value)
        except (ImportError, RuntimeError, ValueError) as error:
            left_out[name] = str(error).splitlines()[0]
            print(f'{name}: left out: {left_out[name]}')
    report = measure(programs, texts)
    for name, of in report.items():
        rates, cpu, latency = of['a_wall_second'], of['a_cpu_second'], of['one_ms']
        print(
            f'{name}: {rates["median"]:.1f} sentences/s ({rates["range"][0]:.1f} to'
            f' {rates["range"][1]:.1f}), {cpu["median"]:.1f} a CPU second; one:'
            f' {latency["median"]:.2f} ms, p95 {latency["p95"]:.2f}, CPU {latency["cpu"]:.2f};'
            f' first call {of["first_seconds"]:.1f} s; cosine {of["cosine"]:.7f}'
        )
    if _JSON.value:
        figures = {
            'machine': machine.describe(*_PACKAGES, 'onnx', 'onnxruntime'),
            'sentences': len(texts),
            'words_a_sentence': statistics.mean(len(text.split()) for text in texts),
            'left_out': left_out,
            'programs': report,
        }
        pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=1) + '\n')


def read_sentences(path: str, count: int) -> list[str]:
    """Return the first `count` sentences of a file. UserError where it has fewer."""
    texts: list[str] = []
    with open(path, encoding='utf-8') as file:
        for line in file:
            parts = re.split(r'(?<=[.!?])\s+', line.strip())
            texts += [part for part in parts if 5 <= len(part.split()) <= 60]
            if len(texts) >= count:
                return texts[:count]
    raise UserError(f'{path}: {len(texts)} sentences, and --sentences={count}')


def time_call(embed: Embed, texts: Sequence[str]) -> tuple[float, float, np.ndarray]:
    """Return the seconds of a call, on the clock and of the processor, and its vectors."""
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    vectors = embed(texts)
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - wall
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds, cpu, vectors


def measure(programs: dict[str, Embed], texts: list[str]) -> dict[str, dict[str, Any]]:
    """Run all programs in turn, round by round, after a first call of each."""
    report: dict[str, dict[str, Any]] = {}
    ours, singles = None, texts[: _CALLS.value]
    for name, embed in programs.items():
        seconds, _, vectors = time_call(embed, texts)
        ours = vectors if ours is None else ours
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(ours, axis=1)
        cosine = float(((vectors * ours).sum(axis=1) / lengths).min())
        report[name] = {'first_seconds': seconds, 'cosine': cosine}
        # Each length of a single sentence compiles a program in some: before anything is measured.
        for text in singles:
            embed([text])
    many: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    single: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(_ROUNDS.value):
        for name, embed in programs.items():
            many[name].append(time_call(embed, texts)[:2])
            single[name] += [time_call(embed, [text])[:2] for text in singles]
    for name, figures in report.items():
        for index, kind in enumerate(('wall', 'cpu')):
            rates = sorted(len(texts) / times[index] for times in many[name])
            summary = {'median': statistics.median(rates), 'range': [rates[0], rates[-1]]}
            figures[f'a_{kind}_second'] = summary
        calls = sorted(1000 * wall for wall, _ in single[name])
        figures['one_ms'] = {
            'median': statistics.median(calls),
            'p95': calls[int(0.95 * (len(calls) - 1))],
            'cpu': 1000 * statistics.mean(cpu for _, cpu in single[name]),
        }
    return report


def make_ours(model: str, dtype: str = 'auto') -> Embed:
    """Return `Bert.embed`."""
    from bert_jax.inference import Bert

    bert = Bert.load(model, dtype)
    return lambda texts: bert.embed(list(texts), pool='mean')


def make_sentence_transformers(model: str, dtype: str = 'float32') -> Embed:
    """Return `SentenceTransformer.encode`."""
    import sentence_transformers

    options = {'device': 'cpu', 'model_kwargs': {'dtype': dtype}}
    encoder = sentence_transformers.SentenceTransformer(model, **options)
    quiet = {'batch_size': _BATCH, 'convert_to_tensor': True, 'show_progress_bar': False}
    return lambda texts: np.asarray(encoder.encode(list(texts), **quiet).float())


def batch_by_length(model: str, run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Embed:
    """Return a program that runs batches of like length, each padded to its longest sentence."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def embed(texts: Sequence[str]) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind='stable')
        vectors: list[Any] = [None] * len(texts)
        for begin in range(0, len(texts), _BATCH):
            rows = order[begin : begin + _BATCH]
            batch = tokenizer(
                [texts[row] for row in rows], padding=True, truncation=True, return_tensors='np'
            )
            for row, vector in zip(rows, run({name: batch[name] for name in _INPUTS}), strict=True):
                vectors[row] = vector
        return np.stack(vectors)

    return embed


def load_torch_model(model: str, **options: Any) -> Any:
    """Return transformers' model with the mean over the pieces behind it."""
    import torch
    import transformers

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = transformers.AutoModel.from_pretrained(model, **options).eval()

        def forward(self, *inputs: Any) -> Any:
            states = self.encoder(**dict(zip(_INPUTS, inputs, strict=True))).last_hidden_state
            weights = inputs[1].unsqueeze(-1).float()
            return (states * weights).sum(1) / weights.sum(1)

    return Mean()


def make_pytorch(model: str, compiled: bool = False) -> Embed:
    """Return transformers' model with SDPA."""
    import torch

    module = load_torch_model(model)
    if compiled:
        module = torch.compile(module, dynamic=True)

    def run(batch: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            return module(*(torch.from_numpy(batch[name]) for name in _INPUTS)).numpy()

    return batch_by_length(model, run)


def make_onnxruntime(model: str) -> Embed:
    """Return onnxruntime's session of the model that torch exports."""
    import onnxruntime
    import torch

    example = torch.ones(2, 9, dtype=torch.long)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        torch.onnx.export(
            # Attention written out: what SDPA becomes is fixed to the example's shape.
            load_torch_model(model, attn_implementation='eager'),
            (example, example, 0 * example),
            f'{folder}/model.onnx',
            input_names=list(_INPUTS),
            output_names=['vectors'],
            dynamic_axes={name: {0: 'rows', 1: 'positions'} for name in _INPUTS},
            opset_version=17,
            dynamo=False,
        )
        # As many threads as there are cores for this process; its default is all of the machine's.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        session = onnxruntime.InferenceSession(
            f'{folder}/model.onnx', options, providers=['CPUExecutionProvider']
        )
    return batch_by_length(model, lambda batch: session.run(None, batch)[0])


PROGRAMS: dict[str, Callable[[str], Embed]] = {
    'ours': make_ours,
    'ours float32': functools.partial(make_ours, dtype='float32'),
    'ours bfloat16': functools.partial(make_ours, dtype='bfloat16'),
    'torch': make_pytorch,
    'torch compiled': functools.partial(make_pytorch, compiled=True),
    'sentence-transformers': make_sentence_transformers,
    'sentence-transformers bfloat16': functools.partial(
        make_sentence_transformers, dtype='bfloat16'
    ),
    'onnxruntime': make_onnxruntime,
}


if __name__ == '__main__':
    machine.run(main)
