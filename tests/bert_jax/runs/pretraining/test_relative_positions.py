"""MPNet and DeBERTa from scratch by masked words in packed rows, and in files of transformers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.inference import export
from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.sources import fitting, source
from bert_jax.runs.workdir.metrics import read_metrics
from tests.helpers.pretraining import pretrain
from tests.helpers.tiny import tiny_config
from tests.helpers.tiny_models import SHAPES

pytestmark = pytest.mark.usefixtures('signal_handlers')


@pytest.mark.parametrize('family', ['mpnet', 'deberta_v2'])
def test_a_relative_learns_and_is_read_again(family, tmp_path):
    rng = np.random.default_rng(0)
    words = [('cat', 'mouse', 'milk'), ('dog', 'bone', 'walk'), ('bird', 'seed', 'song')]
    documents = []
    for _ in range(150):
        animal, *likes = words[rng.integers(3)]
        documents.append(f'the {animal} wants a {likes[0]}.\nthen the {animal} has a {likes[1]}.')
    (tmp_path / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    kind = 'byte_bpe' if family == 'mpnet' else 'wordpiece'
    lines = [line for text in documents for line in text.splitlines()]
    tokenizer, _ = vocabulary.train(lines, VocabularyOptions(300, kind))
    tokenizer.save(tmp_path / 'tokenizer')
    preprocess(
        PreprocessOptions(
            input=str(tmp_path / 'text.txt'), tokenizer=str(tmp_path / 'tokenizer'),
            output=str(tmp_path / 'records'), objective='full_sentences', packing=True,
            short_seq_prob=0.0, seq_len=32, eval_fraction=0, workers=1,
        )
    )  # fmt: skip
    manifest = Manifest.load(tmp_path / 'records')
    settings = {'hidden_dropout': 0.0, 'attention_dropout': 0.0, 'family': family}
    model = tiny_config(vocab_size=manifest.vocab_size, **settings | SHAPES[family])
    for steps in (1, 60):
        pretrain(tmp_path, f'pre{steps}', model, steps, 16)
    first, last = (read_metrics(tmp_path / f'pre{n}/metrics.jsonl')[-1] for n in (1, 60))
    assert last['mlm_loss'] < 0.6 * first['mlm_loss']

    made = source.read_source(str(tmp_path / 'pre60'))
    export.write(made.bert, made.tokenizer, 'huggingface', str(tmp_path / 'hf'))
    start = fitting.read_for_pretraining(str(tmp_path / 'hf'), made.tokenizer, made.model, 0)
    same = jax.tree.map(np.array_equal, start.params, made.params)
    if family == 'mpnet':  # no loss reads its pooler, and the class has none
        same['encoder'].pop('pooler')
    assert jax.tree.all(same) and 'relative' in same['encoder']
