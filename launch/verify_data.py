"""Reads a records directory back and compares it with all that its manifest promises.

  bert-preprocess verify RECORDS

Checks that every shard is there, its size, checksums and count, and in each record the
ranges of ids and positions, masks and labels; then the tokenizer beside the shards. Prints
what the records hold. Faults are listed by file, record and byte, and the exit code is 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bert_jax.cli import app

if TYPE_CHECKING:
    from bert_jax.input_pipeline.records.shards import Manifest


def main(argv: Sequence[str]) -> int:
    """Return 0 where everything is as promised, 2 otherwise."""
    from bert_jax.configs.errors import UserError
    from bert_jax.input_pipeline.progress import Progress
    from bert_jax.input_pipeline.records import shards

    if len(argv) != 2:
        raise UserError('name one records directory: bert-preprocess verify RECORDS')

    # Every byte of every shard is read; progress is by bytes.
    directory = argv[1]
    manifest = shards.Manifest.load(directory)
    size = sum(shard.bytes for shard in manifest.files)
    with Progress('verify', size, 'MB', 1e6) as progress:
        verified = shards.verify(directory, progress.update)

    # What the manifest promises, then what each split was found to hold.
    print(
        f'{directory}: seq_len {manifest.seq_len}, max_predictions {manifest.max_predictions},'
        f' {manifest.masking} masking, objective {manifest.objective}, vocabulary'
        f' {manifest.vocab_size:,}, seed {"unknown" if manifest.seed is None else manifest.seed}'
    )
    for split, sums in verified.counts.items():
        for line in describe(manifest, split, sums):
            print(line)

    # Faults go to stderr, one a line, so that they can be counted and kept.
    faults = [str(fault) for fault in verified.faults] + tokenizer_faults(directory, manifest)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f'{len(faults):,} faults' if faults else 'no faults')
    return 2 if faults else 0


def describe(manifest: Manifest, split: str, sums: dict[str, Any]) -> list[str]:
    """Return what the intact records of a split hold, in lines to print."""
    # Shares below are of intact records, and there may be none.
    if not sums or not sums['records']:
        return [f'{split}: no intact record']

    # Of a healthy set the fill is near 1, and the share of label 1 near one half.
    count, tokens = sums['records'], sums['tokens']
    shares = (
        f'fill {tokens / count / manifest.seq_len:.1%}, label 1 (random or swapped)'
        f' {sums["random_next"] / sums["examples"]:.1%}'
    )
    lines = [
        f'{split}: {len(manifest.shards(split))} shards, {count:,} records, {tokens:,} tokens,'
        f' {shares}'
    ]

    # Packed records: how many examples share a row.
    if 'pack_histogram' in sums:
        packs = ', '.join(
            f'{held}: {rows:,}' for held, rows in enumerate(sums['pack_histogram']) if rows
        )
        lines.append(
            f'  {sums["examples"]:,} examples, {sums["examples"] / count:.2f} a record (records by'
            f' examples: {packs})'
        )

    # Static masks; under dynamic masking the records have none.
    if 'masked' in sums:
        counts = [masks for masks, records in enumerate(sums['mask_histogram']) if records]
        lines.append(
            f'  {sums["masked"]:,} masked positions: {sums["masked"] / tokens:.1%} of tokens,'
            f' {sums["masked"] / count:.2f} a record ({counts[0]} to {counts[-1]});'
            f' {sums["kept"] / max(1, sums["masked"]):.1%} of them show the original'
        )
    return lines


def tokenizer_faults(directory: str, manifest: Manifest) -> list[str]:
    """Return what is wrong with the copy of the tokenizer that lies with the shards."""
    from etils import epath

    from bert_jax.configs.errors import UserError
    from bert_jax.input_pipeline.tokenizer import Tokenizer

    # Damaged or another one: ids in the records mean words only with the tokenizer they came from.
    path = epath.Path(directory) / 'tokenizer'
    try:
        tokenizer = Tokenizer.load(path)
    except UserError as error:
        return [str(error)]
    if (tokenizer.fingerprint, tokenizer.vocab_size) != (
        manifest.tokenizer_fingerprint,
        manifest.vocab_size,
    ):
        return [f'{path}: not the tokenizer that the records were made with, by its fingerprint']
    return []


if __name__ == '__main__':
    app.run(main, 'RECORDS')
