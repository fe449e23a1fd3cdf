"""Records without a text: refused in one line, or left out and counted."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.input_pipeline.text.corpus import Report
from tests.helpers.refusals import refused
from tests.helpers.texts import put, read

# What a line of jsonl may be, the kind that it is counted under, and words of its refusal; null is
# a document without text, and refuses nothing.
BAD = [
    (b'{"text": "cut of', 'not JSON', 'not valid JSON'),
    (b'["a list"]', 'no object', 'no object but a list'),
    (b'{"body": "Other."}', 'no such column', r"no text in column 'text' .it has body"),
    (b'{"text": 3}', 'no text', 'it is a number'),
    (b'{"text": null}', 'null', None),
]


def line(text):
    return json.dumps({'text': text}).encode()


@pytest.mark.parametrize('bad, kind, words', BAD, ids=[kind for _, kind, _ in BAD])
def test_a_bad_line_stops_or_is_left_out(tmp_path, bad, kind, words):
    path = put(tmp_path / 'a.jsonl', b'\n'.join([line('One.'), bad, line('Two.'), bad]))
    if words:
        with refused(rf'a\.jsonl line 2: .*{words}.*--on_bad_record=skip'):
            read(path)
    else:
        assert read(path) == [['One.'], ['Two.']]
    report = Report()
    assert read(path, report, on_bad_record='skip') == [['One.'], ['Two.']]
    assert report.lines() == [
        f'2 record(s) left out as --on_bad_record=skip says (2 {kind}):'
        f' {path} line 2 ({kind}), {path} line 4 ({kind})'
    ]


def test_texts_that_are_null_or_empty_are_counted(tmp_path):
    null, empty = b'{"text": null}\n', b'{"text": " \\n"}\n'
    path = put(tmp_path / 'a.jsonl', line('One.') + b'\n' + (null + empty) * 3 + line('Two.'))
    for options, kinds in (({}, '3 empty, 3 null'), ({'on_bad_record': 'skip'}, '3 empty')):
        report = Report()
        assert read(path, report, **options) == [['One.'], ['Two.']]
        total = sum(int(kind.split()[0]) for kind in kinds.split(', '))
        said = report.lines()[-1]
        assert said.startswith(f'{total} record(s) without text ({kinds}), which are no documents:')
        assert f'{path} line 3 (empty)' in said and ('line 2 (null)' in said) == (not options)
    assert report.bad_records == {'null': 3}


def test_rows_of_parquet(tmp_path):
    column = pa.array([b'One.', None, b'', b'T\xffo.', b'Two.'])
    path = tmp_path / 'a.parquet'
    parquet.write_table(pa.table({'text': column}), path, row_group_size=2)
    assert read(path, on_bad_utf8='skip') == [['One.'], ['Two.']]
    report = Report()
    kept = read(path, report, on_bad_utf8='error', on_bad_record='skip')
    assert kept == [['One.'], ['Two.']]
    assert report.bad_records == {'null': 1, 'invalid UTF-8': 1}
    assert report.bad_record_places == [f'{path} row 1 (null)', f'{path} row 3 (invalid UTF-8)']
    report = Report()
    read(path, report)
    assert report.textless_places == [f'{path} row 1 (null)', f'{path} row 2 (empty)']
