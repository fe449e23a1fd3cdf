"""Fills in the masks of a text with the words that a pre-trained model finds likely.

  bert-fill-mask --workdir=runs/mini "The capital of France is [MASK]."
  bert-fill-mask --init_from=google-bert/bert-base-uncased --top=10 --json < texts.txt

Without a text it answers line after line of stdin, on a terminal after a prompt. `[MASK]` is
understood whatever the model's own mask token is. Whole files are faster by bert-predict.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainedModel
from bert_jax.configs.options import option


@dataclass(frozen=True, kw_only=True)
class FillMask(TrainedModel):
    """Fill in the masks of texts with the words that a pre-trained model finds likely.

    Attributes:
      texts: the texts; without any, the lines of stdin.
      top: how many words for each mask.
      json: a JSON object a line: {"text", "masks": for each [{"token", "probability"}]}.
    """

    texts: tuple[str, ...] = option((), words='["a text with [MASK]" ...]', texts=True)
    top: int = option(5, bounds=(1, None))
    json: bool = False

    def __call__(self) -> None:
        """Print the answers."""
        from bert_jax.cli.questions import answer_each
        from bert_jax.inference.bert import MaskFiller
        from bert_jax.runs.sources.source import read_source

        filler = MaskFiller(read_source(self.where), self.top)

        def answer(text: str) -> str:
            filled = filler(text)
            if self.json:
                return json.dumps(filled, ensure_ascii=False)
            return write_answer(filled)

        answer_each(self.texts, answer)


def write_answer(filled: dict[str, Any]) -> str:
    """Write an answer as lines: the text, then for each mask its words and probabilities."""
    lines, several = [filled['text']], len(filled['masks']) > 1
    for number, words in enumerate(filled['masks'], 1):
        if several:
            lines.append(f'  mask {number}')
        for word in words:
            # A line end is an answer too, of models that read whole texts.
            token = word['token'].replace('\n', '\\n').replace('\r', '\\r')
            lines.append(f'  {word["probability"]:8.4f}  {token}')
    return '\n'.join(lines)


if __name__ == '__main__':
    app.run(FillMask)
