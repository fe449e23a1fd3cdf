"""Features: texts as rows of ids, and the folder that keeps those that take long to make.

A row is [CLS] a [SEP] or [CLS] a [SEP] b [SEP] (run_classifier.py:377-460), or what the tokenizer's
layout has in their place. What is kept is named by all that decides it. Must not know any one task,
nor what its arrays mean.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError, check_count
from bert_jax.configs.files.atomic import atomic_file
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, ROW_KEYS, Arrays, Example, Task, trim
from bert_jax.input_pipeline.tokenizer.tokenizer import several


def make_empty_rows(count: int, max_seq_length: int, pad_id: int) -> Arrays:
    """Return INPUT_KEYS [count, max_seq_length] int32 that are padding everywhere."""
    rows = {name: np.zeros((count, max_seq_length), np.int32) for name in INPUT_KEYS}
    rows['input_ids'].fill(pad_id)
    return rows


def write_row(
    features: Arrays, row: int, tokenizer: Any, first: Any, second: Any | None = None
) -> int:
    """Write [CLS] first [SEP] second [SEP] over the padding of a row, as the layout has it.

    Args:
      features: the arrays of `make_empty_rows`.
      row: which of their rows.
      tokenizer: its special tokens and layout.
      first: ids of the first text.
      second: ids of the second; None for a row of one text.

    Returns:
      Where in the row the second text begins.
    """
    between, segment, _, second_cls = tokenizer.layout
    ids, end = features['input_ids'][row], len(first) + 2
    ids[0], ids[1 : end - 1], ids[end - 1] = tokenizer.cls_id, first, tokenizer.sep_id
    begin = end + between - 1
    if second is not None:
        ids[end:begin] = tokenizer.sep_id
        if second_cls:
            ids[begin - 1] = tokenizer.cls_id
        end = begin + len(second) + 1
        ids[begin : end - 1], ids[end - 1] = second, tokenizer.sep_id
        features['segment_ids'][row, begin:end] = segment
    features['input_mask'][row, :end] = 1
    return begin


def make_text_rows(
    first: Sequence[str], second: Sequence[str | None], tokenizer: Any, max_seq_length: int
) -> Arrays:
    """Return INPUT_KEYS [N, max_seq_length] int32 of N texts, or pairs if second is not None.

    What does not fit is cut from the end of the longer. Besides `pieces` and `left_out` [N]: how
    many word pieces the texts of a row have, and how many of those were cut (`count_cut`).
    """
    features = make_empty_rows(len(first), max_seq_length, tokenizer.pad_id)
    features |= {name: np.zeros(len(first), np.int32) for name in ('pieces', 'left_out')}

    for row, (a, b, budget) in enumerate(_encode_rows(first, second, tokenizer, max_seq_length)):
        a_length, b_length = truncate_lengths(len(a), len(b), budget)
        features['pieces'][row] = len(a) + len(b)
        features['left_out'][row] = len(a) + len(b) - a_length - b_length
        other = None if second[row] is None else b[:b_length]
        write_row(features, row, tokenizer, a[:a_length], other)
    return features


def _encode_rows(
    first: Sequence[str], second: Sequence[str | None], tokenizer: Any, max_seq_length: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield the ids of both texts of a row, and how many fit besides special tokens."""
    # Both texts of all rows at once, for the tokenizer's memo; no second text is an empty one here.
    ids_a = tokenizer.encode_batch(first)
    ids_b = tokenizer.encode_batch([text or '' for text in second])
    for text, a, b in zip(second, ids_a, ids_b, strict=True):
        yield a, b, max_seq_length - 2 - tokenizer.layout.separators * (text is not None)


def fold_rows(rows: Arrays, count: int) -> Arrays:
    """Return the rows of `make_text_rows` as those of `count` examples, each of as many texts.

    ROW_KEYS are [N, C, S], `pieces` and `left_out` [N] sums, example_index [N] is their place.
    """
    features = {}
    for name, values in rows.items():
        by_example = values.reshape(count, -1, *values.shape[1:])
        features[name] = by_example if name in ROW_KEYS else by_example.sum(axis=1)
    return features | {'example_index': np.arange(count, dtype=np.int32)}


