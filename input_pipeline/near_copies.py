"""Near-copies: text that says again, with small changes, what another document said before.

Owns the one rule by which documents and sentences are dropped: word 4-grams seen before.
It is settled over the whole corpus before anything is held out, so that no near-copy of
a training sentence can be in the held-out part. Which document comes first, and is
therefore kept, is the caller's order.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Sequence

SHINGLE_WORDS = 4
# Scripts written without spaces count a character as a word.
_WORDS = re.compile(r'[぀-ヿ㐀-鿿豈-﫿฀-๿]|[^\W_]+')


@dataclasses.dataclass
class Removed:
    """What a pass dropped: whole documents, and sentences of the documents kept."""

    documents: int = 0
    sentences: int = 0
    too_short: int = 0


def shingles(sentence: str) -> set[int]:
    """Hashes of the sentence's word 4-grams, lower-cased; a shorter sentence is one shingle."""
    words = _WORDS.findall(sentence.lower())
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    return {zlib.crc32(' '.join(words[i : i + SHINGLE_WORDS]).encode()) for i in range(last)}


class NearCopies:
    """Remembers the shingles of all text kept so far; `unseen` says what of a document is new."""

    def __init__(self, threshold: float = 0.5, min_sentences: int = 2):
        self.threshold = threshold
        self.min_sentences = min_sentences
        self.removed = Removed()
        self._seen: set[int] = set()

    def unseen(self, sentences: Sequence[str]) -> list[str]:
        """The document's sentences that are not near-copies; [] where the document is one.

        A sentence is a near-copy when `threshold` or more of its shingles were seen, in
        earlier documents or earlier in this one; a document, when as large a share of all
        its shingles was seen in earlier documents, or fewer than `min_sentences` are left.
        """
        hashed = [shingles(sentence) for sentence in sentences]
        total = set().union(*hashed)
        if not total or len(total & self._seen) >= self.threshold * len(total):
            self.removed.documents += 1
            return []
        kept, new = [], set()
        for sentence, marks in zip(sentences, hashed):
            if sum(mark in self._seen or mark in new for mark in marks) < self.threshold * len(marks):
                kept.append(sentence)
                new |= marks
        if len(kept) < self.min_sentences:
            self.removed.too_short += 1
            return []
        self.removed.sentences += len(sentences) - len(kept)
        self._seen |= new
        return kept
