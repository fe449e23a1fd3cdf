"""Finds the sentences of a file that are nearest in meaning to a query, by a model's hidden states.

  bert-nearest --workdir=runs/mini --input=sentences.txt "Where is the station?"
  bert-nearest --init_from=DIR --input=sentences.tsv --pool=cls --json < queries.txt
  bert-nearest --workdir=runs/pairs --input=pairs.jsonl --mine=triplets.jsonl

Near is the cosine of the vectors that bert-extract-features writes: one layer, pooled. A model that
was trained to give vectors compares them as it says. Without a query it answers line after line of
stdin, on a terminal after a prompt. All sentences are read first, and stay in memory.

With --mine the input has pairs, of the columns anchor and positive. Each is written with hard
negatives, the nearest documents of other pairs by the vectors that the model was trained to give.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainedModel
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import Pooling
from bert_jax.configs.options import option


@dataclass(frozen=True, kw_only=True)
class FindNearest(TrainedModel):
    """Find the sentences of a file that are nearest in meaning to a query.

    Attributes:
      queries: the queries; without any, the lines of stdin.
      input: file of sentences: .txt (one a line), .tsv, .csv or .jsonl with a column text; plain or
        compressed (gzip, bzip2, xz, zstd).
      columns: where the column is called otherwise: "text=sentence", or its place.
      top: how many sentences for each query.
      layer: 0 is the embeddings, I the I-th block, -1 the last block.
      pool: over all pieces of a sentence, [CLS] and [SEP] among them; cls: that of [CLS]; default:
        as a sentence encoder says, or mean.
      max_seq_length: word pieces of the longest row, longer texts are cut; default: as many as the
        model has.
      rerank: a model that scores pairs, which reads the nearest again and gives their order.
      candidates: how many it reads; default: 100.
      json: a JSON object a line: {"query", "nearest": [{"line", "text", "cosine"}]}, where the last
        is called as what compares the model's vectors; with --rerank also "score".
    """

    queries: tuple[str, ...] = option((), words='["a query" ...]', texts=True)
    input: str
    columns: str = ''
    top: int = option(5, bounds=(1, None))
    layer: int = -1
    pool: Pooling | None = None
    max_seq_length: int | None = None
    rerank: str | None = None
    candidates: int | None = option(None, bounds=(1, None))
    json: bool = False

    def __call__(self) -> None:
        """Print the answers."""
        candidates = self.candidates or 100
        if self.candidates and not self.rerank:
            raise UserError('--candidates: it is for --rerank, which names what reads them')
        if self.rerank and candidates < self.top:
            raise UserError(f'--candidates={candidates}: they are fewer than --top={self.top}')
        from bert_jax.cli.questions import answer_each
        from bert_jax.inference.reranker import load_scorer, rank
        from bert_jax.inference.semantic_search import SemanticSearch
        from bert_jax.input_pipeline.text.record_files import Reader, parse_columns

        reader = Reader(self.input, ('text',), (), parse_columns(self.columns))
        search = SemanticSearch.of_file(
            self.where, reader, self.layer, self.pool, self.max_seq_length
        )

        scorer = load_scorer(self.rerank) if self.rerank else None

        def find(query: str) -> list[dict[str, Any]]:
            near = search.nearest(query, candidates if scorer else self.top)
            answers = [{'line': s.line, 'text': s.text, search.similarity: s.score} for s in near]
            if scorer is None:
                return answers
            ranked = rank(scorer, query, [s.text for s in near], self.top)
            return [answers[best['index']] | {'score': best['score']} for best in ranked]

        def answer(query: str) -> str:
            nearest = find(query)
            if self.json:
                return json.dumps({'query': query, 'nearest': nearest}, ensure_ascii=False)
            lines = [query]
            for sentence in nearest:
                score = f'{sentence["score"]:7.4f}  ' if scorer else ''
                near = f'{score}{sentence[search.similarity]:7.4f}'
                lines.append(f'  {near}  line {sentence["line"]}: {sentence["text"]}')
            return '\n'.join(lines)

        answer_each(self.queries, answer)


@dataclass(frozen=True, kw_only=True)
class MineNegatives(TrainedModel):
    """Write pairs of texts with their hard negatives.

    Attributes:
      input: file of pairs, with columns anchor and positive: .tsv, .csv or .jsonl.
      columns: where the columns are called otherwise: "anchor=question,positive=answer", or places.
      mine: file to write: pairs with their hard negatives, a JSON object a line.
      negatives: how many of each pair.
      mine_ranks: the neighbours that are taken, from the first to before the last.
      mine_margin: the share of the cosine of the positive that a negative is below it; default:
        any.
    """

    input: str
    columns: str = ''
    mine: str
    negatives: int = option(1, bounds=(1, None))
    mine_ranks: str = '0,100'
    mine_margin: float | None = None

    def __call__(self) -> None:
        """Write them, and print how many pairs have some."""
        from bert_jax.inference import Bert
        from bert_jax.inference.semantic_search import Mining, mine_file
        from bert_jax.input_pipeline.text.record_files import parse_columns

        mining = Mining.of(self.negatives, self.mine_ranks, self.mine_margin)
        bert = Bert.load(self.where)
        columns = parse_columns(self.columns)
        count, kept = mine_file(
            self.input,
            columns,
            self.mine,
            lambda texts, prompt: bert.embed(texts, prompt=prompt),
            mining,
            bert.similarity,
        )
        print(f'{self.mine}: {kept} of {count} pairs, {self.negatives} hard negatives each')


if __name__ == '__main__':
    app.run(FindNearest, MineNegatives)
