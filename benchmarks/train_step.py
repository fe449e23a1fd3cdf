"""The whole train step beside PyTorch's, on this machine: same model, same work, in alternation.

Without files and without TensorFlow.

  python -m benchmarks.train_step [--cases=bert_base:128,bert_large:512] [--batch_size=N]
  [--json=FILE] [--sweep]

A step is forward, backward, clipping, the optimizer and dropout as the preset has them, on random
ids without padding. --masked_share of the tokens is masked; with --packed=K a row holds K examples
of one length, which do not see each other. Ours, by its own code, is measured beside
  bare     the jitted forward and backward of the same model alone, no clipping, no optimizer;
  torch    transformers' BertForPreTraining or ModernBertForMaskedLM as people run it: SDPA,
           clipping at 1.0, fused AdamW, on a GPU bf16 autocast and torch.compile;
  gathered the same, but with the masked positions gathered before the vocabulary, as ours has it;
           on a CPU also with torch.compile, with bf16 autocast, and with both.
Ours multiplies as runtime.matmul_dtype says, by default as the processor is fast in. Without torch
only ours and bare run. A last line compares with PyTorch's fastest form. Rates are sequences a
second, medians over the rounds; ratios are taken within a round. MFU is flops.py's count over the
data sheet's peak, `of matmul` over the rate of large matrix products measured here. --sweep also
measures ours with each choice of attention, dropout bits, loop over layers and batch size.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import flags, logging

from benchmarks import batches
from bert_jax.cli import app
from bert_jax.configs.errors import UserError
from bert_jax.mesh import before_jax

_CASES = flags.DEFINE_list(
    'cases',
    None,
    'PRESET:SEQ_LEN pairs (default: bert_base and bert_large at 128 and 512 on a GPU; bert_tiny:128'
    ' on a CPU)',
)
_BATCH_SIZE = flags.DEFINE_integer(
    'batch_size',
    0,
    'sequences a step; 0: on a GPU the largest that fits, on a CPU 8',
    lower_bound=0,
)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 5, 'rounds of all programs, one after the other', lower_bound=1
)
_SECONDS = flags.DEFINE_float(
    'seconds', 3.0, 'how long each program runs in a round', lower_bound=0.01
)
_SET = flags.DEFINE_multi_string(
    'set', [], 'changes one setting of ours, as in --set runtime.attention=xla'
)
_SWEEP = flags.DEFINE_bool(
    'sweep', False, 'also measure the choices that make ours faster or slower'
)
_TORCH = flags.DEFINE_bool('torch', True, 'measure PyTorch too, where it is installed')
_MASKED_SHARE = flags.DEFINE_float(
    'masked_share', 0.15, 'share of the tokens that are predicted', lower_bound=0.0, upper_bound=1.0
)
_PACKED = flags.DEFINE_integer('packed', 0, 'examples in a row; 0: one', lower_bound=0)
_JSON = flags.DEFINE_string('json', None, 'file to write the figures to')

# Changes of ours that --sweep measures; a fused kernel has no dropout on probabilities, so it
# stands beside xla without it.
SWEEP = (
    ('runtime.dropout_rng=rbg',),
    ('runtime.dropout_rng=threefry13_8bit',),
    ('runtime.scan_layers=true',),
    ('model.attention_dropout=0.0', 'runtime.attention=xla'),
    ('model.attention_dropout=0.0', 'runtime.attention=cudnn'),
    ('runtime.compute_dtype=float32',),
    ('runtime.compute_dtype=float32', 'runtime.matmul_dtype=bfloat16'),
)
Program = Callable[[int], None]  # runs that number of steps and waits for the last


class Form(NamedTuple):
    """How PyTorch's step is computed: masked positions gathered, bf16 autocast, torch.compile."""

    gathered: bool = True
    autocast: bool = False
    compiled: bool = False


CPU_FORMS = {
    'gathered compiled': Form(compiled=True),
    'gathered bf16': Form(autocast=True),
    'gathered bf16 compiled': Form(autocast=True, compiled=True),
}


