"""Fills in the masks of a text with the words that a pre-trained model finds likely.

  bert-fill-mask --workdir=runs/mini "The capital of France is [MASK]."
  bert-fill-mask --init_from=google-bert/bert-base-uncased --top=10 --json < texts.txt

Without a text it answers line after line of stdin, on a terminal after a prompt. `[MASK]` is
understood whatever the model's own mask token is. Whole files are faster by bert-predict.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.cli import app
from bert_jax.cli.model_options import TrainedModel
from bert_jax.configs.options import option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which model answers, and in which form."""

    model: TrainedModel
    top: int = option(5, 'how many words for each mask', bounds=(1, None))
    json: bool = option(
        False, 'a JSON object a line: {"text", "masks": for each [{"token", "probability"}]}'
    )


def main(options: Options, words: Sequence[str]) -> None:
    """Answer the texts of the command line, or those of stdin."""
    from bert_jax.cli.questions import answer_each
    from bert_jax.inference.mask_filler import MaskFiller
    from bert_jax.runs.sources.source import read_source

    filler = MaskFiller(read_source(options.model.where), options.top)

    def answer(text: str) -> str:
        filled = filler(text)
        return json.dumps(filled, ensure_ascii=False) if options.json else in_words(filled)

    answer_each(words, answer)


def in_words(filled: dict[str, Any]) -> str:
    """Write an answer as lines: the text, then for each mask its words and probabilities."""
    lines, several = [filled['text']], len(filled['masks']) > 1
    for number, words in enumerate(filled['masks'], 1):
        lines += [f'  mask {number}'] if several else []
        lines += [f'  {word["probability"]:8.4f}  {word["token"]}' for word in words]
    return '\n'.join(lines)


if __name__ == '__main__':
    app.run(main, Options, '["a text with [MASK]" ...]', texts=True)
