"""Any tokenizer in any family, and words of taggers: against transformers from text to answer."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import pytest
import tokenizers

from bert_jax.conversion import huggingface, serving
from bert_jax.conversion.trained_model import Model
from bert_jax.inference import Bert, export
from bert_jax.inference.bert import MaskFiller
from bert_jax.inference.predictor import Predictor
from bert_jax.input_pipeline.tasks import conll
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.sources.source import Source, read_source
from tests.helpers import tiny_models, tokenizer_folders
from tests.parity import answers, reference
from tests.parity.reference import torch, transformers

sentence_transformers = pytest.importorskip('sentence_transformers')
WORDS = [
    ['EU', 'rejects', "town's", 'call', ',', "don't", "'s", '(', '1996-08-22', ')', '.'],
    ['The', 'people', 'naïve', '한국어', 'U.N.', '"', '$', '5.1'],
    ['the'],
]
LABELS = ('O', 'B-PER', 'I-PER')


def split_first(folder: pathlib.Path) -> pathlib.Path:
    """Writes a byte-level BPE that another step cuts before it, as Llama 3's."""
    folder = tokenizer_folders.modernbert(folder)
    file = folder / 'tokenizer.json'
    rules = json.loads(file.read_text())
    split = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(r" ?\p{L}+|'?\p{L}+|\s+|."), 'isolated'
    )
    in_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine = tokenizers.Tokenizer.from_str(json.dumps(rules))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, in_bytes])
    engine.save(str(file))
    return folder


def trained(**options):
    def make(folder: pathlib.Path) -> pathlib.Path:
        lines = [' '.join(words) for words in WORDS] + tokenizer_folders.SCRIPTS
        vocabulary.train(lines * 5, VocabularyOptions(340, **options))[0].save(folder)
        return folder

    return make


TOKENIZERS = {
    'wordpiece': trained(model='wordpiece', lower_case=False),
    'unigram': trained(model='unigram', lower_case=False),
    'byte_bpe': trained(model='byte_bpe'),
    'modernbert': tokenizer_folders.modernbert,
    'mmbert': tokenizer_folders.mmbert,
    'split first': split_first,
    'xlm_roberta': tokenizer_folders.xlm_roberta,
    'llama': tokenizer_folders.llama,
    'xlmr': lambda folder: tokenizer_folders.unigram(folder, 'XLMRobertaTokenizer'),
    'deberta': lambda folder: tokenizer_folders.unigram(folder, 'DebertaV2Tokenizer'),
    'second cls': lambda folder: tokenizer_folders.mmbert(folder, second_cls=True),
}


def made(family: str, head: str, folder: pathlib.Path, kind: str) -> tuple[Model, Tokenizer]:
    """A random model of the family, and the tokenizer of a kind."""
    tokenizer = Tokenizer.load(TOKENIZERS[kind](folder))
    model = tiny_models.of_family(family, head, vocab_size=tokenizer.vocab_size, max_position=64)
    return model._replace(labels=LABELS if model.row.labelled else ()), tokenizer


def sentences() -> list[list[str]]:
    """Sentences of CoNLL dev where that is at hand, with words that some rules take apart."""
    root = os.environ.get('BERT_JAX_TEST_DATA')
    if not root:
        return WORDS
    read = conll.read_columns(os.path.join(root, 'conll2003/valid.txt'))
    return WORDS + [list(sentence.words) for _, sentence in zip(range(250), read)]


