"""Whether a text's nearest neighbour in another language is its translation, layer by layer.

Pires et al. 2019, section 4.3: a text is the mean of its pieces' states in a layer, [CLS] and [SEP]
left out; to the texts of one language is added what parts the two languages on average, and the
nearest of the other (by Euclidean distance) is looked for. Owns that measure, its table and its
picture; the states are bert_jax/inference's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath

from bert_jax.configs.files.atomic import atomic_write
from bert_jax.inference.extractor import Extractor
from bert_jax.input_pipeline.tasks.features import say_cut
from bert_jax.runs.workdir import plots


class Found(NamedTuple):
    """How often the nearest text of `into` is the translation of one of `of`, in each layer.

    shifted: with what parts the languages added; plain: as the texts lie. Shares of all texts, from
    the embeddings' layer to the last.
    """

    of: str
    into: str
    shifted: list[float]
    plain: list[float]


def vectors(extractor: Extractor, texts: Sequence[str], where: str) -> np.ndarray:
    """float32 [K, N, H], the mean over the pieces of each of N texts in each of K layers.

    `extractor` gives all pieces of these layers.
    """
    records = ((number, {'text': text}) for number, text in enumerate(texts, start=1))
    means, cut = [], np.zeros(4, np.int64)
    for part in extractor(records, where):
        cut += part.cut
        for row, states_TKH in zip(part.rows, part.features, strict=True):
            own = states_TKH[row.word_index >= 0]
            # A text without a piece, as a lone control character is, has [CLS] and [SEP] alone.
            means.append((own if len(own) else states_TKH).astype(np.float32).mean(axis=0))
    say_cut(where, cut, f'max_seq_length={extractor.max_seq_length} allows')
    return np.stack(means, axis=1)


def found_share(texts_NH: np.ndarray, others_NH: np.ndarray) -> float:
    """The share of texts whose nearest among the others has their own number.

    Where several are as near, one's own counts as found by the chance that a draw among them has.
    """
    # |a - b|^2 without |a|^2, which is one text's own and changes no order.
    scores = texts_NH @ others_NH.T - (others_NH**2).sum(axis=1) / 2
    own = np.diagonal(scores)[:, None]
    nearer, as_near = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    return float(np.mean((nearer == 0) / as_near))


def retrieve(vectors_of: Mapping[str, np.ndarray]) -> list[Found]:
    """Both measures of each pair of languages, in both directions; `vectors_of`: see `vectors`."""
    found = []
    for of, into in itertools.permutations(vectors_of, 2):
        shifted, plain = [], []
        for one_NH, other_NH in zip(vectors_of[of], vectors_of[into], strict=True):
            one, other = one_NH.astype(np.float64), other_NH.astype(np.float64)
            between = (other - one).mean(axis=0)
            shifted.append(found_share(one + between, other))
            plain.append(found_share(one, other))
        found.append(Found(of, into, shifted, plain))
    return found


def write(folder: str, texts: int, found: Sequence[Found]) -> str:
    """Writes translations.json, .md and .png; returns what the table says."""
    where, said = epath.Path(folder), table(texts, found)
    report = {'texts': texts, 'found': [one._asdict() for one in found]}
    where.mkdir(parents=True, exist_ok=True)
    plots.save(where / 'translations.png', picture(texts, found))
    atomic_write(where / 'translations.md', said + '\n')
    atomic_write(where / 'translations.json', json.dumps(report, indent=2) + '\n')
    return said


def table(texts: int, found: Sequence[Found]) -> str:
    """A line for each layer, a column for each pair, as markdown."""
    names = [f'{one.of} -> {one.into}' for one in found]
    said = [
        f'translations found among {texts:,} texts, with the mean difference of the languages added'
        ' (without it)',
        '',
        f'| layer | {" | ".join(names)} |',
        f'|---|{"---:|" * len(names)}',
    ]
    for layer in range(len(found[0].plain)):
        cells = (f'{one.shifted[layer]:.1%} ({one.plain[layer]:.1%})' for one in found)
        said.append(f'| {layer or "embeddings"} | {" | ".join(cells)} |')
    said.append(f'| guessing |{f" {1 / texts:.1%} |" * len(names)}')
    return '\n'.join(said)


def picture(texts: int, found: Sequence[Found]) -> plots.Chart:
    """What is found over the layers."""
    percent = lambda shares: [(layer, 100 * share) for layer, share in enumerate(shares)]
    curves = [
        plots.Curve(f'{one.of} to {one.into}', percent(one.shifted), 'main', colour)
        for colour, one in enumerate(found)
    ]
    last = len(found[0].shifted) - 1
    guess = [(0, 100 / texts), (last, 100 / texts)]
    curves.append(plots.Curve('guessing', guess, 'guessing', None))
    return plots.Chart('Translations found', '% of texts', curves, 'layer')
