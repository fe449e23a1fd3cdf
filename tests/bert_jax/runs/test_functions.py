"""The commands as calls: from a program, a running event loop, several threads, and mistaken."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import json
import math
import pathlib
import shlex
import signal
import sys
from unittest import mock

import pytest

import bert_jax
from bert_jax.configs.errors import UserError
from bert_jax.launch.finetune import Finetune
from bert_jax.runs.workdir import trackers
from tests.helpers import commands, mood
from tests.helpers.encoder import ENCODER_WORDS
from tests.helpers.finetuning import stopping_after
from tests.helpers.processes import python
from tests.helpers.records import write_meaningless
from tests.helpers.refusals import refused

SETTINGS = (
    'model.hidden_size=16 model.num_layers=1 model.num_heads=2 model.intermediate_size=32'
    ' model.hidden_dropout=0 model.attention_dropout=0 runtime.log_every=2 optimizer.warmup_steps=1'
).split()
TUNED = {'max_seq_length': 24, 'optimizer.algorithm': 'adamw', 'runtime.log_every': 4}
TUNED |= {'hidden_dropout': 0, 'attention_dropout': 0}


@pytest.fixture(scope='module')
def records(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp('calls') / 'records'
    write_meaningless(folder)
    return folder


@pytest.fixture(scope='module')
def task(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp('task')
    mood.write(folder)
    return folder / 'mood.json'


def pretrain(records: pathlib.Path, workdir: pathlib.Path, steps: int, **others):
    return bert_jax.pretrain(
        'bert_tiny', records, workdir, steps=steps, batch_size=8, settings=SETTINGS, **others
    )


def finetune(task: pathlib.Path, encoder: str, workdir: pathlib.Path):
    return bert_jax.finetune(
        task, encoder, workdir, steps=8, batch_size=16, learning_rate=3e-3, settings=TUNED
    )


def test_pretraining_within_a_running_event_loop(records, tmp_path):
    """As in a notebook, whose cells run in one; the handlers of the program are given back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    async def cell():
        return pretrain(records, tmp_path / 'run', 4)

    result = asyncio.run(cell())
    assert (result.step, result.signal, result.workdir) == (4, None, str(tmp_path / 'run'))
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    train = result.history['train']
    assert train['step'] == [2, 4] and all(math.isfinite(loss) for loss in train['loss'])
    assert result.scores['loss'] == train['loss'][-1]
    assert repr(result).startswith(f"PretrainResult('{tmp_path}/run', step=4")
    assert len(repr(result).splitlines()) == 1
    assert {'config', 'metrics', 'plots', 'tokenizer', 'workdir'} <= result.paths.keys()
    assert all(path.exists() for path in result.paths.values())


