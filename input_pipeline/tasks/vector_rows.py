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
    if any(shape.masks_to or shape.skipped for shape in shapes.values()):
        rows['scored_mask'] = np.zeros_like(rows['input_mask'])
    for name, shape in shapes.items():
        numbers = [number for number, prompt in enumerate(prompts) if prompt == name]
        marker, begin = _part_marker(shape, entries)
        encoded = tokenizer.encode_batch([begin + texts[number] for number in numbers])
        for number, ids in zip(numbers, encoded, strict=True):
            whole = np.concatenate([marker, ids])
            kept = whole[: shape.length - 2]
            write_row(rows, number, tokenizer, kept)
            rows['pieces'][number] = len(whole)
            rows['left_out'][number] = len(whole) - len(kept)
        if 'scored_mask' in rows:
            skipped = [entries[entry] for entry in shape.skipped if entry in entries]
            _mark_scored(rows, numbers, shape, skipped, tokenizer.mask_id)
    return rows


def _part_marker(shape: TextRow, entries: Mapping[str, int]) -> tuple[np.ndarray, str]:
    """Return the entry that a prompt begins with, int32 [0] or [1], and what is behind it.

    The whole prompt may be one, as PyLate's '[Q] ', or its first word, as ColBERT's '[unused0] '.
    """
    prompt = shape.prompt
    for entry in (prompt, *prompt.split(maxsplit=1)[:1]):
        if shape.has_marker and entry in entries and prompt.startswith(entry):
            return np.array([entries[entry]], np.int32), prompt.removeprefix(entry)
    return np.empty(0, np.int32), prompt


def _mark_scored(
    rows: Arrays, numbers: list[int], shape: TextRow, skipped: list[int], mask_id: int
) -> None:
    """Put masks behind the texts of some rows, and score these and tokens that are not skipped.

    As sentence_transformers/base/modules/transformer.py:1432 and
    multi_vector_encoder/modules/multi_vector_mask.py:123.
    """
    ids_NT, mask_NT = rows['input_ids'][numbers], rows['input_mask'][numbers]
    is_behind_NT = mask_NT == 0
    is_behind_NT[:, shape.masks_to :] = False
    rows['scored_mask'][numbers] = mask_NT * ~np.isin(ids_NT, skipped) + is_behind_NT
    rows['input_ids'][numbers] = np.where(is_behind_NT, mask_id, ids_NT)
    if shape.attend:
        rows['input_mask'][numbers] = mask_NT + is_behind_NT
