"""The train step of bert-pretrain as libtpu compiles it for a v5e:2x4 that is not there.

Each check reads the compiled program: what goes over the wires, how often, and what a chip holds.
"""

from __future__ import annotations

import collections
import functools
import json
import math
import os
import re

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip('libtpu', reason='libtpu is not installed: bash launch/test.sh --plan')

from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.costs import estimate
from bert_jax.costs.chips import Topology, parse_topology
from bert_jax.costs.compiled import DoesNotFit, compile_for_memory, compile_step, list_devices
from bert_jax.mesh import construction
from bert_jax.mesh.sharding import format_path
from bert_jax.model.blocks.attention import AttentionMask, attend
from bert_jax.train.pretraining_program import InputKind
from tests.helpers import hlo

# Sizes that no other dimension has, so that a shape in the program tells what it is. V=1000 is
# padded to 1024.
SMALL = (
    'model.vocab_size=1000',
    'model.num_layers=2',
    'model.max_position=48',
    'phases.0.seq_len=24',
    'phases.0.batch_size=160',
)
WHERE = parse_topology('v5e:2x4')
PREDICTIONS = 3


class Program:
    """A compiled step with what the tests ask of it."""

    def __init__(self, *changes: str, where: Topology = WHERE) -> None:
        self.config = apply(load('bert_tiny'), [*SMALL, 'runtime.compute_dtype=bfloat16', *changes])
        self.phase = self.config.phases[0]
        self.task = estimate.Task(self.config, self.phase, PREDICTIONS, where)
        self.compiled = compile_step(self.task)
        self.text = self.compiled.as_text()
        self.mesh = estimate.make_abstract_mesh(self.config, where)
        self.collectives = hlo.collectives(self.text, dict(self.mesh.shape))
        inputs = InputKind(self.phase.seq_len, PREDICTIONS)
        self.arguments = self.task.setup.argument_shapes(inputs, self.phase.batch_size, self.mesh)
        leaves = jax.tree_util.tree_flatten_with_path(self.arguments[0].params)[0]
        self.shapes = {format_path(path): leaf.shape for path, leaf in leaves}


@pytest.fixture(scope='module')
def optimised():
    """Compiled as users have it: the other tests turn XLA's optimisations off."""
    jax.config.update('jax_disable_most_optimizations', False)
    yield
    jax.config.update(
        'jax_disable_most_optimizations', os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] != '0'
    )


@pytest.fixture(scope='module')
def accumulated(optimised) -> Program:
    return Program('runtime.accumulation=4', 'runtime.shard_optimizer=false')


@pytest.fixture(scope='module', params=[1, 4], ids='accumulation={}'.format)
def sharded(optimised, request) -> Program:
    """As users have it on a TPU: the update is sharded without being asked for."""
    return sharded_by(request.param)


@functools.cache
def sharded_by(accumulation: int) -> Program:
    return Program(f'runtime.accumulation={accumulation}')


@pytest.fixture(scope='module')
def fsdp(optimised) -> Program:
    return Program('runtime.fsdp=8')


@pytest.fixture(params=['accumulated', 'fsdp'])
def program(request) -> Program:
    return request.getfixturevalue(request.param)


def arrays(shape: str) -> list[tuple[int, ...]]:
    """The dims of an array's shape or of a tuple's."""
    return [
        tuple(int(d) for d in dims.split(',') if d)
        for dims in re.findall(r'\w+\[([\d,]*)\]', shape)
    ]


def test_no_double_precision(program):
    assert 'bf16[' in program.text
    assert not re.findall(r'\b[fsu]64\[', program.text)


def test_nothing_is_computed_twice_for_want_of_memory(program):
    assert '.remat' not in program.text