@pytest.mark.parametrize(
    ('family', 'kind'),
    [
        ('bert', 'wordpiece'),
        ('albert', 'unigram'),
        ('roberta', 'byte_bpe'),
        ('modernbert', 'modernbert'),
        ('modernbert', 'mmbert'),
        ('modernbert', 'split first'),
        ('bert', 'xlm_roberta'),
        ('bert', 'deberta'),
        ('xlm_roberta', 'xlmr'),
        ('eurobert', 'llama'),
    ],
)
def test_an_exported_tagger_gives_the_same_tags(tmp_path, family, kind):
    """Its words one by one, or the text that they make; the folder is read here again alike."""
    model, tokenizer = made(family, 'tokens', tmp_path / 'tokenizer', kind)
    export.write(model, tokenizer, 'huggingface', str(tmp_path / 'out'))
    ours = Predictor(Source(model, tokenizer, '', 0), 64, {})
    again = Predictor.from_workdir(str(tmp_path / 'out'))
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / 'out').eval()
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')

    texts = [w for w in sentences() if sum(map(len, tokenizer.encode_words(w))) < 62]
    answered = [p([{'text': words} for words in texts]) for p in (ours, again)]
    assert [a['labels'] for a in answered[0]] == [a['labels'] for a in answered[1]]
    for words, answer in zip(texts, answered[0], strict=True):
        ids = np.concatenate(tokenizer.encode_words(words)).tolist()
        begins = np.cumsum([0, *(len(word) + 1 for word in words)])
        alone, text = there(words, is_split_into_words=True), there(' '.join(words))
        assert alone['input_ids'] == [tokenizer.cls_id, *ids, tokenizer.sep_id]
        assert text['input_ids'] == alone['input_ids'], words
        with torch.no_grad():
            logits = theirs(**{n: torch.tensor([v]) for n, v in text.items()}).logits[0]
        tags = [LABELS[i] for i in logits.argmax(-1)]
        first = {word: i for i, word in reversed([*enumerate(alone.word_ids())])}
        assert [tags[first[i]] for i in range(len(words)) if i in first] == [
            tag for i, tag in enumerate(answer['labels']) if i in first
        ]
        for i in set(range(len(words))) & set(first):
            span = text.token_to_chars(first[i])
            assert begins[i] - 1 <= span.start <= span.end < begins[i + 1], (words, i, span)


@pytest.mark.parametrize('family', ['bert', 'albert', 'roberta', 'modernbert'])
@pytest.mark.parametrize('kind', ['wordpiece', 'byte_bpe', 'xlm_roberta', 'mmbert', 'second cls'])
def test_any_family_takes_any_tokenizer(tmp_path, family, kind):
    model, tokenizer = made(family, 'classifier', tmp_path / 'tokenizer', kind)
    export.write(model, tokenizer, 'huggingface', str(tmp_path / 'out'))
    text = tokenizer_folders.SCRIPTS[0][:40]
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / 'out'
    ).eval()
    with torch.no_grad():
        rows = there(['the town', text], ['people', 'of'], padding=True, return_tensors='pt')
        wanted = theirs(**rows).logits.softmax(-1).numpy()
    for found in (
        Predictor(Source(model, tokenizer, '', 0), 64, {}),
        Predictor.from_workdir(str(tmp_path / 'out')),
    ):
        pairs = [{'text': 'the town', 'text_b': 'people'}, {'text': text, 'text_b': 'of'}]
        shares = [list(answer['probabilities'].values()) for answer in found(pairs)]
        np.testing.assert_allclose(shares, wanted, atol=2e-5)
    assert there.pad_token_id == tokenizer.pad_id


@pytest.mark.parametrize('kind', ['byte_bpe', 'xlm_roberta', 'wordpiece', 'xlmr', 'deberta'])
@pytest.mark.parametrize('family', ['bert', 'roberta'])
def test_vectors_and_masked_words_of_such_a_model(tmp_path, family, kind):
    model, tokenizer = made(family, 'masked_words', tmp_path / 'tokenizer', kind)
    export.write(model, tokenizer, 'huggingface', str(tmp_path / 'words'))
    mask = tokenizer.special_tokens[4]
    answers.same_words(tmp_path / 'words', f'the {mask} of the town')

    model, tokenizer = made(family, 'embedding', tmp_path / 'again', kind)
    export.write(model, tokenizer, 'sentence_transformers', str(tmp_path / 'vectors'))
    ours = Bert.load(str(tmp_path / 'vectors'))
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / 'vectors'), device='cpu')
    texts = ['the town', *tokenizer_folders.SCRIPTS]
    np.testing.assert_allclose(ours.embed(texts), opened.encode(texts), atol=1e-5)


