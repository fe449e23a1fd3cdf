"""The offline job's records beside those of the reference's algorithm, on the same text.

The algorithm is restated in plain Python.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.records import fields, shards
from tests.helpers.shards import split_frames
from tests.helpers.vocabularies import SPECIAL, write_vocabulary

CLS, SEP, MASK = 2, 3, 4
WORDS = [f'w{a}{b}' for a in 'abcdefghij' for b in 'abcdefghij']
VOCABULARY = SPECIAL + WORDS + ['##s', '##ing', 'begin', '.']  # every sentence is: begin ... .
IDS = {word: i for i, word in enumerate(VOCABULARY)}
PIECES = (IDS['##s'], IDS['##ing'])
LONG_WORDS, SHORT_WORDS = WORDS[:20], WORDS[20:]  # long documents have words of their own
OF_LONG = frozenset(IDS[word] for word in LONG_WORDS)


def their_examples(
    documents, seq_len, dupe_factor, short_seq_prob, probability, most, whole_word, rng
):
    """What the reference makes of every example.

    (ids before masking, segment ids, label, masked positions, ids shown there).
    """
    documents = list(documents)
    rng.shuffle(documents)
    found = []
    for _ in range(dupe_factor):
        for index in range(len(documents)):
            for a, b, label in their_pairs(documents, index, seq_len, short_seq_prob, rng):
                ids = [CLS, *a, SEP, *b, SEP]
                segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
                found.append(
                    (ids, segments, label, *their_masks(ids, probability, most, whole_word, rng))
                )
    return found


def their_pairs(documents, index, seq_len, short_seq_prob, rng):
    document, longest = documents[index], seq_len - 3
    target = rng.randint(2, longest) if rng.random() < short_seq_prob else longest
    chunk, i = [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a, b = sum(chunk[:cut], []), sum(chunk[cut:], [])
            label = int(len(chunk) == 1 or rng.random() < 0.5)
            if label:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                b = []
                for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                    b = b + sentence
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - cut  # the sentences that B displaced come again
            while len(a) + len(b) > longest:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if rng.random() < 0.5 else -1)
            yield a, b, label
            chunk = []
        i += 1


def their_masks(ids, probability, most, whole_word, rng):
    words = []
    for place, token in enumerate(ids):
        if token in (CLS, SEP):
            continue
        # The reference joins across [SEP]; we do not.
        if whole_word and token in PIECES and ids[place - 1] not in (CLS, SEP):
            words[-1].append(place)
        else:
            words.append([place])
    rng.shuffle(words)
    count = min(most, max(1, round(len(ids) * probability)))
    chosen = []
    for word in words:
        if len(chosen) + len(word) <= count:
            for place in word:
                shown = (
                    MASK
                    if rng.random() < 0.8
                    else ids[place]
                    if rng.random() < 0.5
                    else rng.randint(0, len(VOCABULARY) - 1)
                )
                chosen.append((place, shown))
    chosen.sort()
    return [place for place, _ in chosen], [shown for _, shown in chosen]


def our_examples(folder):
    manifest = shards.Manifest.load(folder)
    payloads = [
        payload
        for shard in manifest.shards('train')
        for payload in split_frames((folder / shard.file).read_bytes())
    ]
    columns = fields.decode_numpy(manifest.spec, payloads)
    found = []
    for row in range(len(payloads)):
        length, count = (
            int(columns['input_mask'][row].sum()),
            int(columns['masked_lm_weights'][row].sum()),
        )
        places = columns['masked_lm_positions'][row, :count]
        ids, shown = columns['input_ids'][row, :length].copy(), columns['input_ids'][row, places]
        ids[places] = columns['masked_lm_ids'][row, :count]
        segments = columns['segment_ids'][row, :length]
        found.append(
            (
                ids.tolist(),
                segments.tolist(),
                int(columns['next_sentence_labels'][row]),
                places.tolist(),
                shown.tolist(),
            )
        )
    return found


def measures(examples) -> dict[str, np.ndarray]:
    """What is compared, a number an example or a masked position."""
    found: dict[str, list] = {}

    def note(name, value):
        found.setdefault(name, []).append(value)

    for ids, segments, label, places, shown in examples:
        middle = ids.index(SEP)
        a, b = ids[1:middle], ids[middle + 1 : -1]
        note('length', len(ids))
        note('length of A', len(a))
        note('length of B', len(b))
        note(f'length with label {label}', len(ids))
        note('label', label)
        note('predictions', len(places))
        if label:
            note('random B is of a long document', not OF_LONG.isdisjoint(b))
        for name, part in (('A', a), ('B', b)):
            note(f'{name} begins a sentence', part[0] == IDS['begin'])
            note(f'{name} ends a sentence', part[-1] == IDS['.'])
        note('predictions in B', sum(segments[place] for place in places))
        note('pieces predicted', sum(ids[place] in PIECES for place in places))
        for place, token in zip(places, shown):
            note('place', place)
            note('place within its row', place / len(ids))
            note('shown as [MASK]', token == MASK)
            note('shown as it is', token == ids[place])
    return {name: np.array(values, float) for name, values in found.items()}


def distance(one, other) -> float:
    """Kolmogorov and Smirnov's: the largest gap between two distributions."""
    grid = np.concatenate([one, other])
    share = lambda values: np.searchsorted(np.sort(values), grid, 'right') / values.size
    return float(np.abs(share(one) - share(other)).max())


