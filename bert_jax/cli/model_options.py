"""What the commands that use a trained model have in common: which one, and which file of records.

Flags are made from here (bert_jax/cli/flags.py), so nothing heavy is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, select_options


@dataclass(frozen=True)
class TrainedModel:
    """A model by one of two names. UserError where it has both, or none.

    Attributes:
      workdir: folder of a run of bert-pretrain or bert-finetune; its newest checkpoint is taken.
      init_from: in place of --workdir: a Hugging Face BERT or peft directory or name, or a Google
        checkpoint.
    """

    workdir: str | None = None
    init_from: str | None = None

    def __post_init__(self) -> None:
        # Checked where the options are made, so each command says it alike.
        if (self.workdir is None) == (self.init_from is None):
            raise UserError('name either --workdir or --init_from')

    @property
    def where(self) -> str:
        """Return the name that was given."""
        return self.workdir or self.init_from or ''


OnBadRecord = Literal['stop', 'skip']
SKIP_BAD_RECORDS = ('skip_bad_records', 'skip')  # what the flag was called before


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """How the records of --input are read, and which of them.

    See input_pipeline/text/record_files.py.

    Attributes:
      format: of the input; default: by its name. text is a text a line.
      columns: where the columns are called otherwise: "text=sentence,text_b=question", or places
        from 0.
      header: whether the first line of TSV or CSV names the columns.
      on_bad_record: what to do with a record that cannot be read or answered; skip answers it
        with {"error"}, and counts those.
      shard: I/N: take every N-th record from the I-th on.
    """

    format: Literal['', 'text', 'tsv', 'csv', 'jsonl'] = ''
    columns: str = ''
    header: bool = True
    on_bad_record: OnBadRecord = option('stop', switch=SKIP_BAD_RECORDS)
    shard: str = '0/1'

    @property
    def file(self) -> RecordFile:
        """Return these options alone, of a command that has others too."""
        return select_options(self, RecordFile)

    @property
    def skips(self) -> bool:
        """Tell whether bad records are answered by what is wrong with them."""
        return self.on_bad_record == 'skip'


ALL_RECORDS = RecordFile()  # of a file whose name says what it is
