"""Data sets of the Hugging Face Hub, by way of folders of files, which the library reads alike."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.input_pipeline.preprocess.language_mixture import split_inputs
from bert_jax.input_pipeline.text import data_sets, digest
from bert_jax.input_pipeline.text.corpus import (
    Report,
    TextOptions,
    read_unit,
    units,
)
from tests.helpers.files import write_jsonl
from tests.helpers.refusals import refused

installed = pytest.mark.skipif(
    importlib.util.find_spec('datasets') is None,
    reason="datasets is not installed: pip install '.[datasets]'",
)


@pytest.fixture(autouse=True)
def fresh():
    """What was opened is forgotten: a test changes the files of the one before."""
    data_sets.open_hub.cache_clear()
    yield
    data_sets.open_hub.cache_clear()


def write(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(path, ({'text': text, 'id': 1} for text in texts))


@pytest.fixture
def folder(tmp_path):
    """A data set of three shards."""
    for shard in range(3):
        texts = [f'Shard {shard}. Row {row}.' for row in range(4)]
        texts[2] = None
        write(tmp_path / 'set' / f'train-{shard}.jsonl', texts)
    return tmp_path / 'set'


@installed
def test_shards_are_units_and_rows_are_documents(folder):
    parts = units(f'hf:{folder}:train')
    assert [(unit.name, unit.start, unit.format) for unit in parts] == [
        (f'set/train-0000{shard}-of-00003', shard, 'hf') for shard in range(3)
    ]
    assert all(unit.bytes > 100 for unit in parts)
    report = Report()
    found = [document for unit in parts for document in read_unit(unit, report=report)]
    assert [document.sentences for document in found] == [
        [f'Shard {shard}.', f'Row {row}.'] for shard in range(3) for row in (0, 1, 3)
    ]
    assert found[2].name == ('set/train-00000-of-00003', 3)
    assert report.bytes == sum(len(f'Shard {s}. Row {r}.') for s in range(3) for r in (0, 1, 3))


@installed
@pytest.mark.parametrize(
    'ending, column, said',
    [
        (':train', 'body', r"no text in column 'body' \(it has id, text\)"),
        (':dev', 'text', 'cannot be opened .*Bad split: dev'),
        ('-gone:train', 'text', 'cannot be opened'),
    ],
)
def test_what_is_refused(folder, monkeypatch, ending, column, said):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    with refused(said):
        units(f'hf:{folder}{ending}', TextOptions(text_column=column))


@installed
def test_parquet_is_read_a_few_rows_at_a_time(tmp_path):
    """However many a row group has: the rows are the same, and their numbers."""
    texts = [f'Row {row}.' for row in range(1000)]
    (tmp_path / 'set').mkdir()
    parquet.write_table(pa.table({'text': texts}), tmp_path / 'set' / 'train.parquet')
    builder, _ = data_sets.open_hub(f'hf:{tmp_path}/set:train')
    assert builder.config.batch_size == 256
    (unit,) = units(f'hf:{tmp_path}/set:train')
    assert [found.name[1] for found in read_unit(unit)] == list(range(1000))


@installed
def test_nothing_of_a_data_set_stays_on_the_disk(folder, tmp_path, monkeypatch):
    monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', str(tmp_path / 'cache'))
    assert sum(1 for unit in units(f'hf:{folder}:train') for _ in read_unit(unit)) == 9
    assert sum(path.stat().st_size for path in (tmp_path / 'cache').rglob('*')) == 0


@installed
def test_a_shard_that_breaks_is_named(folder):
    """The library refuses a line that is no JSON; the shards before it were read."""
    (folder / 'train-1.jsonl').write_text('{"text": "A.", "id": 1}\n{"text": "B')
    first, second, _ = units(f'hf:{folder}:train')
    assert len(list(read_unit(first))) == 3
    with refused(r'^hf:.*set:train: shard 1 cannot be read \(.*\)$'):
        list(read_unit(second))


@installed
def test_a_local_data_set_that_changes_between_two_starts(folder):
    marks = digest.marks(units(f'hf:{folder}:train')[0])
    write(folder / 'train-0.jsonl', ['Another text, of another length.'])
    data_sets.open_hub.cache_clear()
    assert not digest.same(units(f'hf:{folder}:train')[0], marks)


def test_how_a_data_set_is_named(monkeypatch):
    for pattern in ('hf:name', 'hf:a:b:c:d', 'hf::train'):
        with refused('must be hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT'):
            units(pattern)
    assert split_inputs('input', ['de=hf:org/name:de:train']) == {'de': ('hf:org/name:de:train',)}
    monkeypatch.setitem(sys.modules, 'datasets', None)
    with refused(r"pip install -c constraints.txt '\.\[datasets\]'"):
        units('hf:org/name:train')


@installed
def test_the_commit_of_the_hub_is_pinned(monkeypatch):
    """What the Hub says is given by hand here: there is no network in tests."""

    class Files(list):
        pass

    files = Files(['hf://a', 'hf://b'])
    files.origin_metadata = [('org/name', 'c0ffee')] * 2
    builder = SimpleNamespace(
        config=SimpleNamespace(data_files={'train': files}),
        info=SimpleNamespace(splits=None),
        as_streaming_dataset=lambda split: SimpleNamespace(num_shards=2, features=None),
    )
    asked = []

    def load(name, config, revision):
        asked.append((name, config, revision))
        return builder

    monkeypatch.setattr('datasets.load_dataset_builder', load)
    parts = units('hf:org/name@main:de:train')
    assert asked == [('org/name', 'de', 'main')]
    assert [unit.path for unit in parts] == ['hf:org/name@c0ffee:de:train'] * 2
    assert [unit.name for unit in parts] == [f'org/name/de/train-0000{i}-of-00002' for i in (0, 1)]

    # another commit is other text, and another name of the same commit is not
    same = digest.marks(parts[0])
    assert digest.same(units('hf:org/name@tag:de:train')[0], same)
    files.origin_metadata = [('org/name', 'decade')] * 2
    data_sets.open_hub.cache_clear()
    assert not digest.same(units('hf:org/name@main:de:train')[0], same)
