"""SparseEncoder directories of sentence-transformers open here with the same weights, and back."""

from __future__ import annotations

import functools

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


@pytest.mark.parametrize(
    ('file', 'before', 'after', 'message'),
    [
        ('modules.json', '.SpladePooling"', '.SparseAutoEncoder"', 'Transformer, SparseAuto'),
        ('sentence_bert_config.json', 'fill-mask', 'feature-extraction', 'for feature-extraction'),
        ('config_sentence_transformers.json', '{', '{"max_active_dims": 8,', 'without max_active'),
        ('config_sentence_transformers.json', '"dot"', '"euclidean"', 'similarity=.euclidean'),
    ],
)
def test_what_is_not_built_is_refused(file, before, after, message, tmp_path):
    opened = make('splade', tmp_path / 'base')
    opened.similarity_fn_name = 'dot'
    opened.save(str(tmp_path / 'theirs'))
    text = (tmp_path / 'theirs' / file).read_text()
    assert before in text
    (tmp_path / 'theirs' / file).write_text(text.replace(before, after, 1))
    with refused(message):
        Bert.load(str(tmp_path / 'theirs'))
