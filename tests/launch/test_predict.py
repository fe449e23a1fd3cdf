"""bert-predict from the command line.

A line for each record, in order, also after an interruption and from several processes.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from bert_jax.conversion import huggingface
from bert_jax.inference import Predictor
from tests.helpers import tiny_models
from tests.helpers.files import read_jsonl, write_lines
from tests.helpers.processes import ok


@pytest.fixture(scope='module')
def source(tmp_path_factory) -> pathlib.Path:
    """A Hugging Face directory of a classifier."""
    folder = tmp_path_factory.mktemp('source')
    tiny_models.tokenizer().save(folder)
    huggingface.write(folder, tiny_models.model('BertForSequenceClassification'))
    return folder


def lines_of(path: pathlib.Path) -> list[dict]:
    return read_jsonl(path)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_shards_make_the_whole(source, tmp_path, binary):
    """The third record from the end is damaged, and a run stops there.

    By then it has noted some of what came before.
    """
    texts = [
        ' '.join(tiny_models.WORDS[(i * k) % 16] for k in range(1, 2 + i % 9)) for i in range(1100)
    ]
    rows = [json.dumps({'id': f'n{i}', 'sentence': text}) for i, text in enumerate(texts)]
    rows[-3] = '{"sentence": '
    write_lines(tmp_path / 'in.jsonl', rows)
    command = (
        'predict',
        f'--init_from={source}',
        f'--input={tmp_path}/in.jsonl',
        '--columns=text=sentence',
        f'--output={tmp_path}/out.jsonl',
    )
    stopped = binary(*command)
    assert stopped.returncode == 2 and not (tmp_path / 'out.jsonl').exists()
    assert (
        f'{tmp_path}/in.jsonl:1098: not JSON' in stopped.stderr.splitlines()[-1]
        and 'Traceback' not in stopped.stderr
    )
    grown = tmp_path / '.out.jsonl.partial' / 'answers.jsonl'
    assert 0 < len(lines_of(grown)) < 1097
    with grown.open('a') as file:
        file.write('{"line": 9, "la')  # as a kill in the middle of a write leaves it
    ended = binary(*command, '--on_bad_record=skip')
    assert ' predict ' in ended.stderr  # the line of progress names what is done
    ok(ended)
    assert 'goes on after 1024 records' in ended.stderr and '1100 answers' in ended.stdout
    answers = lines_of(tmp_path / 'out.jsonl')
    assert [a['line'] for a in answers] == list(range(1, 1101))
    assert answers[-3]['error'].startswith('not JSON') and 'error' not in answers[-4]
    wanted = Predictor.from_workdir(str(source))(texts[:40] + texts[-2:])
    for answer, want, i in zip(
        answers[:40] + answers[-2:], wanted, [*range(40), 1098, 1099], strict=True
    ):
        assert (answer['id'], answer['label']) == (f'n{i}', want['label']) and answer[
            'probabilities'
        ] == pytest.approx(want['probabilities'], abs=1e-5)
    again = binary(*command)
    assert again.returncode == 0 and 'is done already' in again.stderr
    ok(binary(*command[:-1], f'--output={tmp_path}/part', '--shard=1/3', '--skip_bad_records'))
    assert [a['line'] for a in lines_of(tmp_path / 'part')] == list(range(2, 1101, 3))
