"""What is held out where nothing is said, and pairs whose label is no question."""

from __future__ import annotations

import types

import pytest

from bert_jax.input_pipeline.preprocess import job_plan
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from tests.helpers.jobs import PLAIN, run, write_text
from tests.helpers.refusals import refused


def fraction(size, **options):
    units = [types.SimpleNamespace(bytes=size // 2, language='')] * 2
    job = PreprocessOptions(input='t', tokenizer='v', output='o', **options)
    return job_plan.recipe(job, units, []).eval_fraction


def test_a_small_text_holds_out_more_and_a_large_one_as_ever():
    assert fraction(10**9) == 0.005
    assert 0.05 < fraction(10**7) < 0.1 and fraction(10**6) == 0.1
    assert fraction(10**7) == pytest.approx(4 * fraction(10**7, seq_len=32))
    assert fraction(10**7, min_eval_rows=0) == 0.005
    assert fraction(10**6, eval_fraction=0.01) == 0.01
    assert fraction(10**6, eval_fraction=0.0) == 0.0
    with refused('--min_eval_rows is for the default share'):
        fraction(10**6, eval_fraction=0.01, min_eval_rows=10)


def test_so_many_rows_are_held_out(tmp_path, vocabulary):
    write_text(tmp_path / 'a.txt', vocabulary[2])
    job = {'seq_len': 16, 'dupe_factor': 1, 'objective': 'full_sentences'}
    manifest = run(tmp_path, vocabulary, min_eval_rows=100, **job)
    assert manifest.records('eval') >= 100
    assert manifest.records('train') > 5 * manifest.records('eval')

    assert 'min_eval_rows' not in run(tmp_path, vocabulary, output=f'{tmp_path}/now', **job).options


@pytest.mark.parametrize('words, objective', [(30, 'nsp'), (4, 'nsp'), (30, 'full_sentences')])
def test_paragraphs_are_told_by_the_label_of_their_pairs(tmp_path, vocabulary, words, objective):
    """Also where documents have many lines, none of which is longer than a row."""
    line = ' '.join(PLAIN[:words])
    text = '\n\n'.join('\n'.join(f'{name} {line}' for _ in range(8)) for name in vocabulary[2][:80])
    (tmp_path / 'a.txt').write_text(text + '\n')
    manifest = run(tmp_path, vocabulary, seq_len=32, eval_fraction=0, objective=objective)
    told = [w for w in manifest.statistics['warnings'] if 'have a random second text' in w]
    assert len(told) == (words == 30 and objective == 'nsp')
    assert all('of the pairs' in w and 'add --segment' in w for w in told)