def make_listed_rows(
    first: Sequence[str],
    lists: Sequence[Sequence[str]],
    tokenizer: Any,
    max_seq_length: int,
    width: int = 0,
) -> Arrays:
    """Return INPUT_KEYS [N, C, max_seq_length] of each text beside each of a list of its own.

    C is `width`, or the length of the longest list; what another list lacks are rows of [CLS]
    alone. Other arrays are those of `fold_rows`.
    """
    # All rows of all lists go to the tokenizer at once.
    C = width or max(map(len, lists))
    texts: list[str] = []
    others: list[str | None] = []
    for text, of_text in zip(first, lists, strict=True):
        lacking = C - len(of_text)
        texts += [text] * len(of_text) + [''] * lacking
        others += [*of_text, *[None] * lacking]
    rows = make_text_rows(texts, others, tokenizer, max_seq_length)
    # A row without any token would have no attention to compute, so [CLS] stays.
    lacks = np.array([text is None for text in others])
    rows['input_ids'][lacks, 1] = tokenizer.pad_id
    rows['input_mask'][lacks, 1] = 0
    return fold_rows(rows, len(first))


def make_window_rows(
    first: Sequence[str],
    second: Sequence[str | None],
    tokenizer: Any,
    max_seq_length: int,
    doc_stride: int,
) -> Arrays:
    """Return INPUT_KEYS [N, max_seq_length] int32 of texts or pairs, in as many rows as they take.

    Of a pair the longer text is read in windows; the other stands in each of them, in half of the
    row at most. Besides example_index [N], whose window it is, and `pieces` and `left_out` [N] as
    of `make_text_rows`, at the first window of a text.
    """
    texts: list[tuple[Any, Any]] = []  # of each window
    example_index: list[int] = []
    pieces: list[int] = []
    left_out: list[int] = []
    encoded = _encode_rows(first, second, tokenizer, max_seq_length)
    for index, (a, b, budget) in enumerate(encoded):
        is_second_longer = len(b) > len(a)
        longer, other = (b, a) if is_second_longer else (a, b)
        kept = other[: max(budget // 2, budget - len(longer))]
        for span in cut_spans(len(longer), budget - len(kept), doc_stride):
            window = longer[span]
            texts.append((kept, window) if is_second_longer else (window, kept))
            example_index.append(index)
            is_first = span.start == 0
            pieces.append(len(longer) + len(other) if is_first else 0)
            left_out.append(len(other) - len(kept) if is_first else 0)

    features = make_empty_rows(len(texts), max_seq_length, tokenizer.pad_id)
    features['example_index'] = np.array(example_index, np.int32)
    features['pieces'] = np.array(pieces, np.int32)
    features['left_out'] = np.array(left_out, np.int32)
    for row, (a, b) in enumerate(texts):
        is_pair = second[example_index[row]] is not None
        write_row(features, row, tokenizer, a, b if is_pair else None)
    return features


def cut_spans(length: int, room: int, stride: int) -> list[slice]:
    """Return the windows of at most `room` pieces on a text of `length` pieces.

    Each begins `stride` after the last (run_squad.py:318-332), and the last one is short, not moved
    back.
    """
    # A stride beyond the window would leave out pieces between two windows.
    stride = min(stride, room)
    starts = range(1)
    if length > room:
        starts = range(0, length - room + stride, stride)
    return [slice(start, min(start + room, length)) for start in starts]


def pool_windows(features: Arrays, outputs: Arrays, count: int) -> Arrays:
    """Return outputs [count, ...] of examples: the mean over the windows of each."""
    index = features.get('example_index')
    if index is None or len(index) == count:  # a row each
        return outputs
    means: Arrays = {}
    windows = np.bincount(index, minlength=count)
    for name, values in outputs.items():
        total = np.zeros((count, *values.shape[1:]), np.float64)
        np.add.at(total, index, values)
        means[name] = total / windows.reshape(-1, *[1] * (values.ndim - 1))
    return means


def make_pairs(texts: str | Iterable[str | tuple[str, str]]) -> list[tuple[str, str | None]]:
    """Return (text, its pair or None) of each of some texts and pairs; a string is one text.

    Raises:
      UserError: something is neither a text nor a pair, or `several` refuses it.
    """
    texts = several(texts)
    texts = list(texts) if isinstance(texts, Iterable) else [texts]
    pairs: list[Any] = [(text, None) if isinstance(text, str) else text for text in texts]
    for index, pair in enumerate(pairs):
        whole = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        if not (whole and isinstance(pair[1], str | None)):
            raise UserError(
                f'texts[{index}] must be a text, or a tuple of two, not {str(texts[index])[:80]!r}'
            )
    return pairs


def make_input_rows(
    texts: str | Iterable[str | tuple[str, str]],
    tokenizer: Any,
    max_length: int,
    multiple: int | None = 1,
) -> dict[str, np.ndarray]:
    """Return INPUT_KEYS [N, T] int32 of texts and pairs, as `make_text_rows` lays them out.

    Args:
      texts: texts, and tuples of two.
      tokenizer: the model's.
      max_length: tokens of a row at most; what is beyond is cut.
      multiple: T is the longest row's length, rounded up to it; with None T is max_length.

    Raises:
      UserError: something is neither a text nor a pair, or `multiple` is no such number.
    """
    check_count('multiple', multiple)
    pairs = make_pairs(texts)
    rows = make_text_rows([a for a, _ in pairs], [b for _, b in pairs], tokenizer, max_length)

    # Once only: whoever trains on batches of their own would have a line for each.
    def log_once(text: str, *values: Any) -> None:
        logging.log_first_n(logging.WARNING, f'{text} (said once)', 1, *values)

    say_cut('tokenize', count_cut(rows), f'max_length={max_length} allows', log_once)
    rows = {name: rows[name] for name in INPUT_KEYS}
    return rows if multiple is None else trim(rows, multiple)


def truncate_lengths(a: int, b: int, budget: int) -> tuple[int, int]:
    """Return how much of two texts is kept when the longer always gives its last token.

    Where they tie it is the second: the loop of run_classifier.py:557-572, in closed form.
    """
    if a + b <= budget:
        return a, b

    # Who is shorter than its half keeps all; else both end at half, and b has the odd token less,
    # because it gives where they tie.
    half = budget // 2
    if a <= half:
        return a, budget - a
    if b <= budget - half - 1:
        return budget - b, b
    return budget - half, half


def count_cut(rows: Arrays) -> np.ndarray:
    """Count texts and their word pieces, int64 [4]: how many there are, and how many are cut.

    In the order texts, texts that are cut, pieces, pieces left out; to be added up over batches.
    """
    # Rows of a task know whose they are; where they do not, each is one. Tagging cuts nothing.
    if 'left_out' not in rows:
        return np.zeros(4, np.int64)
    left = rows['left_out'].astype(np.int64)
    texts = len(left)
    if 'example_index' in rows:
        texts = len(np.unique(rows['example_index']))
    return np.array([texts, (left > 0).sum(), rows['pieces'].sum(), left.sum()], np.int64)


def say_cut(
    name: str, counts: np.ndarray, limit: str, log: Callable[..., None] = logging.warning
) -> None:
    """Log a line where any text was cut; `counts` as of `count_cut`, `limit` is what cut it."""
    texts, cut_texts, pieces, left_out = counts.tolist()
    if cut_texts:
        log(
            '%s: %d of %d texts are longer than %s and cut: %.2f%% of all word pieces are lost',
            *(name, cut_texts, texts, limit, 100 * left_out / pieces),
        )


def name_limit(options: Mapping[str, Any], max_seq_length: int) -> str:
    """Name what cuts the texts of a task with these options: that of questions, or the row."""
    questions = options.get('max_query_length')
    if questions:
        return f'max_query_length={questions}'
    return f'max_seq_length={max_seq_length} allows'


# Of what `Task.features` makes of the same input, and of its file; to be raised with every change.
_VERSION = 4


def load_features(
    task: Task, examples: Sequence[Example], tokenizer: Any, max_seq_length: int, folder: str
) -> Arrays:
    """Return `task.features`, read from `folder` if they were made before; '' for no folder.

    Only tasks that say `slow_features` are kept. A damaged file is made again, with a warning.
    """
    # Making them is cheap for most tasks, and object stores are too slow to be worth it.
    if not folder or not task.slow_features or '://' in folder:
        return task.features(examples, tokenizer, max_seq_length)

    # All that decides the arrays is in the name, so nothing kept is ever out of date.
    name = hashlib.sha256(
        repr((_VERSION, task, max_seq_length, tokenizer.fingerprint, list(examples))).encode()
    ).hexdigest()[:24]
    path = os.path.join(folder, f'{name}.npz')

    # Kept from before.
    if os.path.exists(path):
        try:
            with open(path, 'rb') as kept, np.load(kept, allow_pickle=False) as stored:
                return dict(stored)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            logging.warning('%s is damaged (%s): the features are made again', path, error)

    # Made now, and kept for next time; not being able to is no reason to stop a run.
    features = task.features(examples, tokenizer, max_seq_length)
    try:
        os.makedirs(folder, exist_ok=True)
        with atomic_file(Path(path), durable=False) as file:
            # Most of a row is padding, so that compressed the arrays are a fraction of their size.
            np.savez_compressed(file, allow_pickle=False, **features)
    except OSError as error:
        # a full disk, or a folder that cannot be written to: next time they are made again
        logging.warning('%s: the features are not kept (%s)', path, error.strerror or error)
    return features
