"""Exact deduplication of documents or lines, between reading and making examples.

Three kinds of tasks, each a function from named inputs to files, as those of job_stages.py:
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
import pyarrow as pa
from etils import epath

from bert_jax.input_pipeline.examples.documents import Documents, offsets
from bert_jax.input_pipeline.preprocess.job_stages import SUMS_OF_LANGUAGE, Recipe
from bert_jax.input_pipeline.preprocess.sorted_runs import (
    KEYS,
    Tokenised,
    documents_of,
    hash_sentences,
    key_range,
    load,
    save,
    save_documents,
    summed,
    together,
)
from bert_jax.input_pipeline.randomness import mix

Kind = Literal['documents', 'lines']

RANGE_ITEMS = 1 << 21  # items sorted at once, on average: about 200 MB
_RUN_BITS = 40  # a copy is named by one number: its run's, and above these bits its own in the run
# `key`, `low`: the hash; `number`: of the run; `index`: of the document or line in its run.
_ITEMS = pa.schema([(name, pa.uint64()) for name in ('key', 'low', 'document', 'number', 'index')])


def deduplicate(
    kind: Kind,
    runs: Sequence[str],
    recipe: Recipe,
    unk_id: int,
    engine: Callable[[Callable, list[tuple], str], list],
) -> Tokenised:
    """Return what is left of the runs, written again; its sums say how many copies there were.

    `engine(function, tasks, stage)` runs the tasks of a stage.
    """
    # First who is there: one sorted list of items for each run.
    lists = [f'{path}.items' for path in runs]
    listing = [(kind, i, path, to) for i, (path, to) in enumerate(zip(runs, lists))]
    counts = engine(list_items, listing, 'listing')

    # Then one range of hashes at a time over all lists, as many as keep each small in memory: equal
    # items lie in the same range, wherever they come from.
    ranges = math.ceil(sum(counts) / RANGE_ITEMS)
    copies = [f'{runs[0]}.copies-{i:05}' for i in range(ranges)]
    finding = [(i, ranges, lists, to) for i, to in enumerate(copies)]
    dropped = sum(engine(find_copies, finding, 'finding'))

    # Every run again without its copies. The old ones go only when all new ones are there, so that
    # an interrupted job can do any of these tasks again.
    tasks = [
        (kind, i, path, copies, f'{path}-unique', recipe, unk_id) for i, path in enumerate(runs)
    ]
    unique = Tokenised.merged(engine(drop_copies, tasks, 'dropping'))
    unique.sums['duplicates_dropped'] = dropped

    for path in (*runs, *lists, *copies):
        epath.Path(path).unlink(missing_ok=True)
    return unique


def list_items(kind: Kind, number: int, path: str, to: str) -> int:
    """Write the items of run `number` sorted by hash, and return their number."""
    # Two hashes of 64 bits: with one, a corpus of 2**32 lines would lose a line by chance.
    run = documents_of(load(path))
    counts = np.diff(run.documents)
    hashes = [hash_sentences(run, salt) for salt in (1, 2)]
    if kind == 'documents':
        documents = run.names
        hashes = [_hash_documents(lines, counts) for lines in hashes]
    else:
        documents = np.repeat(run.names, counts)

    # Sorted by the first hash alone: it names the range.
    index = np.arange(documents.size, dtype=np.uint64)
    columns = (*hashes, documents, np.full(documents.size, number, np.uint64), index)
    order = np.argsort(hashes[0], kind='stable')
    save(to, _ITEMS, [{name: each[order] for name, each in zip(_ITEMS.names, columns)}])
    return documents.size


def _hash_documents(lines: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return uint64, a hash of each document's lines in their order."""
    # As the hash of a sentence is made from its tokens, once more mixed with the number of lines.
    starts = np.cumsum(counts) - counts
    index = np.arange(lines.size) - np.repeat(starts, counts)
    return mix(np.add.reduceat(mix(lines, index), starts), counts)


def find_copies(number: int, count: int, lists: Sequence[str], to: str) -> int:
    """Write the numbers of all copies with hashes in one range of `count`; return how many."""
    # Equal items side by side (the first column that counts), the one that stays in front: that of
    # the least hashed document name, which does not depend on how the text is cut into runs.
    items = together(lists, *key_range(number, count))
    high, low, document, run, index = (items[name].to_numpy() for name in _ITEMS.names)
    order = np.lexsort((index, run, document, low, high))

    # A copy is what equals the item before it.
    is_copy = (np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)
    copies = order[1:][is_copy]

    # By run and index, so that each run finds its own by bisection.
    save(to, KEYS, [{'key': np.sort(run[copies] << np.uint64(_RUN_BITS) | index[copies])}])
    return copies.size


def drop_copies(
    kind: Kind, number: int, path: str, copies: Sequence[str], to: str, recipe: Recipe, unk_id: int
) -> Tokenised:
    """Write the run again without the copies, and without documents that they emptied."""
    # What goes, whichever range found it, as a mask over the lines of the run.
    run = documents_of(load(path))
    of_run = together(copies, number << _RUN_BITS, (number + 1) << _RUN_BITS)['key'].to_numpy()
    document = np.repeat(np.arange(run.names.size), np.diff(run.documents))
    keep = np.ones(document.size if kind == 'lines' else run.names.size, bool)
    keep[of_run & np.uint64((1 << _RUN_BITS) - 1)] = False
    keep = keep if kind == 'lines' else keep[document]
    if not keep.any():
        return Tokenised()

    # The lines that stay with their tokens, and the documents that still have a line.
    sentences = np.bincount(document[keep], minlength=run.names.size)
    alive = sentences > 0
    lengths = np.diff(run.sentences)
    left = Documents(
        run.tokens[np.repeat(keep, lengths)],
        offsets(lengths[keep]),
        offsets(sentences[alive]),
        run.names[alive],
        run.languages[alive],
        None if run.lines is None else run.lines[keep],
    )
    save_documents(to, left)

    # All documents of a run have the language of their unit.
    sums, lines = summed(left, unk_id, recipe.line_sample)
    language = recipe.languages[left.languages[0]]
    of_language = Counter({name: sums[name] for name in SUMS_OF_LANGUAGE})
    return Tokenised([to], sums, {language: of_language}, lines=lines)
