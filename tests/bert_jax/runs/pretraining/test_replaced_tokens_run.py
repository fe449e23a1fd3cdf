"""Runs that tell replaced tokens: stopped and gone on with, read, exported, and what is refused."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from bert_jax.configs.load import load
from bert_jax.conversion import huggingface
from bert_jax.costs import flops
from bert_jax.inference import export
from bert_jax.inference.bert import MaskFiller
from bert_jax.input_pipeline.records.fields import RecordSpec
from bert_jax.model import heads
from bert_jax.runs.pretraining import held_out
from bert_jax.runs.sources.fitting import fit_for_pretraining
from bert_jax.runs.sources.source import read_source
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.train import checkpoint
from bert_jax.train.pretraining_program import PretrainingSetup
from bert_jax.train.state import compute_parameter_shapes, count_weights
from tests.bert_jax.runs.pretraining.test_training_loop import pretrain, told_alike
from tests.helpers import jobs
from tests.helpers.records import write_meaningless
from tests.helpers.refusals import refused
from tests.helpers.trees import equal
from tests.helpers.vocabularies import write_vocabulary

OBJECTIVE = 'objective=replaced_tokens'
SHORT = ['phases.0.steps=6', 'optimizer.warmup_steps=2', 'runtime.log_every=1', OBJECTIVE]
APART = [
    'replaced_tokens.generator_size=1', 'replaced_tokens.generator_layers=0.5',
    'replaced_tokens.sharing=gradient_disentangled', 'model.num_layers=2',
]  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with packed records whose masks are drawn, and with masked ones."""
    folder = tmp_path_factory.mktemp('replaced')
    write_meaningless(folder / 'drawn', spec=RecordSpec(16, 4, 'dynamic', 3))
    write_meaningless(folder / 'records')
    return folder


@pytest.mark.parametrize(
    'sharing', [['replaced_tokens.generator_size=0.5'], pytest.param(APART, marks=pytest.mark.slow)]
)
def test_a_stopped_run_goes_on_to_the_bit_and_leaves_an_encoder(folder, sharing):
    name = f'{len(sharing)}'
    options = [*SHORT, *sharing, f'--data={folder}/drawn', 'runtime.accumulation=2']
    options.append('phases.0.batch_size=16')
    runs = ((0, name), (3, f'{name}-cut'), (0, f'{name}-cut'))
    ended, log = pretrain(folder, *((at, workdir, options) for at, workdir in runs))
    assert ended == ['0', '143', '0'], log
    lines = told_alike(folder / name, folder / f'{name}-cut')
    assert {'rtd_loss', 'rtd_share', 'rtd_found', 'mlm_loss'} <= lines[-1].keys()

    # Each model has all of its arrays, of which the checkpoint has those they share once.
    source, params = read_source(str(folder / name)), checkpoint.load_params(folder / name)[0]
    tables = source.params['encoder']['embeddings']
    own = source.bert.beside['generator'].params['encoder']['embeddings']
    if 'added' in params:
        added = params['added']['embeddings']['word']
        assert np.any(added)
        np.testing.assert_array_equal(tables['word'], own['word'] + added)
    else:
        assert equal({k: own[k] for k in tables}, tables)
    with refused('tells which tokens were replaced, and has no head for masked words'):
        MaskFiller(source, 3)

    # Of a BERT the encoder alone is written.
    written = export.export(str(folder / name), 'huggingface', str(folder / f'{name}-out'))
    assert (written.architecture, written.left_out) == ('BertModel', ('detection',))
    again = huggingface.read(folder / f'{name}-out').model.params['encoder']
    assert equal(again, source.params['encoder'])
    assert not (folder / f'{name}-out/generator').exists()


def test_what_it_cannot_begin_with_is_refused_in_a_line(folder):
    apart = [*SHORT, *APART, f'--data={folder}/drawn', '--init_from=there']
    said, _ = pretrain(folder, (0, 'static', SHORT), (0, 'begun', apart))
    assert 'masked already, and objective=replaced_tokens masks in each step: make them' in said[0]
    assert said[1].startswith('2')


@pytest.fixture(scope='module')
def electra(tmp_path_factory) -> pathlib.Path:
    """A folder with records of a text, some held out, and an ELECTRA that was trained on them."""
    folder = tmp_path_factory.mktemp('electra')
    names = [f'doc{chr(97 + i)}{chr(97 + j)}' for i in range(8) for j in range(8)]
    vocabulary = write_vocabulary(folder / 'vocabulary', [*jobs.PLAIN, '##ing', '##s', '.', *names])
    jobs.write_text(folder / 'text.txt', names)
    how = {'masking': 'dynamic', 'objective': 'full_sentences', 'dupe_factor': 1}
    jobs.run(folder, [vocabulary], seq_len=32, max_predictions=5, eval_fraction=0.2, **how)
    changes = ['model.family=electra', 'phases.0.seq_len=32', 'model.max_position=32', *SHORT]
    size = json.loads((folder / 'out/manifest.json').read_text())['vocab_size']
    changes += [f'model.vocab_size={size}', 'runtime.eval_every=6', f'--data={folder}/out']
    ended, log = pretrain(folder, (0, 'run', changes))
    assert ended == ['0'], log
    assert 'guessing by the share replaced (held-out rtd_loss' in log
    return folder


