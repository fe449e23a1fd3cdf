"""Fine-tuning: what it learns, sweeps, signals, and the command lines.

Of a sweep: what it compiles and reuses; of a signal: what survives it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import shutil
import signal

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.configs import schema
from bert_jax.configs.load import list_presets, load
from bert_jax.configs.overrides import apply, make_grid
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.inference import Predictor
from bert_jax.runs.finetuning import evaluation, finetuner, machine, sweep
from bert_jax.runs.finetuning.early_stopping import EarlyStopping
from bert_jax.runs.sources import source
from bert_jax.runs.workdir import notes, run_context
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint, learning_rate
from bert_jax.train.state import TrainState
from tests.helpers import mood
from tests.helpers.encoder import ENCODER_WORDS
from tests.helpers.files import read_json, read_jsonl, write_jsonl
from tests.helpers.finetuning import stopping_after, trained_on, tuner_of
from tests.helpers.processes import mistake
from tests.helpers.refusals import refused
from tests.helpers.trees import equal

pytestmark = pytest.mark.usefixtures('signal_handlers')
WORDS = ENCODER_WORDS


@pytest.fixture(scope='module')
def task_file(tmp_path_factory):
    """Is it good or bad? 60 training and 30 dev sentences that one word decides, and a test split.

    The test split has no labels.
    """
    folder = tmp_path_factory.mktemp('mood')
    said = lambda rng, word: {
        'text': f'the {WORDS[6:8][rng.integers(2)]} was {"a " * rng.integers(4)}{word}'
    }
    mood.write(folder, said, WORDS[:3], WORDS[3:6], (60, 30), 0)
    write_jsonl(folder / 'test.jsonl', [{'text': 'the film was good'}] * 5)
    task = read_json(folder / 'mood.json')
    task['files']['test'] = 'test.jsonl'
    (folder / 'mood.json').write_text(json.dumps(task))
    return str(folder / 'mood.json')


@pytest.fixture
def own_task_file(tmp_path, task_file):
    """The same in a folder that the test may change."""
    for path in pathlib.Path(task_file).parent.iterdir():
        shutil.copy(path, tmp_path)
    return str(tmp_path / 'mood.json')


@pytest.fixture(scope='module')
def fine_tuner(encoder, task_file):
    """One for all tests: what it has compiled is kept."""
    return tuner_of(task_file, encoder)


# To draw what is dropped is most of what a small model compiles.
SETTINGS = (
    'batch_size=16 max_seq_length=32 epochs=16 optimizer.peak_lr=3e-3 optimizer.algorithm=adamw'
    ' runtime.log_every=10 hidden_dropout=0 attention_dropout=0'
).split()


def configuration(*changes):
    return apply(choose_recipe('mood'), [*SETTINGS, *changes])


def run_sweep(fine_tuner, points, folder):
    return sweep.run_sweep([(fine_tuner, point) for point in points], folder)


@pytest.mark.oldest
def test_it_learns_and_the_workdir_alone_gives_the_same_scores(tmp_path, encoder, own_task_file):
    task_file, folder = own_task_file, str(tmp_path / 'run')
    result, done_before = tuner_of(task_file, encoder).run(configuration(), folder)
    assert not done_before and (result['metrics'], result['step']) == ({'accuracy': 1.0}, 60)
    assert result['train_loss'] < 0.3
    lines = read_metrics(tmp_path / 'run/metrics.jsonl')
    assert [line['step'] for line in lines] == [10, 20, 30, 40, 50, 60]
    drawn = {path.name for path in (tmp_path / 'run/plots').iterdir()}
    assert drawn == {'losses.png', 'learning_rate.png'}
    dev = read_jsonl(tmp_path / 'dev.jsonl')
    written = (tmp_path / 'run/predictions/dev/predictions.tsv').read_text().splitlines()[1:]
    assert [line.split('\t')[1] for line in written] == [row['label'] for row in dev]

    # Always the commonest label, of dev in the score and of the training set in the loss.
    (guess,) = notes.guesses(Workdir(folder))
    good = [row['label'] == 'good' for row in dev]
    assert guess.scores['accuracy'] == max(np.mean(good), 1 - np.mean(good))
    assert guess.scores['loss'] == result['chance_loss']

    again = evaluation.evaluate(folder)
    assert again == result == read_json(tmp_path / 'run/eval/dev.json')
    # Trained on sixteen devices: it is scored on the eight that are here.
    other = trained_on(folder, tmp_path / 'other', {'data_parallel': 8, 'model_parallel': 2})
    assert evaluation.evaluate(other)['metrics'] == result['metrics']
    # Its texts fit a row: windows change no score, and have a file of their own.
    windows = evaluation.evaluate(folder, doc_stride=4)
    assert (windows['metrics'], windows['doc_stride']) == (result['metrics'], 4)
    assert windows == read_json(tmp_path / 'run/eval/dev-doc_stride_4.json')
    assert read_json(tmp_path / 'run/eval/dev.json') == result
    unlabelled = evaluation.evaluate(folder, split='test')
    assert unlabelled['metrics'] == {} and unlabelled['examples'] == 5
    assert len((tmp_path / 'run/predictions/test/predictions.tsv').read_text().splitlines()) == 6

    # What it was trained on decides what it is asked: no pairs.
    task = read_json(pathlib.Path(task_file))
    task |= {'kind': 'pair', 'columns': {'text': 'text', 'text_b': 'text', 'label': 'label'}}
    (tmp_path / 'pairs.json').write_text(json.dumps(task))
    with refused('pairs: its examples have two texts, and those .* one'):
        evaluation.evaluate(folder, str(tmp_path / 'pairs.json'))
    with refused('2 texts, where this model reads text alone'):
        Predictor.from_workdir(folder)(('good', 'bad'))
    # An older run did not say so, and is the same run.
    data = read_json(tmp_path / 'run/data.json')
    assert data.pop('options') == {'texts': 1}
    (tmp_path / 'run/data.json').write_text(json.dumps(data | {'options': {}}))
    assert tuner_of(task_file, encoder).run(configuration(), folder) == (result, True)
    there = source.load_source(encoder)
    # Other weights in the same place: the old scores are not theirs.
    weights = jax.tree.map(np.negative, there.params)
    other = tuner_of(task_file, there.changed(params=weights))
    with refused('holds another run .data.init_fingerprint'):
        other.run(configuration(), folder)
    with pytest.MonkeyPatch.context() as patch:  # a file system that is mounted to be read
        patch.setattr(evaluation.os, 'access', lambda *_: False)
        with refused('cannot be written to, and the results go there: copy it'):
            evaluation.evaluate(folder)


def test_settings_that_become_others_or_have_no_effect_are_said(encoder, task_file, caplog):
    changes = (
        'runtime.dropout_rng=threefry_8bit',
        'hidden_dropout=0.002', 'optimizer.decay_fraction=0.5', 'optimizer.schedule=linear',
    )  # fmt: skip
    fine_tuner = tuner_of(task_file, encoder)
    for _ in range(2):  # once for each program
        fine_tuner.make_job(fine_tuner.resolve(configuration(*changes)))
    said = [record.message for record in caplog.records if record.levelname == 'WARNING']
    assert said == [
        'optimizer.decay_fraction=0.5 has no effect: optimizer.schedule=linear does not read it',
        'hidden_dropout=0.002 becomes 0.00391, which is the nearest to be had of 8 random bits:'
        ' runtime.dropout_rng=threefry is nearer',
    ]


def test_a_grid_compiles_each_program_once_and_is_reused(tmp_path, encoder, task_file, capsys):
    """Backend compilations are counted by jax itself: after the first run there are none."""
    fine_tuner = tuner_of(task_file, encoder)
    points = make_grid(
        configuration('epochs=1'),
        'optimizer.peak_lr=3e-3,1e-4;init=source,random;train_examples=32,48;seed=0,1,2',
    )
    assert (
        len(points) == 24
        and points[1].name == 'optimizer.peak_lr=0.003,init=source,train_examples=32,seed=1'
    )
    # Three seeds, and another start and another rate of the first.
    points = [*points[:3], points[6], points[12]]
    run_sweep(fine_tuner, points[:1], str(tmp_path / 'sweep'))
    compiled = []
    listen = lambda event, seconds, **_: (
        compiled.append(event) if event.endswith('backend_compile_duration') else None
    )
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        rows = run_sweep(fine_tuner, points, str(tmp_path / 'sweep'))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert fine_tuner.compilations == {'init': 1, 'train': 1, 'predict': 1} and compiled == []
    report = read_json(tmp_path / 'sweep/sweep.json')
    assert [row['name'] for row in report['runs']] == [point.name for point in points]
    assert [entry['runs'] for entry in report['summary']] == [3, 1, 1]
    values = [row['metrics']['accuracy'] for row in rows[:3]]
    found = report['summary'][0]['metrics']['accuracy']
    assert (found['mean'], found['max']) == pytest.approx((np.mean(values), max(values))) and found[
        'sd'
    ] == pytest.approx(np.std(values, ddof=1))

    fresh = tuner_of(task_file, encoder)
    assert run_sweep(fresh, points, str(tmp_path / 'sweep')) == rows and not fresh.compilations
    text = sweep.format_table(rows, 'accuracy')
    assert f'best on dev: {report["best"]}' in text


def test_what_a_seed_and_the_source_decide(tmp_path, encoder, fine_tuner):
    params = {}
    for name, changes in {
        'a': ['seed=1'],
        'again': ['seed=1'],
        'other': ['seed=2'],
        'random': ['seed=1', 'init=random'],
    }.items():
        fine_tuner.run(
            configuration('epochs=0.5', 'optimizer.peak_lr=1e-9', *changes), str(tmp_path / name)
        )
        params[name] = checkpoint.load_params(tmp_path / name)[0]
    word = {name: p['encoder']['embeddings']['word'] for name, p in params.items()}
    original = checkpoint.load_params(encoder)[0]['encoder']['embeddings']['word']
    assert all(
        np.allclose(word[name], original, atol=1e-6) for name in ('a', 'again', 'other')
    ) and not np.allclose(word['random'], original, atol=1e-3)
    kernel = {name: p['classifier']['kernel'] for name, p in params.items()}
    assert np.array_equal(kernel['a'], kernel['again']) and not np.allclose(
        kernel['a'], kernel['other'], atol=1e-3
    )
    assert np.allclose(kernel['a'], kernel['random'], atol=1e-6)


def test_a_signal_loses_nothing(tmp_path, encoder, task_file):
    """Taken up by another process, the weights are those of an undisturbed run, to the bit."""
    config = configuration('epochs=4', 'runtime.checkpoint_every=4', 'hidden_dropout=0.1')
    fine_tuner = tuner_of(task_file, encoder)  # a stopped one stays so
    fine_tuner.run(config, str(tmp_path / 'whole'))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(machine.Stopped) as stopped:
        stopping_after(6, patch)
        fine_tuner.run(config, str(tmp_path / 'stopped'))
    assert stopped.value.code == 128 + signal.SIGTERM
    assert checkpoint.list_saved_steps(tmp_path / 'stopped') == [6]
    assert not (tmp_path / 'stopped/eval').exists()
    shutil.copytree(tmp_path / 'stopped/checkpoints/6', tmp_path / 'step6')
    fresh = tuner_of(task_file, encoder)
    result, done_before = fresh.run(config, str(tmp_path / 'stopped'))
    whole, stopped = (checkpoint.load_params(tmp_path / name)[0] for name in ('whole', 'stopped'))
    assert equal(whole, stopped) and not done_before and result['step'] == 15
    # Trained but not scored: the scores are made up for, without another step.
    (tmp_path / 'stopped/eval/dev.json').unlink()
    again, _ = fresh.run(config, str(tmp_path / 'stopped'))
    assert again['metrics'] == result['metrics'] and again['train_loss'] == result['train_loss']

    # A run whose last checkpoint is damaged goes on from an older one, and does not score that.
    (tmp_path / 'stopped/eval/dev.json').unlink()
    shutil.copytree(tmp_path / 'step6', tmp_path / 'stopped/checkpoints/6')
    shutil.rmtree(tmp_path / 'stopped/checkpoints/15/params')
    again, _ = fresh.run(config, str(tmp_path / 'stopped'))
    assert again['metrics'] == result['metrics'] and again['train_loss'] == result['train_loss']
    last, step = checkpoint.load_params(tmp_path / 'stopped')
    assert step == 15 and equal(whole, last)

    # Stopped at step 6 it tells the same as one that was not, and of each line the rate of its
    # step.
    times = ('seconds', 'step_ms', 'input_wait', 'sequences_per_s', 'tokens_per_s', 'model_tflops')
    told = [read_metrics(tmp_path / name / 'metrics.jsonl') for name in ('whole', 'stopped')]
    whole, stopped = (
        [{k: v for k, v in m.items() if k not in times} for m in lines] for lines in told
    )
    assert whole == stopped and [(m['step'], m['steps']) for m in whole] == [(10, 10), (15, 5)]
    scalars = learning_rate.hparams_of(config.optimizer, 0, 15, warmup_steps=1)
    rates = [
        float(learning_rate.compute_learning_rate(config.optimizer, scalars, step - 1))
        for step in (10, 15)
    ]
    assert [m['learning_rate'] for m in whole] == pytest.approx(rates)


@pytest.mark.slow
def test_a_tuned_run_keeps_what_it_trained_and_knows_its_encoder(tmp_path, encoder, task_file):
    """It learns, is stopped and taken up to the bit, and answers with the encoder it belongs to."""
    copy = tmp_path / 'encoder'
    shutil.copytree(encoder, copy)
    # An encoder at random, so that little can be read off it: more of it is trained than usual.
    changes = ['tuning.method=lora', 'tuning.pooler=trained', 'optimizer.peak_lr=5e-3']
    changes += ['runtime.checkpoint_every=20', 'epochs=40', 'tuning.rank=16']
    changes += ['hidden_dropout=0.1', 'attention_dropout=0.1']  # as its encoder has them
    changes += ['tuning.matrices=query,key,value,attention_output,intermediate,output']
    config, tuner = configuration(*changes), tuner_of(task_file, str(copy))
    result, _ = tuner.run(config, str(tmp_path / 'whole'))
    assert result['metrics']['accuracy'] > 0.9

    # Nothing of the encoder lies in the run's folder: its weights, and no moments, are in there.
    params, _ = checkpoint.load_params(tmp_path / 'whole')
    names = traverse_util.flatten_dict(params, sep='/')
    trained = ('_lora_', '_norm/', 'classifier/', 'pooler/')
    assert all(any(part in name for part in trained) for name in names)
    assert evaluation.evaluate(str(tmp_path / 'whole')) == result

    # What it took: counted, and as the file system and the log have it.
    costs = result['costs']
    assert costs['trained_parameters'] == sum(leaf.size for leaf in names.values())
    saved = (tmp_path / 'whole/checkpoints').rglob('*')
    assert costs['checkpoint_bytes'] == sum(path.stat().st_size for path in saved if path.is_file())
    times = [line['step_ms'] for line in read_metrics(tmp_path / 'whole/metrics.jsonl')[:-1]]
    assert min(times) <= costs['step_ms'] <= max(times)

    # Another process takes it up: the same weights to the bit.
    with pytest.MonkeyPatch.context() as patch, pytest.raises(machine.Stopped):
        stopping_after(33, patch)
        tuner.run(config, str(tmp_path / 'stopped'))
    tuner_of(task_file, str(copy)).run(config, str(tmp_path / 'stopped'))
    stopped, _ = checkpoint.load_params(tmp_path / 'stopped')
    assert equal(params, stopped)

    # Further tuning, and other programs' formats, need plain weights.
    whole = source.load_source(str(tmp_path / 'whole'))
    assert source.make_plain(whole).model == source.load_source(str(copy)).model

    # Without its encoder, or with another in its place, it is refused.
    shutil.move(copy, tmp_path / 'elsewhere')
    with refused('weights alone, for the encoder of .*encoder'):
        source.load_source(str(tmp_path / 'whole'))
    shutil.copytree(tmp_path / 'elsewhere', copy)
    place = (copy / 'checkpoints').iterdir().__next__()
    state, step = checkpoint.load_params(copy)
    shutil.rmtree(place.parent)
    state['encoder']['embeddings']['norm']['bias'] += 1
    with checkpoint.Checkpoints(copy) as checkpoints:
        checkpoints.save(TrainState(state, {}, np.int32(step), np.int32(0)), {'kind': 'pretrain'})
    with refused('has other weights now'):
        source.load_source(str(tmp_path / 'whole'))


def test_consistency_is_refused_where_there_are_no_classes(tmp_path, encoder, own_task_file):
    task = read_json(pathlib.Path(own_task_file))
    del task['labels'], task['files']['test']
    (tmp_path / 'score.json').write_text(json.dumps(task | {'kind': 'regression'}))
    for file in tmp_path.glob('*.jsonl'):
        file.write_text(file.read_text().replace('"good"', '1').replace('"bad"', '0'))
    tuner = tuner_of(str(tmp_path / 'score.json'), encoder)
    tuner.resolve(configuration('tuning.method=adamix'))
    with refused('consistency=true compares .* score .regression. has none'):
        tuner.resolve(configuration('tuning.method=adamix', 'tuning.consistency=true'))


def test_the_runtime_settings_are_obeyed(tmp_path, fine_tuner, monkeypatch):
    """How many checkpoints are kept, and when a run in which nothing moves ends."""
    watched, beats = [], []

    @contextlib.contextmanager
    def watchdog(minutes):
        watched.append(minutes)
        yield lambda: beats.append(None)

    monkeypatch.setattr(run_context, 'watchdog', watchdog)
    changes = ['epochs=4', 'runtime.checkpoint_every=4', 'score_every=5']
    changes += ['runtime.keep_checkpoints=2', 'runtime.stall_minutes=7']
    fine_tuner.run(configuration(*changes), str(tmp_path / 'two'))
    assert checkpoint.list_saved_steps(tmp_path / 'two') == [12, 15] and watched == [7]
    assert len(beats) == 15 + 3 + 4  # steps, saves, and batches of dev: at 5, 10, 15 and the end


def test_steps_that_go_on_being_discarded_name_their_examples(tmp_path, fine_tuner):
    changes = ['optimizer.peak_lr=1e37', 'warmup_fraction=0', 'runtime.max_bad_steps=3']
    match = r'in a row, (\d+) to \d+, .*step \1 read the training examples \d+, .*more .from 0'
    with refused(match):
        fine_tuner.run(configuration(*changes), str(tmp_path / 'run'))


def test_inputs_of_more_segments_than_the_model_knows_are_refused(tmp_path, encoder, own_task_file):
    """jax reads the last row there is, without a word."""
    pairs = read_json(pathlib.Path(own_task_file))
    pairs |= {'kind': 'pair', 'columns': {'text': 'text', 'text_b': 'text', 'label': 'label'}}
    (tmp_path / 'pairs.json').write_text(json.dumps(pairs))
    there = source.load_source(encoder)
    small = dataclasses.replace(there.model, type_vocab_size=1)
    changed = there.changed(config=small)
    match = r'inputs are of 2 segments, and .* knows 1 .type_vocab_size=1'
    with refused(match):
        tuner_of(str(tmp_path / 'pairs.json'), changed).run(configuration(), str(tmp_path / 'run'))
    assert not (tmp_path / 'run').exists()


def test_the_best_weights_of_another_run_are_not_taken_up(tmp_path):
    """One that ended before its first checkpoint, so that its folder is another's now."""
    for step in (5, 10):
        (tmp_path / f'best/checkpoints/{step}').mkdir(parents=True)
    (tmp_path / 'best/score.json').write_text('{"step": 10, "score": 0.9}')
    assert EarlyStopping(str(tmp_path)).best_step == 10
    EarlyStopping(str(tmp_path)).keep_if_best(None, float('nan'))  # nothing is saved
    best = EarlyStopping(str(tmp_path), resumed=False)
    assert (best.best_step, best.best_score) == (0, float('-inf')) and not list(
        (tmp_path / 'best/checkpoints').iterdir()
    )
    (tmp_path / 'best/checkpoints/5').mkdir()
    (tmp_path / 'best/score.json').write_text('{"step": 5, "score": NaN}')
    assert EarlyStopping(str(tmp_path)).best_step == 0


