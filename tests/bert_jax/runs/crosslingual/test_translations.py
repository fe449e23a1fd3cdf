"""bert-translations: the nearest text of another language, and the files that go together."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.runs.crosslingual.languages import read_parallel
from bert_jax.runs.crosslingual.retrieval import retrieve
from tests.helpers.files import read_json, write_lines
from tests.helpers.processes import ok


def test_a_language_that_lies_elsewhere_is_found_by_the_difference_of_the_means():
    """Two layers: in one the other language is the first moved aside, in one it is anything."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(2, 40, 8)).astype(np.float32)
    moved = first[0] * 1 + np.array([9, *[0] * 7], np.float32)
    found = retrieve({'en': first, 'de': np.stack([moved, rng.normal(size=(40, 8))])})
    assert [(one.of, one.into) for one in found] == [('en', 'de'), ('de', 'en')]
    for one in found:
        assert one.shifted[0] == 1 and one.plain[0] < 0.5  # as they lie, an edge is nearest to all
        assert one.shifted[1] < 0.2 and one.plain[1] < 0.2  # chance is 1 of 40


@pytest.mark.slow
def test_translations_by_an_encoder(tmp_path, encoder, binary):
    """A text and itself have one vector in every layer; another order has not."""
    lines = ['the film was good', 'a dull book', 'who is the fox ?', 'red dog blue cat']
    write_lines(tmp_path / 'en.txt', lines)
    write_lines(tmp_path / 'de.txt', lines)
    done = binary(
        'translations',
        f'--input=en={tmp_path}/en.txt',
        f'--input=de={tmp_path}/de.txt',
        f'--init_from={encoder}',
        f'--output={tmp_path}/out',
    )
    ok(done)
    report = read_json(tmp_path / 'out/translations.json')
    assert report['texts'] == 4 and len(report['found']) == 2
    for one in report['found']:
        assert one['shifted'] == one['plain'] == [1.0, 1.0]  # the embeddings, and one block
    assert '| embeddings | 100.0% (100.0%) |' in done.stdout and '25.0% |' in done.stdout
    assert (tmp_path / 'out/translations.png').read_bytes().startswith(b'\x89PNG')


def test_files_of_parallel_texts(tmp_path):
    (tmp_path / 'en.txt').write_text('one\r\ntwo\n')
    (tmp_path / 'de.conllu').write_text('# text = eins\n1\tx\n\n# text = zwei\n')
    paragraphs = [{'context': 'un'}, {'context': 'deux'}]
    squad = {'data': [{'paragraphs': paragraphs[:1]}, {'paragraphs': paragraphs[1:]}]}
    (tmp_path / 'fr.json').write_text(json.dumps(squad))
    given = [f'en={tmp_path}/en.txt', f'de={tmp_path}/de.conllu', f'fr={tmp_path}/fr.json']
    found = read_parallel(given)
    assert found == {'en': ['one', 'two'], 'de': ['eins', 'zwei'], 'fr': ['un', 'deux']}

    (tmp_path / 'three.txt').write_text('a\nb\nc\n')
    (tmp_path / 'gap.txt').write_text('a\n \n')
    (tmp_path / 'one.txt').write_text('a\n')
    (tmp_path / 'bare.conllu').write_text('1\tx\n')
    (tmp_path / 'table.tsv').write_text('1\ta\n2\tb\n')
    (tmp_path / 'odd.json').write_text('{"data": [1]}')
    for names, said in (
        (('en=en.txt',), 'two languages or more'),
        (('en=en.txt', 'de=three.txt'), '--input=de: 3 texts, and en has 2'),
        (('en=en.txt', 'de=gap.txt'), '--input=de: text 2 is empty'),
        (('en=one.txt', 'de=one.txt'), 'one text only'),
        (('en=en.txt', 'de=bare.conllu'), 'no line begins with'),
        (('en=en.txt', 'de=odd.json'), 'has no paragraphs'),
        (('en=en.txt', 'de=none.txt'), 'none.txt'),
        (('en=en.txt', 'de=table.tsv'), 'table.tsv: its lines are TSV'),
    ):
        paths = [name.replace('=', f'={tmp_path}/') for name in names]
        with pytest.raises(UserError) as raised:
            read_parallel(paths)
        assert said in str(raised.value) and '\n' not in str(raised.value)


def test_real_parallel_texts():
    """PUD's 1,000 sentences, and the 240 paragraphs of XQuAD."""
    if 'BERT_JAX_TEST_DATA' not in os.environ:
        pytest.skip('BERT_JAX_TEST_DATA is not set: it names a folder of real corpora and tasks')
    folder = pathlib.Path(os.environ['BERT_JAX_TEST_DATA'])
    pud = [f'{code}={folder}/pos/{code}_pud-ud-test.conllu' for code in ('en', 'de', 'ko')]
    xquad = [f'{code}={folder}/xquad/xquad.{code}.json' for code in ('en', 'de', 'es', 'zh')]
    assert {len(texts) for texts in read_parallel(pud).values()} == {1000}
    assert {len(texts) for texts in read_parallel(xquad).values()} == {240}
