"""The measures on held-out records, against numpy."""

from __future__ import annotations

import functools
import pathlib

import numpy as np
import pytest
import scipy.special

from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.model import heads
from bert_jax.runs.pretraining import held_out
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint
from tests.helpers.encoder import ENCODER_WORDS as WORDS
from tests.helpers.files import read_json
from tests.helpers.finetuning import trained_on
from tests.helpers.processes import ok
from tests.helpers.refusals import refused
from tests.helpers.texts import documents


def test_held_out_measures_are_means_over_all_records(tmp_path, encoder, binary):
    """Against log-softmax in numpy over all records in one batch.

    The number of records does not divide by the evaluation's batch.
    """
    (tmp_path / 'text.txt').write_text(documents(WORDS, 90))
    records = tmp_path / 'records'
    options = '--seq_len=32 --max_predictions=5 --eval_fraction=0.3 --dupe_factor=1 --workers=1'
    paths = f'--input={tmp_path}/text.txt', f'--tokenizer={encoder}/tokenizer'
    ok(binary('preprocess', *paths, f'--output={records}', *options.split()))
    found = held_out.evaluate(encoder, str(records), 'eval')
    elsewhere = trained_on(encoder, tmp_path / 'elsewhere', {'fsdp': 16, 'model_parallel': 2})
    there = held_out.evaluate(elsewhere, str(records), 'eval')
    assert there['metrics'] == pytest.approx(found['metrics'], rel=1e-6)
    with refused("no records of split 'dev'"):
        held_out.evaluate(encoder, str(records), 'dev')

    manifest = Manifest.load(str(records))
    batch = next(RecordStream(str(records), 'eval', manifest.records('eval'), 0).evaluation())
    config = Workdir(encoder).model_config()
    mlm, nsp = heads.Pretraining(config).apply(
        {'params': checkpoint.load_params(encoder)[0]}, batch
    )
    log_softmax = functools.partial(scipy.special.log_softmax, axis=-1)
    mlm, nsp, weights = (
        log_softmax(np.asarray(mlm)[..., : config.vocab_size]),
        log_softmax(np.asarray(nsp)),
        batch['masked_lm_weights'],
    )
    chosen = np.take_along_axis(mlm, batch['masked_lm_ids'][..., None], -1)[..., 0]
    labels = batch['next_sentence_labels']
    expected = {
        'mlm_loss': -(chosen * weights).sum() / weights.sum(),
        'mlm_accuracy': (
            ((mlm.argmax(-1) == batch['masked_lm_ids']) * weights).sum() / weights.sum()
        ),
        'nsp_loss': -nsp[np.arange(len(labels)), labels].mean(),
        'nsp_accuracy': (nsp.argmax(-1) == labels).mean(),
        'masked': weights.sum(),
    }
    assert {name: found['metrics'][name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert (
        found['records']
        == manifest.records('eval')
        == read_json(pathlib.Path(encoder, 'eval/eval.json'))['records']
        > 10
    )


def test_the_next_batch_is_dispatched_before_the_sums_of_one_are_waited_for(monkeypatch):
    events = []

    def eval_step(params, batch):
        events.append(f'dispatch {batch}')
        return {'loss': (batch, 1.0)}

    fetch = lambda sums: (events.append(f'fetch {sums["loss"][0]}'), sums)[1]
    monkeypatch.setattr(held_out.jax, 'device_get', fetch)
    assert held_out.measure(eval_step, None, [1, 2, 6]) == {'loss': 3.0}
    assert ' '.join(events) == 'dispatch 1 dispatch 2 fetch 1 dispatch 6 fetch 2 fetch 6'
