"""Finds the translations of texts by an encoder's hidden states, layer by layer.

Prints how often the nearest text of another language is the translation:

  bert-translations --input=en=en_pud-ud-test.conllu --input=de=de_pud-ud-test.conllu \\
      --init_from=WORKDIR --output=DIR
  bert-translations --input=en=xquad.en.json --input=zh=xquad.zh.json --init_from=...

Text N of a file is the translation of text N of the others: sentences of CoNLL-U files, paragraphs
of files in SQuAD's format, or lines. No fine-tuning is needed: this is of the encoder alone, and so
a command beside bert-transfer. DIR gets translations.json, translations.md and translations.png.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.options import option, required
from bert_jax.inference.options import TrainedModel


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which texts, and by which model."""

    model: TrainedModel
    input: tuple[str, ...] = required(
        'LANGUAGE=FILE for each language: .conllu, .json in the format of SQuAD, or a text a line'
    )
    output: str = required('folder for the table, the numbers and the picture')
    max_seq_length: int | None = option(
        None,
        'word pieces of the longest row, longer texts are cut; default: as many as the model has',
    )


flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Prints the table."""
    del argv
    options = flags.read(Options)

    # Before the model is read: most mistakes are in the files.
    from bert_jax.runs.crosslingual.parallel import read_parallel

    texts = read_parallel(options.input)
    app.check_output('output', options.output)

    from bert_jax.inference.extractor import Extractor
    from bert_jax.runs.crosslingual import retrieval
    from bert_jax.runs.sources.source import load_source

    source = load_source(options.model.where)
    longest = options.max_seq_length or source.model.max_position
    layers = range(source.model.num_layers + 1)
    extractor = Extractor(source, layers, 'none', longest, 'float32', 'float32')
    vectors = {}
    for language, of_language in texts.items():
        vectors[language] = retrieval.vectors(extractor, of_language, language)
        logging.info('%s: %d texts read', language, len(of_language))
    count = len(next(iter(texts.values())))
    print(retrieval.write(options.output, count, retrieval.retrieve(vectors)))


if __name__ == '__main__':
    app.run(main)