def main(argv: Sequence[str]) -> None:
    """Measure every case and prints a line for each program."""
    del argv
    before_jax.set_up()  # as bert-pretrain
    import jax

    from benchmarks import machine

    # A CPU is measured on the smallest preset: a step of the others takes it seconds.
    gpu = jax.default_backend() == 'gpu'
    cases = _CASES.value or (
        [f'{m}:{s}' for m in ('bert_base', 'bert_large') for s in (128, 512)]
        if gpu
        else ['bert_tiny:128']
    )
    device = jax.devices()[0].device_kind
    matmul = matmul_rate() if gpu else None
    report: dict[str, Any] = {'device': device, 'matmul_flops': matmul, 'cases': []}
    for case in cases:
        report['cases'].append(measure(case, gpu, device, matmul))
        if _JSON.value:  # after each case, so that a time limit loses one and not all
            report['machine'] = machine.describe(
                'jax', 'jaxlib', 'flax', 'optax', 'numpy', *_torch_packages()
            )
            with open(_JSON.value, 'w') as file:
                json.dump(report, file, indent=1)


def measure(case: str, gpu: bool, device: str, matmul: float | None) -> dict[str, Any]:
    """Measure all programs of one case, PRESET:SEQ_LEN, in alternation; print the figures."""
    from bert_jax.costs.chips import peak_flops
    from bert_jax.costs.flops import training_flops_per_sequence
    from bert_jax.model.blocks import products

    # The same model, length, batch and predictions for all programs.
    config, seq_len = configured(case, gpu, _SET.value)
    size = _BATCH_SIZE.value or (largest_batch(config, seq_len) if gpu else 8)
    predictions = predicted(seq_len)
    flops = training_flops_per_sequence(config.model, seq_len, predictions)
    programs = {'ours': ours(config, seq_len, size), 'bare': bare(config, seq_len, size)}
    # Only where both packages are installed.
    if _torch_packages():
        forms = {name: Form(name != 'torch', gpu, gpu) for name in ('torch', 'gathered')}
        programs |= {
            name: pytorch(config, seq_len, size, gpu, form)
            for name, form in (forms if gpu else forms | CPU_FORMS).items()
        }
    for changes in SWEEP if _SWEEP.value else ():
        try:
            other, _ = configured(case, gpu, [*_SET.value, *changes])
            programs[' '.join(change.partition('.')[2] for change in changes)] = ours(
                other, seq_len, size
            )
        except UserError as error:  # a kernel that is not for this device
            logging.info('%s: left out: %s', ' '.join(changes), error)

    # Programs are made (and compiled) before any is measured, and then run in turn.
    measured = rates(programs, size)
    peak = peak_flops(device)
    print(
        f'{case}, batch {size}, examples a row {_PACKED.value or 1}, {predictions} predictions,'
        f' {config.runtime.compute_dtype}, products'
        f' {products.choose(config.runtime) or config.runtime.compute_dtype}, dropout'
        f' {config.model.hidden_dropout}/{config.model.attention_dropout}, {device}'
    )
    for name, figures in measured.items():
        figures['mfu'] = figures['sequences_a_second'] * flops / peak if peak else None
        figures['of_matmul'] = figures['sequences_a_second'] * flops / matmul if matmul else None
        shares = ''.join(
            f'  {label} {figures[key]:.1%}'
            for key, label in (('mfu', 'MFU'), ('of_matmul', 'of matmul'))
            if figures[key]
        )
        low, high = figures['ratios'][0], figures['ratios'][-1]
        print(
            f'  {name:28} {figures["sequences_a_second"]:10,.1f} sequences/s  ours is'
            f' {figures["ours_over_this"]:.2f} times as fast ({low:.2f} to {high:.2f}){shares}'
        )
    if theirs := measured.keys() & {'torch', 'gathered', *CPU_FORMS}:
        best = min(theirs, key=lambda name: measured[name]['ours_over_this'])
        print(f'  PyTorch at its best ({best}): ours {measured[best]["ours_over_this"]:.2f} times')
    return {
        'case': case,
        'batch_size': size,
        'predictions': predictions,
        'flops_a_sequence': flops,
        'programs': measured,
    }


