"""Vectors of texts, scored: prompts, ties, intervals, and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from bert_jax.conversion import huggingface
from bert_jax.inference import Bert
from bert_jax.runs import vector_evaluation
from tests.helpers import tiny_models
from tests.helpers.commands import in_process  # noqa: F401
from tests.helpers.files import read_json, write_beir, write_lines
from tests.helpers.processes import ok

VECTORS = {'q': [1, 0], 'x': [2, 0], 'y': [1, 0], 'z': [0, 1], 'p x': [0, 1]}


CORPUS, QUERIES = {'Z': 'z', 'X': 'x', 'Y': 'y'}, {'1': 'q', '2': 'q'}


@pytest.mark.parametrize(
    'judged, compare, reciprocal',
    [
        # x and y are as near as each other: by id, upwards; with grades downwards.
        ([('1', 'Y', 1)], 'cosine', 1 / 2),
        ([('1', 'Y', 2)], 'cosine', 1),
        ([('1', 'X', 2)], 'dot', 1),
        ([('1', 'Y', 1), ('2', 'Z', 1)], 'cosine', (1 / 2 + 1 / 3) / 2),
    ],
)
def test_retrieval(tmp_path, judged, compare, reciprocal):
    asked = []

    def embedder(texts, prompt):
        asked.append((sorted(texts), prompt))
        return np.array([VECTORS[text] for text in texts], np.float32)

    found = vector_evaluation.evaluate_retrieval(
        embedder, write_beir(tmp_path, CORPUS, QUERIES, judged), compare=compare, draws=50
    )
    assert found['metrics']['mrr@10'] == pytest.approx(reciprocal)
    assert asked == [(['x', 'y', 'z'], 'document'), (['q'], 'query')]
    low, high = found['intervals']['mrr@10']
    values = [1 / 3, 1 / 2] if len(judged) > 1 else [reciprocal] * 2
    assert (low, high) == pytest.approx(values)
    assert (found['examples'], found['documents']) == (len(judged), 3)


@pytest.mark.parametrize(
    'of, told',
    [
        (sparse.csr_array, {'query_active_dims': 1, 'corpus_sparsity_ratio': 0.5}),
        (lambda vectors: list(vectors[:, None]), {'corpus_tokens': 1, 'corpus_bytes': 8}),
    ],
)
def test_retrieval_by_other_vectors(tmp_path, of, told):
    embedder = lambda texts, prompt: of(np.array([VECTORS[text] for text in texts], np.float32))
    at = write_beir(tmp_path, CORPUS, QUERIES, [('1', 'X', 1)])
    found = vector_evaluation.evaluate_retrieval(embedder, at, compare='dot', draws=0)
    assert found['metrics'].items() >= {'mrr@10': 1, **told}.items()


def test_the_command(tmp_path, binary):
    model, out = tmp_path / 'model', tmp_path / 'out.json'
    tiny_models.tokenizer().save(model)
    huggingface.write(model, tiny_models.model('BertModel'))
    texts = ['a bad film', 'a good film', 'paris is the capital of france', 'who is unable ?']
    pairs = [(texts[i], texts[j], i + j, (i + j) % 2) for i in range(4) for j in range(4)]
    lines = ['a\tb\tscore\tlabel', *('\t'.join(map(str, pair)) for pair in pairs)]
    (tmp_path / 'pairs.tsv').write_text('\n'.join(lines))
    write_lines(tmp_path / 'texts.txt', texts)

    def report(*arguments) -> dict:
        done = ok(binary('evaluate', f'--init_from={model}', f'--output={out}', *arguments))
        assert read_json(out) == json.loads(done.stdout)
        return json.loads(done.stdout)

    a, b, scores, _ = zip(*pairs, strict=True)
    vectors = [np.array(Bert.load(str(model)).embed(side, pool='max')[:, :5]) for side in (a, b)]
    a_N5, b_N5 = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in vectors)
    columns = '--columns=text=a,text_b=b'
    found = report(
        f'--sts={tmp_path}/pairs.tsv',
        columns,
        '--score_range=0,6',
        '--pool=max',
        '--truncate_dim=5',
        '--bootstrap=0',
    )
    wanted = np.corrcoef((a_N5 * b_N5).sum(1), scores)[0, 1]
    assert found['metrics']['pearson'] == pytest.approx(wanted, abs=1e-5)
    assert found['intervals'] == {}

    found = report(f'--pairs={tmp_path}/pairs.tsv', columns, '--bootstrap=10')
    assert (found['examples'], len(found['intervals']['ap'])) == (16, 2)
    both = [f'--translations={language}={tmp_path}/texts.txt' for language in ('en', 'de')]
    assert report(*both, '--bootstrap=10')['metrics'] == {'en -> de': 1, 'de -> en': 1, 'mean': 1}
    at = write_beir(tmp_path / 'set', CORPUS, QUERIES, [('1', 'X', 1)])
    assert report(f'--retrieval={at}')['metrics']['recall@3'] == 1
    (tmp_path / 'run').write_text('1 Q0 Z 1 2 me\n1 Q0 X 2 1 me\n3 Q0 X 1 1 me\n')
    done = binary('evaluate', f'--predictions={tmp_path}/run', f'--retrieval={at}')
    assert json.loads(done.stdout)['metrics']['mrr@10'] == 1 / 2, done.stderr
    for line, what in (('9 Q0 X 1 2 me', 'queries'), ('1 Q0 W 1 2 me', 'documents')):
        (tmp_path / 'run').write_text(line)
        done = binary('evaluate', f'--predictions={tmp_path}/run', f'--retrieval={at}')
        assert f'run: none of its {what} is in {at}' in done.stderr


@pytest.mark.parametrize(
    'arguments, message',
    [
        (
            ['--sts=x', '--pairs=y'],
            '--sts (of EvaluateSimilarity) and --pairs (of EvaluatePairs) do not go together',
        ),
        (['--sts=x', '--score_range=5,0'], '--score_range=5,0: write LEAST,GREATEST'),
        (['--translations=en=x'], '--translations: name the files of two languages'),
        ([], '--retrieval, --sts, --pairs or --translations is required'),
        (['--sts=x', '--workdir=.'], 'name either --workdir or --init_from'),
    ],
)
def test_mistakes_are_one_line(binary, tmp_path, arguments, message):
    (tmp_path / 'x').write_text('a\n')
    arguments = [argument.replace('en=x', f'en={tmp_path}/x') for argument in arguments]
    done = binary('evaluate', '--init_from=m', *arguments)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
