"""Records that another program made, taken under a manifest of ours.

Owns which files may be taken and how they come into the folder. What a record must be is
input_pipeline/records/foreign.py's.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.atomic import atomic_folder
from bert_jax.input_pipeline.progress import Progress
from bert_jax.input_pipeline.records import foreign
from bert_jax.input_pipeline.records.shards import MANIFEST, Manifest, ShardInfo
from bert_jax.input_pipeline.text.inputs.listing import matching
from bert_jax.input_pipeline.tokenizer import Tokenizer

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


class Adopted(NamedTuple):
    """What was taken: the manifest that was written, and the first record's tokens."""

    manifest: Manifest
    first_tokens: list[str]


def adopt(
    patterns: Mapping[str, Sequence[str]], tokenizer_folder: str, output_folder: str, objective: str
) -> Adopted:
    """Read all records, bring them into the folder, and write a manifest and the tokenizer there.

    Args:
      patterns: the files of each split, as paths or globs.
      tokenizer_folder: the tokenizer that the records were made with.
      output_folder: where all records lie, or a new folder.
      objective: what label 1 says.

    Raises:
      UserError: a record is wrong, or a folder holds something else.
    """
    # All that can be refused before hours of reading.
    output = Path(output_folder)
    if (output / MANIFEST).exists():
        raise UserError(
            f'--output={output}: has a {MANIFEST} already: bert-preprocess verify {output}'
            ' compares its records with it'
        )
    splits = _files(patterns)
    paths = [path for of_split in splits.values() for path in of_split]
    tokenizer = Tokenizer.load(tokenizer_folder)
    tokenizer.is_saved(output / 'tokenizer')
    in_place = all(path.parent.resolve() == output.resolve() for path in paths)
    if not in_place and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f'--output={output}: is neither a new folder nor the one that all records lie in: name'
            ' another'
        )

    # Every byte of every file; the first record that is wrong refuses all.
    ids = tokenizer.vocab_size, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    reader = foreign.Reader(foreign.Vocabulary(*ids), pairs=objective != 'full_sentences')
    with Progress('reading records', sum(p.stat().st_size for p in paths), 'MB', 1e6) as progress:
        shards = [
            reader.read(path, split, progress.update)
            for split, of_split in splits.items()
            for path in of_split
        ]
    manifest = _manifest(reader, tokenizer, patterns, objective, shards)

    # What names the files comes last: a folder with a manifest is complete.
    with contextlib.nullcontext(output) if in_place else atomic_folder(output) as folder:
        for path in paths if not in_place else ():
            # A link under the new name takes no room; to another disk it is a copy.
            try:
                os.link(path.resolve(), folder / path.name)
            except OSError:
                shutil.copyfile(path, folder / path.name)
        tokenizer.save(folder / 'tokenizer')
        manifest.save(folder)
    return Adopted(manifest, tokenizer.tokens(reader.first))


def _manifest(
    reader: foreign.Reader,
    tokenizer: Tokenizer,
    patterns: Mapping[str, Sequence[str]],
    objective: str,
    shards: Sequence[ShardInfo],
) -> Manifest:
    """Return the manifest of records that another program made."""
    assert reader.spec is not None, 'no file without a record is read to its end'
    return Manifest(
        seq_len=reader.spec.seq_len,
        max_predictions=reader.spec.max_predictions,
        masking='static',
        objective=objective,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        seed=None,
        options={
            'made_by': "another program, in the format of google-research/bert's"
            ' create_pretraining_data.py',
            'input': list(patterns['train']),
            'eval_input': list(patterns['eval']),
            'objective': objective,
            'unknown': list(UNKNOWN),
        },
        statistics={
            'records': reader.counts,
            'text': {},
            'warnings': _doubts(reader.counts, reader.shows_mask),
        },
        files=tuple(shards),
    )


def _files(patterns: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
    """Find the files of each split; each may be named once, by path, name or content."""
    # A manifest knows its files by name, and a record must not be learnt and scored.
    splits: dict[str, list[Path]] = {}
    seen: dict[str, Path] = {}
    by_size: dict[int, list[Path]] = {}
    for split, of_split in patterns.items():
        if remote := [pattern for pattern in of_split if '://' in pattern]:
            raise UserError(f'{remote[0]}: copy the records to a local folder first')
        splits[split] = list(map(Path, matching(of_split).paths())) if of_split else []
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
            for other in alike:
                with reading(path):
                    is_same = other.samefile(path) or filecmp.cmp(other, path, shallow=False)
                if is_same:
                    raise UserError(
                        f'{path}: holds the very records of {other}: leave one out, for each record'
                        ' is trained on or held out, and once'
                    )
            alike.append(path)
    return splits


def _doubts(counts: dict[str, dict[str, Any]], shows_mask: int) -> list[str]:
    """Return warnings about records that are sound, but perhaps not what is wanted."""
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