def test_random_bits_are_drawn_where_they_are_used(program):
    """Random bits were 16-bit halves, put in order by reshaping."""
    bits = [
        i
        for i in re.findall(
            r'= (u32\[[\d,]+\])\S* (?:copy|transpose|broadcast)\(.*estimated_cycles', program.text
        )
        if hlo.size_of(i) > 4096
    ]
    assert bits == []


def moved(program: Program) -> list[str]:
    """The leaves of the state that come out of a step placed otherwise than they went in."""
    before = jax.tree_util.tree_flatten_with_path(program.arguments[0])[0]
    after = jax.tree.leaves(program.compiled.output_shardings[0])
    both = zip(before, after, strict=True)
    pairs = [
        (format_path(k), leaf.sharding.shard_shape(leaf.shape), out.shard_shape(leaf.shape))
        for (k, leaf), out in both
    ]
    return [path for path, old, new in pairs if old != new]


def test_the_state_is_updated_in_place(accumulated, fsdp, sharded):
    assert [moved(program) for program in (accumulated, fsdp, sharded)] == [[], [], []]
    stats = accumulated.compiled.memory_analysis()
    assert stats.output_size_in_bytes - stats.alias_size_in_bytes < 2**16  # metrics alone are new


def test_counted_state_is_what_the_compiler_allots(program):
    memory = estimate.analyse(program.task)['memory']
    arguments = program.compiled.memory_analysis().argument_size_in_bytes
    assert sum(memory.values()) == pytest.approx(arguments, rel=0.1)  # tiles pad small arrays


def test_the_gradient_alone_is_reduced_once_a_step_and_not_for_each_micro_batch(accumulated):
    whole = sum(math.prod(shape) for shape in accumulated.shapes.values())
    reduced = [(c, dims) for c in accumulated.collectives for dims in arrays(c.shape)]
    facts = {(c.kind, c.axes, c.count) for c, _ in reduced}
    assert facts == {('all-reduce', ('data',), 1)}
    elements = sum(math.prod(dims) for _, dims in reduced)
    # Its gradient is reduced twice: as a look-up and as the head's matrix.
    table = math.prod(accumulated.shapes['encoder/embeddings/word'])
    assert whole <= elements <= 1.02 * (whole + table)  # and the sums of the metrics


def test_a_sharded_update_scatters_gradients_and_gathers_weights_once_a_step(sharded):
    """Together they move what one all-reduce of the same arrays does."""
    assert {c.axes for c in sharded.collectives} == {('data',)}
    assert [c for c in sharded.collectives if c.count > 1] == []
    moments = jax.tree_util.tree_flatten_with_path(sharded.arguments[0].opt_state[1].mu)[0]
    shares = {format_path(path): leaf.sharding.shard_shape(leaf.shape) for path, leaf in moments}
    parts = collections.Counter()
    for path, shape in sharded.shapes.items():
        kind = 'kernels' if path.endswith('kernel') else 'tables'
        parts[kind if shares[path] != shape else 'whole'] += math.prod(shape)
    assert parts['whole'] < 0.05 * sum(parts.values())

    # Kernels in bfloat16, but for gradients that were added up in float32; the rest in float32.
    moved = collections.Counter()
    for c in sharded.collectives:
        moved[c.kind] += c.bytes
    assert moved['all-gather'] == 4 * parts['tables'] + 2 * parts['kernels']
    of_kernel = 2 if sharded.config.runtime.accumulation == 1 else 4
    scattered = 4 * parts['tables'] + of_kernel * parts['kernels']
    assert moved['reduce-scatter'] == pytest.approx(scattered, rel=0.02)  # rows may be padded
    assert moved['all-reduce'] == pytest.approx(4 * parts['whole'], rel=0.05)  # and the metrics


