"""Vectors of sentences and their latency, beside PyTorch, sentence-transformers and onnxruntime.

  python -m benchmarks.inference --model=DIR --text=FILE [--sentences=2000] [--rounds=3]
  [--only=ours,torch] [--json=FILE]

DIR is a Hugging Face directory of an encoder. FILE has sentences or paragraphs; what is between a
full stop and the next, and 5 to 60 words long, is a sentence. Every program gives the mean of the
last block's states over the pieces of each:
  ours                   Bert.embed as it is by default; `ours float32` and `ours bfloat16` are
                         told what to compute in
  torch, torch compiled  transformers' model, 32 sentences of like length at a time
  sentence-transformers  SentenceTransformer.encode; with bfloat16 too
  onnxruntime            the same model as torch exports it; int8: by dynamic quantisation
What is not installed is left out, which the report says. Throughput is measured on the sentences as
they come and sorted by length, latency on one at a time. All programs run in turn in each round;
figures are medians over the rounds, and CPU time (user and system) is there for a machine that is
shared (start it by `taskset -c 0` there: threads that wait for each other are busy, too). `first`
is the first call, with its compilations. `cosine` is the least cosine with ours.
"""

from __future__ import annotations

import dataclasses
import importlib.util
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

from bert_jax.cli import app
from bert_jax.configs.errors import UserError

_MODEL = flags.DEFINE_string('model', None, 'a Hugging Face directory of an encoder', required=True)
_TEXT = flags.DEFINE_string('text', None, 'file of sentences or paragraphs', required=True)
_SENTENCES = flags.DEFINE_integer('sentences', 2000, 'how many of them', lower_bound=1)
_CALLS = flags.DEFINE_integer('calls', 50, 'calls of one sentence in a round', lower_bound=1)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 3, 'rounds of all programs, one after the other', lower_bound=1
)
_ONLY = flags.DEFINE_list('only', None, 'programs to measure; default: each as it is by default')
_JSON = flags.DEFINE_string('json', None, 'file to write the figures to')

_BATCH = 32  # of what makes its batches here; sentence-transformers' own default
_INPUTS = ('input_ids', 'attention_mask', 'token_type_ids')
Embed = Callable[[Sequence[str]], np.ndarray]


@dataclasses.dataclass
class Figures:
    """What a program took, in seconds: a pair (wall, CPU) for each round."""

    first: tuple[float, float]
    cosine: float
    unsorted: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    sorted: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    one: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def summary(self, count: int) -> dict[str, Any]:
        """Return medians and ranges, of `count` sentences a round."""
        calls = sorted(wall for wall, _ in self.one)
        report: dict[str, Any] = {'first_seconds': self.first, 'cosine': self.cosine}
        for name in ('unsorted', 'sorted'):
            for index, kind in enumerate(('wall', 'cpu')):
                rates = sorted(count / times[index] for times in getattr(self, name))
                report[f'{name}_a_{kind}_second'] = {
                    'median': statistics.median(rates),
                    'range': [rates[0], rates[-1]],
                }
        report['one_ms'] = {
            'median': 1000 * statistics.median(calls),
            'p95': 1000 * calls[int(0.95 * (len(calls) - 1))],
            'cpu': 1000 * statistics.mean(cpu for _, cpu in self.one),
        }
        return report


def main(argv: Sequence[str]) -> None:
    """Measure every program and print a line for each."""
    del argv
    texts = sentences(_TEXT.value, _SENTENCES.value)
    with tempfile.TemporaryDirectory() as folder:
        programs, left_out = made(_MODEL.value, pathlib.Path(folder), _ONLY.value)
        figures = measured(programs, texts)
    for name, reason in left_out.items():
        print(f'{name}: left out: {reason}')
    report = {name: of.summary(len(texts)) for name, of in figures.items()}
    for name, of in report.items():
        as_they_come, by_length = of['unsorted_a_wall_second'], of['sorted_a_wall_second']
        print(
            f'{name}: {as_they_come["median"]:.1f} sentences/s'
            f' ({as_they_come["range"][0]:.1f} to {as_they_come["range"][1]:.1f}),'
            f' sorted {by_length["median"]:.1f},'
            f' {of["unsorted_a_cpu_second"]["median"]:.1f} a CPU second;'
            f' one: {of["one_ms"]["median"]:.2f} ms, p95 {of["one_ms"]["p95"]:.2f},'
            f' CPU {of["one_ms"]["cpu"]:.2f}; first call {of["first_seconds"][0]:.1f} s;'
            f' cosine {of["cosine"]:.7f}'
        )
    if _JSON.value:
        from benchmarks import machine

        packages = ('jax', 'jaxlib', 'numpy', 'torch', 'transformers', 'sentence-transformers')
        words = statistics.mean(len(text.split()) for text in texts)
        with open(_JSON.value, 'w') as file:
            json.dump(
                {
                    'machine': machine.describe(*packages, 'onnx', 'onnxruntime'),
                    'sentences': len(texts),
                    'words_a_sentence': words,
                    'left_out': left_out,
                    'programs': report,
                },
                file,
                indent=1,
            )


def sentences(path: str, count: int) -> list[str]:
    """Return the first `count` sentences of a file. UserError where it has fewer."""
    texts: list[str] = []
    with open(path, encoding='utf-8') as file:
        for line in file:
            parts = re.split(r'(?<=[.!?])\s+', line.strip())
            texts += [part for part in parts if 5 <= len(part.split()) <= 60]
            if len(texts) >= count:
                return texts[:count]
    raise UserError(f'{path}: {len(texts)} sentences, and --sentences={count}')


