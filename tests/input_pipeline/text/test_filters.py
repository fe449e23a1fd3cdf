"""Documents dropped by their length and their share of letters, each counted."""

from __future__ import annotations

import pytest

from bert_jax.input_pipeline.text.corpus import Report
from bert_jax.input_pipeline.text.lines import TextOptions
from tests.helpers.files import write_jsonl
from tests.helpers.refusals import refused
from tests.helpers.texts import put, read


def test_each_filter_is_counted(tmp_path):
    texts = ['Ab. Cd.', 'x' * 40, '0123456789 ab', 'Kept as it is.', 'Kept  too.']
    write_jsonl(tmp_path / 'a.jsonl', ({'text': text} for text in texts))
    report = Report()
    kept = read(
        tmp_path / 'a.jsonl', report, min_chars=8, max_chars=30, min_letters=0.5, segment=True
    )
    assert kept == [['Kept as it is.'], ['Kept  too.']]
    assert report.filtered == {
        'below --min_chars': 1,
        'above --max_chars': 1,
        'below --min_letters': 1,
    }
    assert report.lines() == [
        '3 document(s) dropped by filters (1 above --max_chars, 1 below --min_chars,'
        ' 1 below --min_letters); 2 kept'
    ]
    assert report.documents == 2 and not report.empty_files


@pytest.mark.parametrize('text', ['हिन्दी में है', 'ภาษาไทยนี้', 'שָׁלוֹם עולם', '日本語です'])
def test_letters_of_any_script_and_their_marks(tmp_path, text):
    """Letters with their vowel signs are letters."""
    path = put(tmp_path / 'a.txt', f'{text}\n')
    assert read(path, min_letters=1.0) == [[text]]


def test_limits_are_within(tmp_path):
    """A document of just so many characters, or of just that share of letters, stays."""
    path = put(tmp_path / 'a.txt', 'ab12\nabc\n')  # eight characters with the one between, six good
    assert len(read(path, min_chars=8, max_chars=8, min_letters=0.75)) == 1
    for options in ({'min_chars': 9}, {'max_chars': 7}, {'min_letters': 0.76}):
        with refused(r'no document left: 1 document\(s\) dropped by filters \(1 (below|above) --m'):
            read(path, **options)
    with refused('--max_chars=3: is below --min_chars=4'):
        TextOptions(min_chars=4, max_chars=3)


def test_old_jobs_are_described_as_they_were():
    names = ('min_chars', 'max_chars', 'min_letters')
    assert not set(names) & set(TextOptions().described())
    assert TextOptions(min_chars=5).described()['min_chars'] == 5
