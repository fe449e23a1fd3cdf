"""A file of records answered by one model, and how any output of a file survives being killed.

Owns the way from a file to a file: which records are passed over because an earlier process has
done them, and what identifies an output. What an answer is is the predictor's.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from absl import logging

from bert_jax.cli.common_flags import ALL_RECORDS, RecordFile
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import growing, was_made
from bert_jax.inference.predictor import Predictor, iterate_chunks
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
# How many records, {file: bytes by which it grows}, how many of the records are bad.
Part: TypeAlias = tuple[int, Mapping[str, bytes], int]
_COMMIT = 512  # answers between two points from which a killed run goes on


class FileOutput(Protocol):
    """What a model makes of the records of a file, and the files that it grows in.

    Attributes:
      what: the name of the progress bar.
      source: the model.
      settings: what decides the output besides the model and the input.
      names: the files that grow.
      facts: what else OUTPUT.json says.
    """

    what: str
    source: Source
    settings: list[Any]
    names: list[str]
    facts: dict[str, Any]

    def make_parts(self, records: Records, done: int) -> Iterator[Part]:
        """Yield what the files grow by; `done` records came before these."""

    def move(self, folder: Path, output: str) -> None:
        """Put the files, which are in `folder`, at `output`."""


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
        bad = f', {self.bad} of them bad records' if self.bad else ''
        return f'{self.records} {noun}{bad}'


def write_resumably(
    made: FileOutput, output: str, reader: Reader, shard: tuple[int, int]
) -> FileResult:
    """Write what a model makes of the records of a file, or what of it is not there yet.

    Args:
      made: what the model makes.
      output: the file or folder, which appears whole; OUTPUT.json describes it.
      reader: the input.
      shard: (I, N): every N-th record from the I-th on.

    Raises:
      UserError: other settings made what is there, or the disk takes no more.
    """
    # All that decides the output. The same again is done already; another is refused.
    identity = {
        'input': reader.identity(),
        'model': made.source.fingerprint(),
        'shard': list(shard),
        'settings': made.settings,
    }
    if was_made(Path(output), lambda: identity):
        logging.info('%s is done already', output)
        note = read_object(Path(f'{output}.json'))
        return FileResult(note['records'], note['bad_records'], True)

    # Each part is safe on the disk before the next begins.
    with (
        Progress(made.what, reader.size, 'kB of input', 1e3) as progress,
        growing(output, identity, made.names) as files,
    ):
        # Records that are in the files already are passed over.
        if files.records:
            logging.info(f'{files.folder}: goes on after {files.records} records')
        records = reader.part(shard, files.records)
        for count, contents, bad in made.make_parts(records, files.records):
            files.append(count, contents, bad)
            progress.update(reader.position)

        # Described first, then moved to its name: an output that is there is whole.
        made_by = {'source': made.source.where, 'step': made.source.step, **made.facts}
        files.finish(made_by, lambda: made.move(Path(files.folder), output))
    return FileResult(files.records, files.bad, False)


class AnswerFile:
    """The answers of a predictor to the records of a file, a JSON object a line."""

    what = 'predict'

    def __init__(self, predictor: Predictor, input: str, skips: bool):
        """Make no answer yet; skips: whether a bad record of `input` is answered by its fault."""
        self._predictor, self._input, self._skips = predictor, input, skips
        self.source, self.settings = predictor.source, predictor.settings
        self.names, self.facts = ['answers.jsonl'], dict[str, Any]()

    def make_parts(self, records: Records, done: int) -> Iterator[Part]:
        """Yield what the file grows by."""
        answers = iterate_answers(self._predictor, records)
        for part in iterate_chunks(answers, _COMMIT):
            bad, lines = 0, []
            for answer in part:
                if 'error' in answer:
                    bad += 1
                    pass_over(f'{self._input}:{answer["line"]}: {answer["error"]}', self._skips)
                lines.append(json.dumps(answer, ensure_ascii=False) + '\n')
            yield len(lines), {'answers.jsonl': ''.join(lines).encode()}, bad

    def move(self, folder: Path, output: str) -> None:
        """Put the file at `output`."""
        os.replace(folder / 'answers.jsonl', output)


class Answering(NamedTuple):
    """How a model answers the records of a file; as `Predictor.from_workdir` has it.

    Attributes:
      max_seq_length: word pieces of the longest row; None: as fine-tuned, or as many as there are.
      top: how many candidates an answer lists.
      compute_dtype: arithmetic of the layers: float32, bfloat16 or auto, as the processor is
        fast in.
      doc_stride: of windows on longer texts.
    """

    max_seq_length: int | None = None
    top: int = 5
    compute_dtype: str = 'auto'
    doc_stride: int | None = None


AS_TRAINED = Answering()


def predict_file(
    init_from: str,
    input: str,
    output: str,
    file: RecordFile = ALL_RECORDS,
    how: Answering = AS_TRAINED,
) -> FileResult:
    """Answer every record of a file, an answer in JSON a line; go on where a killed call stopped.

    Args:
      init_from: the model, as `Predictor.from_workdir` takes it.
      input: the file of records.
      output: the file of answers.
      file: how the records are read, and which of them.
      how: how they are answered.
    """
    # The flags first, and the model before the input: it says which columns a record must have.
    shard, columns = parse_shard(file.shard), parse_columns(file.columns)
    predictor = Predictor.from_workdir(init_from, *how)
    required, optional = predictor.roles
    # A second text that the model does not read is refused with its record, not passed over.
    read = {*required, *optional, *columns}
    refused = ('text_b',) if 'text' in required and 'text_b' not in read else ()
    reader = Reader(input, required, (*optional, 'id', *refused), columns, file.format, file.header)
    reader.skips = file.skips
    return write_resumably(AnswerFile(predictor, input, file.skips), output, reader, shard)


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
