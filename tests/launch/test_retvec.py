"""An encoder of whole words, from the text of its words to scores with typos."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from bert_jax.configs import schema
from bert_jax.configs.presets.eelbert_retvec import make_word_run
from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.preprocess_options import PreprocessOptions
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.input_pipeline.text.typos import Typos
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions
from bert_jax.input_pipeline.tokenizer.vocabulary import train as train_vocabulary
from bert_jax.runs.finetuning import evaluation
from bert_jax.runs.pretraining import held_out, retvec_training
from bert_jax.train.checkpoint import load_params
from tests.helpers import mood
from tests.helpers.files import read_jsonl
from tests.helpers.numpy_bert import dense, mlm_loss
from tests.helpers.numpy_retvec import code_points, numpy_network
from tests.helpers.pretraining import pretrain
from tests.helpers.processes import mistake, ok
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config
from tests.helpers.trees import equal
from tests.helpers.vocabularies import write_vocabulary

pytestmark = pytest.mark.usefixtures('signal_handlers')
LISTED = 17  # twelve words with the special tokens
MODEL = tiny_config(
    vocab_size=LISTED,
    hidden_size=24,
    num_layers=1,
    max_position=32,
    embedding='retvec',
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
GOOD, BAD = ('wonderful', 'excellent', 'pleasant'), ('terrible', 'miserable', 'dreadful')


def lines(count: int) -> list[str]:
    """Sentences of frequent words and of rarer names, which the list has no room for."""
    rng = np.random.default_rng(0)
    names = [f'{a}{b}' for a in ('Bar', 'Kol', 'Mün', 'Tre') for b in ('ton', 'wald', 'sk', 'été')]
    choose = lambda of: of[rng.integers(len(of))]
    return [
        f'the {choose(("film", "book"))} of {choose(names)} was {choose((*GOOD, *BAD))} .'
        for _ in range(count)
    ]


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with a tokenizer, `records` of it, a network of `words`, and `pre`, on both."""
    folder = tmp_path_factory.mktemp('retvec')
    text = lines(480)
    (folder / 'text.txt').write_text(
        '\n\n'.join('\n'.join(text[first : first + 6]) for first in range(0, len(text), 6))
    )
    options = VocabularyOptions(LISTED, 'words', lower_case=False, known_words=24)
    train_vocabulary(text, options)[0].save(folder / 'tokenizer')
    preprocess(records_options(folder, 'records'))
    train_words(folder, 'words', 48)
    pretrain(folder, 'pre', MODEL, 6, init_from=str(folder / 'words'))
    return folder


def records_options(folder: pathlib.Path, name: str, **others) -> PreprocessOptions:
    given = {'seq_len': 16, 'dupe_factor': 2, 'eval_fraction': 0.1, 'workers': 1, **others}
    return PreprocessOptions(
        input=f'{folder}/text.txt',
        tokenizer=f'{folder}/tokenizer',
        output=f'{folder}/{name}',
        **given,
    )


def train_words(folder: pathlib.Path, name: str, steps: int) -> int:
    config = dataclasses.replace(
        make_word_run(),
        phases=(schema.Phase(16, steps, 8),),
        optimizer=schema.OptimizerConfig(
            algorithm='adamw', peak_lr=3e-3, warmup_steps=0, schedule='constant', clip_norm=None
        ),
        runtime=schema.RuntimeConfig(eval_every=24, log_every=12, checkpoint_every=24),
    )
    tokenizer = Tokenizer.load(folder / 'tokenizer')
    return retvec_training.train(
        config, tokenizer, 0.2, retvec_training.Forms(), str(folder / name)
    )


def batches(folder: pathlib.Path, split: str) -> list[dict[str, np.ndarray]]:
    return list(RecordStream(str(folder / 'records'), split, 32, 0).evaluation())


def test_records_hold_words_beyond_the_list_and_never_ask_for_them(folder):
    """24 words are known, 12 of them in the list: the others are seen, and stay as they are."""
    tokenizer = Tokenizer.load(folder / 'tokenizer')
    assert (tokenizer.vocab_size, tokenizer.known) == (17, 29)
    manifest = shards.Manifest.load(folder / 'records')
    assert (manifest.vocab_size, manifest.known_words) == (17, 29)
    assert not shards.verify(folder / 'records').faults
    seen, asked = [], []
    for batch in batches(folder, 'train'):
        seen.append(batch['input_ids'][batch['example_weights'] > 0])
        asked.append(batch['masked_lm_ids'][batch['masked_lm_weights'] > 0])
    seen, asked = np.concatenate(seen), np.concatenate(asked)
    names = {entry for entry in tokenizer.tokens(np.unique(seen)) if entry[0].isupper()}
    assert len(names) == 12 and {17, 28} < set(seen.ravel().tolist()) and 29 not in seen
    assert set(asked.tolist()) == set(range(5, 17))
    # the four of sixteen names that are not known are [UNK], and never asked for either
    assert 0.02 < (seen == tokenizer.unk_id).mean() < 0.06


def test_dynamic_masks_are_refused(folder):
    with refused('--masking=dynamic: the train step .* cannot spell'):
        preprocess(records_options(folder, 'dynamic', masking='dynamic'))


