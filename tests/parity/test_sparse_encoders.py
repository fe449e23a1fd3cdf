"""SparseEncoder directories of sentence-transformers open here with the same weights, and back."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from bert_jax.inference import Bert, export
from tests.helpers import tokenizer_folders
from tests.helpers.refusals import refused
from tests.parity import reference

theirs = pytest.importorskip('sentence_transformers')
transformers = pytest.importorskip('transformers')
base_modules = pytest.importorskip('sentence_transformers.base.modules')
modules = pytest.importorskip('sentence_transformers.sparse_encoder.modules')

TEXTS = ['the town', *tokenizer_folders.SCRIPTS, '  of \n people ' * 9]
XLMR = functools.partial(tokenizer_folders.unigram, name='XLMRobertaTokenizer')
CASES = {
    'splade': ('BertForMaskedLM', tokenizer_folders.xlm_roberta, 'max', 'relu'),
    'opensearch': ('DistilBertForMaskedLM', tokenizer_folders.xlm_roberta, 'max', 'log1p_relu'),
    'of xlm-roberta': ('XLMRobertaForMaskedLM', XLMR, 'sum', 'relu'),
    'of roberta': ('RobertaForMaskedLM', tokenizer_folders.mt5, 'sum', 'log1p_relu'),
}


def make(case: str, folder) -> theirs.SparseEncoder:
    """A random model of theirs."""
    architecture, write, pooling, activation = CASES[case]
    base = write(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    sizes = reference.sizes(vocab_size=len(tokenizer), max_position_embeddings=50)
    if 'DistilBert' not in architecture:
        sizes['type_vocab_size'] = 1 + (architecture == 'BertForMaskedLM')
    model = reference.random_model(architecture, **sizes, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(base)
    # As release 6 names the first module, and as 5 did.
    first = modules.MLMTransformer(str(base))
    if pooling == 'max':
        first = base_modules.Transformer(str(base), transformer_task='fill-mask')
    parts = [first, modules.SpladePooling(pooling, activation_function=activation)]
    opened = theirs.SparseEncoder(modules=parts, prompts={'query': 'the '}, device='cpu')
    opened.max_seq_length = 30
    return opened


@pytest.mark.parametrize('case', CASES)
def test_a_directory_has_the_same_weights_here_and_there(case, tmp_path):
    opened = make(case, tmp_path / 'base')
    opened.save(str(tmp_path / 'theirs'))
    ours = Bert.load(str(tmp_path / 'theirs'))
    export.export(str(tmp_path / 'theirs'), 'sentence_transformers', str(tmp_path / 'back'))
    back = theirs.SparseEncoder(str(tmp_path / 'back'), device='cpu')
    assert ours.similarity == back.similarity_fn_name == 'dot' and back.max_seq_length == 30
    for prompt in (None, 'query'):
        wanted = opened.encode(TEXTS, prompt_name=prompt).to_dense().numpy()
        found = ours.embed(TEXTS, prompt=prompt)
        np.testing.assert_allclose(found.toarray(), wanted, atol=1e-5)
        again = back.encode(TEXTS, prompt_name=prompt).to_dense().numpy()
        np.testing.assert_allclose(again, wanted, atol=1e-5)
    assert 0.1 < (wanted > 0).mean() < 1 and wanted.max() > 0.1

    decoded = ours.decode_sparse(ours.embed(TEXTS), top=7)
    for mine, other in zip(decoded, opened.decode(opened.encode(TEXTS), top_k=7), strict=True):
        np.testing.assert_allclose([w for _, w in mine], [w for _, w in other], atol=1e-5)
        assert [piece for piece, _ in mine] == [piece for piece, _ in other]


def test_what_is_not_built_is_refused(tmp_path):
    opened, folder = make('splade', tmp_path / 'base'), tmp_path / 'theirs'
    opened.save(str(folder))
    release_6 = json.loads((folder / 'modules.json').read_text())

    def check(kinds, message, **settings):
        listed = []
        for module, kind in zip(release_6, kinds, strict=False):
            listed.append(module | {'type': kind})
        (folder / 'modules.json').write_text(json.dumps(listed))
        file = folder / 'config_sentence_transformers.json'
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        with refused(message):
            Bert.load(str(folder))

    check(['x.Transformer', 'x.SparseAutoEncoder'], 'Transformer, SparseAutoEncoder .fill-mask.')
    check(['x.Router'], 'modules Router')
    kinds = ['x.Transformer', 'x.SpladePooling']
    check(kinds, 'without max_active_dims', max_active_dims=8)
    check(kinds, 'similarity=.euclidean', max_active_dims=None, similarity_fn_name='euclidean')