def configured(case: str, gpu: bool, changes: Sequence[str]) -> tuple[Any, int]:
    """Return the preset's configuration with this machine's arithmetic, and the length."""
    from bert_jax.configs.load import load
    from bert_jax.configs.overrides import apply

    preset, _, length = case.partition(':')
    if not length.isdecimal():
        raise UserError(f'--cases={case}: must be PRESET:SEQ_LEN, as in bert_base:128')
    config = load(preset)
    if int(length) > config.model.max_position:
        raise UserError(f'--cases={case}: the position table ends at {config.model.max_position}')
    arithmetic = [f'runtime.compute_dtype={"bfloat16" if gpu else "float32"}']
    return apply(config, [*arithmetic, *changes]), int(length)


def rates(programs: dict[str, Program], size: int) -> dict[str, dict[str, Any]]:
    """Measure sequences a second of each program, in rounds, without compiling."""
    steps = {}
    for name, run in list(programs.items()):
        # How many steps take about --seconds: the first call compiles, the second is timed.
        try:
            run(2)
        except RuntimeError as error:  # out of memory, a kernel or a compiler that is not there
            print(f'{name}: left out: {str(error).splitlines()[0]}', flush=True)
            del programs[name]
            continue
        started = time.perf_counter()
        run(4)
        seconds = (time.perf_counter() - started) / 4
        steps[name] = max(1, round(_SECONDS.value / seconds))
        # A first figure, should the time end before the rounds do.
        print(f'{name}: compiled, about {size / seconds:.1f} sequences/s', flush=True)
    # In each round every program runs once: a slow minute hits all of them.
    rounds = []
    for _ in range(_ROUNDS.value):
        seconds = {}
        for name, run in programs.items():
            started = time.perf_counter()
            run(steps[name])
            seconds[name] = (time.perf_counter() - started) / steps[name]
        rounds.append({name: size / value for name, value in seconds.items()})
    # Ratios within a round, then their median.
    figures = {}
    for name in programs:
        ratios = sorted(r['ours'] / r[name] for r in rounds)
        median = statistics.median(r[name] for r in rounds)
        figures[name] = {
            'sequences_a_second': median,
            'ours_over_this': statistics.median(ratios),
            'ratios': ratios,
        }
    return figures


# --- ours ------------------------------------------------------------------------------


def predicted(seq_len: int) -> int:
    """Return the masked tokens of a row, as bert-preprocess makes room for them."""
    return max(1, math.ceil(_MASKED_SHARE.value * seq_len))


def built(config: Any, seq_len: int, size: int) -> tuple[Any, ...]:
    """-> (program, state, batch on the device), as bert-pretrain makes them."""
    import jax

    from bert_jax.mesh import construction, sharding
    from bert_jax.train.program import InputKind, fresh_state, pretraining_program

    mesh = construction.make_mesh(
        dataclasses.replace(config.runtime, data_parallel=1), jax.devices()[:1]
    )
    packed = _PACKED.value
    inputs = InputKind(seq_len, predicted(seq_len), packed=packed > 0)
    program = pretraining_program(config, inputs, mesh)
    arrays = batches.batch_of(config, seq_len, inputs.predictions, size, packed)
    batch = sharding.place(arrays, mesh, size)
    return program, fresh_state(config, mesh), batch


def ours(config: Any, seq_len: int, size: int) -> Program:
    """bert_jax.launch.pretrain's own step."""
    import jax

    # The state is given away in each step (donated), so the newest one is kept here.
    program, state, batch = built(config, seq_len, size)
    held = [state]

    def run(steps: int) -> None:
        for _ in range(steps):
            held[0], metrics = program.train_step(held[0], batch, program.hparams)
        # Steps are dispatched ahead: the time is that until the last is done.
        jax.block_until_ready(metrics)

    return run