@pytest.mark.parametrize(
    'settings',
    [
        ('runtime.accumulation=4', 'runtime.shard_optimizer=false'),
        ('runtime.accumulation=4',),
        ('runtime.accumulation=1',),
        ('runtime.fsdp=8',),
        ('runtime.model_parallel=2', 'runtime.shard_optimizer=false'),
    ],
)
def test_what_shapes_say_is_sent_is_about_what_the_program_sends(optimised, settings):
    """Never much more: it is a floor. Tables and their gradients are sent apart and in float32."""
    program = Program('model.vocab_size=100', 'model.num_layers=4', *settings)
    sent = sum(c.count * c.sent for c in program.collectives)
    assert 0.5 * sent < estimate.count_sent(program.task) < 1.05 * sent


def test_a_second_compilation_meets_no_program_of_absent_devices():
    def kept() -> list[str]:
        return [
            name
            for name in os.listdir(jax.config.jax_compilation_cache_dir)
            if 'train_step' in name
        ]

    before = kept()
    for _ in range(2):  # a program that the other tests do not compile
        Program('model.num_layers=1', 'phases.0.batch_size=16')
        jax.clear_caches()
    assert kept() == before


# Not both at once: XLA ends the process, and the settings are refused.
@pytest.mark.parametrize('change', ['runtime.accumulation=2', 'runtime.model_parallel=2'])
def test_the_splash_kernel_compiles_with_each_chip_its_own_rows_and_heads(optimised, change):
    sizes = ('model.max_position=128', 'phases.0.seq_len=128', 'model.attention_dropout=0')
    program = Program(*sizes, 'runtime.attention=tpu_splash', change)
    assert program.text.count('tpu_custom_call') >= 2  # forward and backward
    heads = 2 // program.mesh.shape['model']
    rows = (
        program.phase.batch_size
        // program.config.runtime.accumulation
        // program.mesh.shape['data']
    )
    assert f'bf16[{rows},{heads},128,64]' in program.text


@pytest.mark.parametrize(('name', 'tokens'), [('v5e:2x4', 8192), ('v6e:2x4', 1024)])
def test_packed_rows_of_local_and_global_layers_compile(optimised, name, tokens):
    """Each chip its own rows and heads, and the memory no longer than the row."""
    runtime = RuntimeConfig(fsdp=2, model_parallel=2)
    mesh = construction.make_mesh(runtime, list_devices(parse_topology(name)))
    rows = jax.P(('data', 'fsdp'))
    heads = jax.NamedSharding(mesh, jax.P(*rows, None, 'model'))
    like = jax.ShapeDtypeStruct((8, tokens, 12, 64), 'bfloat16', sharding=heads)
    packs = jax.ShapeDtypeStruct((8, tokens), 'int32', sharding=jax.NamedSharding(mesh, rows))

    def total(x, packs):
        for window in (64, None):
            mask = AttentionMask(jnp.minimum(packs, 1), packs, window)
            x = attend(x, x, x, mask, kernel='tpu_splash')
        return jnp.sum(x.astype(jnp.float32) ** 2)

    with jax.set_mesh(mesh):
        compiled = jax.jit(jax.grad(total)).lower(like, packs).compile()
    text = compiled.as_text()
    # Forward, and backward for the queries and for the keys.
    assert text.count('tpu_custom_call') == 2 * 3
    assert not hlo.collectives(text, dict(mesh.shape))
    of_a_chip = 2 * tokens * 6 * 64 * 2  # bytes of two rows and half of the heads
    assert compiled.memory_analysis().temp_size_in_bytes < 30 * of_a_chip


def gathered(program: Program) -> list[tuple[hlo.Collective, tuple[int, ...]]]:
    """What moves without being summed, but for ids and positions."""
    kinds = ('all-gather', 'collective-permute', 'all-to-all')
    return [
        (c, dims)
        for c in program.collectives
        if c.kind in kinds and 'f' in c.shape
        for dims in arrays(c.shape)
    ]


