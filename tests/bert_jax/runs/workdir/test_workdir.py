"""A resumed run is the same run: which changes a workdir takes, and which it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.mesh import before_jax
from bert_jax.runs.workdir import notes, run_context
from bert_jax.runs.workdir.workdir import Workdir
from tests.helpers.full_disk import files_of_at_most
from tests.helpers.refusals import refused

TINY = ['phases.0.steps=100', 'phases.0.batch_size=8', 'optimizer.warmup_steps=10']


def settings(*changes):
    return apply(load('bert_tiny'), [*TINY, *changes])


def run(folder, done, *changes):
    """A run with `changes` on a workdir whose newest checkpoint is of step `done`.

    What the workdir then says of it.
    """
    known = Workdir(folder).create_or_resume(settings(*changes), {'records': 'these'})
    (folder / 'checkpoints' / str(done)).mkdir(parents=True, exist_ok=True)
    return known


@pytest.mark.parametrize(
    'schedule, done, steps, fits',
    [
        ('constant', 60, 200, True), ('constant', 60, 60, True), ('constant', 60, 50, False),
        ('linear', 60, 200, False), ('bert', 10, 200, False),
        ('wsd', 80, 200, True), ('wsd', 81, 200, False),  # its decay is the last fifth of 100 steps
        ('wsd', 48, 60, True), ('wsd', 49, 60, False),  # and of 60
    ],
)  # fmt: skip
def test_more_steps_where_the_past_stays_as_it_was(tmp_path, schedule, done, steps, fits):
    assert not run(tmp_path, done, f'optimizer.schedule={schedule}')
    longer = [f'optimizer.schedule={schedule}', f'phases.0.steps={steps}']
    if fits:
        assert run(tmp_path, done, *longer)
        return
    with refused(rf'holds another run \(phases.0.steps: 100 -> {steps}\)'):
        run(tmp_path, done, *longer)


@pytest.mark.parametrize('steps, fits', [((100, 80), True), ((120, 50), False), ((100, 50), True)])
def test_only_a_phase_that_is_not_over_changes_its_length(tmp_path, steps, fits):
    base = settings('optimizer.schedule=constant')
    with_phases = lambda *steps: dataclasses.replace(
        base,
        phases=tuple(
            dataclasses.replace(base.phases[0], seq_len=s, steps=n)
            for s, n in zip((64, 128), steps, strict=True)
        ),
    )
    Workdir(tmp_path).create_or_resume(with_phases(100, 50), {})
    (tmp_path / 'checkpoints/110').mkdir(parents=True)
    if fits:
        assert Workdir(tmp_path).create_or_resume(with_phases(*steps), {})
        return
    with refused('phases.0.steps: 100 -> 120'):
        Workdir(tmp_path).create_or_resume(with_phases(*steps), {})


def test_what_does_not_change_the_result_may_change(tmp_path, caplog):
    run(tmp_path, 5)
    with caplog.at_level('INFO'):
        assert run(tmp_path, 5, 'runtime.accumulation=2')
    assert 'runtime.accumulation = 2 (was 1)' in caplog.text
    with refused('seed: 12345 -> 1'):
        run(tmp_path, 5, 'seed=1')
    with refused('data.records'):
        Workdir(tmp_path).create_or_resume(settings(), {'records': 'those'})


def test_a_newer_default_does_not_change_a_run_that_was_begun_before(tmp_path):
    """A file without the setting means whole logits, and goes on so until another is named."""
    run(tmp_path, 5, 'runtime.vocabulary_loss=whole')
    file = Workdir(tmp_path).config_file
    assert 'vocabulary_loss' not in file.read_text()
    assert Workdir(tmp_path).as_begun(settings()).runtime.vocabulary_loss == 'whole'
    assert run(tmp_path, 5) and 'vocabulary_loss' not in file.read_text()
    assert run(tmp_path, 5, 'runtime.vocabulary_loss=blocks')
    assert Workdir(tmp_path).as_begun(settings()).runtime.vocabulary_loss == 'auto'
    with refused('vocabulary_loss=half: must be one of auto, whole, blocks'):
        settings('runtime.vocabulary_loss=half')


def test_a_run_of_vectors_goes_on_with_the_scale_of_its_release(tmp_path):
    """Files had it always; now a kind of vectors has its own where none is named."""
    begun = apply(choose_recipe('alike', 'embedding'), ['embedding.scale=20'])
    Workdir(tmp_path).create_or_resume(begun, {})
    (tmp_path / 'checkpoints/5').mkdir(parents=True)
    unset = choose_recipe('alike', 'embedding')
    assert unset.embedding.scale is None
    assert Workdir(tmp_path).create_or_resume(unset, {})
    assert Workdir(tmp_path).as_begun(unset).embedding.scale == 20
    named = apply(unset, ['embedding.scale=7'])
    with refused('embedding.scale: 20.0 -> 7'):
        Workdir(tmp_path).create_or_resume(named, {})


def test_a_run_that_has_no_checkpoint_does_not_hold_its_folder(tmp_path, caplog):
    """It was refused, or killed early: another one takes its place, and says so.

    With a checkpoint it is refused.
    """
    assert not Workdir(tmp_path).create_or_resume(settings(), {'records': 'these'})
    assert Workdir(tmp_path).create_or_resume(settings(), {'records': 'these'})
    (tmp_path / 'tokenizer').mkdir()  # where that run keeps a copy, which belongs to its records
    with caplog.at_level('INFO'):
        assert not Workdir(tmp_path).create_or_resume(settings('seed=1'), {'records': 'those'})
    assert (
        'a run with other settings (data.records, seed) ended there before its first checkpoint'
        in caplog.text
    )
    assert not (tmp_path / 'tokenizer').exists()
    (tmp_path / 'checkpoints/5').mkdir(parents=True)
    with refused('seed: 1 -> 2'):
        Workdir(tmp_path).create_or_resume(settings('seed=2'), {'records': 'those'})
    assert Workdir(tmp_path).create_or_resume(settings('seed=1'), {'records': 'those'})


@pytest.mark.parametrize('result', [None, 'metrics.jsonl', 'features/x.npz'])
def test_a_folder_goes_with_the_command_that_was_refused_unless_something_came_of_it(
    tmp_path, result
):
    folder = tmp_path / 'runs/new'
    with refused('refused'), Workdir(folder).lock():
        Workdir(folder).create_or_resume(settings(), {})
        (folder / 'checkpoints').mkdir()
        (folder / 'metrics.jsonl').touch()
        notes.note_start(Workdir(folder), 0)
        notes.note_guess(str(folder), notes.Guess(0, {'mlm_loss': 7.0}))
        if result:
            (folder / result).parent.mkdir(parents=True, exist_ok=True)
            (folder / result).write_text('{}')
        raise UserError('refused')
    assert (tmp_path / 'runs').exists() == folder.exists() == (result is not None)
    with refused('refused'), Workdir(tmp_path).lock():
        raise UserError('refused')
    assert tmp_path.exists()  # it was there before


DAMAGE = {
    'cut': lambda path: path.write_bytes(path.read_bytes()[:-9]),
    'gone': lambda path: path.unlink(),
    'a folder': lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize(
    ('name', 'damage'),
    [*(('config.json', damage) for damage in DAMAGE), ('data.json', 'a folder')],
)
def test_a_folder_whose_files_do_not_say_of_which_run_is_refused_and_left_alone(
    tmp_path, name, damage
):
    run(tmp_path, 60)
    DAMAGE[damage](tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.glob('*.json') if path.is_file()}
    with refused(rf'{name}.*use another') as told:
        run(tmp_path, 60)
    assert '\n' not in str(told.value) and str(tmp_path) in str(told.value)
    assert before == {path: path.read_bytes() for path in tmp_path.glob('*.json') if path.is_file()}


def test_a_folder_that_cannot_be_written_in_is_one_line(tmp_path):
    (tmp_path / 'file').write_text('')
    for where, why in (
        (f'{tmp_path}/file', 'it is a file'),
        (f'{tmp_path}/file/run', 'Not a directory'),
        ('/proc/run', 'No such file'),
        (f'{tmp_path}/' + 300 * 'a', 'File name too long'),
        ('xx://a/b', 'no such kind of address'),
        ('', 'is empty'),
    ):
        with refused(f'{where}.*{why}'), Workdir(where).lock():
            pytest.fail('locked')
    with (
        files_of_at_most(0),
        refused('nothing can be written there'),
        Workdir(f'{tmp_path}/full').lock(),
    ):
        pytest.fail('locked')


def test_a_sweeps_folder_takes_no_single_run_and_a_runs_folder_no_sweep(tmp_path):
    swept, single = tmp_path / 'swept', tmp_path / 'single'
    run(swept / 'runs/seed=0', 5)
    Workdir(swept).check_takes_sweep()
    with refused(f'--workdir={swept} holds a sweep of 1 run: go on with it'):
        run(swept, 0)
    assert not (swept / 'config.json').exists()
    Workdir(single).check_takes_sweep()  # nothing is there
    run(single, 5)
    with refused(f'--workdir={single} holds a single run'):
        Workdir(single).check_takes_sweep()


def test_a_run_keeps_the_products_that_it_began_with_on_another_processor(tmp_path, monkeypatch):
    def products(folder, flags, *changes):
        """What config.json says of a run that begins or goes on on such a processor."""
        monkeypatch.setattr(before_jax, 'read_processor_flags', lambda: frozenset(flags.split()))
        config = run_context.choose_products(Workdir(folder), apply(load('bert_tiny'), changes))
        assert config.runtime.matmul_dtype != 'auto'
        Workdir(folder).create_or_resume(config, {})
        return Workdir(folder).config().runtime.matmul_dtype

    fast, slow, older = (tmp_path / name for name in ('fast', 'slow', 'older'))
    by_name = 'runtime.matmul_dtype=float32'
    assert products(fast, 'avx2') == 'float32'
    assert products(fast, 'amx_bf16') == 'bfloat16'  # nothing is saved yet: it begins again
    assert products(slow, 'avx2') == 'float32'
    assert products(older, 'amx_bf16', 'runtime.matmul_dtype=none') is None
    for folder in (fast, slow, older):
        (folder / 'checkpoints/5').mkdir(parents=True)
    assert products(fast, 'avx2') == 'bfloat16'
    assert products(slow, 'amx_bf16') == 'float32'
    assert products(older, 'amx_bf16') is None
    assert products(fast, 'amx_bf16', by_name) == 'float32'


@pytest.mark.parametrize('damage', ['', '{"rec', None])
def test_a_damaged_data_json_is_made_again_and_the_run_goes_on(tmp_path, damage, caplog):
    run(tmp_path, 60)
    file = tmp_path / 'data.json'
    file.unlink()
    if damage is not None:
        file.write_text(damage)
    assert run(tmp_path, 60)
    assert 'data.json: damaged or gone: made again' in caplog.text
    assert Workdir(tmp_path).data() == {'records': 'these'}
    with refused('another run .*seed'):
        run(tmp_path, 60, 'seed=1')