def bare(config: Any, seq_len: int, size: int) -> Program:
    """Return the forward and backward of the same model, jitted, and nothing else."""
    import jax
    import jax.numpy as jnp

    from bert_jax.model.dropout import GENERATORS, DropoutRng

    program, state, batch = built(config, seq_len, size)
    objective, params = program.objective, state.params
    rows = jnp.arange(size, dtype=jnp.uint32)
    denominators = objective.weights(batch)
    generator = GENERATORS[config.runtime.dropout_rng]

    @jax.jit
    # A fresh key each time, as in training: constant masks could be computed once for all.
    def gradient(params: Any, number: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(0, impl=generator.implementation), number)
        dropout_rng = DropoutRng(key, rows, generator)

        def loss(params: Any) -> jax.Array:
            sums = objective.sums(params, batch, dropout_rng)
            return sum(sums[name][0] / weight for name, weight in denominators.items())

        return jax.grad(loss)(params)

    def run(steps: int) -> None:
        for number in range(steps):
            grads = gradient(params, number)
        jax.block_until_ready(grads)

    return run


def largest_batch(config: Any, seq_len: int) -> int:
    """Return the largest multiple of 32 whose step takes nine tenths of the device's memory.

    By what XLA says of two sizes.
    """
    import jax

    # Two sizes give a line: what the program itself takes, and bytes a row.
    need = {}
    for size in (32, 64):
        program, state, batch = built(config, seq_len, size)
        memory = program.train_step.lower(state, batch, program.hparams).compile().memory_analysis()
        need[size] = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    a_row = (need[64] - need[32]) / 32
    # PyTorch's model and step lie next to ours
    room = 0.9 * jax.devices()[0].memory_stats()['bytes_limit'] / 2
    return max(32, int((room - need[32] + 32 * a_row) / a_row) // 32 * 32)


def matmul_rate() -> float:
    """FLOP/s of bfloat16 products of 8192 x 8192 matrices here: the best of five."""
    import jax
    import jax.numpy as jnp

    n, count = 8192, 20
    x = jnp.ones((n, n), jnp.bfloat16)
    # Products in one program, each waiting for the one before: no time between them is counted. The
    # factor keeps y as it is: ones times ones is n.
    chain = jax.jit(
        lambda x: jax.lax.fori_loop(0, count, lambda _, y: (y @ x) * jnp.bfloat16(1 / n), x)
    )
    chain(x).block_until_ready()
    best = float('inf')
    for _ in range(5):
        started = time.perf_counter()
        chain(x).block_until_ready()
        best = min(best, time.perf_counter() - started)
    # 2 n^3: a multiplication and an addition for each of n^3.
    return count * 2 * n**3 / best


# --- PyTorch ---------------------------------------------------------------------------


def _torch_packages() -> tuple[str, ...]:
    import importlib.util

    there = tuple(name for name in ('torch', 'transformers') if importlib.util.find_spec(name))
    return there if _TORCH.value and len(there) == 2 else ()


def pytorch(config: Any, seq_len: int, size: int, gpu: bool, form: Form) -> Program:
    """Make the step of transformers' model with SDPA, clipping and fused AdamW."""
    import torch

    from benchmarks import torch_models

    device = 'cuda' if gpu else 'cpu'
    torch.manual_seed(0)
    torch.set_float32_matmul_precision('high')
    model = torch_models.model_of(config.model).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    batch = batches.batch_of(config, seq_len, predicted(seq_len), size, _PACKED.value)
    arrays = {name: torch.as_tensor(value).to(device).long() for name, value in batch.items()}
    is_modern = config.model.family == 'modernbert'
    loss_of = torch_models.modern_loss if is_modern else torch_models.loss
    loss = loss_of(model, arrays, form.gathered)
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
        if gpu:
            # CUDA runs behind: wait for the last step.
            torch.cuda.synchronize()

    return run


if __name__ == '__main__':
    import os

    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # PyTorch wants memory too
    app.run(main)
