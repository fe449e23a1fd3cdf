"""When a run stops whose dev score no longer rises; that it does so is a slow test of runs."""

from __future__ import annotations

from bert_jax.runs.finetuning.early_stopping import EarlyStopping


def test_a_run_stops_as_many_steps_after_its_best_as_its_patience(tmp_path):
    stopping = EarlyStopping(str(tmp_path), patience_steps=20)
    stopping.best_step = 30
    assert [stopping.should_stop(step) for step in (40, 49, 50, 60)] == [False, False, True, True]
    patient = EarlyStopping(str(tmp_path))
    assert not patient.should_stop(10_000)
