"""Takes records of google-research/bert under a manifest, so that bert-pretrain trains on them.

  bert-adopt-records --input='tf_examples.tfrecord*' --tokenizer=DIR --output=records

Every record is read and checked against the tokenizer: fields, lengths, ids, masks, and where
[CLS] and [SEP] stand. --output is the folder in which all of them lie, or a new one, into which
they are linked, or copied where it is on another disk. Which files are held out, --eval_input says.
Seed, text and passes over it are not in such records, and the manifest names them as unknown.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.options import option, required

if TYPE_CHECKING:
    from pathlib import Path

    from bert_jax.input_pipeline.records import foreign
    from bert_jax.input_pipeline.records.shards import Manifest, ShardInfo
    from bert_jax.input_pipeline.tokenizer import Tokenizer

# How the name of a half-made file or folder is known for that of its whole.
_HALF = re.compile(r'\.(.+)\.[0-9a-f]{12}\.tmp')
# What our manifests say of how records were made, and such records do not.
UNKNOWN = (
    'seed',
    'text',
    'dupe_factor',
    'short_seq_prob',
    'masked_lm_prob',
    'mask_mix',
    'whole_word',
)


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


flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Reads all records, and writes a manifest and a copy of the tokenizer beside them."""
    del argv
    options = flags.read(Options)
    from pathlib import Path

    from bert_jax.input_pipeline.progress import Progress
    from bert_jax.input_pipeline.records import foreign
    from bert_jax.input_pipeline.records.shards import MANIFEST
    from bert_jax.input_pipeline.tokenizer import Tokenizer

    # All that can be refused before hours of reading.
    output = Path(options.output)
    if (output / MANIFEST).exists():
        raise UserError(
            f'--output={output}: has a {MANIFEST} already: bert-verify-data {output}'
            ' compares its records with it'
        )
    app.check_output('output', options.output)
    splits = files_of(options)
    tokenizer = Tokenizer.load(options.tokenizer)
    tokenizer.is_saved(output / 'tokenizer')
    beside = check_folder(output, [path for paths in splits.values() for path in paths])
    vocabulary = foreign.Vocabulary(
        tokenizer.vocab_size, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    )

    # Every byte of every file; the first record that is wrong refuses all.
    reader = foreign.Reader(vocabulary, pairs=options.objective != 'full_sentences')
    total = sum(path.stat().st_size for paths in splits.values() for path in paths)
    with Progress('reading records', total, 'MB', 1e6) as progress:
        shards = [
            reader.read(path, split, progress.update)
            for split, paths in splits.items()
            for path in paths
        ]

    warnings = doubts(reader.counts, reader.shows_mask)
    for warning in warnings:
        print(f'warning: {warning}')
    manifest = manifest_of(options, reader, tokenizer, shards, warnings)

    # The files, then what names them: a folder with a manifest is complete.
    output.mkdir(parents=True, exist_ok=True)
    if not beside:
        for half in output.glob('.*.tmp'):  # what an interrupted command has left, see check_folder
            shutil.rmtree(half) if half.is_dir() else half.unlink()
        for paths in splits.values():
            for path in paths:
                bring(path, output / path.name)
    tokenizer.save(output / 'tokenizer')
    manifest.save(output)
    say(options, manifest, tokenizer.tokens(reader.first))


def manifest_of(
    options: Options,
    reader: foreign.Reader,
    tokenizer: Tokenizer,
    shards: Sequence[ShardInfo],
    warnings: Sequence[str],
) -> Manifest:
    """Returns the manifest of records that another program made."""
    from bert_jax.input_pipeline.records.shards import Manifest

    assert reader.spec is not None, 'no file without a record is read to its end'
    return Manifest(
        seq_len=reader.spec.seq_len,
        max_predictions=reader.spec.max_predictions,
        masking='static',
        objective=options.objective,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        seed=None,
        options={
            'made_by': "another program, in the format of google-research/bert's"
            ' create_pretraining_data.py',
            'input': list(options.input),
            'eval_input': list(options.eval_input or ()),
            'objective': options.objective,
            'unknown': list(UNKNOWN),
        },
        statistics={'records': reader.counts, 'text': {}, 'warnings': list(warnings)},
        files=tuple(shards),
    )


