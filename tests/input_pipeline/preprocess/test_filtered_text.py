"""A job whose text is filtered: what was dropped is in its manifest."""

from __future__ import annotations

import json

from tests.helpers.files import write_jsonl
from tests.helpers.jobs import digests, run, write_text


def test_the_manifest_has_the_counts_for_any_workers(tmp_path, vocabulary):
    for number in range(4):
        texts = write_text(tmp_path / 'made', vocabulary[2][30 * number : 30 * number + 30], number)
        rows = ({'text': text} for text in [*texts, 'waa', '1 2 3 4 5 6 7 8 9 10 11 12 13'])
        write_jsonl(tmp_path / f'{number}.jsonl', rows)
    options = {'input': f'{tmp_path}/*.jsonl', 'min_chars': 8, 'min_letters': 0.6}
    made = []
    for workers in (1, 2):
        output = tmp_path / f'out{workers}'
        manifest = run(tmp_path, vocabulary, output=str(output), workers=workers, **options)
        made.append((digests(output), manifest.statistics))
        assert manifest.options['min_letters'] == 0.6
    assert made[0] == made[1]
    assert made[0][1]['filtered'] == {'input': {'below --min_chars': 4, 'below --min_letters': 4}}
    assert json.loads((tmp_path / 'out1/manifest.json').read_text())['statistics']['filtered']
