"""Near-duplicates: text that says again, with small changes, what another document said before.

Owns the one rule by which documents and sentences are dropped: word 4-grams seen before.
It is settled over the whole corpus before anything is held out, so that no near-duplicate of
a training sentence can be in the held-out part. Which document comes first, and is
therefore kept, is the caller's order.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
import zlib
from collections.abc import Sequence

SHINGLE_WORDS = 4

# Scripts that do not divide their words (Unicode's line breaking classes ID and SA): a character
# is a part of a word there. Hangul has spaces. Written as escapes, for some of these characters
# look like others (U+F900 and U+8C48 do).
_IDEOGRAPHS_AND_KANA = (  # two to a word
    '\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035'  # radicals, repetition, numerals
    '\u3041-\u309f\u30a1-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff'  # kana, bopomofo
    '\uff66-\uff9f\U0001aff0-\U0001b16f'  # kana of half width, supplements
    '\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff'  # Han, its extensions
    '\ua000-\ua48c'  # Yi
)
_SOUTH_EAST_ASIAN = (  # four to a word
    '\u0e01-\u0e3a\u0e40-\u0e4e\u0e50-\u0e59\u0e81-\u0edf'  # Thai, Lao
    '\u1000-\u1049\u1050-\u109f\ua9e0-\ua9fe\uaa60-\uaa7f'  # Myanmar
    '\u1780-\u17d3\u17dc-\u17e9'  # Khmer
    '\u1950-\u19da\u1a20-\u1a99\uaa80-\uaadd\U00011700-\U00011739'  # Tai Le to Ahom
)
_UNDIVIDED = _IDEOGRAPHS_AND_KANA + _SOUTH_EAST_ASIAN


def _marks() -> str:
    """Ranges of the accents and vowel signs that stand inside of words, as a class has them."""
    codes = [0x200C, 0x200D]  # the joiners of Persian and of India
    codes += (c for c in range(0x300, 0x1E950) if unicodedata.category(chr(c)) in ('Mn', 'Mc'))
    runs = itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0])
    ends = ([code for _, code in run] for _, run in runs)
    return ''.join(f'{chr(run[0])}-{chr(run[-1])}' for run in ends)


_WORDS = re.compile(
    f'([{_IDEOGRAPHS_AND_KANA}])|([{_SOUTH_EAST_ASIAN}])'
    rf'|[^\W_{_UNDIVIDED}]+(?:[{_marks()}]+[^\W_{_UNDIVIDED}]*)*'
)
_QUARTERS = {1: 2, 2: 1, None: 4}  # of a word, by the group of _WORDS


@dataclasses.dataclass
class Removed:
    """What a pass dropped: whole documents, and sentences of the documents kept."""

    documents: int = 0
    sentences: int = 0
    too_short: int = 0


def shingles(sentence: str) -> set[int]:
    """Hashes of the sentence's word 4-grams, lower-cased; a shorter sentence is one shingle.

    Of scripts that do not divide their words, as much text as has about four: 8 ideographs
    or kana, 16 letters. (Four of them are seen before nearly everywhere: they would make
    near-duplicates of 24 % of Korean without its spaces, and of 99 % of English.)
    """
    # ends[i]: quarters of a word before word i, so that any script is measured alike.
    matches = list(_WORDS.finditer(sentence.lower()))
    words = [match[0] for match in matches]
    ends = [0, *itertools.accumulate(_QUARTERS[match.lastindex] for match in matches)]

    # A window that slides over the words, always four words long in that measure.
    hashed, stop = set(), 0
    for start in range(max(1, len(words))):
        while stop < len(words) and ends[stop] - ends[start] < 4 * SHINGLE_WORDS:
            stop += 1

        # The last window may be short only where it is the first, too.
        if start and ends[stop] - ends[start] < 4 * SHINGLE_WORDS:
            break
        hashed.add(zlib.crc32(' '.join(words[start:stop]).encode()))
    return hashed


class NearDuplicates:
    """Remembers the shingles of all text kept so far; `unseen` says what of a document is new."""

    def __init__(self, threshold: float = 0.5, min_sentences: int = 2):
        self.threshold = threshold
        self.min_sentences = min_sentences
        self.removed = Removed()
        self._seen: set[int] = set()

    def unseen(self, sentences: Sequence[str]) -> list[str]:
        """The document's sentences that are not near-duplicates; [] where the document is one.

        A sentence is a near-duplicate when `threshold` or more of its shingles were seen, in
        earlier documents or earlier in this one; a document, when as large a share of all
        its shingles was seen in earlier documents, or fewer than `min_sentences` are left.
        """
        # First the document as a whole, against the documents before it.
        hashed = [shingles(sentence) for sentence in sentences]
        total = set().union(*hashed)
        if not total or len(total & self._seen) >= self.threshold * len(total):
            self.removed.documents += 1
            return []

        # Then sentence by sentence, also against the sentences of the document itself.
        kept, new = [], set()
        for sentence, marks in zip(sentences, hashed):
            seen = sum(mark in self._seen or mark in new for mark in marks)
            if seen < self.threshold * len(marks):
                kept.append(sentence)
                new |= marks
        if len(kept) < self.min_sentences:
            self.removed.too_short += 1
            return []

        # Only now is it remembered: what is dropped must not make others drop.
        self.removed.sentences += len(sentences) - len(kept)
        self._seen |= new
        return kept
