"""Reads a records directory back and compares it with all that its manifest promises.

  bert-preprocess verify RECORDS
  bert-preprocess verify DIR --show='A text.'

Checks that every shard is there, its size, checksums and count, and in each record the
ranges of ids and positions, masks and labels; then the tokenizer beside the shards. Prints
what the records hold. Faults are listed by file, record and byte, and the exit code is 2.

With --show prints how a tokenizer cuts a text: each piece with its id, its place in the text and
what stands there. DIR is that of records, a run, a vocabulary, or a model of Hugging Face.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bert_jax.cli import app
from bert_jax.configs.options import required

if TYPE_CHECKING:
    from bert_jax.input_pipeline.records.shards import Manifest
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Verify:
    """Read a records directory back and compare it with all that its manifest promises.

    Attributes:
      directory: that of the records.
    """

    directory: str = required(words='RECORDS')

    def __call__(self) -> int:
        """Return 0 where everything is as promised, 2 otherwise."""
        from bert_jax.input_pipeline.progress import Progress
        from bert_jax.input_pipeline.records import shards

        # Every byte of every shard is read; progress is by bytes.
        manifest = shards.Manifest.load(self.directory)
        size = sum(shard.bytes for shard in manifest.files)
        with Progress('verify', size, 'MB', 1e6) as progress:
            verified = shards.verify(self.directory, progress.update)

        # What the manifest promises, then what each split was found to hold.
        seed = 'unknown' if manifest.seed is None else manifest.seed
        print(
            f'{self.directory}: seq_len {manifest.seq_len}, max_predictions'
            f' {manifest.max_predictions}, {manifest.masking} masking, objective'
            f' {manifest.objective}, vocabulary {manifest.vocab_size:,}, seed {seed}'
        )
        for split, sums in verified.counts.items():
            for line in describe(manifest, split, sums):
                print(line)

        # Faults go to stderr, one a line, so that they can be counted and kept.
        faults = [str(fault) for fault in verified.faults]
        faults += tokenizer_faults(self.directory, manifest)
        for fault in faults:
            print(fault, file=sys.stderr)
        if not faults:
            print('no faults')
            return 0
        print(f'{len(faults):,} faults')
        return 2


@dataclass(frozen=True)
class ShowPieces:
    """Print how a tokenizer cuts a text, and check nothing.

    Attributes:
      directory: that of records, a run, a vocabulary, or a model of Hugging Face.
      show: print how the tokenizer in DIR cuts this text; as often as you like.
    """

    directory: str = required(words='DIR')
    show: tuple[str, ...] = required()

    def __call__(self) -> None:
        """Print a line for each piece."""
        tokenizer = tokenizer_in(self.directory)
        print('\n\n'.join(count_cut(tokenizer, text) for text in self.show))


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


def tokenizer_in(directory: str) -> Tokenizer:
    """Return the tokenizer of records or of a run, which is a folder there, or of the folder."""
    from etils import epath

    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

    inside = epath.Path(directory) / 'tokenizer'
    return Tokenizer.load(inside if inside.is_dir() else directory).close()


def count_cut(tokenizer: Tokenizer, text: str) -> str:
    """Return how a text is cut: a line for each piece, and one about all of them."""
    encoding = tokenizer.encode_with_offsets(text)
    ids = encoding.ids.tolist()
    pieces = tokenizer.spelled(ids)
    width = max([8, *map(len, pieces)])
    lines = [f'{"id":>7} {"from":>5} {"to":>5}  {"piece":{width}}  text']
    for number, piece, start, end in zip(ids, pieces, encoding.starts, encoding.ends):
        lines.append(f'{number:7} {start:5} {end:5}  {piece:{width}}  {text[start:end]}')
    unknown = ids.count(tokenizer.unk_id)
    kept = 'lower case' if tokenizer.lower_case else 'capitals kept'
    accents = 'accents stripped' if tokenizer.strip_accents else 'accents kept'
    lines.append(
        f'{len(ids)} pieces of {len(text.split())} words, {unknown} unknown; {tokenizer.kind},'
        f' {tokenizer.vocab_size} entries, {kept}, {accents}'
    )
    return '\n'.join(lines)


def tokenizer_faults(directory: str, manifest: Manifest) -> list[str]:
    """Return what is wrong with the copy of the tokenizer that lies with the shards."""
    from etils import epath

    from bert_jax.configs.errors import UserError
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

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
    app.run(Verify, ShowPieces)