def test_fsdp_gathers_parameters_for_the_model_and_never_for_the_optimizer(fsdp):
    assert {axis for c, _ in gathered(fsdp) for axis in c.axes} == {'fsdp'}
    # Forward and backward pass are jvp and transpose(jvp).
    assert [c for c, _ in gathered(fsdp) if 'jvp(' not in c.origin] == []
    whole = sum(math.prod(shape) for shape in fsdp.shapes.values())
    moved = sum(c.count * math.prod(dims) for c, dims in gathered(fsdp))
    assert 0.5 * whole < moved < 3 * whole  # to gather the optimizer would add twice the whole
    moments = jax.tree.leaves(fsdp.arguments[0].opt_state)
    share = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in moments)
    assert share < 0.2 * sum(math.prod(leaf.shape) for leaf in moments)


def test_fsdp_scatters_the_gradient_of_the_word_table(fsdp):
    """It came whole to each chip, to be cut there: an all-reduce, or a scatter and a gather."""
    table = math.prod(fsdp.shapes['encoder/embeddings/word'])
    whole = [c for c in fsdp.collectives if math.prod(max(arrays(c.shape), key=math.prod)) >= table]
    assert [c.kind for c in whole if c.kind != 'reduce-scatter'] == ['all-gather']


def test_hidden_states_are_never_gathered(fsdp):
    """What XLA calls an involuntary full rematerialisation.

    An activation made whole on every chip, to be cut anew.
    """
    rows, length = fsdp.phase.batch_size, fsdp.phase.seq_len
    assert [c for c, dims in gathered(fsdp) if length in dims or rows * length in dims] == []


def test_a_step_that_does_not_fit_names_both_sizes(optimised):
    config = apply(load('bert_tiny'), [*SMALL, 'phases.0.batch_size=8000000'])
    with pytest.raises(
        DoesNotFit,
        match=r'does not fit v5e:2x4: it needs [\d.]+ GiB .* is 15\.75 GiB: raise',
    ) as refused:
        compile_step(estimate.Task(config, config.phases[0], PREDICTIONS, WHERE))
    assert refused.value.has == WHERE.chip.hbm_usable < refused.value.needs


def test_memory_that_is_told_is_what_a_step_is_refused_for(optimised):
    """At the edge, where nearly all grows with the vocabulary.

    What fits tells what does not will need.
    """
    needs = {}
    for vocab in (5_800_000, 7_000_000):
        changes = ('phases.0.batch_size=64', 'runtime.shard_optimizer=false')
        config = apply(load('bert_tiny'), [*SMALL, *changes, f'model.vocab_size={vocab}'])
        try:
            task = estimate.Task(config, config.phases[0], PREDICTIONS, WHERE)
            needs[vocab] = compile_for_memory(task)['memory']['total']
        except DoesNotFit as refused:
            needs[vocab] = refused.needs
            assert vocab == 7_000_000
    assert needs[5_800_000] < WHERE.chip.hbm_usable < needs[7_000_000]
    assert needs[5_800_000] / 5.8 == pytest.approx(needs[7_000_000] / 7, rel=0.1)


def test_the_forward_kernel_of_scanned_layers_runs_once(optimised):
    """The backward ones read its output and sums of exponentials."""
    sizes = ('model.max_position=128', 'phases.0.seq_len=128', 'phases.0.batch_size=16')
    settings = ('runtime.attention=tpu_splash', 'model.attention_dropout=0')
    program = Program(*sizes, *settings, 'runtime.scan_layers=true')
    kernels = re.findall(r'%(splash_mha_[a-z]+)\S* = .*tpu_custom_call', program.text)
    assert sorted(kernels) == ['splash_mha_dkv', 'splash_mha_dq', 'splash_mha_fwd']


@pytest.mark.slow
def test_a_deep_unrolled_model_follows_from_two_of_fewer_layers(optimised):
    """Cost, memory and traffic of twelve layers, against the program that has them."""
    config = apply(load('bert_tiny'), [*SMALL, 'model.num_layers=12'])
    task = estimate.Task(config, config.phases[0], PREDICTIONS, WHERE)
    rule, whole = compile_for_memory(task), compile_for_memory(task, all_layers=True)
    assert (rule['layers_compiled'], whole['layers_compiled']) == ([2, 4], [12])
    assert rule['memory']['total'] == pytest.approx(whole['memory']['total'], rel=0.1)
    assert rule['memory']['arguments'] == pytest.approx(whole['memory']['arguments'], rel=0.02)


