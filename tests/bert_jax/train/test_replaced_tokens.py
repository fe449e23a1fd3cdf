"""Replaced-token detection: its draws and losses beside numpy's, its tables, its way to a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from bert_jax.configs import schema
from bert_jax.mesh import construction, sharding
from bert_jax.model.dropout import DropoutRng
from bert_jax.train.dynamic_masking import DynamicMasking
from bert_jax.train.losses import replaced_tokens
from bert_jax.train.losses.objective import Objective, add_losses
from bert_jax.train.losses.replaced_tokens import draw_tokens
from bert_jax.train.pretraining_program import InputKind, PretrainingSetup
from tests.bert_jax.train.test_dynamic_masking import rows_of
from tests.helpers.masking import MASK, VOCAB
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.packed import pack
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config

NARROW = {'generator_size': 0.5}
APART = {'generator_size': 1.0, 'generator_layers': 0.5, 'sharing': 'gradient_disentangled'}
MODEL = tiny_config()


def config(sharing: dict[str, Any], **changes: Any) -> schema.PretrainConfig:
    settings = {
        'model': MODEL,
        'phases': (schema.Phase(16, 100, 32),),
        'objective': 'replaced_tokens',
        'replaced_tokens': schema.ReplacedTokensConfig(**sharing),
        'optimizer': schema.OptimizerConfig(peak_lr=1e-2, warmup_steps=0),
    }
    return schema.PretrainConfig(**settings | changes)


def made(sharing: dict[str, Any]) -> tuple[Any, Objective, Any]:
    """Both models, what they minimise, and weights that have all terms."""
    setup = PretrainingSetup.from_config(config(sharing))
    model = setup.make_model()
    return model, setup.make_objective(model, False), noisy_params(model)


def total(objective: Objective, batch: dict[str, np.ndarray], only: tuple[str, ...] = ()) -> Any:
    """The loss of a batch as a function of the weights, or some of its terms."""
    weights = {k: w for k, w in objective.weights(batch).items() if not only or k in only}
    return lambda params: add_losses(objective.sums(params, batch, None), weights)


def test_draws_have_the_probabilities_of_the_generator():
    """Of 40,000 places with one distribution; another step, row or position is another draw."""
    logits = np.random.default_rng(0).normal(0, 2, 8).astype(np.float32)
    B, P = 400, 100
    batch = {'masked_lm_positions': np.tile(np.arange(P, dtype=np.int32), (B, 1))}
    rng = DropoutRng(jax.random.key(3), jnp.arange(B, dtype=jnp.uint32))
    everywhere = np.broadcast_to(logits, (B, P, 8))
    drawn = np.asarray(jax.jit(draw_tokens)(everywhere, batch, rng))
    wanted = special.softmax(logits.astype(np.float64)) * B * P
    counts = np.bincount(drawn.ravel(), minlength=8)
    assert np.sum((counts - wanted) ** 2 / wanted) < 24.3  # chi-square, 7 degrees, one in 1,000
    # Two draws agree as often as chance says, along each axis, and in another step.
    chance = float(np.sum((wanted / (B * P)) ** 2))
    other = DropoutRng(jax.random.key(4), rng.rows_B)
    steps = np.asarray(draw_tokens(everywhere, batch, other))
    pairs = (drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1]), (drawn, steps)
    for one, two in pairs:
        assert np.mean(one == two) == pytest.approx(chance, abs=0.015)
    # Named by row and position: some of them alone, in another order, are drawn alike.
    some = {'masked_lm_positions': batch['masked_lm_positions'][5:9, 10:2:-3]}
    few = DropoutRng(rng.key, rng.rows_B[5:9])
    np.testing.assert_array_equal(draw_tokens(everywhere[5:9, :3], some, few), drawn[5:9, 10:2:-3])


def test_held_out_draws_go_with_the_record():
    """They do not change with the batch that a record stands in, and do with its tokens."""
    batch = make_batch(MODEL, rows=6)
    logits = np.zeros((6, 3, 128), np.float32)
    whole = np.asarray(draw_tokens(logits, batch))
    order = np.array([4, 1])
    part = {name: x[order] for name, x in batch.items()}
    np.testing.assert_array_equal(draw_tokens(logits[order], part), whole[order])
    part['input_ids'][:, 0] += 1
    assert np.any(draw_tokens(logits[order], part) != whole[order])


@pytest.mark.parametrize('sharing', [NARROW, APART], ids=('narrow', 'apart'))
def test_losses_are_numpys(sharing):
    """Of rows with padding, places without a mask, and a row that only fills up."""
    model, objective, params = made(sharing)
    batch = make_batch(MODEL, rows=4)
    batch['masked_lm_weights'][1, 2] = batch['example_weights'][3] = 0
    sums = jax.jit(lambda p: objective.sums(p, batch, None))(params)
    of_detector, of_generator = model.split(params)
    logits = np.asarray(model.generator.apply({'params': of_generator}, batch)[0])
    drawn = np.asarray(draw_tokens(logits, batch))
    shown, original = batch['input_ids'].copy(), batch['input_ids'].copy()
    for row, place in zip(*np.nonzero(batch['masked_lm_weights'])):
        at = batch['masked_lm_positions'][row, place]
        shown[row, at] = drawn[row, place]
        original[row, at] = batch['masked_lm_ids'][row, place]
    told = model.detector.apply({'params': of_detector}, {**batch, 'input_ids': shown})
    p = special.expit(np.asarray(told, np.float64))
    real = batch['input_mask'][:3] > 0
    replaced = (shown != original)[:3][real]
    assert 0 < replaced.mean() < 1
    p = p[:3][real]
    detection = -np.where(replaced, np.log(p), np.log1p(-p)).mean()
    chosen = batch['masked_lm_weights'][:3] > 0
    words = special.log_softmax(logits[:3][chosen][:, :100].astype(np.float64), -1)
    words = -words[np.arange(len(words)), batch['masked_lm_ids'][:3][chosen]].mean()
    wanted = {
        'rtd_loss': detection,
        'rtd_accuracy': np.mean((p > 0.5) == replaced),
        'rtd_share': replaced.mean(),
        'rtd_found': np.mean(p[replaced] > 0.5),
        'mlm_loss': words,
    }
    for name, number in wanted.items():
        np.testing.assert_allclose(sums[name][0] / sums[name][1], number, rtol=1e-5, err_msg=name)
    loss = total(objective, batch)(params)
    np.testing.assert_allclose(loss, words + 50 * detection, rtol=1e-5)


def test_shared_tables_are_one_array_with_both_gradients():
    _, objective, params = made(NARROW)
    batch = make_batch(MODEL)
    assert params['generator']['encoder']['embeddings'].keys() == {'to_hidden'}
    both, of_words, of_detection = (
        jax.jit(jax.grad(total(objective, batch, only)))(params)
        for only in ((), ('mlm_loss',), ('rtd_loss',))
    )
    for name in ('word', 'position', 'segment', 'norm'):
        tables = [tree['encoder']['embeddings'][name] for tree in (both, of_words, of_detection)]
        for whole, one, other in zip(*map(jax.tree.leaves, tables), strict=True):
            assert np.any(one) and np.any(other)
            np.testing.assert_allclose(whole, one + other, rtol=1e-4, atol=1e-5)


def test_disentangled_tables_keep_the_gradient_of_detection_from_the_generator():
    model, objective, params = made(APART)
    batch = make_batch(MODEL)
    assert params['encoder']['embeddings'].keys() == {'segment', 'norm'}
    of_words, of_detection = (
        jax.jit(jax.grad(total(objective, batch, (only,))))(params)
        for only in ('mlm_loss', 'rtd_loss')
    )
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_detection['generator']))
    assert not np.any(of_words['added']['embeddings']['word'])
    for name, added in params['added']['embeddings'].items():
        assert np.any(of_detection['added']['embeddings'][name])
        table = params['generator']['encoder']['embeddings'][name]
        read = model.split(params)[0]['encoder']['embeddings'][name]
        np.testing.assert_array_equal(read, table + added)
    fresh = model.init(jax.random.key(0), jax.tree.map(lambda x: x[:1], batch))['params']
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(fresh['added']))


def test_packed_rows_have_the_losses_and_gradients_of_rows_apart(monkeypatch):
    """With draws that do not look at rows and places, by which the two differ."""
    _, objective, params = made(NARROW)
    draw = lambda logits, batch, rng: jnp.asarray(batch['masked_lm_ids']) // 2 * 2
    monkeypatch.setattr(replaced_tokens, 'draw_tokens', draw)
    single = make_batch(MODEL, rows=5, length=12)
    single['masked_lm_weights'][2, 1] = 0
    one, two = (
        jax.jit(jax.value_and_grad(total(objective, batch)))(params)
        for batch in (single, pack(single))
    )
    np.testing.assert_allclose(one[0], two[0], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(one[1]), jax.tree.leaves(two[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=5e-5)


def train(sharing: dict[str, Any], devices: int, **runtime: Any) -> list[dict[str, float]]:
    """The metrics of three steps with masks drawn in them, and dropout."""
    model = tiny_config(vocab_size=VOCAB)
    setup = PretrainingSetup.from_config(
        config(sharing, model=model, runtime=schema.RuntimeConfig(**runtime))
    )
    mesh = construction.make_mesh(setup.runtime, jax.devices()[:devices])
    masking = DynamicMasking(0.15, 4, (0.8, 0.1, 0.1), False, MASK, VOCAB)
    records, _, _ = rows_of(rows=32, seq_len=16)
    records |= {'example_weights': np.ones(32, np.float32)}
    told = []
    with jax.set_mesh(mesh):
        program = setup.make_program(InputKind(16, 4, False, masking=masking), mesh)
        state = setup.make_state(mesh)
        for _ in range(3):
            batch = sharding.place_batch(records, mesh, 32)
            state, sums = program.train_step(state, batch, setup.hparams)
            sums = jax.device_get(sums)
            told.append({name: float(x / weight) for name, (x, weight) in sums.items()})
    assert program.train_step._cache_size() == 1
    return told


@pytest.mark.parametrize(
    'sharing,devices,runtime',
    [
        (NARROW, 8, {'fsdp': 2, 'model_parallel': 2, 'accumulation': 2, 'scan_layers': True}),
        pytest.param(NARROW, 2, {'accumulation': 4, 'remat': 'full'}, marks=pytest.mark.slow),
        pytest.param(
            APART,
            8,
            {'fsdp': 2, 'shard_optimizer': True, 'accumulation': 2, 'remat': 'dots'},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_steps_do_not_depend_on_mesh_accumulation_scan_or_remat(sharing, devices, runtime):
    alone, split = train(sharing, 1), train(sharing, devices, **runtime)
    assert alone[0]['rtd_share'] > 0 and alone[-1]['loss'] < alone[0]['loss']
    for one, other in zip(alone, split, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_the_generator_and_the_detector_are_clipped_by_norms_of_their_own():
    from bert_jax.train.optimizer import _clip_by_part

    grads = {'encoder': jnp.full(4, 10.0), 'added': jnp.zeros(2), 'generator': jnp.full(4, 0.25)}
    clip = _clip_by_part(1.0, ('generator',))
    clipped, _ = clip.update(grads, clip.init(grads))
    np.testing.assert_allclose(clipped['encoder'], 0.5, rtol=1e-6)
    np.testing.assert_array_equal(clipped['generator'], 0.25)
    apart = PretrainingSetup.from_config(config(APART)).objective.clipped_apart
    assert (apart, PretrainingSetup.from_config(config(NARROW)).objective.clipped_apart) == (
        ('generator',),
        (),
    )


def test_the_masks_of_a_step_have_no_random_words():
    objective = PretrainingSetup.from_config(config(NARROW)).objective
    rule = objective.adapt(DynamicMasking(0.15, 4, (0.8, 0.1, 0.1), False, MASK, VOCAB))
    assert rule is not None and rule.mix == pytest.approx((0.85, 0.15, 0.0))


def test_settings_that_another_objective_does_not_read_are_told():
    setup = PretrainingSetup.from_config(config(NARROW, objective='masked_lm'))
    mesh = construction.make_mesh(setup.runtime)
    assert (
        'replaced_tokens has no effect: objective=masked_lm does not'
        in setup.list_departures(mesh)[0]
    )
    assert not PretrainingSetup.from_config(config(NARROW)).list_departures(mesh)


@pytest.mark.parametrize(
    'sharing,changes,message',
    [
        ({'sharing': 'gradient_disentangled'}, {}, 'generator_size=0.25 makes one of 4: --set'),
        ({'generator_size': 0.01}, {}, 'make no generator: .*hidden_size=0'),
        (NARROW, {'model': tiny_config(embedding='hashed')}, "for model.embedding='table' alone"),
        (NARROW, {'model': tiny_config(attention='left_to_right')}, 'model.attention=left_to_rig'),
        (
            NARROW,
            {'optimizer': schema.OptimizerConfig(warmup_steps=0, layer_decay=0.5)},
            'layer_decay=0.5: ',
        ),
        (NARROW, {'tuning': schema.TuningConfig('bitfit')}, 'tuning.method=bitfit: '),
        (NARROW, {'distillation': schema.DistillationConfig('there')}, 'distillation.teacher=the'),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_a_line(sharing, changes, message):
    with refused(message):
        config(sharing, **changes)
