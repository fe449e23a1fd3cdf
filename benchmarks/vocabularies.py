"""Measure which vocabulary fits a language: kinds and sizes, trained and tried on held-out text.

  python -m benchmarks.vocabularies --input=en=english.txt --input=de=german.txt.gz
      [--models=byte_bpe,unigram,wordpiece] [--sizes=8000,16000,32000] [--megabytes=10]
      [--json=FILE]

Of each text, with empty lines between documents, the first --megabytes are taken. The last 5 % of
their documents are held out; `bert-train-vocab --layout=modernbert` reads the others, with capitals
kept, in a process of its own. A word is what stands between spaces. The table's share is that of
the word table, one row an entry, among the parameters of modernbert_base with such a vocabulary.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks import machine, processes
from bert_jax.configs.errors import UserError, reading

_INPUT = flags.DEFINE_multi_string('input', None, 'LANGUAGE=FILE', required=True)
_MODELS = flags.DEFINE_list('models', ['byte_bpe', 'unigram', 'wordpiece'], 'kinds to train')
_SIZES = flags.DEFINE_list('sizes', ['8000', '16000', '32000'], 'entries of each')
_MEGABYTES = flags.DEFINE_float('megabytes', 10.0, 'text of each language', lower_bound=0.01)
_JSON = flags.DEFINE_string('json', None, 'file to write the figures to')

_HELD_OUT = 0.05


def main(argv: Sequence[str]) -> None:
    """Measure every language, kind and size; print a line for each."""
    del argv
    report: dict[str, Any] = {'texts': {}, 'vocabularies': []}
    for given in _INPUT.value:
        language, equals, file = given.partition('=')
        if not equals:
            raise UserError(f'--input={given}: must be LANGUAGE=FILE, as in de=german.txt')
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, 'text.txt')
            trained_on, held_out = split_text(file)
            text.write_text(trained_on)
            report['texts'][language] = {
                'bytes': text.stat().st_size,
                'held_out_bytes': len(held_out.encode()),
                'held_out_characters': len(held_out),
                'held_out_words': len(held_out.split()),
            }
            for model, size in itertools.product(_MODELS.value, _SIZES.value):
                figures = measure(language, text, held_out, model, int(size))
                report['vocabularies'].append(figures)
                if _JSON.value:  # after each, so that a time limit loses one and not all
                    report['machine'] = machine.describe('tokenizers', 'sentencepiece')
                    pathlib.Path(_JSON.value).write_text(json.dumps(report, indent=1) + '\n')


def split_text(file: str) -> tuple[str, str]:
    """Read the first --megabytes of a file; return the text to train on, and that held out."""
    opened = gzip.open if file.endswith('.gz') else open
    with reading(f'--input={file}'), opened(file, 'rb') as stream:
        text = stream.read(round(_MEGABYTES.value * 1e6)).decode(errors='ignore')
    documents = text.split('\n\n')
    first = len(documents) - max(1, round(_HELD_OUT * len(documents)))
    if not first:
        raise UserError(f'--input={file}: one document: put empty lines between several')
    return '\n\n'.join(documents[:first]), '\n\n'.join(documents[first:])


def measure(
    language: str, text: pathlib.Path, held_out: str, model: str, size: int
) -> dict[str, Any]:
    """Train one vocabulary and count the tokens of the text held out; print and return both."""
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, '-m', 'bert_jax.launch.train_vocab', f'--input={text}'),
            *(f'--output={folder}/vocab', f'--model={model}', f'--vocab_size={size}'),
            *('--layout=modernbert', f'--language={language}'),
        ]
        cased = [] if model == 'byte_bpe' else ['--nolower_case']  # which is cased anyway
        cost = processes.run([*command, *cased])
        tokenizer = Tokenizer.load(f'{folder}/vocab')
    ids = np.concatenate(tokenizer.encode_batch(held_out.split('\n')))
    figures = {
        'language': language,
        'model': model,
        'size': size,
        'bytes_a_token': len(held_out.encode()) / len(ids),
        'tokens_a_word': len(ids) / len(held_out.split()),
        'tokens_a_1000_characters': 1000 * len(ids) / len(held_out),
        'unknown': float(np.mean(ids == tokenizer.unk_id)),
        'table': share_of_table(tokenizer.vocab_size + tokenizer.unused),
        'cpu_seconds': cost.cpu_seconds,
        'peak_bytes': cost.peak_bytes,
    }
    print(
        f'{language} {model} {size:,}: {figures["bytes_a_token"]:.2f} bytes a token,'
        f' {figures["tokens_a_word"]:.2f} tokens a word, {figures["unknown"]:.2%} unknown, table'
        f' {figures["table"]:.1%}, {cost.cpu_seconds:.0f} CPU-seconds',
        flush=True,
    )
    return figures


def share_of_table(rows: int) -> float:
    """Return the word table's share of the parameters of modernbert_base with so many rows."""
    from bert_jax.configs.presets.modernbert import modernbert_base
    from bert_jax.costs.flops import count_parameters

    model = dataclasses.replace(modernbert_base().model, vocab_size=rows)
    return rows * model.hidden_size / count_parameters(model, pretraining=False)


if __name__ == '__main__':
    machine.run(main)
