"""Answers every record of a file with a trained model: text, TSV, CSV or JSON lines in, JSON lines
out.

  python -m launch.predict --workdir=runs/mrpc --input=pairs.tsv --output=answers.jsonl
  python -m launch.predict --init_from=DIR --input=texts.txt --output=answers.jsonl

An answer stands on the line of its record's place, with the number of its line in the input and its
id, if it has one. The same command again goes on where a killed one stopped. With --shard=I/N, N
processes take every N-th record each, and `paste -d '\\n' OUTPUT.*` puts their files together in
order (docs/serving.md).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from configs.errors import UserError
from launch import app

if TYPE_CHECKING:
    from input_pipeline.text.record_files import BadRecord
    from launch.inference import Predictor

_WORKDIR = flags.DEFINE_string(
    'workdir',
    None,
    'folder of a run of launch.finetune or launch.pretrain; its newest checkpoint is taken',
)
_INIT_FROM = flags.DEFINE_string(
    'init_from', None, 'in place of --workdir: any other source that launch.finetune takes'
)
_INPUT = flags.DEFINE_string(
    'input',
    None,
    'file of records, plain or compressed (gzip, bzip2, xz, zstd)',
    required=True,
    allow_overwrite=False,
)
_OUTPUT = flags.DEFINE_string('output', None, 'file to write, a JSON object a line', required=True)
_FORMAT = flags.DEFINE_enum(
    'format',
    '',
    ['', 'text', 'tsv', 'csv', 'jsonl'],
    'of the input; default: by its name. text is a text a line',
)
_COLUMNS = flags.DEFINE_string(
    'columns',
    '',
    'where the columns are called otherwise: "text=sentence,text_b=question", or places from 0',
)
_HEADER = flags.DEFINE_bool(
    'header', True, 'whether the first line of TSV or CSV names the columns'
)
_SKIP_BAD = flags.DEFINE_bool(
    'skip_bad_records',
    False,
    'answer a record that cannot be read or answered with {"error"} in place of stopping, and count'
    ' those',
)
_SHARD = flags.DEFINE_string('shard', '0/1', 'I/N: take every N-th record from the I-th on')
_LENGTH = flags.DEFINE_integer(
    'max_seq_length',
    None,
    'word pieces of the longest row; default: as fine-tuned, else as many as the model has',
)
_TOP = flags.DEFINE_integer(
    'top',
    5,
    'how many candidates an answer lists (n-best answers, words for a mask)',
    lower_bound=1,
)
_DTYPE = flags.DEFINE_enum(
    'compute_dtype', 'float32', ['float32', 'bfloat16'], 'arithmetic of the layers'
)
_COMMIT = 512  # answers between two places from which a killed run goes on


def main(argv: Sequence[str]) -> None:
    """Answers the records of the input that a run before has not answered."""
    del argv
    if (_WORKDIR.value is None) == (_INIT_FROM.value is None):
        raise UserError('name either --workdir or --init_from')

    from input_pipeline.progress import Progress
    from input_pipeline.text.record_files import Reader, parse_columns, parse_shard

    shard, columns = parse_shard(_SHARD.value), parse_columns(_COLUMNS.value)

    from launch.inference import Predictor
    from launch.workdir.resumable import growing, was_finished

    predictor = Predictor.from_workdir(
        _WORKDIR.value or app.given(_INIT_FROM), _LENGTH.value, _TOP.value, _DTYPE.value
    )
    required, optional = predictor.roles
    reader = Reader(
        _INPUT.value, required, (*optional, 'id'), columns, _FORMAT.value, _HEADER.value
    )
    identity = {
        'input': reader.identity(),
        'model': predictor.source.fingerprint(),
        'shard': list(shard),
        'settings': predictor.settings,
    }
    if was_finished(_OUTPUT.value, identity):
        logging.info('%s is done already', _OUTPUT.value)
        return
    progress = Progress('predict', reader.size, 'kB of input', 1e3)
    about = {'source': predictor.source.where, 'step': predictor.source.step}
    with growing(_OUTPUT.value, identity, ['answers.jsonl']) as output:
        lines: list[str] = []
        bad = 0

        def commit() -> None:
            nonlocal bad
            content = ''.join(lines).encode()
            output.append(len(lines), {'answers.jsonl': content}, bad)
            lines.clear()
            bad = 0

        for answer in answers(predictor, reader.part(shard, output.records)):
            if 'error' in answer:
                bad += 1
                where = f'{_INPUT.value}:{answer["line"]}: {answer["error"]}'
                if not _SKIP_BAD.value:
                    raise UserError(
                        f'{where}; mend it, or leave such records out with --skip_bad_records'
                    )
                logging.warning('%s', where)
            lines.append(json.dumps(answer, ensure_ascii=False) + '\n')
            if len(lines) == _COMMIT:
                commit()
                progress.update(reader.position)
        commit()
        output.finish(about, lambda: (output.folder / 'answers.jsonl').replace(_OUTPUT.value))
    progress.done()
    print(f'{_OUTPUT.value}: {output.records} answers{output.of_them_bad()}')


def answers(
    predictor: Predictor, records: Iterator[tuple[int, dict[str, Any] | BadRecord]]
) -> Iterator[dict[str, Any]]:
    """Yields for each record, in order, {'line', 'id' where it has one, then its answer}.

    Of a bad record it is {'line', 'error'}.
    """
    from input_pipeline.text.record_files import BadRecord

    waiting: deque[dict[str, Any]] = deque()

    def asked() -> Iterator[dict[str, Any] | BadRecord]:
        for line, record in records:
            about: dict[str, Any] = {'line': line}
            if not isinstance(record, BadRecord) and 'id' in record:
                about['id'] = record.pop('id')
            waiting.append(about)
            yield record

    for answer in predictor.stream(asked(), errors=True):
        yield waiting.popleft() | answer


if __name__ == '__main__':
    app.run(main)