@pytest.mark.parametrize('pad_id', [0, 1, 7])
def test_positions_of_a_roberta_count_on_from_its_padding(tmp_path, pad_id):
    """As transformers does for a vocabulary that has it elsewhere; written again by any other."""
    theirs = reference.random_model(
        'RobertaModel', vocab_size=100, hidden_size=16, num_attention_heads=2,
        num_hidden_layers=2, intermediate_size=32, max_position_embeddings=40,
        type_vocab_size=1, pad_token_id=pad_id,
    )  # fmt: skip
    theirs.save_pretrained(tmp_path / 'theirs')
    reading = huggingface.read(tmp_path / 'theirs')
    batch = reference.inputs(100, 4, 20)
    batch['input_ids'] = np.where(batch['input_mask'], batch['input_ids'] + 5, 0)
    batch['segment_ids'][:] = 0
    batch['input_ids'] = np.minimum(batch['input_ids'], 99)
    real = batch['input_mask'] > 0
    for other in (pad_id, 3):
        found = serving.make_forward(reading.model)(reading.model.params, batch)
        ids = {**batch, 'input_ids': np.where(real, batch['input_ids'], other)}
        wanted = reference.call(theirs, ids)['last_hidden_state']
        np.testing.assert_allclose(
            np.asarray(found['last_hidden_state'])[real], wanted[real], atol=2e-5
        )
        huggingface.write(tmp_path / 'ours', reading.model, {'pad_token_id': 3})
        theirs = transformers.AutoModel.from_pretrained(tmp_path / 'ours').eval()
        assert theirs.config.max_position_embeddings == 4 + reading.model.config.max_position
        reading = huggingface.read(tmp_path / 'ours')


@pytest.mark.parametrize('act', ['gelu_tanh', 'gelu_erf', 'relu'])
@pytest.mark.parametrize('family', tiny_models.SHAPES)
@pytest.mark.parametrize('head', ['masked_words', 'classifier'])
def test_every_activation_is_theirs_too(tmp_path, family, head, act):
    """That of the blocks, and of the head that a family has on them."""
    model = tiny_models.of_family(family, head, hidden_act=act)
    huggingface.write(tmp_path, model)
    theirs = getattr(transformers, model.architecture).from_pretrained(tmp_path).eval()
    batch = reference.inputs(100, 4, 20)
    batch['segment_ids'][:] = 0
    batch['input_ids'] = np.maximum(batch['input_ids'], 4)
    batch['masked_lm_positions'] = np.tile(np.arange(20, dtype=np.int32), (4, 1))
    found = np.asarray(serving.make_forward(model)(model.params, batch)['logits'])
    with torch.no_grad():
        wanted = theirs(**reference.tensors(batch, segments=False)).logits.numpy()
    real = batch['input_mask'] > 0 if head == 'masked_words' else ...
    np.testing.assert_allclose(found[real], wanted[real], atol=5e-5)
    assert huggingface.read(tmp_path).model.config.hidden_act == act


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
def test_any_vocabulary_in_modernberts_layout(tmp_path, kind):
    """Its ids and words for a mask, with and without a space before it; rows that never come."""
    text = ['the town is walking, so people walk.', *tokenizer_folders.SCRIPTS] * 5
    options = VocabularyOptions(150, kind, lower_case=False, layout='modernbert')
    tokenizer = vocabulary.train(text, options)[0]
    unused = tokenizer.unused
    sizes = {'vocab_size': tokenizer.vocab_size, 'max_position': 64}
    model = tiny_models.of_family('modernbert', 'masked_words', **sizes)
    export.write(model, tokenizer, 'huggingface', str(tmp_path / 'words'))

    there = transformers.AutoTokenizer.from_pretrained(tmp_path / 'words')
    assert len(there) == tokenizer.vocab_size + unused and len(there) % 64 == 0 < unused
    for line in [*text[:4], '', ' ', '  the \n\n town ']:
        ids = tokenizer.encode(line)
        assert there.encode(line, add_special_tokens=False) == ids
        row = [tokenizer.cls_id, *ids, tokenizer.sep_id]
        assert line == '' or there('people', line)['input_ids'][-len(row) + 1 :] == row[1:]

    filled = answers.pipeline('fill-mask', tmp_path / 'words', top_k=len(there))
    texts = ['the town is [MASK].', 'the town is[MASK].']
    assert filled(texts[0]) == filled(texts[1])
    found = {word['token']: word['score'] for word in filled(texts[0])}
    assert all(found[i] == 0 for i in range(tokenizer.vocab_size, len(there)))
    for source in (read_source(str(tmp_path / 'words')), Source(model, tokenizer, '', 0)):
        wanted = [word['score'] for word in filled(texts[0])[:5]]
        for line in texts:
            words = MaskFiller(source, 5)(line)['masks'][0]
            assert [word['probability'] for word in words] == pytest.approx(wanted, abs=2e-5)

    model = tiny_models.of_family('modernbert', 'embedding', **sizes)
    export.write(model, tokenizer, 'sentence_transformers', str(tmp_path / 'vectors'))
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / 'vectors'), device='cpu')
    vectors = Bert.load(str(tmp_path / 'vectors')).embed(text[:4])
    np.testing.assert_allclose(vectors, opened.encode(text[:4]), atol=1e-5)
