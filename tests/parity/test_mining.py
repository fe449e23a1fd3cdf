"""Hard negatives, against those that sentence-transformers mines with the same vectors."""

from __future__ import annotations

import collections
import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.inference.semantic_search import Mining, mine_hard_negatives

torch = pytest.importorskip('torch')
util = pytest.importorskip('sentence_transformers.util')

PAIRS = [(f'q{i % 30}', f'd{i}') for i in range(40)]


class Columns(dict):
    """What of `datasets.Dataset` the mining reads, so that the library is not needed."""

    from_dict = classmethod(lambda cls, columns: cls(columns))
    column_names = property(list)

    def __len__(self):
        return len(next(iter(self.values())))

    def to_pandas(self):
        counts = {key: dict(sorted(collections.Counter(self['anchor']).items())) for key in self}
        grouped = SimpleNamespace(count=lambda: SimpleNamespace(to_dict=lambda: counts))
        return SimpleNamespace(groupby=lambda _: grouped)


@pytest.mark.parametrize('ranks', [(1, 0, 20, None), (2, 3, 15, None), (2, 1, 20, 0.1)])
def test_the_same_documents_are_chosen(ranks, monkeypatch):
    mining = inspect.getmodule(util.mine_hard_negatives)
    monkeypatch.setattr(mining, 'is_datasets_available', lambda: True)
    monkeypatch.setitem(sys.modules, 'datasets', SimpleNamespace(Dataset=Columns))
    rng = np.random.default_rng(0)
    texts = sorted({text for pair in PAIRS for text in pair})
    space = {text: rng.normal(size=6).astype(np.float32) for text in texts}
    vectors = lambda texts: np.stack([space[text] / np.linalg.norm(space[text]) for text in texts])
    ours = list(mine_hard_negatives(PAIRS, lambda texts, _: vectors(texts), Mining(*ranks)))

    encode = lambda texts, **_: vectors(texts)
    product = lambda a, b: torch.as_tensor(a) @ torch.as_tensor(b).T
    model = SimpleNamespace(
        encode=encode,
        encode_query=encode,
        encode_document=encode,
        similarity=product,
        similarity_pairwise=lambda a, b: (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1),
        prompts={},
        device=torch.device('cpu'),
    )
    count, first, last, margin = ranks
    pairs = {'anchor': [q for q, _ in PAIRS], 'positive': [d for _, d in PAIRS]}
    theirs = util.mine_hard_negatives(
        Columns(pairs), model, num_negatives=count, range_min=first,
        range_max=last, relative_margin=margin, output_format='n-tuple', verbose=False,
    )  # fmt: skip
    names = [name for name in theirs.column_names if name not in pairs]
    wanted = set(zip(*(theirs[name] for name in (*pairs, *names)), strict=True))
    assert {(row['anchor'], row['positive'], *row['negatives']) for row in ours} == wanted
    assert len(wanted) > 10
