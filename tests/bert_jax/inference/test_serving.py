"""What bert-export makes for serving, called by a process that has none of our code.

Also its example script.
"""

from __future__ import annotations

import ast
import json
import os
import pathlib
import runpy
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from bert_jax.conversion import serving
from bert_jax.inference import Predictor, export, serving_folder
from bert_jax.runs.sources.source import Source
from bert_jax.train.task_heads import CLASSES as HEADS_BY_CLASS
from tests.helpers import tiny_models
from tests.helpers.refusals import refused

# Calls the program in each folder on its batch.npz, and then its example script; fails where it has
# seen this project.
CALL = """
import json, pathlib, runpy, sys
import numpy as np
from jax import export, jit
from safetensors.numpy import load_file
folders = sys.argv[1:]
for folder in map(pathlib.Path, folders):
    batch = dict(np.load(folder / 'batch.npz'))
    exported = export.deserialize(bytearray((folder / 'model.stablehlo').read_bytes()))
    assert exported.platforms == ('cpu', 'cuda', 'tpu'), exported.platforms
    out = jit(exported.call)(load_file(folder / 'weights.safetensors'), batch)
    np.savez(folder / 'out.npz', **{k: np.asarray(v) for k, v in out.items()})
    sys.argv = ['serve.py', *json.loads((folder / 'words.json').read_text())]
    runpy.run_path(str(folder / 'serve.py'), run_name='__main__')
    print('----')
assert not {'bert_jax', 'input_pipeline', 'configs', 'launch'} & set(sys.modules)
"""
# BERT's: another family's rows need a tokenizer of its own (tests/launch/test_relatives.py).
BERTS = [name for name in HEADS_BY_CLASS if name.startswith('Bert')]
QUICK = ['BertForSequenceClassification']
PLAIN = 'who is unable, the films'
WORDS = {
    'BertForPreTraining': ['paris is the [MASK] of france', 'who is unable?'],
    'BertForMaskedLM': ['paris is the [MASK] of france'],
    'BertForNextSentencePrediction': ['a good film', 'who is unable?'],
    'BertForMultipleChoice': ['what is paris', 'the capital', 'a bad film', 'unables'],
    'BertForQuestionAnswering': ['what is paris?', 'The capital, of France is Paris.'],
}


def elsewhere(*command: object) -> str:
    """Output of a fresh Python in isolated mode, in another folder."""
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    environment |= {'JAX_NUM_CPU_DEVICES': '1'}
    run = subprocess.run(
        [sys.executable, '-I', *map(str, command)],
        capture_output=True, text=True, cwd='/', env=environment, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


def exported(
    architecture: str,
    form: str,
    folder: pathlib.Path,
    settings: serving_folder.ProgramSettings = serving_folder.DEFAULT,
):
    model = tiny_models.model(architecture)
    _, left_out = export.write(
        model, tiny_models.tokenizer(), form, str(folder), export.Extras(program=settings)
    )
    assert left_out == ()
    batch = tiny_models.batch_of(model)
    np.savez(folder / 'batch.npz', **batch)
    (folder / 'words.json').write_text(json.dumps(WORDS.get(architecture, [PLAIN])))
    return model, batch


def check(model, batch, folder: pathlib.Path) -> None:
    wanted = jax.jit(serving.make_forward(model))(model.params, batch)
    found = dict(np.load(folder / 'out.npz'))
    assert (
        set(found)
        == set(wanted)
        == set(json.loads((folder / 'serving.json').read_text())['outputs'])
    )
    for name, value in found.items():
        assert np.ptp(value) > 0.1  # the model does say something
        np.testing.assert_allclose(value, wanted[name], atol=2e-5, rtol=2e-5)


def check_script(architecture: str, said: str) -> None:
    """What serve.py printed is what the predictor answers."""
    assert said.strip()
    if architecture == 'BertModel':
        assert len(ast.literal_eval(said)) == 16
        return
    words = WORDS.get(architecture, [PLAIN])
    serve = Predictor(
        Source(tiny_models.model(architecture), tiny_models.tokenizer(), '', 0), 64, {}
    )
    choices = architecture == 'BertForMultipleChoice'
    answer = serve({'text': words[0], 'choices': words[1:]} if choices else tuple(words))
    following = f'next sentence: {answer.get("is_next")}'
    tokens = [str([word['token'] for word in mask]) for mask in answer.get('masks', ())]
    match architecture:
        case 'BertForSequenceClassification':
            assert ast.literal_eval(said) == pytest.approx(answer['probabilities'], abs=1e-4)
        case 'BertForMultipleChoice':
            found = list(ast.literal_eval(said).values())
            assert found == pytest.approx(answer['probabilities'], abs=1e-4)
        case 'BertForMaskedLM':
            assert said.splitlines() == tokens
        case 'BertForPreTraining':
            assert said.splitlines() == [*tokens, following]
        case 'BertForNextSentencePrediction':
            assert said.strip() == following
        case 'BertForQuestionAnswering':
            assert said.strip() in words[1]
        case 'BertForTokenClassification':
            rows = [line.split() for line in said.splitlines()[1:-1]]  # without [CLS] and [SEP]
            firsts = [label for token, label in rows if not token.startswith('##')]
            assert firsts == answer['labels']


def serve(architectures: list[str], folder: pathlib.Path) -> None:
    pairs = {a: exported(a, 'stablehlo', folder / a) for a in architectures}
    said = elsewhere('-c', CALL, *(folder / a for a in pairs)).split('----\n')
    for (architecture, (model, batch)), words in zip(pairs.items(), said[:-1], strict=True):
        check(model, batch, folder / architecture)
        check_script(architecture, words)
        assert len((folder / architecture / 'serve.py').read_text().splitlines()) <= 40


@pytest.mark.parametrize(
    'architectures',
    [QUICK, pytest.param([a for a in BERTS if a not in QUICK], marks=pytest.mark.slow)],
    ids=len,
)
def test_stablehlo_in_a_fresh_process(tmp_path, architectures):
    serve(architectures, tmp_path)


def test_a_program_of_bfloat16_reads_its_matrices_so(tmp_path):
    half = serving_folder.ProgramSettings(compute_dtype='bfloat16')
    model, batch = exported('BertForSequenceClassification', 'stablehlo', tmp_path, half)
    wanted = jax.jit(serving.make_forward(model))(model.params, batch)['logits']
    program = jax.export.deserialize(bytearray((tmp_path / 'model.stablehlo').read_bytes()))
    weights = safetensors.numpy.load_file(tmp_path / 'weights.safetensors')
    halves = [name for name, array in weights.items() if array.dtype == jnp.bfloat16]
    assert 'encoder/embeddings/word' in halves and not [n for n in halves if n.endswith('bias')]
    logits = np.asarray(jax.jit(program.call)(weights, batch)['logits'])
    assert 0 < np.abs(logits - wanted).max() < 0.02 * np.abs(wanted).max()


def test_the_folder_has_what_a_server_needs(tmp_path):
    exported('BertForSequenceClassification', 'stablehlo', tmp_path / 'out')
    about = json.loads((tmp_path / 'out' / 'serving.json').read_text())
    assert about['labels'] == list(tiny_models.LABELS) and about['max_length'] == 64
    assert about['inputs'] == dict.fromkeys(('input_ids', 'input_mask', 'segment_ids'), 'b, t')
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / 'out' / 'tokenizer.json'))
    ours = tiny_models.tokenizer()
    for text in ('Unables, who?', 'FRANCE.Paris is  unseen', 'x' * 150, ''):
        assert theirs.encode(text).ids == [ours.cls_id, *ours.encode(text), ours.sep_id]
    assert (tmp_path / 'out' / 'vocab.txt').exists()