def timed(call: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Return the seconds that a call takes, (wall, user and system), and its result."""
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    result = call()
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - wall
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return (seconds, cpu), result


def measured(programs: dict[str, Embed], texts: list[str]) -> dict[str, Figures]:
    """Run all programs in turn, round by round, after a first call of each."""
    by_length = sorted(texts, key=len)
    figures, ours = {}, None
    for name, embed in programs.items():
        first, vectors = timed(lambda embed=embed: embed(texts))
        ours = vectors if ours is None else ours
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(ours, axis=1)
        figures[name] = Figures(first, float(((vectors * ours).sum(axis=1) / lengths).min()))
        # Each length of a single sentence compiles a program in some: before anything is measured.
        for text in texts[: _CALLS.value]:
            embed([text])
        print(f'{name}: first call {first[0]:.1f} s', flush=True)
    for _ in range(_ROUNDS.value):
        for name, embed in programs.items():
            figures[name].unsorted.append(timed(lambda embed=embed: embed(texts))[0])
            figures[name].sorted.append(timed(lambda embed=embed: embed(by_length))[0])
            figures[name].one += [
                timed(lambda embed=embed, text=text: embed([text]))[0]
                for text in texts[: _CALLS.value]
            ]
    return figures


def made(
    model: str, folder: pathlib.Path, only: Sequence[str] | None
) -> tuple[dict[str, Embed], dict[str, str]]:
    """Return the programs by their names, and why others are left out."""
    builders: dict[str, tuple[tuple[str, ...], Callable[[], Embed]]] = {
        'ours': ((), lambda: ours(model, 'auto')),
        'ours float32': ((), lambda: ours(model, 'float32')),
        'ours bfloat16': ((), lambda: ours(model, 'bfloat16')),
        'torch': (('torch', 'transformers'), lambda: pytorch(model, False)),
        'torch compiled': (('torch', 'transformers'), lambda: pytorch(model, True)),
        'sentence-transformers': (('sentence_transformers',), lambda: library(model, 'float32')),
        'sentence-transformers bfloat16': (
            ('sentence_transformers',),
            lambda: library(model, 'bfloat16'),
        ),
        'onnxruntime': (
            ('torch', 'transformers', 'onnx', 'onnxruntime'),
            lambda: onnx(model, folder, False),
        ),
        'onnxruntime int8': (
            ('torch', 'transformers', 'onnx', 'onnxruntime'),
            lambda: onnx(model, folder, True),
        ),
    }
    names = only or [name for name in builders if not name.endswith(('bfloat16', 'float32'))]
    if unknown := [name for name in names if name not in builders]:
        raise UserError(f'--only: {unknown[0]!r} is none of {", ".join(builders)}')
    programs, left_out = {}, {}
    for name in names:
        needs, build = builders[name]
        missing = [need for need in needs if not importlib.util.find_spec(need)]
        if missing:
            left_out[name] = f'{" and ".join(missing)} not installed'
            continue
        try:
            programs[name] = build()
        except (ImportError, RuntimeError, ValueError) as error:
            left_out[name] = str(error).splitlines()[0]
    return programs, left_out


def ours(model: str, dtype: str) -> Embed:
    """Return `Bert.embed`."""
    from bert_jax.inference import Bert

    bert = Bert.load(model, dtype)
    return lambda texts: bert.embed(list(texts), pool='mean')


def library(model: str, dtype: str) -> Embed:
    """Return `SentenceTransformer.encode`."""
    import sentence_transformers

    encoder = sentence_transformers.SentenceTransformer(
        model, device='cpu', model_kwargs={'dtype': dtype}
    )
    return lambda texts: np.asarray(
        encoder.encode(
            list(texts), batch_size=_BATCH, convert_to_tensor=True, show_progress_bar=False
        ).float()
    )


def in_batches(model: str, run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Embed:
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


def _torch_model(model: str, **options: Any) -> Any:
    import torch
    import transformers

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = transformers.AutoModel.from_pretrained(model, **options).eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            states = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state
            weights = attention_mask.unsqueeze(-1).float()
            return (states * weights).sum(1) / weights.sum(1)

    return Mean()


def pytorch(model: str, compiled: bool) -> Embed:
    """Return transformers' model with SDPA."""
    import torch

    module = _torch_model(model)
    if compiled:
        module = torch.compile(module, dynamic=True)

    def run(batch: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            return module(*(torch.from_numpy(batch[name]) for name in _INPUTS)).numpy()

    return in_batches(model, run)


def onnx(model: str, folder: pathlib.Path, int8: bool) -> Embed:
    """Return onnxruntime's session of the model that torch exports."""
    import onnxruntime
    import torch

    path = folder / 'float32.onnx'
    if not path.exists():
        example = torch.ones(2, 9, dtype=torch.long)
        axes = {name: {0: 'rows', 1: 'positions'} for name in _INPUTS}
        with torch.no_grad():
            torch.onnx.export(
                # Attention written out: what SDPA becomes is fixed to the example's shape.
                _torch_model(model, attn_implementation='eager'),
                (example, example, 0 * example),
                str(path),
                input_names=list(_INPUTS),
                output_names=['vectors'],
                dynamic_axes=axes,
                opset_version=17,
                dynamo=False,
            )
    if int8:
        from onnxruntime import quantization

        path = folder / 'int8.onnx'
        quantization.quantize_dynamic(
            folder / 'float32.onnx', path, weight_type=quantization.QuantType.QInt8
        )
    # As many threads as there are cores for this process; its default is all of the machine's.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])
    return in_batches(model, lambda batch: session.run(None, batch)[0])


if __name__ == '__main__':
    app.run(main)