def test_a_training_loss_is_of_the_last_tenth_of_a_run(tmp_path):
    """801 steps, logged every 50: the last line is one batch, of whatever luck."""
    loss = lambda step, steps, value, discarded=0: {
        'split': 'train', 'step': step, 'steps': steps, 'loss': value, 'discarded_steps': discarded
    }  # fmt: skip

    def measured(*lines):
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        (tmp_path / 'metrics.jsonl').write_text(text)
        return evaluation.measure_training_loss(Workdir(tmp_path))

    early, dev = loss(700, 50, 9.0), {'split': 'dev', 'step': 801, 'accuracy': 0.5}
    lines = (early, loss(750, 50, 0.325), loss(800, 50, 0.3, 40), loss(801, 1, 5.0), dev)
    assert measured(*lines) == pytest.approx((50 * 0.325 + 10 * 0.3 + 5.0) / 61)
    nothing = loss(800, 50, 0.0, 50)
    del nothing['loss']
    assert measured(early, nothing) is None


def test_a_folder_holds_one_run(tmp_path, encoder, own_task_file, fine_tuner):
    folder = str(tmp_path / 'run')
    fine_tuner.run(configuration('epochs=0.5'), folder)
    with refused('epochs'):
        fine_tuner.run(configuration('epochs=1'), folder)
    with (tmp_path / 'train.jsonl').open('a') as file:
        file.write('{"text": "a", "label": "bad"}\n')
    with refused('examples'):
        tuner_of(own_task_file, encoder).run(configuration('epochs=0.5'), folder)


