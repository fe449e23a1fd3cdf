"""bert-merge: tuned weights become a workdir of their own; and adapters through the commands."""

from __future__ import annotations

import pathlib
import shutil

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.configs import schema
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model import heads
from bert_jax.runs.sources.merged import average, merge
from bert_jax.runs.sources.source import load_source, read_shape, read_source
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint, task_heads
from bert_jax.train.state import TrainState, join_frozen, split_frozen
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import write_vocabulary

MODEL = tiny_config(vocab_size=25, num_layers=3, max_position=20)


def save(folder: pathlib.Path, config, data, params) -> str:
    """A workdir of such a run, as launch leaves it."""
    vocabulary = write_vocabulary(folder.with_suffix('.vocab'), (f'word{i}' for i in range(20)))
    Workdir(folder).create_or_resume(config, data)
    Tokenizer.load(vocabulary).save(folder / 'tokenizer')
    with checkpoint.Checkpoints(folder) as checkpoints:
        checkpoints.save(TrainState(params, {}, np.int32(7), np.int32(0)), {'kind': 'finetune'})
    return str(folder)


@pytest.fixture
def encoder(tmp_path) -> str:
    config = schema.PretrainConfig(
        model=MODEL,
        phases=(schema.Phase(16, 10, 8),),
        optimizer=schema.OptimizerConfig(warmup_steps=0),
    )
    return save(tmp_path / 'encoder', config, {}, noisy_params(heads.Pretraining(MODEL)))


def tuned_run(folder: pathlib.Path, encoder: str, **options) -> tuple[str, np.ndarray]:
    """(a workdir of a tuned classifier, what the model that was trained answers)."""
    tuning = TuningConfig(**options)
    source = load_source(encoder)
    shape = MODEL.tuned(tuning)
    model = task_heads.make_model('classifier', shape, 3, 0.0, schema.RuntimeConfig())

    # The encoder's own weights, cut as the model has them, under noise of what is trained.
    trained, _ = split_frozen(noisy_params(model, seed=3), shape)
    flat = traverse_util.flatten_dict({'encoder': source.params['encoder']}, sep='/')
    below = tuning.frozen_layers or 0
    own = {}
    for name, leaf in flat.items():
        if '/layers/' in name and below:
            own[name.replace('/layers/', '/below_layers/')] = leaf[:below]
            leaf = leaf[below:]
        own[name] = leaf
    _, frozen = split_frozen(traverse_util.unflatten_dict(own | _fresh(model), sep='/'), shape)
    answers = model.apply({'params': join_frozen(trained, frozen)}, make_batch(MODEL))

    data = {'head': 'classifier', 'labels': ['no', 'yes', 'maybe'], 'task': 'mood'}
    data |= {'init_from': encoder, 'init_fingerprint': source.fingerprint()}
    data |= {'model': schema.to_dict(MODEL), 'data_dir': ''}
    config = schema.FinetuneConfig(tuning=tuning)
    return save(folder, config, data, jax.device_get(trained)), np.asarray(answers)


def _fresh(model):
    """What is in no source: what the method adds, and the head; the values are not read."""
    flat = traverse_util.flatten_dict(noisy_params(model), sep='/')
    own = ('_lora_', '_ia3', '_adapter_', 'classifier')
    return {name: leaf for name, leaf in flat.items() if any(part in name for part in own)}


def answers_of(where: str) -> np.ndarray:
    source = read_source(where)
    model = task_heads.make_model('classifier', source.model, 3, 0.0, schema.RuntimeConfig())
    return np.asarray(model.apply({'params': source.params}, make_batch(MODEL)))


@pytest.mark.parametrize(
    'options',
    [
        {'method': 'ia3', 'vectors': 'peft'},
        {'method': 'bitfit', 'pooler': 'trained'},
        # LoRA's updates and biases; LoRA by itself is merged in test_old_runs.py.
        {
            'method': 'spafit',
            'rank': 3,
            'frozen_layers': 1,
            'bias_layers': 1,
            'matrices': 'query,intermediate,output',
        },
    ],
    ids=lambda options: options['method'],
)
def test_a_merged_workdir_answers_alike_without_its_encoder(tmp_path, encoder, options):
    run, want = tuned_run(tmp_path / 'run', encoder, **options)
    said = merge(run, str(tmp_path / 'merged'))
    assert said == f'{tmp_path}/merged: {options["method"]} folded into plain weights'

    # The encoder may go: all weights are in the folder, of a run that trained all of them.
    shutil.rmtree(encoder)
    merged = Workdir(str(tmp_path / 'merged'))
    np.testing.assert_allclose(answers_of(merged.name), want, atol=1e-5)
    assert read_source(merged.name).model == MODEL
    assert read_source(merged.name).step == 7
    assert merged.config() == schema.FinetuneConfig()

    # It knows its task, and where it comes from.
    data, before = merged.data(), Workdir(run).data()
    assert data.pop('merged_from') == run and data == before