def files_of(options: Options) -> dict[str, list[Path]]:
    """The files of each split. UserError for one that is named twice, by path, name or content."""
    from pathlib import Path

    from bert_jax.input_pipeline.text.inputs.listing import matching

    # A manifest knows its files by name, and a record must not be learnt and scored.
    splits: dict[str, list[Path]] = {}
    seen: dict[str, Path] = {}
    by_size: dict[int, list[Path]] = {}
    for split, patterns in (('train', options.input), ('eval', options.eval_input or ())):
        if remote := [pattern for pattern in patterns if '://' in pattern]:
            raise UserError(f'{remote[0]}: copy the records to a local folder first')
        splits[split] = list(map(Path, matching(patterns).paths())) if patterns else []
        for path in splits[split]:
            if path.name in seen:
                both = f'{seen[path.name]} and {path}'
                raise UserError(
                    f'{path.name}: two files of this name ({both}): a manifest knows files by'
                    ' their names, and each is trained on or held out'
                )
            seen[path.name] = path

            # Under another name, by a link or as a copy: few files have as many bytes.
            alike = by_size.setdefault(path.stat().st_size, [])
            if twins := [other for other in alike if same(other, path)]:
                raise UserError(
                    f'{path}: holds the very records of {twins[0]}: leave one out, for each record'
                    ' is trained on or held out, and once'
                )
            alike.append(path)
    return splits


def check_folder(output: Path, paths: Sequence[Path]) -> bool:
    """Whether the files lie in `output` already; UserError where it holds something else.

    What an interrupted command has brought there is no other thing.
    """
    from bert_jax.input_pipeline.records.shards import MANIFEST

    if all(path.parent.resolve() == output.resolve() for path in paths):
        return True
    sources = {path.name: path for path in paths}
    for there in output.iterdir() if output.is_dir() else [output] if output.exists() else []:
        name = there.name
        if half := _HALF.fullmatch(name):
            ours = half[1] in (*sources, 'tokenizer', MANIFEST)
        else:
            ours = name == 'tokenizer' or (name in sources and same(sources[name], there))
        if not (ours and output.is_dir()):
            raise UserError(
                f'--output={output}: is neither a new folder nor the one that all records lie in:'
                ' name another'
            )
    return False


def same(one: Path, other: Path) -> bool:
    """Whether two names are of one file, or of files of the same content."""
    with reading(other):
        return one.samefile(other) or filecmp.cmp(one, other, shallow=False)


def bring(source: Path, target: Path) -> None:
    """The file under its new name: linked, which takes no room, or copied to another disk."""
    from bert_jax.configs.files.atomic import atomic_file

    # An interrupted command has brought it, and `check_folder` has compared it.
    if target.exists():
        return
    try:
        os.link(source.resolve(), target)
    except OSError:
        with source.open('rb') as file, atomic_file(target) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)


def doubts(counts: dict[str, dict[str, Any]], shows_mask: int) -> list[str]:
    """Warnings about records that are sound, but perhaps not what is wanted."""
    warnings = []
    masked = sum(sums['masked'] for sums in counts.values())
    if masked >= 100 and not shows_mask:
        warnings.append(
            f'none of {masked:,} predicted places shows [MASK]: made with another vocabulary than'
            ' --tokenizer?'
        )
    if 'eval' not in counts:
        warnings.append('nothing is held out: name files for it with --eval_input')
    return warnings


def say(options: Options, manifest: Any, tokens: Sequence[str]) -> None:
    """What was taken, and the first record in words: that they make sense only a person sees."""
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
    app.run(main)