@pytest.mark.parametrize(
    'changes, message',
    [
        (['max_seq_length=65'], 'beyond the position table .*use 64'),
        (
            ['train_examples=8', 'epochs=1'],
            '8 training examples, batch_size=16 and epochs=1 make no whole step',
        ),
        (['batch_size=12'], 'does not divide over 8 devices'),
        (['runtime.eval_every=5'], 'runtime.eval_every=5 would be ignored .* score_every is'),
        (['runtime.fsdp=2'], 'runtime.fsdp=2: the runs of one command share it .1.'),
        (['runtime.attention=cudnn'], 'runtime.attention=cudnn needs a GPU'),
    ],
)
def test_settings_that_cannot_be(tmp_path, fine_tuner, changes, message):
    with refused(message):
        fine_tuner.run(configuration(*changes), str(tmp_path / 'run'))
    assert not (tmp_path / 'run').exists()


def test_steps_are_those_of_the_reference():
    cases = {(3668, 'epochs=3'): 343, (8551, 'epochs=3'): 801, (57, 'steps=200'): 200}
    for (examples, length), steps in cases.items():
        assert finetuner.total_steps(examples, configuration('batch_size=32', length)) == steps


@pytest.mark.slow
def test_the_dev_score_selects_and_stops(tmp_path, encoder, task_file):
    """Two of twelve scores without a better one end the run; its weights are those of the best.

    A cut-off run knows them too.
    """
    fine_tuner = tuner_of(task_file, encoder)
    changes = ['runtime.checkpoint_every=5', 'score_every=5', 'select=best', 'patience=3']
    result, _ = fine_tuner.run(configuration(*changes), str(tmp_path / 'run'))
    lines = read_jsonl(tmp_path / 'run/metrics.jsonl')
    scores = {line['step']: line['accuracy'] for line in lines if line['split'] == 'dev'}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert result['selected_step'] == best and result['metrics']['accuracy'] == scores[best]
    assert (tmp_path / 'run/plots/scores.png').exists()
    last = max(scores)
    assert last == min(60, best + 15) and list(scores) == list(range(5, last + 1, 5))
    assert evaluation.evaluate(str(tmp_path / 'run')) == result

    # Stopped by a signal after its best score, and taken up by another process.
    with pytest.MonkeyPatch.context() as patch, pytest.raises(machine.Stopped):
        stopping_after(best + 2, patch)
        fine_tuner.run(configuration(*changes), str(tmp_path / 'stopped'))
    again, _ = tuner_of(task_file, encoder).run(configuration(*changes), str(tmp_path / 'stopped'))
    assert {k: v for k, v in again.items() if k not in ('seconds', 'costs')} == {
        k: v for k, v in result.items() if k not in ('seconds', 'costs')
    }
    whole, stopped = (checkpoint.load_params(tmp_path / name)[0] for name in ('run', 'stopped'))
    assert equal(whole, stopped)


