"""Answers every record of a file with a trained model: text, TSV, CSV or JSON lines in, JSON lines
out.

  bert-predict --workdir=runs/mrpc --input=pairs.tsv --output=answers.jsonl
  bert-predict --init_from=DIR --input=texts.txt --output=answers.jsonl

An answer stands on the line of its record's place, with the number of its line in the input and its
id, if it has one. The same command again goes on where a killed one stopped. With --shard=I/N, N
processes take every N-th record each, and `paste -d '\\n' OUTPUT.*` puts their files together in
order (docs/serving.md).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, required
from bert_jax.inference.options import RecordFile, TrainedModel

if TYPE_CHECKING:
    from bert_jax.inference import Predictor
    from bert_jax.input_pipeline.text.record_files import BadRecord


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which model answers which records, and how."""

    model: TrainedModel
    input: str = required('file of records, plain or compressed (gzip, bzip2, xz, zstd)')
    output: str = required('file to write, a JSON object a line')
    file: RecordFile
    max_seq_length: int | None = option(
        None,
        'word pieces of the longest row; default: as fine-tuned, else as many as the model has',
        bounds=(1, None),
    )
    top: int = option(
        5,
        'how many candidates an answer lists (n-best answers, words for a mask)',
        bounds=(1, None),
    )
    compute_dtype: Literal['float32', 'bfloat16'] = option('float32', 'arithmetic of the layers')


flags.define(Options)

_COMMIT = 512  # answers between two places from which a killed run goes on


def main(argv: Sequence[str]) -> None:
    """Answers the records of the input that a run before has not answered."""
    del argv
    options = flags.read(Options)

    from bert_jax.input_pipeline.progress import Progress
    from bert_jax.input_pipeline.text.record_files import Reader, parse_columns, parse_shard

    # Flags that can be wrong by themselves, before jax.
    shard, columns = parse_shard(options.file.shard), parse_columns(options.file.columns)

    from bert_jax.inference import Predictor
    from bert_jax.runs.workdir.resumable import growing, was_finished

    # The model before the input: it says which columns a record must have.
    predictor = Predictor.from_workdir(
        options.model.where, options.max_seq_length, options.top, options.compute_dtype
    )
    required, optional = predictor.roles
    # A second text that the model does not read is refused with its record, not passed over.
    known = {*required, *optional, *columns}
    refused = ('text_b',) if 'text' in required and 'text_b' not in known else ()
    reader = Reader(
        options.input,
        required,
        (*optional, 'id', *refused),
        columns,
        options.file.format,
        options.file.header,
    )

    # All that decides the answers. The same again is done already; another is refused.
    identity = {
        'input': reader.identity(),
        'model': predictor.source.fingerprint(),
        'shard': list(shard),
        'settings': predictor.settings,
    }
    if was_finished(options.output, identity):
        logging.info('%s is done already', options.output)
        return

    # Answers are appended in lots: each is safe on the disk before the next begins.
    about = {'source': predictor.source.where, 'step': predictor.source.step}
    with (
        Progress('predict', reader.size, 'kB of input', 1e3) as progress,
        growing(options.output, identity, ['answers.jsonl']) as output,
    ):
        lines: list[str] = []
        bad = 0

        # Together with the answers goes how many of them are bad.
        def commit() -> None:
            nonlocal bad
            content = ''.join(lines).encode()
            output.append(len(lines), {'answers.jsonl': content}, bad)
            lines.clear()
            bad = 0

        # The reader passes over the records that an earlier process has answered.
        for answer in answers(predictor, reader.part(shard, output.records)):
            if 'error' in answer:
                bad += 1
                place = f'{options.input}:{answer["line"]}: {answer["error"]}'
                if not options.file.skip_bad_records:
                    raise UserError(
                        f'{place}; mend it, or leave such records out with --skip_bad_records'
                    )
                logging.warning('%s', place)
            lines.append(json.dumps(answer, ensure_ascii=False) + '\n')
            if len(lines) == _COMMIT:
                commit()
                progress.update(reader.position)

        # The remainder, then the output takes its name.
        commit()
        output.finish(about, lambda: (output.folder / 'answers.jsonl').replace(options.output))
    print(f'{options.output}: {output.records} answers{output.of_them_bad()}')


def answers(
    predictor: Predictor, records: Iterator[tuple[int, dict[str, Any] | BadRecord]]
) -> Iterator[dict[str, Any]]:
    """Yields for each record, in order, {'line', 'id' where it has one, then its answer}.

    Of a bad record it is {'line', 'error'}.
    """
    from bert_jax.input_pipeline.text.record_files import BadRecord

    # The predictor reads ahead of its answers: what is known of a record waits in a queue.
    waiting: deque[dict[str, Any]] = deque()

    def asked() -> Iterator[dict[str, Any] | BadRecord]:
        for line, record in records:
            about: dict[str, Any] = {'line': line}
            if not isinstance(record, BadRecord) and 'id' in record:
                about['id'] = record.pop('id')
            waiting.append(about)
            yield record

    # Answers come in the order of the records: the queue's first belongs to the next one.
    for answer in predictor.stream(asked(), errors=True):
        yield waiting.popleft() | answer


if __name__ == '__main__':
    app.run(main)
