"""A resumed run is the same run: which changes a workdir takes, and which it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from configs.errors import UserError
from configs.load import load
from configs.overrides import apply
from launch import workdir

TINY = ['phases.0.steps=100', 'phases.0.batch_size=8', 'optimizer.warmup_steps=10']


def run(folder, done, *changes):
    """A run with `changes` on a workdir whose newest checkpoint is of step `done`; what the workdir then says of it."""
    (folder / 'checkpoints' / str(done)).mkdir(parents=True, exist_ok=True)
    return workdir.settle(str(folder), apply(load('bert_tiny'), [*TINY, *changes]), {'records': 'these'})


@pytest.mark.parametrize(
    ('schedule', 'done', 'steps', 'fits'),
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
    with pytest.raises(UserError, match=rf'holds another run \(phases.0.steps: 100 -> {steps}\)'):
        run(tmp_path, done, *longer)


@pytest.mark.parametrize(('steps', 'fits'), [((100, 80), True), ((120, 50), False), ((100, 50), True)])
def test_only_a_phase_that_is_not_over_changes_its_length(tmp_path, steps, fits):
    base = apply(load('bert_tiny'), [*TINY, 'optimizer.schedule=constant'])
    with_phases = lambda *steps: dataclasses.replace(
        base, phases=tuple(dataclasses.replace(base.phases[0], seq_len=s, steps=n) for s, n in zip((64, 128), steps, strict=True))
    )
    (tmp_path / 'checkpoints/110').mkdir(parents=True)
    workdir.settle(str(tmp_path), with_phases(100, 50), {})
    if fits:
        assert workdir.settle(str(tmp_path), with_phases(*steps), {})
        return
    with pytest.raises(UserError, match='phases.0.steps: 100 -> 120'):
        workdir.settle(str(tmp_path), with_phases(*steps), {})


def test_what_does_not_change_the_result_may_change(tmp_path, caplog):
    run(tmp_path, 5)
    with caplog.at_level('INFO'):
        assert run(tmp_path, 5, 'runtime.accumulation=2')
    assert 'runtime.accumulation = 2 (was 1)' in caplog.text
    with pytest.raises(UserError, match='seed: 12345 -> 1'):
        run(tmp_path, 5, 'seed=1')
    with pytest.raises(UserError, match='data.records'):
        workdir.settle(str(tmp_path), apply(load('bert_tiny'), TINY), {'records': 'those'})