def test_recipes():
    assert choose_recipe('squad_v2', 'span').batch_size == 48
    assert choose_recipe('squad_v1', 'span', 'readme').optimizer.peak_lr == 3e-5
    for task, steps, warmup, examples in (('rte', 800, 200, 2490), ('cola', 5336, 320, 8551)):
        config = choose_recipe(task, 'pair', 'albert')
        total = finetuner.total_steps(examples, config)
        assert (total, int(steps * config.warmup_fraction)) == (steps, warmup)
    with refused('--recipe=readme: it has none for cola'):
        choose_recipe('cola', 'classification', 'readme')
    with refused('set score_every'):
        configuration('patience=2')
    for config in filter(lambda c: isinstance(c, schema.FinetuneConfig), map(load, list_presets())):
        config.refuse_unused()


def test_grids_that_cannot_be():
    for text, message in {
        'seed=': 'expected NAME=VALUE',
        'seed=1;seed=2': 'named twice',
        'seed=1,1.0': 'value comes twice',
        ' ; ': 'is empty',
    }.items():
        with refused(message):
            make_grid(configuration(), text)


def test_command_lines(tmp_path, encoder, task_file, binary):
    folder, run = tmp_path / 'run', f'{tmp_path}/run/runs/seed=1'
    arguments = ('--sweep=seed=0,1', '--profile=2', *(f'--set={s}' for s in SETTINGS))
    command = ('finetune', f'--task={task_file}', f'--init_from={encoder}', f'--workdir={folder}')
    first = binary(*command, *arguments)
    assert first.returncode == 0 and 'best on dev: seed=' in first.stdout, first.stderr
    assert all(any((folder / f'runs/seed={n}/profile').rglob('*.xplane.pb')) for n in (0, 1))
    second = binary(*command, *arguments)
    assert second.stdout == first.stdout and '2 of 2 runs were done before' in second.stderr
    wanted = read_json(folder / 'sweep.json')['runs'][1]['metrics']
    predictions = f'--predictions={run}/predictions/dev/predictions.tsv'
    for what in ([f'--workdir={run}'], [f'--task={task_file}', predictions]):
        assert json.loads(binary('evaluate', *what).stdout)['metrics'] == wanted