def test_held_out_records_are_measured_alike_in_the_run_and_after_it(electra):
    told = [line for line in read_metrics(electra / 'run/metrics.jsonl') if line['split'] == 'eval']
    found = held_out.evaluate(str(electra / 'run'), str(electra / 'out'), 'eval')['metrics']
    for name in ('rtd_loss', 'rtd_found', 'rtd_share', 'rtd_nats_gained', 'mlm_loss'):
        assert found[name] == pytest.approx(told[-1][name], rel=1e-4, abs=1e-5), name
    share = found['rtd_share']
    guess = -share * np.log(share) - (1 - share) * np.log1p(-share)
    assert found['rtd_nats_gained'] == pytest.approx(guess - found['rtd_loss'], abs=1e-6)


def test_an_electra_goes_out_with_its_generator_and_comes_in_again(electra):
    written = export.export(str(electra / 'run'), 'huggingface', str(electra / 'out-hf'))
    assert (written.architecture, written.left_out) == ('ElectraForPreTraining', ())
    source = read_source(str(electra / 'run'))
    assert equal(read_source(str(electra / 'out-hf')).params, source.params)
    generator = read_source(str(electra / 'out-hf/generator'))
    assert generator.bert.architecture == 'ElectraForMaskedLM'
    assert equal(generator.params, source.bert.beside['generator'].params)
    assert len(MaskFiller(generator, 3)('a [MASK]')['masks'][0]) == 3

    # A run that begins with the discriminator has its encoder and its head; a generator is none.
    size = source.model.vocab_size
    changes = [*SHORT, 'phases.0.seq_len=32', f'--data={electra}/out', 'optimizer.peak_lr=1e-30']
    changes += ['model.max_position=32', f'model.vocab_size={size}']
    starts = (f'--init_from={electra}/out-hf', f'--init_from={electra}/out-hf/generator')
    ended, log = pretrain(
        electra, *((0, f'on-{i}', [*changes, each]) for i, each in enumerate(starts))
    )
    assert ended[0] == '0', log
    assert ended[1].startswith('2') and 'names a generator: name the discriminator' in ended[1]
    begun = checkpoint.load_params(electra / 'on-0')[0]
    for part in ('detection', 'encoder'):
        assert equal(begun[part], source.params[part])


def test_the_dense_layer_of_a_task_stays_with_the_task(electra):
    """An ELECTRA that a task has trained begins a pre-training without its classifier."""
    source = read_source(str(electra / 'run'))
    encoder = {**source.params['encoder'], 'pooler': {'kernel': np.ones((16, 16), np.float32)}}
    tuned = source.changed(params={'encoder': encoder, 'classifier': {}})
    fitted = fit_for_pretraining(tuned, source.tokenizer, source.model, 0)
    assert fitted.params.keys() == {'encoder', 'mlm'}
    assert equal(fitted.params['encoder'], source.params['encoder'])


@pytest.mark.parametrize(
    'name,bare,detector,generator',
    [
        ('electra_small', 13_483_008, 13_549_057, 4_620_026),
        ('electra_base', 108_891_648, 109_483_009, 33_740_602),
        ('electra_large', 334_092_288, 335_142_913, 51_295_290),
    ],
)
def test_published_electras_have_their_parameters(name, bare, detector, generator):
    """Counts of transformers' ElectraModel, ElectraForPreTraining and ElectraForMaskedLM."""
    config = load(name)
    assert flops.count_parameters(config.model, pretraining=False) == bare
    shapes = compute_parameter_shapes(heads.Detector(config.model))
    assert count_weights(shapes, config.model) == detector
    of_generator = config.replaced_tokens.make_generator(config.model)
    assert flops.count_parameters(of_generator) == generator
    # The tables and their norm are in both.
    E, V = config.model.embedding_width, config.model.vocab_size
    shared = (V + config.model.max_position + 2 + 2) * E
    count = PretrainingSetup.from_config(config).count_parameters()
    assert count == detector + generator - shared
    for number in (bare, detector, generator):
        assert f'{number:,}' in load.__globals__['PRESETS'][name].__doc__
