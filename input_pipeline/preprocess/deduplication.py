"""Exact deduplication of documents or lines, between reading and making examples.

Three kinds of tasks, each a function from named inputs to files, as those of stages.py:
`list_items` lists what a run holds, each document or line by a 128-bit hash of its tokens;
`find_copies` takes one range of hashes out of all lists and names all items but the first of
each kind; `drop_copies` writes a run again without those. A task holds one run, or one range,
so memory is bounded. Copies are what has the same tokens, in one split; which of them stays
depends on the hashed names of their documents alone, so neither units nor workers nor the
engine change a byte. This file must not know text, nor what is made of the documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from etils import epath

from bert_jax.input_pipeline.preprocess.runs import (
    DocumentRun,
    Tokenised,
    hash_sentences,
    key_range,
    load,
    save,
)
from bert_jax.input_pipeline.preprocess.stages import SUMS_OF_LANGUAGE, Recipe
from bert_jax.input_pipeline.randomness import mix

Kind = Literal['documents', 'lines']

RANGE_ITEMS = 1 << 21  # items sorted at once, on average: about 200 MB
# a copy is named by one number: the run's place among the runs, and the item's place in it
_RUN_SHIFT = np.uint64(40)
# `place`: of the document, or of the line, in its run
_ITEM = np.dtype([('high', '<u8'), ('low', '<u8'), ('document', '<u8'), ('place', '<u8')])


def deduplicate(
    kind: Kind,
    runs: Sequence[str],
    recipe: Recipe,
    unk_id: int,
    engine: Callable[[Callable, list[tuple], str], list],
) -> tuple[Tokenised, int]:
    """Return what is left of the runs, written again, and how many copies there were.

    `engine(function, tasks, stage)` runs the tasks of a stage.
    """
    # First who is there: one sorted list of items for each run.
    lists = [f'{path}-items.npy' for path in runs]
    counts = engine(list_items, [(kind, path, to) for path, to in zip(runs, lists)], 'listing')

    # Then one range of hashes at a time over all lists, as many as keep each small in memory: equal
    # items lie in the same range, wherever they come from.
    ranges = math.ceil(sum(counts) / RANGE_ITEMS)
    copies = [f'{runs[0]}-copies-{i:05}.npy' for i in range(ranges)]
    dropped = sum(
        engine(find_copies, [(i, ranges, lists, to) for i, to in enumerate(copies)], 'finding')
    )

    # Every run again without its copies. The old ones go only when all new ones are there, so that
    # an interrupted job can do any of these tasks again.
    tasks = [
        (kind, i, path, copies, f'{path}-unique', recipe, unk_id) for i, path in enumerate(runs)
    ]
    unique = Tokenised.merged(engine(drop_copies, tasks, 'dropping'))

    for path in runs:
        DocumentRun.remove(path)
    for path in (*lists, *copies):
        epath.Path(path).unlink(missing_ok=True)
    return unique, dropped


def list_items(kind: Kind, path: str, to: str) -> int:
    """Write the items of a run sorted by hash, and return their number."""
    # Two hashes of 64 bits: with one, a corpus of 2**32 lines would lose a line by chance.
    run = DocumentRun.open(path)
    counts = np.diff(run.documents['sentences'], prepend=0)
    hashes = [hash_sentences(run.tokens, run.lengths, salt) for salt in (1, 2)]
    if kind == 'documents':
        documents = run.keys
        hashes = [_hash_documents(lines, counts) for lines in hashes]
    else:
        documents = np.repeat(run.keys, counts)

    # Sorted by the first hash alone: it names the range.
    items = np.empty(documents.size, _ITEM)
    items['high'], items['low'] = hashes
    items['document'], items['place'] = documents, np.arange(documents.size)
    save(to, items[np.argsort(items['high'], kind='stable')])
    return items.size


def _hash_documents(lines: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return uint64, a hash of each document's lines in their order."""
    # As the hash of a sentence is made from its tokens, once more mixed with the number of lines.
    starts = np.cumsum(counts) - counts
    index = np.arange(lines.size) - np.repeat(starts, counts)
    return mix(np.add.reduceat(mix(lines, index), starts), counts)


def find_copies(number: int, count: int, lists: Sequence[str], to: str) -> int:
    """Write the numbers of all copies with hashes in one range of `count`; return how many."""
    # The range's items out of every list, and of which run each is.
    low, high = key_range(number, count)
    stretches, runs = [np.zeros(0, _ITEM)], []
    for path in lists:
        items = load(path)
        first, last = (
            int(np.searchsorted(items['high'], np.uint64(key))) if key < 1 << 64 else items.size
            for key in (low, high)
        )
        stretches.append(np.array(items[first:last]))
        runs.append(last - first)
    items = np.concatenate(stretches)
    run = np.repeat(np.arange(len(lists), dtype=np.uint64), runs)

    # Equal items side by side (the last key sorts first), the one that stays in front: that of the
    # least hashed document name, which does not depend on how the text is cut into runs.
    order = np.lexsort((items['place'], run, items['document'], items['low'], items['high']))
    items, run = items[order], run[order]

    # A copy is what equals the item before it.
    same_high = items['high'][1:] == items['high'][:-1]
    same_low = items['low'][1:] == items['low'][:-1]
    copies = np.flatnonzero(same_high & same_low) + 1

    # By run and place, so that each run finds its own by bisection.
    save(to, np.sort(run[copies] << _RUN_SHIFT | items['place'][copies]))
    return copies.size


def drop_copies(
    kind: Kind, number: int, path: str, copies: Sequence[str], to: str, recipe: Recipe, unk_id: int
) -> Tokenised:
    """Write the run again without the copies, and without documents that they emptied."""
    # What goes, whichever range found it, as a mask over the lines of the run.
    run = DocumentRun.open(path)
    gone = np.concatenate([_of_run(load(file), number) for file in copies])
    counts = np.diff(run.documents['sentences'], prepend=0)
    document = np.repeat(np.arange(counts.size), counts)
    keep = np.ones(document.size if kind == 'lines' else counts.size, bool)
    keep[gone] = False
    keep = keep if kind == 'lines' else keep[document]
    if not keep.any():
        return Tokenised()

    # The lines that stay with their tokens, and the documents that still have a line.
    lengths = np.array(run.lengths[keep])
    tokens = run.tokens[np.repeat(keep, run.lengths)]
    sentences = np.bincount(document[keep], minlength=counts.size)
    alive = sentences > 0

    # Where each document ends now, counted again from the begin of the run.
    documents = np.array(run.documents[alive])
    documents['sentences'] = np.cumsum(sentences[alive])
    documents['tokens'] = np.cumsum(lengths, dtype=np.int64)[documents['sentences'] - 1]
    left = DocumentRun(np.array(run.keys[alive]), documents, lengths, tokens)
    left.write(to)

    # All documents of a run have the language of their unit.
    sums, lines = left.summed(unk_id, recipe.line_sample)
    language = recipe.languages[documents['language'][0]]
    of_language = Counter({name: sums[name] for name in SUMS_OF_LANGUAGE})
    return Tokenised([to], sums, {language: of_language}, lines=lines)


def _of_run(copies: np.ndarray, number: int) -> np.ndarray:
    """Return the places of the copies in run `number`."""
    first, last = np.searchsorted(copies, np.array([number, number + 1], np.uint64) << _RUN_SHIFT)
    return (np.array(copies[first:last]) & ((np.uint64(1) << _RUN_SHIFT) - np.uint64(1))).astype(
        np.int64
    )
