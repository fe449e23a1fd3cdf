"""What we write opens in sentence-transformers, with the same vectors and scores; and back."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.inference import Bert, Predictor, export
from tests.helpers import tiny_models, tokenizer_folders
from tests.parity import reference

_REASON = 'sentence-transformers is not installed: bash launch/test.sh --parity'
theirs = pytest.importorskip('sentence_transformers', reason=_REASON)
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
st_modules = pytest.importorskip('sentence_transformers.models')

TEXTS = ['paris', 'paris is the capital of france', 'who is unable ? ' * 20]
PROMPTS = (('query', 'what is '), ('document', ''))
CASES = [
    SentenceConfig('cls', True, None, PROMPTS, 12),
    SentenceConfig('mean', False, 5, PROMPTS, None, 'dot'),
    SentenceConfig('max', True, 7),
    SentenceConfig('mean_sqrt_len'),
    SentenceConfig('weighted_mean', True),
    SentenceConfig('last'),
]


@pytest.mark.parametrize('sentence', CASES, ids=lambda sentence: sentence.pooling)
def test_a_directory_opens_with_the_same_vectors(sentence, tmp_path):
    out = tmp_path / 'out'
    model = tiny_models.model('BertModel')._replace(sentence=sentence)
    export.write(model, tiny_models.tokenizer(), 'sentence_transformers', str(out))
    opened, ours = theirs.SentenceTransformer(str(out), device='cpu'), Bert.load(str(out))
    assert opened.max_seq_length == (sentence.max_seq_length or 64)
    assert opened.similarity_fn_name == sentence.similarity
    for name in (None, *dict(sentence.prompts)):
        found = opened.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(ours.embed(TEXTS, prompt=name), found, atol=1e-5)

    # And back: what their release writes now is read as the same.
    opened.save(str(tmp_path / 'theirs'))
    again = Bert.load(str(tmp_path / 'theirs'))
    plain = lambda bert: dataclasses.replace(bert.source.bert.sentence, prompts=())
    assert plain(again) == plain(ours)
    assert again.source.bert.sentence.prompt('query') == sentence.prompt('query')
    np.testing.assert_allclose(again.embed(TEXTS), ours.embed(TEXTS), atol=1e-6)


@pytest.mark.parametrize('activation', [None, 'Identity', 'Sigmoid'])
@pytest.mark.parametrize('labels', [('score',), tiny_models.LABELS])
def test_a_cross_encoder_of_theirs_is_read_with_its_scores(labels, activation, tmp_path):
    # The folder as their newest release writes it; no longer texts than it says.
    model = tiny_models.model('BertForSequenceClassification', labels=labels)
    tokenizer, pairs = tiny_models.tokenizer(), [(TEXTS[0], TEXTS[1]), (TEXTS[0], TEXTS[2])]
    export.write(model, tokenizer, 'huggingface', str(tmp_path / 'base'))
    kept = getattr(torch.nn, activation)() if activation else None
    base = theirs.CrossEncoder(
        str(tmp_path / 'base'), max_length=20, activation_fn=kept, device='cpu'
    )
    base.save_pretrained(str(tmp_path / 'theirs'))
    wanted = np.reshape(base.predict(pairs), (len(pairs), -1))

    def scores(folder):
        for answer in Predictor.from_workdir(folder, compute_dtype='float32')(pairs):
            if 'value' in answer:
                yield [answer['value']]
            else:
                yield list(answer.get('scores', answer['probabilities']).values())

    np.testing.assert_allclose(list(scores(tmp_path / 'theirs')), wanted, atol=1e-5)
    if len(labels) == 1 and activation is None:  # as we wrote it: a regression, of longer rows
        np.testing.assert_allclose(next(scores(tmp_path / 'base')), wanted[0], atol=1e-5)

    # And back: another program's CrossEncoder gives the same again, and so does the folder here.
    export.export(str(tmp_path / 'theirs'), 'huggingface', str(tmp_path / 'again'))
    again = theirs.CrossEncoder(str(tmp_path / 'again'), device='cpu')
    np.testing.assert_allclose(np.reshape(again.predict(pairs), wanted.shape), wanted, atol=1e-5)
    if len(labels) == 1 or activation == 'Sigmoid':
        np.testing.assert_allclose(list(scores(tmp_path / 'again')), wanted, atol=1e-5)


# Directories of much used models by their shape: the class of the encoder, what writes the
# tokenizer, the pooling there, whether vectors have length one, the longest row, and prompts.
XLMR = functools.partial(tokenizer_folders.unigram, name='XLMRobertaTokenizer')
E5 = {'query': 'query: ', 'passage': 'passage: '}
PUBLISHED = {
    'multilingual-e5': ('XLMRobertaModel', XLMR, 'mean', True, 48, E5),
    'bge-m3': ('XLMRobertaModel', XLMR, 'cls', True, 30, {}),
    'paraphrase-multilingual-MiniLM': (
        'BertModel', tokenizer_folders.xlm_roberta, 'mean', False, 12, {}
    ),
    'all-roberta': ('RobertaModel', tokenizer_folders.mt5, 'mean', True, 24, {}),
    'all-mpnet': ('MPNetModel', tokenizer_folders.mpnet, 'mean', True, 24, {}),
    'sentence-camembert': (
        'CamembertModel',
        functools.partial(tokenizer_folders.unigram, name='CamembertTokenizer'),
        'mean', False, 20, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', PUBLISHED)
def test_a_directory_of_theirs_opens_with_the_same_vectors(name, tmp_path):
    """As their newest release writes it: pooling, length one, longest row and prompts; and back."""
    architecture, write, pooling, has_norm, length, prompts = PUBLISHED[name]
    folder = write(tmp_path / 'base')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = reference.random_model(
        architecture,
        **reference.sizes(vocab_size=len(tokenizer) + 5, max_position_embeddings=50),
        type_vocab_size=1 + (architecture == 'BertModel'),
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    encoder = st_modules.Transformer(str(folder))
    parts = [encoder, st_modules.Pooling(encoder.get_embedding_dimension(), pooling)]
    parts += [st_modules.Normalize()] * has_norm
    opened = theirs.SentenceTransformer(modules=parts, prompts=prompts, device='cpu')
    opened.max_seq_length = length  # the table's own rows but the first two, or fewer
    opened.save(str(tmp_path / 'theirs'))

    ours = Bert.load(str(tmp_path / 'theirs'))
    sentence = ours.source.bert.sentence
    settings = (sentence.pooling, sentence.normalize, sentence.max_seq_length)
    assert settings == (pooling, has_norm, length)
    texts = ['the town', *tokenizer_folders.SCRIPTS, '  of \n people ' * 9]
    export.export(str(tmp_path / 'theirs'), 'sentence_transformers', str(tmp_path / 'back'))
    back = theirs.SentenceTransformer(str(tmp_path / 'back'), device='cpu')
    for prompt in (None, *prompts):
        wanted = opened.encode(texts, prompt_name=prompt)
        np.testing.assert_allclose(ours.embed(texts, prompt=prompt), wanted, atol=1e-5)
        np.testing.assert_allclose(back.encode(texts, prompt_name=prompt), wanted, atol=1e-5)
    assert sentence.prompt('document') == prompts.get('passage', '')


def test_a_reranker_of_xlmrs_shape_is_read_with_its_scores(tmp_path):
    """As bge-reranker-v2-m3 is: rows of two texts with two separators, one number, a sigmoid."""
    folder = XLMR(tmp_path / 'base')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sizes = reference.sizes(vocab_size=len(tokenizer), max_position_embeddings=66)
    model = reference.random_model(
        'XLMRobertaForSequenceClassification', **sizes, type_vocab_size=1, num_labels=1
    )
    model.save_pretrained(folder)
    scorer = theirs.CrossEncoder(str(folder), max_length=64, device='cpu')
    scorer.save_pretrained(str(tmp_path / 'theirs'))
    pairs = [('the town', text) for text in (*tokenizer_folders.SCRIPTS, 'of', ' ')]
    answers = Predictor.from_workdir(tmp_path / 'theirs', compute_dtype='float32')(pairs)
    found = [answer['value'] for answer in answers]
    np.testing.assert_allclose(found, scorer.predict(pairs), atol=1e-5)
    assert np.ptp(found) > 1e-3
