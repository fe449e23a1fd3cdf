"""A file of records answered by one model, and how any output of a file survives being killed.

Owns the way from a file to a file: which records are passed over because an earlier process has
done them, and what identifies an output. What an answer is is the predictor's.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from bert_jax.cli.common_flags import ALL_RECORDS, RecordFile
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import growing, was_made
from bert_jax.inference.predictor import Predictor
from bert_jax.input_pipeline.progress import Progress
from bert_jax.input_pipeline.text.record_files import (
    BadRecord,
    Reader,
    parse_columns,
    parse_shard,
    pass_over,
)
from bert_jax.runs.sources.source import Source

# Records of a file, with the numbers of their lines.
Records = Iterable[tuple[int, dict[str, Any] | BadRecord]]
_COMMIT = 512  # answers between two points from which a killed run goes on
# Records and how many came before them -> (how many records, {file: bytes}, how many are bad).
Parts = Callable[[Records, int], Iterator[tuple[int, Mapping[str, bytes], int]]]


class FileResult(NamedTuple):
    """What is in an output.

    Attributes:
      records: how many records.
      bad: how many of those could not be read or answered.
      done_before: whether an earlier process had made all of it.
    """

    records: int
    bad: int
    done_before: bool

    def counted(self, noun: str) -> str:
        """Return '3 answers, 1 of them bad records' for the noun 'answers'."""
        return f'{self.records} {noun}' + (f', {self.bad} of them bad records' if self.bad else '')


def write_resumably(
    what: str,
    output: str,
    reader: Reader,
    shard: tuple[int, int],
    source: Source,
    settings: Sequence[Any],
    names: Sequence[str],
    parts: Parts,
    facts: Mapping[str, Any],
    move: Callable[[Path], object],
) -> FileResult:
    """Write what a model makes of the records of a file, or what of it is not there yet.

    Args:
      what: the name of the progress bar.
      output: the file or folder, which appears whole; OUTPUT.json describes it.
      reader: the input.
      shard: (I, N): every N-th record from the I-th on.
      source: the model.
      settings: what decides the output besides the model and the input.
      names: the files that grow.
      parts: what the files grow by.
      facts: what else OUTPUT.json says.
      move: puts the files, which are in the folder that it is given, at `output`.

    Raises:
      UserError: other settings made what is there, or the disk takes no more.
    """
    # All that decides the output. The same again is done already; another is refused.
    identity = {
        'input': reader.identity(),
        'model': source.fingerprint(),
        'shard': list(shard),
        'settings': list(settings),
    }
    if was_made(Path(output), lambda: identity):
        logging.info('%s is done already', output)
        made = read_object(Path(f'{output}.json'))
        return FileResult(made['records'], made['bad_records'], True)

    # Each part is safe on the disk before the next begins.
    with (
        Progress(what, reader.size, 'kB of input', 1e3) as progress,
        growing(output, identity, names) as files,
    ):
        # Records that are in the files already are passed over.
        if files.records:
            logging.info(f'{files.folder}: goes on after {files.records} records')
        for count, contents, bad in parts(reader.part(shard, files.records), files.records):
            files.append(count, contents, bad)
            progress.update(reader.position)

        # Described first, then moved to its name: an output that is there is whole.
        made_by = {'source': source.where, 'step': source.step, **facts}
        files.finish(made_by, lambda: move(Path(files.folder)))
    return FileResult(files.records, files.bad, False)


def predict_file(
    init_from: str,
    input: str,
    output: str,
    file: RecordFile = ALL_RECORDS,
    max_seq_length: int | None = None,
    top: int = 5,
    compute_dtype: str = 'auto',
    doc_stride: int | None = None,
) -> FileResult:
    """Answer every record of a file, an answer in JSON a line; go on where a killed call stopped.

    Args:
      init_from: the model, as `Predictor.from_workdir` takes it.
      input: the file of records.
      output: the file of answers.
      file: how the records are read, and which of them.
      max_seq_length: word pieces of the longest row; None: as fine-tuned, or as many as there are.
      top: how many candidates an answer lists.
      compute_dtype: arithmetic of the layers: float32, bfloat16 or auto, as the processor is
        fast in.
      doc_stride: of windows on longer texts, as `Predictor.from_workdir` has it.
    """
    # The flags first, and the model before the input: it says which columns a record must have.
    shard, columns = parse_shard(file.shard), parse_columns(file.columns)
    predictor = Predictor.from_workdir(init_from, max_seq_length, top, compute_dtype, doc_stride)
    required, optional = predictor.roles
    # A second text that the model does not read is refused with its record, not passed over.
    read = {*required, *optional, *columns}
    refused = ('text_b',) if 'text' in required and 'text_b' not in read else ()
    reader = Reader(input, required, (*optional, 'id', *refused), columns, file.format, file.header)
    reader.skips = file.skips

    part = lambda lines, bad: (len(lines), {'answers.jsonl': ''.join(lines).encode()}, bad)

    def parts(records: Records, _: int) -> Iterator[tuple[int, dict[str, bytes], int]]:
        lines: list[str] = []
        bad = 0
        for answer in iterate_answers(predictor, records):
            if 'error' in answer:
                bad += 1
                pass_over(f'{input}:{answer["line"]}: {answer["error"]}', file.skips)
            lines.append(json.dumps(answer, ensure_ascii=False) + '\n')
            if len(lines) == _COMMIT:
                yield part(lines, bad)
                lines, bad = [], 0
        yield part(lines, bad)

    return write_resumably(
        'predict',
        output,
        reader,
        shard,
        predictor.source,
        predictor.settings,
        ['answers.jsonl'],
        parts,
        {},
        lambda folder: os.replace(folder / 'answers.jsonl', output),
    )


def iterate_answers(predictor: Predictor, records: Records) -> Iterator[dict[str, Any]]:
    """Yield for each record, in order, {'line', 'id' where it has one, then its answer}.

    Of a bad record it is {'line', 'error'}.
    """
    # The predictor reads ahead of its answers: what belongs to a record waits in a queue.
    waiting: deque[dict[str, Any]] = deque()

    def asked() -> Iterator[dict[str, Any] | BadRecord]:
        for line, record in records:
            named: dict[str, Any] = {'line': line}
            if not isinstance(record, BadRecord) and 'id' in record:
                named['id'] = record.pop('id')
            waiting.append(named)
            yield record

    # Answers come in the order of the records: the queue's first belongs to the next one.
    for answer in predictor.stream(asked(), errors=True):
        yield waiting.popleft() | answer
