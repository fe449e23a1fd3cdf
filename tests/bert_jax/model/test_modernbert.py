"""ModernBERT's parts: counts that were published, kinds of blocks, each setting by itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.presets import modernbert
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.costs import flops
from bert_jax.mesh.construction import make_mesh
from bert_jax.model import heads, layout, partition
from bert_jax.model.blocks.block import find_cycle, find_kind
from bert_jax.model.dropout import DropoutRng
from bert_jax.train.state import count_weights, init_params
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.trees import assert_same

# (the encoder, with the masked-LM head): transformers' shapes, and Ettin's and mmBERT's tables.
GOLDEN = {
    'modernbert_base': (149_014_272, 149_655_232),
    'ettin_17m': (16_797_440, 16_913_600),
    'modernbert_tiny_cpu': (6_326_528, 6_408_320),
    'mmbert_base': (306_939_648, 307_786_240),
}


def tiny(**changes) -> ModelConfig:
    """ModernBERT with heads of 8 and windows of 2."""
    sizes = {'vocab_size': 50, 'num_heads': 2, 'max_position': 16, 'local_window': 2}
    settings = {'hidden_size': 16, 'num_layers': 4, 'intermediate_size': 12, **sizes, **changes}
    return modernbert.make_shape(**settings)


@pytest.mark.parametrize('name', GOLDEN)
def test_golden_parameter_counts(name):
    model = load.load(name).model
    assert (flops.count_parameters(model, False), flops.count_parameters(model)) == GOLDEN[name]
    assert f'{GOLDEN[name][0]:,}' in load.PRESETS[name].__doc__


@pytest.mark.parametrize(
    ('layers', 'cycle'),
    [(22, (1, 3)), (1, (0, 1)), (2, (1, 1)), (6, (4, 1))],
)
def test_a_loop_repeats_the_kinds_of_blocks(layers, cycle):
    config = tiny(num_layers=layers)
    assert find_cycle(tuple(find_kind(config, i) for i in range(layers))) == cycle


def test_a_loop_computes_what_blocks_in_turn_compute():
    """With dropout, whose masks a block draws again, and with what tuning adds."""
    changes = {'num_layers': 5, 'global_every': 2, 'hidden_dropout': 0.1}
    config = tiny(**changes).tuned(TuningConfig('lora', frozen_layers=1))
    model, batch = heads.Pretraining(config, remat='dots'), make_batch(config)
    params, values = noisy_params(model), []
    rng = DropoutRng(jax.random.key(7), jnp.arange(4, dtype=jnp.uint32))
    for is_scanned in (False, True):
        module = model.clone(scan=is_scanned)

        def loss(params, module=module):
            logits = module.apply({'params': params}, batch, rng)[0][..., : config.vocab_size]
            return jnp.square(logits).mean()

        value, gradient = jax.jit(jax.value_and_grad(loss))(
            layout.arrange_for_program(params, is_scanned)
        )
        values.append((value, layout.stack_blocks(gradient)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), *values)


def test_the_first_block_has_a_norm_less():
    params = noisy_params(heads.Pretraining(tiny()))
    blocks = params['encoder']['layers']
    assert blocks['attention_norm']['scale'].shape == (3, 16)
    assert blocks['output_norm']['scale'].shape == (4, 16)
    apart = layout.separate_blocks(params)['encoder']['layers']
    assert [('attention_norm' in apart[i]) for i in '0123'] == [False, True, True, True]
    assert count_weights(params, tiny()) == flops.count_parameters(tiny())
    again = layout.stack_blocks(layout.separate_blocks(params))
    assert_same(params, again)


def test_fresh_weights_are_as_small_as_megatrons():
    config = tiny(hidden_size=128, intermediate_size=128, num_layers=8)
    blocks = init_params(heads.Pretraining(config), 0)['encoder']['layers']
    cut = 0.8796  # of a normal that is cut at two deviations
    stds = {
        name: float(np.std(blocks[name]['kernel'])) / cut for name in blocks if 'norm' not in name
    }
    small = 0.02 / np.sqrt(2 * 8)
    for name, std in stds.items():
        wanted = small if name in ('attention_output', 'output') else 0.02
        assert abs(std / wanted - 1) < 0.03, name


def test_no_mesh_changes_the_loss():
    config = tiny(num_heads=4)
    model, batch = heads.Pretraining(config), make_batch(config, rows=8)
    params = noisy_params(model)
    wanted = np.asarray(jax.jit(model.apply)({'params': params}, batch)[0])
    mesh = make_mesh(RuntimeConfig(fsdp=2, model_parallel=2))
    with jax.set_mesh(mesh):
        placed = partition.put(params, mesh, True)
        logits = jax.jit(model.clone(scan=True).apply)({'params': placed}, batch)[0]
    np.testing.assert_allclose(logits, wanted, atol=2e-5)


@pytest.mark.parametrize(
    'changes',
    [
        {'local_window': 0},
        {'positions': 'learned', 'rope_theta': 5.0},
        {'hidden_size': 18, 'num_heads': 6},
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(changes):
    with pytest.raises(UserError, match=f'{list(changes)[-1]}='):
        tiny(**changes)


def test_local_attention_costs_what_its_window_has():
    """A global block has T keys for each query, a local one 2 w + 1."""
    config = tiny(num_layers=3)
    forward = 4 * 16 * 16 * (16 + 5 + 5)
    assert flops.count_flops_by_part(config, 16, 2)['attention'] == 3 * forward


def test_tuning_knows_the_gate():
    assert tiny().tuned(TuningConfig('lora', matrices='gate,value')).tuning.rank == 8
    with pytest.raises(UserError, match='there is no gate with'):
        ModelConfig().tuned(TuningConfig('lora', matrices='gate'))


def test_the_rate_warms_up_over_the_published_tokens():
    """Steps of the growing batch are smaller, so there are more of them."""
    config = load.load('modernbert_base')
    phase = config.phases[0]
    first, each = phase.batch_warmup_from, phase.batch_warmup_steps
    sizes = [
        min(first * (1 + i // each), phase.batch_size) for i in range(config.optimizer.warmup_steps)
    ]
    assert abs(1024 * sum(sizes) / 3e9 - 1) < 0.001