def test_random_bits_of_the_whole_batch_are_warned_of(optimised):
    changes = [*SMALL, 'model.num_layers=1', 'runtime.dropout_rng=rbg']
    config = apply(load('bert_tiny'), changes)
    task = estimate.Task(config, config.phases[0], PREDICTIONS, WHERE)
    (warning,) = compile_for_memory(task)['warnings']
    assert 'random bits of 160 rows and uses those of its own 20' in warning


@pytest.mark.parametrize('name', ['v4:2x2x1', 'v5e:1x1', 'v5e:16x16', 'v5p:4x4x12', 'v6e:8x16'])
def test_libtpu_knows_the_topologies_that_we_name(name):
    where = parse_topology(name)
    assert len(list_devices(where)) == where.chips


@pytest.mark.parametrize(
    'name',
    ['v4:4x4x4', 'v5e:8x8', 'v5p:2x2x2', 'v5p:4x8x8'],
)
def test_every_mesh_of_powers_of_two_is_made_of_the_devices_that_libtpu_has(name):
    """And two hosts need the same rows of a batch or none in common, as jax wants them given."""
    where = parse_topology(name)
    powers = [2**i for i in range(where.chips.bit_length())]
    for fsdp in powers:
        for model in powers[: len(powers) - powers.index(fsdp)]:
            runtime = RuntimeConfig(fsdp=fsdp, model_parallel=model)
            mesh = construction.make_mesh(runtime, list_devices(where))
            assert len(set(mesh.devices.flat)) == where.chips
            rows = collections.defaultdict(set)
            for row, its in enumerate(mesh.devices.reshape(-1, model)):
                for device in its:
                    rows[device.process_index].add(row)
            different = {frozenset(found) for found in rows.values()}
            assert sum(map(len, different)) == where.chips // model


@pytest.mark.parametrize('name', ['v5p:2x2x4'])
def test_a_step_is_compiled_where_two_axes_of_the_mesh_share_one_of_the_torus(optimised, name):
    settings = ('model.num_layers=1', 'runtime.fsdp=2', 'runtime.model_parallel=2')
    program = Program(*settings, where=parse_topology(name))
    axes = {axis for c in program.collectives for axis in c.axes}
    assert axes == {'data', 'fsdp', 'model'}


def test_the_command(binary, tmp_path):
    changes = [
        f'--set={change}'
        for change in (*SMALL, 'model.num_layers=1', 'runtime.fsdp=2', 'runtime.model_parallel=2')
    ]
    file = tmp_path / 'plans' / 'plan.json'
    flags = (
        '--config=bert_tiny',
        '--topology=v5e:2x4',
        f'--json={file}',
        '--price_per_chip_hour=2',
        *changes,
    )
    result = binary('plan', *flags, TPU_MIN_LOG_LEVEL='0')
    assert result.returncode == 0, result.stderr
    assert 'rematerialization' not in result.stderr
    assert 'NOT COMPILED' not in result.stdout
    found = json.loads(file.read_text())
    assert (found['compiled'], found['mesh']) == (True, {'data': 2, 'fsdp': 2, 'model': 2})
    memory = found['phases'][0]['memory']
    assert 'gcloud --accelerator-type=v5litepod-8' in result.stdout
    assert result.stdout.splitlines()[-1].startswith('whole run at 40% MFU (assumed): ')
    assert memory['left'] == int(15.75 * 2**30) - memory['total']
    assert f'{found["parameters"]:,} parameters' in result.stdout
    assert WHERE.chip.source in result.stdout