def served(folder: pathlib.Path, monkeypatch, capsys, *words: str) -> str:
    """What serve.py prints, run in this process."""
    monkeypatch.setattr(sys, 'argv', ['serve.py', *words])
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / 'serve.py'), run_name='__main__')
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ('architecture', 'words', 'message'),
    [
        ('BertForMaskedLM', ['paris is'], 'no [MASK] in the pieces that are read: write one'),
        ('BertForQuestionAnswering', ['what ' * 80, 'a film'], 'leaves no room in 64 pieces'),
    ],
)
def test_what_the_script_cannot_answer_is_one_line(
    tmp_path, monkeypatch, capsys, architecture, words, message
):
    exported(architecture, 'stablehlo', tmp_path / 'out')
    with pytest.raises(SystemExit) as ended:
        served(tmp_path / 'out', monkeypatch, capsys, *words)
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out and said.err.count('\n') == 1
    assert message in said.err


def test_each_label_has_its_probability_also_of_large_logits(capsys):
    """exp(89) is infinite in float32."""
    model = tiny_models.model('BertForSequenceClassification')
    several, high = 'multi_label_classification', [1e4, np.log(3), 0]
    shares, limits = {'a': 1, 'b': 0.75, 'c': 0.5}, {'thresholds': {'b': 0.8, 'c': 0.4}}
    # Of several labels those are given that are above their thresholds, or one half.
    for problem, logits, chosen, wanted in (
        (None, [1e4, -1e4, 0], {}, [{'a': 1, 'b': 0, 'c': 0}]),
        (several, high, {}, [['a', 'b'], shares]),
        (several, high, limits, [['a', 'c'], shares]),
    ):
        names = {'np': np, 'about': {'labels': ['a', 'b', 'c'], **chosen}}
        out = {'logits': np.array([logits], np.float32)}
        with np.errstate(all='raise', under='ignore'):
            exec(model._replace(problem_type=problem).row.script.answer, {**names, 'out': out})
        said = capsys.readouterr().out.splitlines()
        assert [ast.literal_eval(line) for line in said] == wanted


def test_a_class_that_the_model_is_not_and_nan_are_refused(tmp_path):
    model = tiny_models.model('BertForMaskedLM')
    with refused('BertForPreTraining needs pooler, nsp'):
        export.write(
            model._replace(architecture='BertForPreTraining'),
            tiny_models.tokenizer(),
            'stablehlo',
            str(tmp_path / 'out'),
        )
    model.params['mlm']['bias'] = np.full(128, np.nan, np.float32)
    with refused('mlm/bias: NaN'):
        export.write(model, tiny_models.tokenizer(), 'stablehlo', str(tmp_path / 'out'))
    assert not list(tmp_path.iterdir())
