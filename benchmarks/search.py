"""Train and score what searches documents: dense, sparse and token vectors, and a reranker.

  python -m benchmarks.search --squad=FILE [--squad=FILE ...] --encoder=MODEL --output=DIR
      [--kinds=dense,hard,late_interaction,reranker] [--seeds=0,1,2] [--questions=1024]
      [--queries=300] [--max_seq_length=128] [--set=optimizer.peak_lr=1e-4 ...]

The files are in SQuAD's form, and their paragraphs are the documents. Every second article is for
the test: its questions are the queries, and the paragraph of a question is its only relevant one.
So many questions of these, and of the other articles, are drawn. Each kind is trained on the
latter; all but `dense` with negatives, which `dense` of the same seed has mined. The reranker reads
what `dense` has found. `encoder` is the model as it is. A run that is there is not trained again.

DIR/search.json has the scores of each run, and the seconds and the memory of its training. Of each
kind it has what no seed changes: documents a second, the time of a query that comes alone, and the
bytes of a document's vectors. These are of the first seed.
"""

from __future__ import annotations

import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from scipy import sparse

from benchmarks import machine, processes
from bert_jax.configs.errors import UserError, reading

_SQUAD = flags.DEFINE_multi_string('squad', None, 'file in the form of SQuAD', required=True)
_ENCODER = flags.DEFINE_string('encoder', None, 'what every run begins with', required=True)
_OUTPUT = flags.DEFINE_string('output', None, 'folder for data, runs and figures', required=True)
_KINDS = flags.DEFINE_list('kinds', ['dense', 'hard', 'late_interaction', 'reranker'], 'in order')
_SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'], 'of every kind')
_QUESTIONS = flags.DEFINE_integer('questions', 1024, 'to train on', lower_bound=1)
_QUERIES = flags.DEFINE_integer('queries', 300, 'of the test', lower_bound=1)
_LENGTH = flags.DEFINE_integer('max_seq_length', 128, 'word pieces of a row', lower_bound=3)
_SET = flags.DEFINE_multi_string('set', [], 'settings of every training, SECTION.NAME=VALUE')

DEPTH = 20  # documents that a reranker reads of a query
_TIMED = 20  # queries whose time is taken
_WARM = 256  # documents that are encoded before the time of all is taken
_MINED = 2  # negatives of a question
_DEV = 64  # questions of the dev split, of the articles that are trained on


class Kind(NamedTuple):
    """What is trained: the kind of its task, and whether it has negatives."""

    task: str
    is_hard: bool = True


KINDS = {
    'dense': Kind('embedding', is_hard=False),
    'hard': Kind('embedding'),
    'sparse': Kind('sparse_embedding'),
    'late_interaction': Kind('late_interaction'),
    'reranker': Kind('ranking'),
}


def main(argv: Sequence[str]) -> None:
    """Train, score and time every kind and seed; print a line for each."""
    del argv
    if unknown := set(_KINDS.value) - KINDS.keys():
        raise UserError(f'--kinds: {min(unknown)!r} is none of {", ".join(KINDS)}')
    output = pathlib.Path(_OUTPUT.value)
    report: dict[str, Any] = {'data': write_data(output / 'data'), 'runs': {}, 'speeds': {}}
    runs = [('encoder', '')] + [(kind, seed) for seed in _SEEDS.value for kind in _KINDS.value]
    for kind, seed in runs:
        name = f'{kind}-{seed}' if seed else kind
        file = output / f'{name}.json'
        figures = report['runs'][name] = make_once(file, train_and_score, kind, seed, output)
        trained = figures.get('train_seconds', 0)
        print(f'{name}: nDCG@10 {figures["ndcg@10"]:.4f}, trained for {trained:.0f} s', flush=True)
    for kind, seed in runs[: len(_KINDS.value) + 1]:  # the encoder, and those of the first seed
        file = output / f'{kind}-speed.json'
        figures = report['speeds'][kind] = make_once(file, measure_speed, kind, seed, output)
        print(
            f'{kind}: {figures["query_ms"]:.1f} ms a query,'
            f' {figures["documents_a_second"]:.1f} documents a second,'
            f' {figures["bytes"]:,.0f} bytes each',
            flush=True,
        )
    report['machine'] = machine.describe('jax', 'jaxlib', 'numpy', 'scipy')
    (output / 'search.json').write_text(json.dumps(report, indent=1) + '\n')


