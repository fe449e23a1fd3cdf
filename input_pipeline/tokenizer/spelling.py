"""Vectors of vocabulary entries from their spelling alone, as EELBERT has them.

Cohn et al. 2023 (arXiv 2310.20144); what that leaves open, such as the seeds, is laid down here.
Owns the hash, its seeds and how a width is divided, all in exact integer arithmetic, so that a
vector is the same to the bit with every numpy, on every machine. Must not know what the vectors are
for. It imports numpy alone: an exported folder has a copy of this file beside its weights.

An entry is the text that stands in the vocabulary: `##` and the brackets of `[CLS]` are characters
like any other. Characters are Unicode code points. With M = 1,000,000,007 and n the longest gram:

  hash of a gram c_1 ... c_k      c_1 31^(k-1) + c_2 31^(k-2) + ... + c_k  mod M
  seed of column j, from 0        1 + (s mod (M - 1)), where s is the first 8 bytes, read as a
                                  big-endian number, of SHA-256 of the ASCII text 'hashed column j'
  columns of the k-grams          floor(width T(k-1) / T(n)) up to floor(width T(k) / T(n)),
                                  where T(k) = 1 + 2 + ... + k: in proportion to k
  a gram's number in a column     its hash times the column's seed, mod M; less M where that is
                                  more than M / 2
  an entry's number in a column   the mean over its k-grams, divided by M / 2: it is in [-1, 1];
                                  0 where the entry has fewer than k characters
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

PRIME, MODULUS = 31, 1_000_000_007
_ENTRIES = 256  # hashed together, so that their products stay in the cache


def vectors(entries: Sequence[str], width: int, ngrams: int = 3) -> np.ndarray:
    """float32 [V, width]: the vector of each entry, in [-1, 1], by the rule of this file's head.

    ngrams: the longest gram n, of which the width must have a column for every k up to n.
    """
    rows = np.zeros((len(entries), width), np.float32)
    seeds = column_seeds(width)
    for first in range(0, len(entries), _ENTRIES):
        part = entries[first : first + _ENTRIES]
        for k, columns in enumerate(partition(width, ngrams), 1):
            rows[first : first + len(part), columns] = _mean_grams(part, k, seeds[columns])
    return rows


def partition(width: int, ngrams: int) -> list[slice]:
    """Return the columns that 1-grams, 2-grams and so on have of a width, in this order."""
    total = ngrams * (ngrams + 1) // 2
    ends = [width * (k * (k + 1) // 2) // total for k in range(ngrams + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def column_seeds(width: int) -> np.ndarray:
    """int64 [width], each in [1, M - 1]; the first ones are the same for every width."""
    digests = (hashlib.sha256(b'hashed column %d' % j).digest() for j in range(width))
    seeds = [1 + int.from_bytes(digest[:8], 'big') % (MODULUS - 1) for digest in digests]
    return np.array(seeds, np.int64)


def _mean_grams(entries: Sequence[str], k: int, seeds: np.ndarray) -> np.ndarray:
    """float64 [entries, columns]: the columns of the k-grams, whose seeds are given."""
    # All characters in a row, and where in it an entry's k-grams begin.
    points = np.frombuffer(''.join(entries).encode('utf-32-le'), '<u4').astype(np.int64)
    lengths = np.array([len(entry) for entry in entries], np.int64)
    counts = np.maximum(lengths - k + 1, 0)
    owner = np.repeat(np.arange(len(entries)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = (np.cumsum(lengths) - lengths)[owner] + within

    # Horner's rule; each step stays below 2^36, and each product below 2^60: no number wraps.
    hashes = np.zeros(len(starts), np.int64)
    for offset in range(k):
        hashes = (hashes * PRIME + points[starts + offset]) % MODULUS
    different, inverse = np.unique(hashes, return_inverse=True)
    numbers = different[:, None] * seeds % MODULUS
    numbers -= MODULUS * (numbers > MODULUS // 2)

    # Sums of integers are exact in any order, so that one division alone rounds.
    sums = np.zeros((len(entries), len(seeds)), np.int64)
    long_enough = np.flatnonzero(counts)
    if long_enough.size:
        begins = (np.cumsum(counts) - counts)[long_enough]
        sums[long_enough] = np.add.reduceat(numbers[inverse], begins)
    return 2 * sums / np.maximum(counts * MODULUS, 1)[:, None]


def alike(entries: Sequence[str], table: np.ndarray) -> list[list[str]]:
    """Return groups of entries whose rows of `table` are equal, in the vocabulary's order.

    A model cannot tell them apart: 'aaa' and 'aaaa' have the same grams in the same shares.
    """
    groups: dict[bytes, list[str]] = defaultdict(list)
    for entry, row in zip(entries, table, strict=True):
        groups[row.tobytes()].append(entry)
    return [group for group in groups.values() if len(group) > 1]
