"""The words that a model finds likely in place of the masks of a text.

Owns what of a text is refused before it is asked, and that `[MASK]` is understood by models whose
own mask token is another; the answer itself is the predictor's (predictor.py). Must not know where
texts come from or how answers are printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.inference.pipelines import WithMasks
from bert_jax.inference.predictor import Predictor
from bert_jax.runs.sources.source import Source

MASK = '[MASK]'


def check_head(source: Source) -> None:
    """Raise UserError where the model cannot say which words are likely."""
    if 'mlm' not in source.bert.parts:
        raise UserError(
            f'{source.where}: a {source.bert.architecture} has no head for masked words: name the'
            ' run of bert-pretrain that it came from, or another model with that head'
        )


class MaskFiller:
    """Fills in masks by the masked-word head of one model, which stays in memory."""

    def __init__(self, source: Source, top: int, compute_dtype: str = 'auto'):
        """Load the head; `top`: how many words for each mask. UserError where there is none."""
        check_head(source)
        self._tokenizer, self._longest = source.tokenizer, source.model.max_position
        self._mask = source.tokenizer.special_tokens[4]

        # That head alone: next to it others would be computed for nothing.
        source = source._replace(bert=source.bert.under('masked_words'))
        self._predictor = Predictor(source, self._longest, {}, top, compute_dtype)

    def __call__(self, text: str) -> dict[str, Any]:
        """Answer one text, as `answers` does."""
        return next(self.answers([text]))

    def answers(self, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield {'text', 'masks'} for each text; many of them go through the device together.

        masks: for each in turn its best words, [{'token', 'probability'}, ...].

        Raises:
          UserError: a text has no mask, or more than are answered, or more pieces than positions.
        """
        texts = list(texts)
        asked = [self._as_asked(text) for text in texts]
        for text, answer in zip(texts, self._predictor.stream(asked, errors=True), strict=True):
            if 'error' in answer:
                raise UserError(f'{_shown(text)}: {answer["error"]}')
            yield {'text': text, **answer}

    def _as_asked(self, text: str) -> str:
        """Return the text with the model's own mask token. UserError where it cannot be asked."""
        if not isinstance(text, str):
            raise UserError(f'{_shown(text)}: must be a text')
        asked = text.replace(MASK, self._mask)
        if self._mask not in asked:
            raise UserError(f'{_shown(text)}: no {MASK} in it: write one in place of each word')
        length = len(WithMasks(self._tokenizer).encode_batch([asked])[0])
        if length + 2 > self._longest:
            raise UserError(
                f'{_shown(text)}: {length} word pieces, and this model reads {self._longest - 2}:'
                ' shorten it'
            )
        return asked


def _shown(text: Any) -> str:
    """Return what a message shows of a text."""
    text = str(text)
    return repr(text if len(text) <= 60 else f'{text[:57]}...')