@pytest.mark.parametrize(
    'name, arguments, message',
    [
        ('finetune', ['--task=mrcp', '--init_from=x', '--workdir=y'], '--task=mrcp: unknown'),
        (
            'finetune',
            ['--task=mrpc', '--init_from=x', '--workdir=y', '--data_dir=z', '--set=epoch=1'],
            'did you mean epochs?',
        ),
        ('evaluate', [], '--workdir, --retrieval, --sts, --pairs or --translations is req'),
        ('evaluate', ['--predictions=x'], '--task or --retrieval is required'),
        (
            'evaluate',
            ['--suite=glue', '--runs=x', '--split=z'],
            'and --suite=glue (of EvaluateSuite) do not go together',
        ),
        (
            'predict',
            ['--workdir=x', '--input=z', '--output=w', '--max_seq_length=0'],
            '--max_seq_length=0: 0 is not a positive integer',
        ),
        (
            'export',
            ['--workdir=x', f'--output={__file__}/a'],
            'test_finetune.py is no folder: name',
        ),
        ('pretrain', ['--config=bert_tiny', '--process_id=1'], '--process_id needs --coordinator'),
    ],
)
def test_mistakes_are_one_line(tmp_path, binary, name, arguments, message):
    done = binary(name, *[argument.replace('=y', f'={tmp_path}') for argument in arguments])
    assert message in mistake(done) and len(done.stderr.strip().splitlines()) == 1