def make_once(file: pathlib.Path, make: Callable[..., dict[str, Any]], *of: Any) -> dict[str, Any]:
    """Return the figures of a file, which `make` makes of a run where it is not there."""
    if not file.exists():
        file.write_text(json.dumps(make(*of), indent=1) + '\n')
    figures: dict[str, Any] = json.loads(file.read_text())
    return figures


def train_and_score(kind: str, seed: str, output: pathlib.Path) -> dict[str, Any]:
    """Return what the training of one run took, and its scores; the encoder has no seed."""
    return (train(kind, seed, output) if seed else {}) | score(kind, seed, output)


def write_data(folder: pathlib.Path) -> dict[str, int]:
    """Write pairs to train on, and a folder of the test in BEIR's layout; return their sizes."""
    articles = []
    for path in _SQUAD.value:
        with reading(f'--squad={path}'):
            articles += json.loads(pathlib.Path(path).read_text())['data']
    folder.mkdir(parents=True, exist_ok=True)
    train = _draw(list_questions(articles[::2]), _DEV + _QUESTIONS.value)
    queries = _draw(list_questions(articles[1::2]), _QUERIES.value)
    texts = [part['context'] for article in articles[1::2] for part in article['paragraphs']]
    names = {text: f'd{number}' for number, text in enumerate(dict.fromkeys(texts))}

    write_lines(folder / 'pairs.jsonl', [{'anchor': q, 'positive': d} for _, q, d in train])
    write_lines(folder / 'corpus.jsonl', [{'_id': i, 'text': d} for d, i in names.items()])
    write_lines(folder / 'queries.jsonl', [{'_id': i, 'text': q} for i, q, _ in queries])
    (folder / 'qrels').mkdir(exist_ok=True)
    rows = ['query-id\tcorpus-id\tscore', *(f'{i}\t{names[d]}\t1' for i, _, d in queries)]
    (folder / 'qrels' / 'test.tsv').write_text('\n'.join(rows) + '\n')
    sizes = {'queries': len(queries), 'documents': len(names)}
    return {'questions': max(len(train) - _DEV, 0), **sizes}


