"""Takes records of google-research/bert under a manifest, so that bert-pretrain trains on them.

  bert-preprocess adopt --input='tf_examples.tfrecord*' --tokenizer=DIR --output=records

Every record is read and checked against the tokenizer: fields, lengths, ids, masks, and where
[CLS] and [SEP] stand. --output is the folder in which all of them lie, or a new one, into which
they are linked, or copied where it is on another disk. Which files are held out, --eval_input says.
Seed, text and passes over it are not in such records, and the manifest names them as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bert_jax.cli import app
from bert_jax.configs.options import option, required


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which records, of which vocabulary, and where the manifest goes."""

    input: tuple[str, ...] = required(
        'TFRecord files to train on: a path or a glob in quotes; give the flag as often as there'
        ' are inputs'
    )
    eval_input: tuple[str, ...] | None = option(None, 'files as for --input, to be held out')
    tokenizer: str = required(
        'tokenizer directory that the records were made with, as released by Google too'
    )
    output: str = required('folder of the records, or a new one')
    objective: Literal['nsp', 'sop', 'full_sentences'] = option(
        'nsp',
        'what label 1 says: that B is a random text, or that A and B are swapped; or there are no'
        ' pairs',
    )


def main(options: Options) -> None:
    """Take the records, and print what they are."""
    app.check_output('output', options.output)
    from bert_jax.runs.preparation.adoption import UNKNOWN, adopt

    patterns = {'train': options.input, 'eval': options.eval_input or ()}
    manifest, tokens = adopt(patterns, options.tokenizer, options.output, options.objective)

    # With the first record in words: that they make sense only a person sees.
    for warning in manifest.statistics['warnings']:
        print(f'warning: {warning}')
    for split, sums in manifest.statistics['records'].items():
        print(
            f'{split}: {sums["records"]:,} records of {manifest.seq_len} in'
            f' {len(manifest.shards(split))} file(s),'
            f' {sums["tokens"] / sums["records"] / manifest.seq_len:.1%} full,'
            f' {sums["masked"] / sums["records"]:.1f} predictions each of at most'
            f' {manifest.max_predictions}, label 1 {sums["random_next"] / sums["records"]:.1%}'
        )
    print(f'the first record: {" ".join(tokens)[:300]}')
    print(f'not known: {", ".join(UNKNOWN)}')
    print(f'{options.output}: ready for bert-pretrain --data={options.output}')


if __name__ == '__main__':
    app.run(main, Options)
