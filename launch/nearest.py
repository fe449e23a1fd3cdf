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
from typing import TYPE_CHECKING, Literal

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required
from bert_jax.inference.options import TrainedModel

if TYPE_CHECKING:
    from bert_jax.inference.similarity import Near


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
    """Answers the queries of the command line, or those of stdin."""
    options = flags.read(Options)

    from bert_jax.inference.extractor import Extractor
    from bert_jax.inference.questions import answer_each
    from bert_jax.inference.similarity import Sentences
    from bert_jax.input_pipeline.tasks.features import say_cut
    from bert_jax.input_pipeline.text.record_files import Reader, parse_columns
    from bert_jax.runs.sources.source import load_source

    reader = Reader(options.input, ('text',), (), parse_columns(options.columns))
    _ = reader.size  # a file that is not there is told before the model is read
    source = load_source(options.model.where)
    if not -(last := source.model.num_layers) - 1 <= options.layer <= last:
        raise UserError(
            f'--layer={options.layer}: this encoder has 0 (the embeddings) to {last}, or'
            f' {-last - 1} to -1'
        )
    longest = options.max_seq_length or source.model.max_position
    extractor = Extractor(source, [options.layer], options.pool, longest, 'float32', 'float32')
    sentences = Sentences(extractor, reader, options.input)
    say_cut(options.input, sentences.cut, f'max_seq_length={longest} allows')

    def answer(query: str) -> str:
        near = sentences.nearest(query, options.top)
        if options.json:
            found = {'query': query, 'nearest': [one._asdict() for one in near]}
            return json.dumps(found, ensure_ascii=False)
        return in_words(query, near)

    answer_each(argv[1:], answer)


def in_words(query: str, near: list[Near]) -> str:
    """An answer as lines: the query, then the cosine, line number and text of each sentence."""
    return '\n'.join(
        [query, *(f'  {one.cosine:7.4f}  line {one.line}: {one.text}' for one in near)]
    )


if __name__ == '__main__':
    app.run(main, '["a query" ...]', texts=True)
