"""Time the whole train step beside PyTorch's, on this machine: same model, same work, in turn.

  python -m benchmarks.train_step [--cases=bert_base:128,bert_base:512] [--batch_size=N]
      [--beside='SETTING=VALUE ...'] [--json=FILE]

A step is forward, backward, clipping, the optimizer and dropout as the preset has them, on random
ids without padding. --masked_share of the tokens is masked; with --packed=K a row holds K examples
of one length, which do not see each other. Ours, by its own code, is measured beside
  bare     the jitted forward and backward of the same model alone, no clipping, no optimizer;
  torch    transformers' BertForPreTraining or ModernBertForMaskedLM as people run it: SDPA,
           clipping at 1.0, fused AdamW, on a GPU bf16 autocast and torch.compile;
  gathered the same, but with the masked positions gathered before the vocabulary, as ours has it;
           on a CPU also with torch.compile, with bf16 autocast, and with both.
--beside adds ours with other settings. Without torch the programs of PyTorch are left out. Rates
are sequences a second, medians over the rounds; ratios are taken within a round. MFU is the count
of costs/flops.py over the peak of the data sheet.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks import batches, machine
from bert_jax.configs.errors import UserError
from bert_jax.mesh import before_jax

_CASES = flags.DEFINE_list(
    'cases', None, 'PRESET:SEQ_LEN pairs (default: bert_base:128 on a GPU, bert_tiny:128 on a CPU)'
)
_BATCH_SIZE = flags.DEFINE_integer(
    'batch_size', 0, 'sequences a step; 0: 32,768 tokens on a GPU, 8 on a CPU', lower_bound=0
)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'rounds of all programs, in turn', lower_bound=1)
_SECONDS = flags.DEFINE_float(
    'seconds', 3.0, 'how long each program runs in a round', lower_bound=0.01
)
_SET = flags.DEFINE_multi_string(
    'set', [], 'changes one setting of ours, as in --set runtime.attention=xla'
)
_BESIDE = flags.DEFINE_multi_string(
    'beside', [], 'also measure ours with these settings, several with spaces between'
)
_TORCH = flags.DEFINE_bool('torch', True, 'measure PyTorch too, where it is installed')
_MASKED_SHARE = flags.DEFINE_float(
    'masked_share', 0.15, 'share of the tokens that are predicted', lower_bound=0.0, upper_bound=1.0
)
_PACKED = flags.DEFINE_integer('packed', 0, 'examples in a row; 0: one', lower_bound=0)
_JSON = flags.DEFINE_string('json', None, 'file to write the figures to')

GPU_TOKENS = 1 << 15
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'torch', 'transformers')
Program = Callable[[int], None]  # runs that number of steps and waits for the last


class Form(NamedTuple):
    """How PyTorch's step is computed: masked positions gathered, bf16 autocast, torch.compile."""

    gathered: bool = True
    autocast: bool = False
    compiled: bool = False


GPU_FORMS = {'torch': Form(False, True, True), 'gathered': Form(True, True, True)}
CPU_FORMS = {
    'torch': Form(gathered=False),
    'gathered': Form(),
    'gathered compiled': Form(compiled=True),
    'gathered bf16': Form(autocast=True),
    'gathered bf16 compiled': Form(autocast=True, compiled=True),
}


def main(argv: Sequence[str]) -> None:
    """Measure every case and print a line for each program."""
    del argv
    before_jax.set_up()  # as bert-pretrain
    import jax

    on_gpu = jax.default_backend() == 'gpu'
    device = jax.devices()[0].device_kind
    report: dict[str, Any] = {'device': device, 'cases': []}
    for case in _CASES.value or ['bert_base:128' if on_gpu else 'bert_tiny:128']:
        report['cases'].append(measure_case(case, on_gpu, device))
        if _JSON.value:  # after each case, so that a time limit loses one and not all
            report['machine'] = machine.describe(*PACKAGES)
            with open(_JSON.value, 'w') as file:
                json.dump(report, file, indent=1)


