"""A job on a data set that the Hub's library reads goes on by shard."""

from __future__ import annotations

import pytest

from bert_jax.input_pipeline.preprocess import job
from bert_jax.input_pipeline.text import data_sets
from tests.helpers.files import write_jsonl
from tests.helpers.jobs import Killed, digests, run, write_text
from tests.helpers.refusals import refused

pytest.importorskip('datasets', reason="datasets is not installed: pip install '.[datasets]'")


def write_shard(folder, number, names):
    (folder / 'set').mkdir(exist_ok=True)
    texts = write_text(folder / 'made', names, number)
    write_jsonl(folder / 'set' / f'train-{number}.jsonl', ({'text': text} for text in texts))


def test_a_killed_job_goes_on_by_shard(tmp_path, vocabulary, monkeypatch):
    for number in range(4):
        write_shard(tmp_path, number, vocabulary[2][30 * number : 30 * number + 30])
    options = {'input': f'hf:{tmp_path}/set:train', 'eval_fraction': 0.1}
    read, shards_read = job.corpus.read_unit, []

    def noted(unit, *arguments):
        shards_read.append(unit.start)
        if len(shards_read) == 3:
            raise Killed
        return read(unit, *arguments)

    monkeypatch.setattr(job.corpus, 'read_unit', noted)
    with pytest.raises(Killed):
        run(tmp_path, vocabulary, **options)
    run(tmp_path, vocabulary, **options)
    assert shards_read == [0, 1, 2, 2, 3]
    run(tmp_path, vocabulary, **options | {'output': f'{tmp_path}/fresh'})
    assert digests(tmp_path / 'out') == digests(tmp_path / 'fresh')

    # Other files are other text, and the folder of a finished job is no place for it.
    write_shard(tmp_path, 1, vocabulary[2][200:230])
    data_sets.open_hub.cache_clear()
    with refused('holds the output of another job .the input files have changed'):
        run(tmp_path, vocabulary, **options)
    data_sets.open_hub.cache_clear()
