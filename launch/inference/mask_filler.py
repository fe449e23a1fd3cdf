"""The words that a model finds likely in place of the masks of a text.

Owns what of a text is refused before it is asked, and that `[MASK]` is understood by models whose
own mask token is another; the answer itself is the predictor's (predictor.py). Must not know where
texts come from or how answers are printed.
"""

from __future__ import annotations

from typing import Any

from configs.errors import UserError
from launch.inference.predictor import Predictor
from launch.workdir.source import Source

MASK = '[MASK]'


class MaskFiller:
    """Fills in masks by the masked-word head of one model, which stays in memory."""

    def __init__(self, source: Source, top: int):
        """`top`: how many words for each mask. UserError where the model has no such head."""
        if 'mlm' not in source.bert.parts:
            raise UserError(
                f'{source.where}: a {source.bert.architecture} has no head for masked words: name'
                ' the run of launch.pretrain that it came from, or another model with that head'
            )
        self._tokenizer, self._most = source.tokenizer, source.model.max_position
        self._mask = source.tokenizer.special_tokens[4]
        self._predictor = Predictor(source, self._most, {}, top)

    def __call__(self, text: str) -> dict[str, Any]:
        """{'text', 'masks': for each in turn its best words, [{'token', 'probability'}, ...]}.

        UserError for a text without a mask, with more of them than are answered, or longer than the
        model's positions.
        """
        asked = text.replace(MASK, self._mask)
        shown = repr(text if len(text) <= 60 else f'{text[:57]}...')
        parts = asked.split(self._mask)
        if len(parts) == 1:
            raise UserError(f'{shown}: no {MASK} in it: write one in place of each word')
        length = sum(map(len, self._tokenizer.encode_batch(parts))) + len(parts) - 1
        if length + 2 > self._most:
            raise UserError(
                f'{shown}: {length} word pieces, and this model reads {self._most - 2}: shorten it'
            )
        (answer,) = self._predictor.stream([asked], errors=True)
        if 'error' in answer:
            raise UserError(f'{shown}: {answer["error"]}')
        return {'text': text, **answer}
