"""Finds the sentences of a file that are nearest in meaning to a query, by a model's hidden states.

  bert-nearest --workdir=runs/mini --input=sentences.txt "Where is the station?"
  bert-nearest --init_from=DIR --input=sentences.tsv --pool=cls --json < queries.txt

Near is the cosine of the vectors that bert-extract-features writes: one layer, pooled. Without a
query it answers line after line of stdin, on a terminal after a prompt. All sentences are read
first, and stay in memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bert_jax.cli import app, flags
from bert_jax.cli.model_options import TrainedModel
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
    pool: Literal['mean', 'cls', 'max'] = option(
        'mean', 'over all pieces of a sentence, [CLS] and [SEP] among them; cls: that of [CLS]'
    )
    max_seq_length: int | None = option(
        None,
        'word pieces of the longest row, longer texts are cut; default: as many as the model has',
    )
    json: bool = option(
        False, 'a JSON object a line: {"query", "nearest": [{"line", "text", "cosine"}]}'
    )


flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Answer the queries of the command line, or those of stdin."""
    options = flags.read(Options)

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

    answer_each(argv[1:], answer)


if __name__ == '__main__':
    app.run(main, '["a query" ...]', texts=True)