def short_and_long(rng, sentence, short, long):
    """So many documents of 1 to 21 sentences and so many of 5,000; a sentence is its words."""
    counts = [(rng.choice([1, 2, 3, 5, 8, 13, 21]), SHORT_WORDS) for _ in range(short)] + [
        (5000, LONG_WORDS)
    ] * long
    suffix = lambda: rng.choice(['', '', 's', 'ing'])
    return [
        [
            [rng.choice(words) + suffix() for _ in range(rng.randint(1, sentence))]
            for _ in range(count)
        ]
        for count, words in counts
    ]


@pytest.mark.parametrize(
    'seq_len, sentence, whole_word, passes, short, long',
    [(48, 40, True, 8, 240, 0), (64, 5, False, 3, 60, 3)],
    ids=['short documents, whole words', 'a few very long documents among short ones'],
)
def test_distributions_are_those_of_the_reference(
    tmp_path, seq_len, sentence, whole_word, passes, short, long
):
    rng = random.Random(0)
    documents = short_and_long(rng, sentence, short, long)
    # A length is drawn for each document and pass: too few draws to compare, where three documents
    # are nearly all.
    short_rows = 0.0 if long else 0.2
    text = '\n\n'.join(
        '\n'.join(' '.join(['begin', *words, '.']) for words in document) for document in documents
    )
    (tmp_path / 'text.txt').write_text(text)
    write_vocabulary(tmp_path, VOCABULARY[len(SPECIAL) :])
    output = tmp_path / 'records'
    options = PreprocessOptions(
        input=str(tmp_path / 'text.txt'),
        tokenizer=str(tmp_path),
        output=str(output),
        eval_fraction=0,
        workers=1,
        seq_len=seq_len,
        dupe_factor=passes,
        short_seq_prob=short_rows,
        whole_word=whole_word,
        max_predictions=8,
    )
    preprocess(options)

    split = lambda word: [IDS[word]] if word in IDS else [IDS[word[:3]], IDS['##' + word[3:]]]
    tokens = [
        [
            [IDS['begin'], *(i for word in words for i in split(word)), IDS['.']]
            for words in document
        ]
        for document in documents
    ]
    ours = measures(our_examples(output))
    theirs = measures(their_examples(tokens, seq_len, passes, short_rows, 0.15, 8, whole_word, rng))
    assert (
        ours.keys() == theirs.keys() and abs(ours['label'].size / theirs['label'].size - 1) < 0.03
    )
    assert ours['label'].size > 5000
    gaps = {name: distance(ours[name], theirs[name]) for name in ours}
    assert max(gaps.values()) < 0.025, gaps