def test_adamix_becomes_one_adapter_on_its_encoder(tmp_path, encoder):
    run, want = tuned_run(tmp_path / 'run', encoder, method='adamix', width=5, frozen_layers=1)
    merged = str(tmp_path / 'merged')
    assert merge(run, merged).endswith('adamix folded into one adapter, the mean of 4')
    np.testing.assert_allclose(answers_of(merged), want, atol=1e-5)

    # What was trained alone is there, and of it one expert, the mean of the four in float32.
    four, one = (checkpoint.load_params(folder)[0] for folder in (run, merged))
    path = ('encoder', 'layers', 'output_adapter_down', 'kernel')
    kernels = [traverse_util.flatten_dict(tree)[path] for tree in (four, one)]
    assert kernels[0].shape == (2, 4, 16, 5) and kernels[1].dtype == np.float32
    np.testing.assert_allclose(kernels[1][:, 0], kernels[0].sum(1) / 4, atol=1e-7)
    assert Workdir(merged).config().tuning.experts == 1
    with refused('nothing is left to fold'):
        merge(merged, str(tmp_path / 'again'))
    shutil.rmtree(encoder)
    with refused('holds tuned weights alone'):
        read_source(merged)


def test_what_cannot_be_merged_is_refused_and_leaves_nothing(tmp_path, encoder):
    for method in ('houlsby', 'pfeiffer'):
        run, _ = tuned_run(tmp_path / method, encoder, method=method, width=5)
        with refused(f'adapters .{method}. are layers of their own'):
            merge(run, str(tmp_path / 'merged'))
    with refused('nothing is left to fold'):
        merge(encoder, str(tmp_path / 'merged'))
    with refused('nowhere: no such folder'):
        merge(str(tmp_path / 'nowhere'), str(tmp_path / 'merged'))
    run, _ = tuned_run(tmp_path / 'run', encoder, method='bitfit')
    with refused('is there and not empty'):
        merge(run, encoder)
    assert not (tmp_path / 'merged').exists()


def test_an_adapter_goes_out_and_comes_in_by_the_commands(tmp_path, encoder, binary):
    run, want = tuned_run(tmp_path / 'run', encoder, method='lora', rank=3)

    def command(*arguments, fails: str = ''):
        done = binary(*arguments)
        last = (done.stderr or done.stdout).splitlines()[-1]
        assert (done.returncode == 2 and fails in last) if fails else done.returncode == 0, last
        return done.stdout

    # peft reads no workdir, so the encoder is written first; --base names the right one alone.
    out = ('export', f'--workdir={run}', '--format=peft', f'--output={tmp_path}/adapter')
    command(*out, fails=f'was tuned on {encoder}, which peft cannot read: write it with')
    command('export', f'--workdir={encoder}', f'--output={tmp_path}/theirs')
    said = command(*out, f'--base={tmp_path}/theirs')
    assert said.splitlines()[-1] == f'{tmp_path}/adapter: BertForSequenceClassification'
    never = ('merge', f'--workdir={tmp_path}/adapter', f'--output={tmp_path}/never')
    command(*never, fails='is an adapter of peft: bert-export')

    # It is read wherever a model is, with the labels and the tokenizer.
    adapter = read_source(f'{tmp_path}/adapter')
    assert adapter.bert.labels == ('no', 'yes', 'maybe') and adapter.model.tuning.rank == 3
    assert adapter.tokenizer.fingerprint == read_source(encoder).tokenizer.fingerprint
    np.testing.assert_allclose(answers_of(f'{tmp_path}/adapter'), want, atol=1e-5)
    # An adapter of itself would be read without end.
    settings = tmp_path / 'adapter' / 'adapter_config.json'
    named = settings.read_text()
    settings.write_text(named.replace(f'{tmp_path}/theirs', f'{tmp_path}/adapter'))
    for read in (read_source, read_shape):
        with refused('which is an adapter too: merge that one first'):
            read(f'{tmp_path}/adapter')
    settings.write_text(named)
    assert read_shape(f'{tmp_path}/adapter') == MODEL

    # Without its base it says so.
    shutil.rmtree(tmp_path / 'theirs')
    with refused('is an adapter for .*theirs.*base_model_name_or_path in'):
        read_source(f'{tmp_path}/adapter')


def test_checkpoints_are_averaged_into_a_workdir_like_any_other(encoder, tmp_path):
    first = noisy_params(heads.Pretraining(MODEL))
    with checkpoint.Checkpoints(encoder, keep=9) as checkpoints:
        for step, factor in ((8, 2.0), (9, 100.0), (10, 6.0)):
            params = jax.tree.map(lambda x, by=factor: np.asarray(by * x, x.dtype), first)
            state = TrainState(params, {}, np.int32(step), np.int32(0))
            checkpoints.save(state, {'kind': 'pretrain'})
            checkpoints.wait()
    output = str(tmp_path / 'mean')
    assert average(encoder, output, [7, 8, 10]).endswith(
        'the mean of the weights at steps 7, 8, 10'
    )
    made = read_source(output)
    want = jax.tree.map(lambda x: 3.0 * x, jax.device_get(first))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), made.params, want)
    assert {x.dtype for x in jax.tree.leaves(made.params)} == {np.dtype(np.float32)}
    assert made.step == 10 and read_shape(output) == MODEL
    assert Workdir(output).data()['averaged_steps'] == [7, 8, 10]
    for steps, said in (
        ([7], '--average=7: name two steps or more'),
        ([7, 7], 'name two steps or more, each once'),
        ([7, 5], 'has no checkpoint of step 5, but of 7, 8, 9, 10; runtime.keep_every'),
    ):
        with refused(said):
            average(encoder, str(tmp_path / 'other'), steps)
    tuned, _ = tuned_run(tmp_path / 'tuned', encoder, method='lora')
    with refused('holds tuned weights .lora. alone'):
        average(tuned, str(tmp_path / 'other'), [7, 8])
    assert not (tmp_path / 'other').exists()
