r"""Finds the translations of texts by an encoder's hidden states, layer by layer.

Prints how often the nearest text of another language is the translation:

  bert-evaluate translations --input=en=en_pud-ud-test.conllu --input=de=de_pud-ud-test.conllu \
      --init_from=WORKDIR --output=DIR
  bert-evaluate translations --input=en=xquad.en.json --input=zh=xquad.zh.json --init_from=...

Text N of a file is the translation of text N of the others: sentences of CoNLL-U files, paragraphs
of files in SQuAD's format, or lines. No fine-tuning is needed: this is of the encoder alone, and so
a command apart from bert-finetune transfer. DIR gets translations.json, .md and .png.
"""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FindTranslations(TrainedModel):
    """Find the translations of texts by an encoder's hidden states, layer by layer.

    Attributes:
      input: LANGUAGE=FILE for each language: .conllu, .json in the format of SQuAD, or a text a
        line.
      output: folder for the table, the numbers and the picture.
      max_seq_length: word pieces of the longest row, longer texts are cut; default: as many as
        the model has.
    """

    input: tuple[str, ...]
    output: str
    max_seq_length: int | None = None

    def __call__(self) -> None:
        """Print the table."""
        # Before the model is read: most mistakes are in the files.
        from bert_jax.runs.crosslingual.languages import read_parallel

        texts = read_parallel(self.input)
        app.check_output('output', self.output)

        from bert_jax.runs.crosslingual.retrieval import find_translations

        print(find_translations(self.where, texts, self.output, self.max_seq_length))


if __name__ == '__main__':
    app.run(FindTranslations)