def measure_case(case: str, on_gpu: bool, device: str) -> dict[str, Any]:
    """Measure all programs of one case, PRESET:SEQ_LEN, in alternation; print the figures."""
    from bert_jax.costs.chips import find_peak_flops
    from bert_jax.costs.flops import count_training_flops

    # The same model, length, batch and predictions for all programs.
    config, seq_len = read_case(case, on_gpu, _SET.value)
    size = _BATCH_SIZE.value or (GPU_TOKENS // seq_len if on_gpu else 8)
    programs = {'ours': make_ours(config, seq_len, size), 'bare': make_bare(config, seq_len, size)}
    for changes in _BESIDE.value:
        try:
            other, _ = read_case(case, on_gpu, [*_SET.value, *changes.split()])
            programs[changes] = make_ours(other, seq_len, size)
        except UserError as error:  # a kernel that is not for this device
            print(f'{changes}: left out: {error}', flush=True)
    forms = GPU_FORMS if on_gpu else CPU_FORMS
    if _TORCH.value and all(map(importlib.util.find_spec, ('torch', 'transformers'))):
        for name, form in forms.items():
            programs[name] = make_pytorch(config, seq_len, size, on_gpu, form)

    measured = measure_rates(programs, size)
    flops = count_training_flops(config.model, seq_len, count_predictions(seq_len))
    peak = find_peak_flops(device)
    print(f'{case}, batch {size}, examples a row {_PACKED.value or 1}, {device}')
    for name, figures in measured.items():
        figures['mfu'] = figures['sequences_a_second'] * flops / peak if peak else None
        share = f'  MFU {figures["mfu"]:.1%}' if peak else ''
        low, high = figures['ratios'][0], figures['ratios'][-1]
        print(
            f'  {name:28} {figures["sequences_a_second"]:10,.1f} sequences/s  ours is'
            f' {figures["ours_over_this"]:.2f} times as fast ({low:.2f} to {high:.2f}){share}'
        )
    if theirs := measured.keys() & forms.keys():
        best = min(theirs, key=lambda name: measured[name]['ours_over_this'])
        print(f'  PyTorch at its best ({best}): ours {measured[best]["ours_over_this"]:.2f} times')
    return {'case': case, 'batch_size': size, 'flops_a_sequence': flops, 'programs': measured}


def read_case(case: str, on_gpu: bool, changes: Sequence[str]) -> tuple[Any, int]:
    """Return the preset's configuration with this machine's arithmetic, and the length."""
    from bert_jax.configs.load import load
    from bert_jax.configs.overrides import apply

    preset, _, length = case.partition(':')
    if not length.isdecimal():
        raise UserError(f'--cases={case}: must be PRESET:SEQ_LEN, as in bert_base:128')
    config = load(preset)
    if int(length) > config.model.max_position:
        raise UserError(f'--cases={case}: the position table ends at {config.model.max_position}')
    arithmetic = 'bfloat16' if on_gpu else 'float32'
    return apply(config, [f'runtime.compute_dtype={arithmetic}', *changes]), int(length)


def measure_rates(programs: dict[str, Program], size: int) -> dict[str, dict[str, Any]]:
    """Measure sequences a second of each program, in rounds, without compiling."""
    steps = {}
    for name, run in programs.items():
        # How many steps take about --seconds: the first call compiles, the second is timed.
        try:
            run(2)
        except RuntimeError as error:  # out of memory, a kernel or a compiler that is not there
            print(f'{name}: left out: {str(error).splitlines()[0]}', flush=True)
            continue
        steps[name] = max(1, round(_SECONDS.value / time_steps(run, 4)))
        print(f'{name}: compiled', flush=True)
    # In each round every program runs once: a slow minute hits all of them.
    rounds = [
        {name: size / time_steps(programs[name], count) for name, count in steps.items()}
        for _ in range(_ROUNDS.value)
    ]
    figures = {}
    for name in steps:
        ratios = sorted(rates['ours'] / rates[name] for rates in rounds)
        figures[name] = {
            'sequences_a_second': statistics.median(rates[name] for rates in rounds),
            'ours_over_this': statistics.median(ratios),
            'ratios': ratios,
        }
    return figures


def time_steps(run: Program, steps: int) -> float:
    """Return the seconds of a step."""
    started = time.perf_counter()
    run(steps)
    return (time.perf_counter() - started) / steps


def count_predictions(seq_len: int) -> int:
    """Return the masked tokens of a row, as bert-preprocess makes room for them."""
    return max(1, math.ceil(_MASKED_SHARE.value * seq_len))


def build_step(config: Any, seq_len: int, size: int) -> tuple[Any, ...]:
    """Make the program, its state and a batch on the device, as bert-pretrain makes them."""
    import jax

    from bert_jax.mesh import construction, sharding
    from bert_jax.train.pretraining_program import InputKind, PretrainingSetup

    setup = PretrainingSetup.from_config(config)
    runtime = dataclasses.replace(config.runtime, data_parallel=1)
    mesh = construction.make_mesh(runtime, jax.devices()[:1])
    inputs = InputKind(seq_len, count_predictions(seq_len), packed=_PACKED.value > 0)
    arrays = batches.draw_batch(config, seq_len, inputs.predictions, size, _PACKED.value)
    program = setup.make_program(inputs, mesh)
    batch = sharding.place_batch(arrays, mesh, size)
    return program, setup.make_state(mesh), batch, setup.hparams


def make_ours(config: Any, seq_len: int, size: int) -> Program:
    """Return bert-pretrain's own step."""
    import jax

    # The state is given away in each step (donated), so the newest one is kept here.
    program, state, batch, hparams = build_step(config, seq_len, size)

    def run(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, metrics = program.train_step(state, batch, hparams)
        # Steps are dispatched ahead: the time is that until the last is done.
        jax.block_until_ready(metrics)

    return run


def make_bare(config: Any, seq_len: int, size: int) -> Program:
    """Return the forward and backward of the same model, jitted, and nothing else."""
    import jax
    import jax.numpy as jnp

    from bert_jax.model.dropout import GENERATORS, DropoutRng

    program, state, batch, _ = build_step(config, seq_len, size)
    objective, params = program.objective, state.params
    denominators = objective.weights(batch)
    generator = GENERATORS[config.runtime.dropout_rng]

    @jax.jit
    # A fresh key each time, as in training: constant masks could be computed once for all.
    def gradient(params: Any, number: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(0, impl=generator.implementation), number)
        dropout_rng = DropoutRng(key, jnp.arange(size, dtype=jnp.uint32), generator)

        def loss(params: Any) -> jax.Array:
            sums = objective.sums(params, batch, dropout_rng)
            return sum(sums[name][0] / weight for name, weight in denominators.items())

        return jax.grad(loss)(params)

    def run(steps: int) -> None:
        for number in range(steps):
            grads = gradient(params, number)
        jax.block_until_ready(grads)

    return run


def make_pytorch(config: Any, seq_len: int, size: int, on_gpu: bool, form: Form) -> Program:
    """Return the step of transformers' model with SDPA, clipping and fused AdamW."""
    import torch

    from benchmarks import torch_models

    device = 'cuda' if on_gpu else 'cpu'
    torch.manual_seed(0)
    torch.set_float32_matmul_precision('high')
    model = torch_models.make_model(config.model).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    predictions = count_predictions(seq_len)
    batch = batches.draw_batch(config, seq_len, predictions, size, _PACKED.value)
    arrays = {name: torch.as_tensor(value).to(device).long() for name, value in batch.items()}
    is_modern = config.model.family == 'modernbert'
    make_loss = torch_models.make_modern_loss if is_modern else torch_models.make_bert_loss
    loss = make_loss(model, arrays, form.gathered)
    if form.compiled:
        loss = torch.compile(loss)

    # Autocast is around the forward pass alone, as PyTorch's pages advise; optimizer and clipping
    # are float32.
    def run(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=form.autocast):
                value = loss()
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            # CUDA runs behind: wait for the last step.
            torch.cuda.synchronize()

    return run


if __name__ == '__main__':
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # PyTorch wants memory too
    machine.run(main)
