"""Whether a text's nearest neighbour in another language is its translation, layer by layer.

Pires et al. 2019, section 4.3: a text is the mean of its pieces' states in a layer, [CLS] and [SEP]
left out; to the texts of one language is added what parts the two languages on average, and the
nearest of the other (by Euclidean distance) is looked for. Owns that measure, its table and its
picture; the states are bert_jax/inference's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from etils import epath

from bert_jax.inference.feature_extraction import Extractor, FeatureOptions
from bert_jax.input_pipeline.tasks.features import say_cut
from bert_jax.runs.sources.source import load_source
from bert_jax.runs.workdir import plots


class Found(NamedTuple):
    """How often the nearest text of a language is the translation, in each layer.

    Shares of all texts, from the embeddings' layer to the last.

    Attributes:
      of, into: the language of the texts, and that of their translations.
      shifted: with what parts the languages added.
      plain: as the texts lie.
    """

    of: str
    into: str
    shifted: list[float]
    plain: list[float]


def find_translations(
    init_from: str, texts: Mapping[str, Sequence[str]], output: str, max_seq_length: int | None
) -> str:
    """Measure how often an encoder finds translations; write the results and return the table.

    Args:
      init_from: the model.
      texts: by language; text N of one is the translation of text N of the others.
      output: the folder for translations.json, .md and .png.
      max_seq_length: word pieces of the longest row; None: as many as the model has.
    """
    source = load_source(init_from)
    layers = range(source.model.num_layers + 1)
    extractor = Extractor(source, FeatureOptions(layers, 'none', max_seq_length))
    states = {}
    for language, of_language in texts.items():
        states[language] = embed_texts(extractor, of_language, language)
        logging.info(f'{language}: {len(of_language)} texts read')
    return write_report(output, len(of_language), retrieve(states))


def embed_texts(extractor: Extractor, texts: Sequence[str], language: str) -> np.ndarray:
    """Return float32 [K, N, H], the mean over the pieces of each of N texts in each of K layers.

    `extractor` gives all pieces of these layers; messages name the language.
    """
    records = ((number, {'text': text}) for number, text in enumerate(texts, start=1))
    means, cut = [], np.zeros(4, np.int64)
    for part in extractor(records, language):
        cut += part.cut
        for row, states_TKH in zip(part.rows, part.features):
            words_TKH = states_TKH[row.word_index >= 0]
            # A text without a piece, as a lone control character is, has [CLS] and [SEP] alone.
            if not len(words_TKH):
                words_TKH = states_TKH
            means.append(words_TKH.astype(np.float32).mean(axis=0))
    say_cut(language, cut, f'max_seq_length={extractor.max_seq_length} allows')
    return np.stack(means, axis=1)


def compute_found_share(texts_NH: np.ndarray, others_NH: np.ndarray) -> float:
    """Return the share of texts whose nearest among the others has their own number.

    Where several are as near, the right one counts by the chance that a draw among them has.
    """
    # |a - b|^2 without |a|^2, which is one text's own and changes no order.
    scores = texts_NH @ others_NH.T - (others_NH**2).sum(axis=1) / 2
    right = np.diagonal(scores)[:, None]
    nearer, as_near = (scores > right).sum(axis=1), (scores == right).sum(axis=1)
    return float(np.mean((nearer == 0) / as_near))


def retrieve(vectors_of: Mapping[str, np.ndarray]) -> list[Found]:
    """Measure each pair of languages in both directions; `vectors_of`: see `embed_texts`."""
    pairs = []
    for of, into in itertools.permutations(vectors_of, 2):
        shifted, plain = [], []
        for texts_NH, others_NH in zip(vectors_of[of], vectors_of[into]):
            texts, others = texts_NH.astype(np.float64), others_NH.astype(np.float64)
            between = (others - texts).mean(axis=0)
            shifted.append(compute_found_share(texts + between, others))
            plain.append(compute_found_share(texts, others))
        pairs.append(Found(of, into, shifted, plain))
    return pairs


def write_report(folder: str, texts: int, pairs: Sequence[Found]) -> str:
    """Write translations.json, .md and .png; return what the table says."""
    report = {'texts': texts, 'found': [pair._asdict() for pair in pairs]}
    target = epath.Path(folder) / 'translations'
    return plots.save_report(target, report, format_table(texts, pairs), draw(texts, pairs))


def format_table(texts: int, pairs: Sequence[Found]) -> str:
    """Write a line for each layer, a column for each pair, as markdown."""
    names = [f'{pair.of} -> {pair.into}' for pair in pairs]
    lines = [
        f'translations found among {texts:,} texts, with the mean difference of the languages added'
        ' (without it)',
        '',
        f'| layer | {" | ".join(names)} |',
        f'|---|{"---:|" * len(names)}',
    ]
    for layer in range(len(pairs[0].plain)):
        cells = (f'{pair.shifted[layer]:.1%} ({pair.plain[layer]:.1%})' for pair in pairs)
        lines.append(f'| {layer or "embeddings"} | {" | ".join(cells)} |')
    lines.append(f'| guessing |{f" {1 / texts:.1%} |" * len(names)}')
    return '\n'.join(lines)


def draw(texts: int, pairs: Sequence[Found]) -> plots.Chart:
    """Draw what is found over the layers."""
    curves = []
    for colour, pair in enumerate(pairs):
        points = [(layer, 100 * share) for layer, share in enumerate(pair.shifted)]
        curves.append(plots.Curve(f'{pair.of} to {pair.into}', points, 'main', colour))
    guess = [(layer, 100 / texts) for layer in (0, len(pairs[0].shifted) - 1)]
    curves.append(plots.Curve('guessing', guess, 'guessing', None))
    return plots.Chart('Translations found', '% of texts', curves, 'layer')
