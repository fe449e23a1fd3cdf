"""Rows of texts whose vectors are compared: the same in training, in scores and in search.

Owns how a prompt, a text and the masks behind it become a row, and which of its tokens are scored;
what of this a model has is configs/model/sentence.py's `TextRow`. Must not know any task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.configs.model.sentence import TextRow, VectorsConfig
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.input_pipeline.tasks.features import make_empty_rows, write_row


def make_vector_rows(
    texts: Sequence[str],
    prompts: Sequence[str | None],
    tokenizer: Any,
    max_seq_length: int,
    config: VectorsConfig,
) -> Arrays:
    """Return ROW_KEYS [N, T] int32 of N texts: [CLS] prompt text [SEP], cut at the text's end.

    Besides `pieces` and `left_out` [N] (`count_cut`). 'scored_mask' is there where it may be
    another than 'input_mask'.

    Args:
      texts: the texts.
      prompts: of each the name of its prompt, 'query' or 'document', or None.
      tokenizer: the model's.
      max_seq_length: tokens of the longest row.
      config: what the model says of its rows.
    """
    shapes = {name: config.row(name, max_seq_length) for name in dict.fromkeys(prompts)}
    # Of a large vocabulary the table takes longer than a query: where nothing is looked up, none.
    entries: dict[str, int] = {}
    if any(shape.skipped or (shape.has_marker and shape.prompt) for shape in shapes.values()):
        entries = {entry: number for number, entry in enumerate(tokenizer.entries)}
    longest = max((shape.length for shape in shapes.values()), default=max_seq_length)
    rows = make_empty_rows(len(texts), longest, tokenizer.pad_id)
    rows |= {name: np.zeros(len(texts), np.int32) for name in ('pieces', 'left_out')}
    numbers_of: dict[str | None, list[int]] = {name: [] for name in shapes}
    for number, name in enumerate(prompts):
        numbers_of[name].append(number)
    for name, shape in shapes.items():
        numbers = numbers_of[name]
        marker, begin = _part_marker(shape, entries)
        encoded = tokenizer.encode_batch([begin + texts[number] for number in numbers])
        for number, ids in zip(numbers, encoded, strict=True):
            whole = np.concatenate([marker, ids])
            kept = whole[: shape.length - 2]
            write_row(rows, number, tokenizer, kept)
            rows['pieces'][number] = len(whole)
            rows['left_out'][number] = len(whole) - len(kept)
    for name, shape in shapes.items():
        if shape.masks_to or shape.skipped:
            _mark_scored(rows, numbers_of[name], shape, entries, tokenizer.mask_id)
    return rows


def _part_marker(shape: TextRow, entries: Mapping[str, int]) -> tuple[np.ndarray, str]:
    """Return the entry that a prompt begins with, int32 [0] or [1], and what is behind it.

    The whole prompt may be one, as PyLate's '[Q] ', or its first word, as Stanford's '[unused0] '.
    """
    prompt = shape.prompt
    for entry in (prompt, *prompt.split(maxsplit=1)[:1]):
        if shape.has_marker and entry in entries and prompt.startswith(entry):
            return np.array([entries[entry]], np.int32), prompt.removeprefix(entry)
    return np.empty(0, np.int32), prompt


def _mark_scored(
    rows: Arrays, numbers: list[int], shape: TextRow, entries: Mapping[str, int], mask_id: int
) -> None:
    """Put masks behind the texts of some rows, and take out tokens that are skipped.

    As sentence_transformers/base/modules/transformer.py:1432 and
    multi_vector_encoder/modules/multi_vector_mask.py:123.
    """
    mask_NT = rows['input_mask']
    scored_NT = rows.setdefault('scored_mask', mask_NT.copy())
    skipped = [entries[entry] for entry in shape.skipped if entry in entries]
    scored_NT[numbers] *= ~np.isin(rows['input_ids'][numbers], skipped)
    is_behind_NT = np.zeros(mask_NT.shape, bool)
    is_behind_NT[numbers, : shape.masks_to] = mask_NT[numbers, : shape.masks_to] == 0
    rows['input_ids'][is_behind_NT], scored_NT[is_behind_NT] = mask_id, 1
    if shape.attend:
        mask_NT[is_behind_NT] = 1