def test_a_signal_stops_a_call_and_the_same_call_goes_on(records, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        stopping_after(2, patch, signal.SIGINT)
        stopped = pretrain(records, tmp_path / 'run', 4)
    assert (stopped.signal, stopped.step) == (signal.SIGINT, 2)

    # What is left goes to a tracker too, which is no other run for that.
    tracker = mock.Mock()
    with mock.patch.object(trackers, 'writers_of', return_value=[tracker]) as asked:
        assert pretrain(records, tmp_path / 'run', 4, track='tensorboard').step == 4
    asked.assert_called_once_with('tensorboard', str(tmp_path / 'run'))
    assert [call.args[0].step for call in tracker.write.call_args_list] == [4]
    tracker.close.assert_called_once_with()


def test_two_threads_fine_tune_and_score(task, encoder, tmp_path):
    """Python gives signals to the main thread alone, and one last line holds one bar."""

    def work(name: str):
        tuned = finetune(task, encoder, tmp_path / name)
        return tuned, bert_jax.evaluate(tmp_path / name)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        done = list(threads.map(work, ('a', 'b')))
    for tuned, scored in done:
        assert tuned.scores == scored.scores and 0 <= tuned.scores['accuracy'] <= 1
        assert scored.report['split'] == 'dev' and 'precision' in scored.text
        verdict, *_ = tuned.summary()
        assert '(dev accuracy' in verdict and 'guessing 0.5' in verdict
    assert done[0][0].scores == done[1][0].scores
    assert (
        repr(done[0][1])
        == f"EvaluateResult('{tmp_path}/a', accuracy={tuned.scores['accuracy']:.4g})"
    )


def run_as_printed(result, texts: str = '', **filled: object) -> list[str]:
    """Run the commands that a result names, with what is the user's filled in; their output."""
    outputs = []
    for line in [line for line in result.summary() if line.startswith('next: ')]:
        for name, value in filled.items():
            line = line.replace(f'={name}', f'={shlex.quote(str(value))}')
        script, *arguments = shlex.split(line.removeprefix('next: '), comments=True)
        stdin = io.TextIOWrapper(io.BytesIO(texts.encode()))
        with mock.patch.object(sys, 'stdin', stdin):
            done = commands.run(script.removeprefix('bert-').replace('-', '_'), *arguments)
        assert done.returncode == 0, f'{line}\n{done.stderr}'
        outputs.append(done.stdout)
    return outputs


def test_columns_of_a_table_are_a_mapping_or_text(task):
    table, roles = str(task.parent / 'train.jsonl'), {'text': 'text', 'text_b': 'text_b'}
    found = [
        Finetune(table, '', '', columns=given).load_task()
        for given in (roles, 'text=text,text_b=text_b')
    ]
    assert found[0].description == found[1].description and found[0].task.kind == 'pair'


@pytest.mark.slow
def test_commands_named_at_the_end_run_as_printed(records, task, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where answers.jsonl goes
    dev, folder = task.parent / 'dev.jsonl', tmp_path / 'with a blank'
    # Columns of other names than those that are read unasked.
    for split in ('train', 'dev'):
        rows = (task.parent / f'{split}.jsonl').read_text()
        (tmp_path / f'{split}.jsonl').write_text(rows.replace('"text"', '"film review"'))
    description = json.loads(task.read_text())
    description['columns']['text'] = 'film review'
    (tmp_path / 'renamed.json').write_text(json.dumps(description))
    tuned = finetune(tmp_path / 'renamed.json', encoder, folder / 'tuned')
    assert "'--columns=text=film review'" in str(tuned.summary())
    answers, _ = run_as_printed(tuned, FILE=tmp_path / 'dev.jsonl', DIR=folder / 'hf')
    assert answers.startswith('answers.jsonl: 32 answers') and (folder / 'hf').is_dir()

    # A model of vectors has no answers: it finds texts.
    (tmp_path / 'pairs.tsv').write_text(
        'anchor\tpositive\n' + ''.join(f'{word} book\tthe {word}\n' for word in ENCODER_WORDS)
    )
    pairs = {'kind': 'embedding', 'files': dict.fromkeys(('train', 'dev'), 'pairs.tsv')}
    (tmp_path / 'pairs.json').write_text(
        json.dumps(pairs | {'columns': {name: name for name in ('anchor', 'positive')}})
    )
    vectors = bert_jax.finetune(
        tmp_path / 'pairs.json', encoder, folder / 'vectors', steps=2, batch_size=8, settings=TUNED
    )
    near, _ = run_as_printed(vectors, 'the film\n', FILE=dev, DIR=folder / 'st')
    assert near.startswith('the film\n') and near.count('line ') == 5

    trained = pretrain(records, folder / 'run', 2)
    filled, _ = run_as_printed(trained, 'a [MASK]\n', TASK=task, DIR=folder / 'again')
    assert filled.startswith('a [MASK]\n')


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda path: bert_jax.Bert.load('no-such-run'), 'no-such-run: no such folder; expected'),
        (
            lambda path: bert_jax.finetune(path / 'none.tsv', path, path / 'run'),
            'none.tsv',
        ),
        (
            lambda path: bert_jax.pretrain('bert_tiny', path / 'none', path / 'run'),
            'none: no manifest.json in it',
        ),
        (
            lambda path: bert_jax.evaluate(path, pool='cls'),
            'retrieval, --sts, --pairs or --translations is required',
        ),
        (
            lambda path: bert_jax.pretrain('bert_tiny', path, path / 'run', track='mlflow'),
            "track=mlflow: mlflow is not installed: pip install -c constraints.txt '.[mlflow]'",
        ),
    ],
)
def test_a_mistake_is_one_line_and_asks_nobody(tmp_path, monkeypatch, call, message):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    monkeypatch.setattr('bert_jax.conversion.model_hub.fetch', None)  # the Hub is not asked
    with pytest.raises(UserError) as refused:
        call(tmp_path)
    assert message in str(refused.value) and len(str(refused.value).splitlines()) == 1
    assert not str(refused.value).startswith('--') and not (tmp_path / 'run').exists()


def test_a_mistake_in_a_notebook_is_a_line(capsys):
    shell = pytest.importorskip('IPython.core.interactiveshell').InteractiveShell()
    shell.run_cell("import bert_jax; bert_jax.Bert.load('no-such-run')")
    shown = capsys.readouterr()
    (line,) = (shown.out + shown.err).strip().splitlines()
    assert line.startswith('UserError: no-such-run: no such folder; expected')


def test_epochs_and_steps_are_one_or_the_other(task, encoder, tmp_path):
    with refused('steps and --epochs both say how long'):
        bert_jax.finetune(task, encoder, tmp_path / 'run', steps=3, epochs=1)
    with refused('epochs and --set steps=3 both say how long'):
        bert_jax.finetune(task, encoder, tmp_path / 'run', epochs=1, settings={'steps': 3})


def test_the_package_alone_imports_nothing_heavy():
    code = 'import bert_jax, sys; bert_jax.pretrain, bert_jax.evaluate\n'
    code += "assert 'jax' not in sys.modules"
    assert python('-c', code).returncode == 0


def test_a_call_logs_as_the_commands_do():
    code = """
import bert_jax
from absl import logging
from bert_jax.runs.functions import make_function
make_function(lambda: lambda: logging.info('hello'))()
"""
    done = python('-c', code)
    assert (done.returncode, done.stdout) == (0, '')
    # The line of a program, and not the library's own format.
    assert len(done.stderr.split()) == 3 and done.stderr.endswith(' I hello\n'), done.stderr
