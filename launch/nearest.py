"""Finds the sentences of a file that are nearest in meaning to a query, by a model's hidden states.

  bert-nearest --workdir=runs/mini --input=sentences.txt "Where is the station?"
  bert-nearest --init_from=DIR --input=sentences.tsv --pool=cls --json < queries.txt
  bert-nearest --workdir=runs/pairs --input=pairs.jsonl --mine=triplets.jsonl

Near is the cosine of the vectors that bert-extract-features writes: one layer, pooled. Without a
query it answers line after line of stdin, on a terminal after a prompt. All sentences are read
first, and stay in memory.

With --mine the input has pairs, of the columns anchor and positive. Each is written with hard
negatives, the nearest documents of other pairs by the vectors that the model was trained to give.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.cli import app
from bert_jax.cli.model_options import TrainedModel
from bert_jax.configs.model.sentence import Pooling
from bert_jax.configs.options import option, required


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which sentences are compared, and by which vectors."""

    model: TrainedModel
    input: str = required(
        'file of sentences: .txt (one a line), .tsv, .csv or .jsonl with a column text; plain or'
        ' compressed (gzip, bzip2, xz, zstd)',
    )
    columns: str = option('', 'where the column is called otherwise: "text=sentence", or its place')
    top: int = option(5, 'how many sentences for each query', bounds=(1, None))
    layer: int = option(-1, '0 is the embeddings, I the I-th block, -1 the last block')
    pool: Pooling | None = option(
        None,
        'over all pieces of a sentence, [CLS] and [SEP] among them; cls: that of [CLS]; default: as'
        ' a sentence encoder says, or mean',
    )
    max_seq_length: int | None = option(
        None,
        'word pieces of the longest row, longer texts are cut; default: as many as the model has',
    )
    json: bool = option(
        False, 'a JSON object a line: {"query", "nearest": [{"line", "text", "cosine"}]}'
    )
    mine: str = option('', 'file to write: pairs with their hard negatives, a JSON object a line')
    negatives: int = option(1, 'with --mine: how many of each pair', bounds=(1, None))
    mine_ranks: str = option(
        '0,100', 'with --mine: the neighbours that are taken, from the first to before the last'
    )
    mine_margin: float | None = option(
        None,
        'with --mine: the share of the cosine of the positive that a negative is below it; default:'
        ' any',
    )


def main(options: Options, words: Sequence[str]) -> None:
    """Answer the queries of the command line, or those of stdin."""
    if options.mine:
        mine(options)
        return

    from bert_jax.cli.questions import answer_each
    from bert_jax.inference.semantic_search import SemanticSearch
    from bert_jax.input_pipeline.text.record_files import parse_columns

    search = SemanticSearch.of_file(
        options.model.where,
        options.input,
        parse_columns(options.columns),
        options.layer,
        options.pool,
        options.max_seq_length,
    )

    def answer(query: str) -> str:
        near = search.nearest(query, options.top)
        if options.json:
            answers = {'query': query, 'nearest': [sentence._asdict() for sentence in near]}
            return json.dumps(answers, ensure_ascii=False)
        return '\n'.join([query, *(f'  {s.cosine:7.4f}  line {s.line}: {s.text}' for s in near)])

    answer_each(words, answer)


def mine(options: Options) -> None:
    """Write the pairs of the input with hard negatives."""
    from bert_jax.inference import Bert
    from bert_jax.inference.semantic_search import Mining, mine_file
    from bert_jax.input_pipeline.text.record_files import parse_columns

    mining = Mining.of(options.negatives, options.mine_ranks, options.mine_margin)
    bert = Bert.load(options.model.where)
    embed = lambda texts, prompt: bert.embed(texts, prompt=prompt)
    columns = parse_columns(options.columns)
    count, kept = mine_file(options.input, columns, options.mine, embed, mining)
    print(f'{options.mine}: {kept} of {count} pairs, {options.negatives} hard negatives each')


if __name__ == '__main__':
    app.run(main, Options, '["a query" ...]', texts=True)