def test_forms_are_the_word_and_others_with_typos():
    """The same for a name; no more typos than a share of the characters, one at least."""
    forms = retvec_training.Forms(count=3, share=0.25, kinds=('deletion',))
    first, second, third = forms.of('language', 7, 0)
    assert first == 'language' and forms.of('language', 7, 0)[1:] == [second, third]
    assert {8 - len(form) for n in range(30) for form in forms.of('language', n, 0)[1:]} == {1, 2}
    assert {len(form) for n in range(10) for form in forms.of('cat', n, 0)[1:]} == {2}
    found = forms.batch(['language', 'cat'], 7)
    assert found.shape == (2, 3, 16)
    assert np.array_equal(found[1], code_points(*forms.of('cat', 7, 1)))


def test_held_out_loss_is_that_of_the_words_spelled(folder):
    """The forward pass in numpy, on vectors of words that are spelled from words.txt here."""
    report = held_out.evaluate(str(folder / 'pre'), str(folder / 'records'), 'eval')
    params, _ = load_params(folder / 'pre')
    entries = (folder / 'tokenizer/words.txt').read_text().replace('\n\n', '\n').split('\n')[:-1]
    embeddings = params['encoder']['embeddings']
    vectors = numpy_network(embeddings['retvec'], code_points(*entries))
    embeddings['word'] = dense(vectors, embeddings['projection'])
    assert report['metrics']['mlm_loss'] == pytest.approx(
        mlm_loss(params, MODEL, batches(folder, 'eval')), abs=1e-4
    )


@pytest.fixture(scope='module')
def tuned(folder) -> pathlib.Path:
    """`pre`, fine-tuned to tell good from bad."""
    mood.write(folder, lambda _, word: {'text': f'the film was {word}'}, GOOD, BAD, (96, 16), 0)
    mood.finetune(folder, 'tuned', 'epochs=20', 'optimizer.peak_lr=1e-2', length=16)
    return folder / 'tuned'


def test_a_fine_tuned_model_keeps_the_network_and_scores_typos(folder, tuned):
    """Scores without noise are the run's own, and those with it are recomputed text by text."""
    given = load_params(folder / 'words')[0]['retvec']
    kept = load_params(tuned)[0]['encoder']['embeddings']['retvec']
    assert equal(given, kept)

    rows, predict = mood.dev_rows(folder), mood.answers_as_the_run_did(tuned)
    right = [predict(row['text'])['label'] == row['label'] for row in rows]
    assert np.mean(right) > 0.7

    # Words that nobody has seen, through the way of a split and one by one.
    trained, typos = evaluation.TaskEvaluator(str(tuned), None, None, None), Typos(1.0, 3)
    texts = [typos.text(row['text'], number) for number, row in enumerate(rows)]
    noisy = [dataclasses.replace(e, text=t) for e, t in zip(trained.examples, texts, strict=True)]
    answers = trained.predict(noisy).answers
    assert list(answers.values()) == [predict(text)['label'] for text in texts]


def test_what_is_not_served_is_refused_in_one_line(folder, tuned, binary):
    for name, arguments, said in (
        ('export', (f'--workdir={tuned}', f'--output={folder}/out'), 'no other program has its'),
        (
            'finetune',
            (
                f'--task={folder}/mood.json',
                f'--init_from={folder}/words',
                f'--workdir={folder}/none',
            ),
            'holds no encoder: a network of words',
        ),
        (
            'pretrain',
            (
                '--config=retvec_tiny',
                f'--data={folder}/records',
                f'--workdir={folder}/none',
                '--set=phases.0.seq_len=16',
                f'--set=model.vocab_size={LISTED}',
            ),
            'name the workdir of bert-pretrain retvec with --init_from',
        ),
        (
            'pretrain',
            (
                '--config=bert_tiny',
                f'--data={folder}/records',
                f'--workdir={folder}/none',
                '--set=phases.0.seq_len=16',
                f'--set=model.vocab_size={LISTED}',
            ),
            'has whole words, which model.embedding=table has no vectors for',
        ),
    ):
        run = binary(name, *arguments)
        assert said in mistake(run)
    assert not (folder / 'none').exists()


@pytest.mark.slow
def test_the_command_trains_words_and_says_what_is_wrong(folder, tmp_path, binary):
    small = ('phases.0.steps=4', 'phases.0.batch_size=8', 'optimizer.warmup_steps=1',
             'runtime.eval_every=2', 'runtime.log_every=2')  # fmt: skip
    settings = [f'--set={change}' for change in small]
    tokenizer, workdir = f'--tokenizer={folder}/tokenizer', f'--workdir={tmp_path}/run'
    run = ok(binary('train_retvec', tokenizer, workdir, '--eval_words=0.2', *settings))
    # A network of words fills no masks: a model is trained on it next.
    (following,) = [line for line in run.stderr.splitlines() if 'next: ' in line]
    assert 'next: bert-pretrain --config=retvec_tiny --init_from=' in following
    written = read_jsonl(tmp_path / 'run/metrics.jsonl')
    assert [line['step'] for line in written if line['split'] == 'eval'] == [2, 4]
    assert all(0 <= line['nearest_is_same'] <= 1 for line in written)

    # Another share of typos is another run.
    for arguments, said in (
        (('--eval_words=0.2', '--typos=0.5', *settings), 'holds another run'),
        (('--kinds=swap,typo',), "--kinds: 'typo' is none of insertion"),
        (('--set=runtime.accumulation=2', *settings), 'every word of a batch is compared'),
        (('--set=phases.0.seq_len=32', *settings), 'of seq_len=16 characters'),
    ):
        run = binary('train_retvec', tokenizer, workdir, *arguments)
        assert said in mistake(run)
    pieces = write_vocabulary(tmp_path / 'pieces', ['the'])
    run = binary('train_retvec', f'--tokenizer={pieces}', f'--workdir={tmp_path}/other')
    assert 'has no list of words' in mistake(run)
