"""A tokenizer.json as it is, with its own special tokens and rows, as ModernBERT's and mmBERT's.

Owns how such a file is run. The special tokens that rows are made of are not searched for in text,
as everywhere here; other added tokens are. Which directories are of that kind is fast_files.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_jax.input_pipeline.tokenizer.layout import rows_of
from bert_jax.input_pipeline.tokenizer.models.compiled import LibraryModel, library
from bert_jax.input_pipeline.tokenizer.normalizer import whole


class Fast(LibraryModel):
    """A tokenizer.json by its own rules, rows included."""

    kind = 'fast'
    refusal = 'this tokenizer.json is taken as it is'
    marked_kind = 'fast'

    def _read(self, vocabulary: bytes, name: str) -> None:
        rules = json.loads(vocabulary)
        spaced = [t['content'] for t in rules['added_tokens'] if t['lstrip']]
        layout = rows_of(rules, name)[2]
        self.layout = layout._replace(mask_takes_space=self.special_tokens[4] in spaced)
        self._obey(rules, name)

    def trace(self, text: str) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (id, start, end, whether a word begins there) of each piece of a text.

        The place has no space at its ends. A word begins behind a space, and where the library
        parts words.
        """
        text = whole(text)
        with library('a text', 'encode'):
            encoding = self._engine.encode(text, add_special_tokens=False)
        begun: set[int | None] = set()
        reached = 0
        for piece, word, (start, end) in zip(encoding.ids, encoding.word_ids, encoding.offsets):
            while start < end and text[start].isspace():
                start += 1
            while start < end and text[end - 1].isspace():
                end -= 1
            parted = word not in begun or start == 0 or text[start - 1].isspace()
            begins = end > start >= reached and parted  # a character may have several pieces
            if end > start:
                begun.add(word)
                reached = end
            yield piece, start, end, begins

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of pieces that follow each other."""
        return self._engine.decode(list(ids), skip_special_tokens=False)

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Return each entry as text, as the library decodes it."""
        return [self.decode([i]) for i in ids]

    def covered(self, characters: Iterable[str]) -> set[str]:
        """Return those of some characters that the entries can spell."""
        return {char for char in characters if self.unk_id not in self.ids(char)}

    def files(self) -> dict[str, bytes]:
        """Return {file: content}: the tokenizer.json, and a tokenizer_config.json of its tokens."""
        stated = json.loads(super().files()['tokenizer_config.json'])
        # Rows without segments have no token types: a model of theirs takes none.
        segments = ['token_type_ids'] * bool(self.layout.second_segment)
        kept = ('type', 'tokenizer_class', *(name for name in stated if name.endswith('_token')))
        config = {name: stated[name] for name in kept}
        config['model_input_names'] = ['input_ids', *segments, 'attention_mask']
        return {
            'tokenizer_config.json': (json.dumps(config, indent=2) + '\n').encode(),
            'tokenizer.json': self.vocabulary,
        }