def list_questions(articles: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return (id, question, its paragraph) of some articles; of equal questions the first."""
    first_of: dict[str, tuple[str, str, str]] = {}
    for article in articles:
        for part in article['paragraphs']:
            for asked in part['qas']:
                question = asked['question'].strip()
                first_of.setdefault(question, (asked['id'], question, part['context']))
    return list(first_of.values())


def _draw(questions: list[tuple[str, str, str]], count: int) -> list[tuple[str, str, str]]:
    return random.Random(0).sample(questions, min(count, len(questions)))


def write_lines(file: pathlib.Path, objects: Sequence[Mapping[str, str]]) -> None:
    """Write a JSON object a line."""
    file.write_text(''.join(json.dumps(of, ensure_ascii=False) + '\n' for of in objects))


def train(kind: str, seed: str, output: pathlib.Path) -> dict[str, Any]:
    """Train one run, with the negatives of its seed where it has some; return what that took."""
    columns, pairs = {'anchor': 'anchor', 'positive': 'positive'}, output / 'data' / 'pairs.jsonl'
    if KINDS[kind].is_hard:
        columns['negatives'] = 'negatives'
        mined = output / f'mined-{seed}.jsonl'
        if not mined.exists():
            files = (f'--input={pairs}', f'--mine={mined}')
            call('nearest', f'--workdir={output}/dense-{seed}', *files, f'--negatives={_MINED}')
        pairs = mined
    lines, files_of = pairs.read_text().splitlines(keepends=True), {}
    for split, some in (('train', lines[_DEV:]), ('dev', lines[:_DEV])):
        files_of[split] = str(output / f'{pairs.stem}-{split}.jsonl')
        pathlib.Path(files_of[split]).write_text(''.join(some))
    task = output / f'{kind}-{seed}-task.json'
    described = {'kind': KINDS[kind].task, 'files': files_of, 'columns': columns}
    task.write_text(json.dumps(described))
    given = (f'max_seq_length={_LENGTH.value}', f'seed={seed}', *_SET.value)
    settings = [word for setting in given for word in ('--set', setting)]
    workdir = f'--workdir={output}/{kind}-{seed}'
    cost = call('finetune', f'--task={task}', f'--init_from={_ENCODER.value}', workdir, *settings)
    took = {'train_seconds': cost.seconds, 'train_peak_bytes': cost.peak_bytes}
    return {'set': _SET.value, **took}


def score(kind: str, seed: str, output: pathlib.Path) -> dict[str, float]:
    """Return the scores of one run on the queries of the test."""
    file = output / f'{kind}-{seed}-scores.json'
    given = [f'--retrieval={output}/data', f'--output={file}', *_name_searcher(kind, seed, output)]
    if kind == 'reranker':
        given += [f'--rerank={output}/{kind}-{seed}', f'--depth={DEPTH}']
    call('evaluate', *given)
    scores: dict[str, float] = json.loads(file.read_text())['metrics']
    return scores


def _name_searcher(kind: str, seed: str, output: pathlib.Path) -> list[str]:
    """Return the flag that names what searches: a reranker reads what `dense` has found."""
    if kind == 'encoder':
        return [f'--init_from={_ENCODER.value}', f'--max_seq_length={_LENGTH.value}']
    return [f'--workdir={output}/{"dense" if kind == "reranker" else kind}-{seed}']


def measure_speed(kind: str, seed: str, output: pathlib.Path) -> dict[str, float]:
    """Return documents a second, the time of a query, and the bytes of a document's vectors."""
    from bert_jax import Bert
    from bert_jax.inference.reranker import load_scorer, rank
    from bert_jax.inference.semantic_search import nearest
    from bert_jax.input_pipeline.tasks import beir
    from bert_jax.model.text_vectors import read_vectors

    _, _, name = _name_searcher(kind, seed, output)[0].partition('=')
    bert = Bert.load(name)
    given = beir.read_retrieval_set(str(output / 'data'), 'test')
    documents, queries = list(given.documents.values()), list(given.queries.values())
    bert.embed(documents[:_WARM], prompt='document', max_length=_LENGTH.value)  # compiles
    begun = time.perf_counter()
    vectors = bert.embed(documents, prompt='document', max_length=_LENGTH.value)
    embedding = time.perf_counter() - begun

    searched = read_vectors(vectors, bert.similarity)
    scorer = load_scorer(f'{output}/{kind}-{seed}') if kind == 'reranker' else None

    def answer(query: str) -> float:
        begun = time.perf_counter()
        asked = read_vectors(
            bert.embed([query], prompt='query', max_length=_LENGTH.value), bert.similarity
        )
        _, indices_1K = nearest(asked, searched, DEPTH)
        if scorer is not None:
            rank(scorer, query, [documents[index] for index in indices_1K[0]], 10)
        return time.perf_counter() - begun

    for query in queries[:_TIMED]:
        answer(query)  # compiles the lengths that come
    seconds = [answer(query) for query in queries[:_TIMED]]
    return {
        'documents_a_second': len(documents) / embedding,
        'query_ms': 1000 * statistics.median(seconds),
        'bytes': _count_bytes(vectors) / len(documents),
    }


def _count_bytes(vectors: Any) -> int:
    """Return the bytes of some texts' vectors, as `Bert.embed` gives them."""
    if sparse.issparse(vectors):
        return int(vectors.data.nbytes + vectors.indices.nbytes)
    return sum(of_text.nbytes for of_text in vectors)


def call(command: str, *given: str) -> processes.Cost:
    """Run a command of the project to its end."""
    return processes.run([sys.executable, '-m', f'bert_jax.launch.{command}', *given])


if __name__ == '__main__':
    machine.run(main)
