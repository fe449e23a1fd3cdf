"""docs/extending.md, carried out: its programs are files of examples/, run here at tiny size."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import runpy
import signal
import sys
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs import schema
from bert_jax.inference import Bert
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.runs.sources.source import load_source
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.train.loop import LogEntry
from tests.helpers import jobs
from tests.helpers.processes import ROOT
from tests.helpers.refusals import refused

PAGE = (ROOT / 'docs/extending.md').read_text()
BLOCKS = re.findall(r'^```python\n(.*?)^```', PAGE, re.M | re.S)
CLOCK = ('seconds', 'step_ms', 'input_wait')


def block(word: str) -> str:
    """The page's one block of code that has this in it."""
    (found,) = [text for text in BLOCKS if word in text]
    return found


def executed(file: str, *arguments: str) -> dict[str, Any]:
    """What a file of examples/ defines, run or imported as `python FILE ARGUMENTS` would."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT / 'examples')
        patched.setattr(sys, 'argv', [file, *arguments])
        return runpy.run_path(str(ROOT / 'examples' / file))


def missing_line(text: str, program: str) -> str | None:
    """The first line of `text` that is not in `program` after the ones before it; else None."""
    lines = iter(program.splitlines())
    return next((line for line in text.splitlines() if line and line not in lines), None)


def test_the_programs_of_the_page_are_files():
    files = ('shuffled_tokens.py', 'table_writer.py', 'model_in_memory.py')
    programs = [(ROOT / 'examples' / file).read_text() for file in files]
    parts = [block(word) for word in ('class Detector', 'class Table', 'words = bert')]
    assert [missing_line(*both) for both in zip(parts, programs)] == [None, None, None]
    # Changed on one side, it would be seen.
    assert missing_line(parts[0].replace('1 << 24', '1 << 25'), programs[0])
    assert missing_line(parts[1], programs[1].replace('sep=', 'end='))


def test_the_call_of_the_page_is_one_that_its_function_takes():
    calls = []
    exec(block("'runs/shuffled')"), {'train_detector': lambda *arguments: calls.append(arguments)})
    ((config, *folders),) = calls
    assert (config.total_steps, folders) == (100_000, ['data/records128', 'runs/shuffled'])


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> str:
    """Records that bert-preprocess's job made of a small text."""
    folder = tmp_path_factory.mktemp('extending')
    assert jobs.small_records(folder).records('eval') >= 8
    return str(folder / 'out')


def settings(data: str, steps: int = 12) -> schema.PretrainConfig:
    return schema.PretrainConfig(
        model=schema.ModelConfig(
            vocab_size=Manifest.load(data).vocab_size,
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            intermediate_size=64,
            max_position=32,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        phases=(schema.Phase(32, steps, 8),),
        optimizer=schema.OptimizerConfig(warmup_steps=0),
        runtime=schema.RuntimeConfig(log_every=2, checkpoint_every=5, eval_every=4),
    )


class Killer:
    """A writer that does something at a line of a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def write(self, line):
        if line.step == self.step and line.metrics['split'] == 'train':
            self.act()

    def close(self):
        pass


def lines(workdir) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if k not in CLOCK}
        for line in read_metrics(workdir / 'metrics.jsonl')
    ]


def example(config: schema.PretrainConfig, data: str) -> Any:
    """Returns the page's function that trains."""
    train_detector = executed('shuffled_tokens.py')['train_detector']
    return functools.partial(train_detector, config, data)


def test_the_example_of_the_page_trains(data, tmp_path):
    ended = example(settings(data, steps=4), data)(str(tmp_path / 'run'))
    assert (int(ended.state.step), ended.signal) == (4, None)
    assert [line['step'] for line in lines(tmp_path / 'run')] == [2, 4, 4]


@pytest.mark.slow
def test_the_example_of_the_page_trains_and_goes_on_to_the_bit_however_it_was_stopped(
    data, tmp_path
):
    assert sum(bool(line.strip()) for line in block('class Detector').splitlines()) < 60
    train = example(settings(data), data)
    whole = train(str(tmp_path / 'whole'))
    assert (int(whole.state.step), whole.signal) == (12, None)

    # asked to stop at step 6, whose sums are on no line yet; killed at step 10, back to 6 or so
    before = signal.getsignal(signal.SIGTERM)
    cut = str(tmp_path / 'cut')
    stopping = Killer(6, lambda: signal.raise_signal(signal.SIGTERM))
    assert train(cut, lambda step: [stopping]).signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before

    def die():
        raise RuntimeError('killed')

    begun = []
    with contextlib.suppress(RuntimeError):
        train(cut, lambda step: begun.append(step) or [Killer(10, die)])
    assert begun == [6]
    train(cut)
    assert lines(tmp_path / 'cut') == lines(tmp_path / 'whole')
    mine = [line for line in lines(tmp_path / 'whole') if line['split'] == 'eval']
    assert [line['step'] for line in mine] == [4, 8, 12] and 'shuffled_loss' in mine[0]
    losses = [
        line['shuffled_loss'] for line in lines(tmp_path / 'whole') if line['split'] == 'train'
    ]
    assert losses[-1] < losses[0]
    assert (tmp_path / 'whole/plots/losses.png').exists()

    # what it leaves is a source for --init_from
    encoder = load_source(cut).params['encoder']
    np.testing.assert_array_equal(
        encoder['embeddings']['word'], whole.state.params['encoder']['embeddings']['word']
    )


def test_a_writer_of_ones_own_has_the_lines_of_an_undisturbed_run(tmp_path):
    table = executed('table_writer.py')['Table']

    def written(path, *parts):
        for resumed_at, steps in parts:
            writer = table(path, resumed_at)
            for step in steps:
                writer.write(LogEntry(step, {'split': 'train', 'shuffled_loss': 1 / step}, 9))
            writer.close()
        return path.read_text()

    whole = written(tmp_path / 'whole', (0, range(1, 10)))
    assert len(whole.splitlines()) == 9
    assert written(tmp_path / 'cut', (0, range(1, 7)), (4, range(5, 10))) == whole
    assert written(tmp_path / 'cut', (0, range(1, 10))) == whole


def test_a_model_in_memory_gives_what_the_page_says(encoder):
    made = executed('model_in_memory.py', encoder)
    bert, rows = made['bert'], made['rows']
    N, T = rows['input_ids'].shape
    V, H = bert.config.vocab_size, bert.config.hidden_size
    assert (N, T % 8) == (2, 0) and {array.dtype for array in rows.values()} == {np.dtype(np.int32)}
    assert made['hidden'].shape == (2, T, H) and made['pooled'].shape == (2, H)
    assert made['logits'].shape == (2, T, V)
    assert made['vectors'].shape == (2, 2 * H)
    assert [len(mask) for mask in made['words']] == [3]


def test_outputs_embeddings_and_words_agree_with_each_other_whatever_the_padding(encoder):
    bert = Bert.load(encoder)
    pairs = ['a ' * 3, ('a ' * 3, 'a ' * 4)]
    lengths = [bert.tokenize(pairs, 32, n)['input_ids'].shape[1] for n in (1, 4, 50, None)]
    assert lengths == [10, 12, 32, 32]
    words = bert.tokenizer.tokens(range(5, 9))
    texts = [' '.join(words), ' '.join(words[:2])]
    short, padded = bert.tokenize(texts), bert.tokenize(texts, 32, None)
    hidden, T = bert(short).hidden, short['input_ids'].shape[1]
    np.testing.assert_allclose(bert(padded).hidden[1, :4], hidden[1, :4], atol=1e-5)

    real = short['input_mask'][..., None]
    mean = (hidden * real).sum(1) / real.sum(1)
    np.testing.assert_allclose(bert.embed(texts), mean, atol=1e-5)
    assert bert.embed([]).shape == (0, 32)

    places = np.array([[1], [2]])
    every, chosen = bert.mlm_logits(short), bert.mlm_logits(short, places)
    assert every.shape == (2, T, bert.config.vocab_size)
    np.testing.assert_allclose(chosen[:, 0], every[[0, 1], [1, 2]], atol=1e-5)

    text = f'{words[0]} [MASK]'
    (best,) = bert.fill_mask(text, 2)
    assert bert.fill_mask([text, text], 2) == [[best], [best]]
    for unmasked in (words[0], [text, words[0]]):  # as by bert-fill-mask
        with refused(rf"'{words[0]}': no \[MASK\] in it"):
            bert.fill_mask(unmasked)
    with refused('must be a text'):
        bert.fill_mask((text, text))
    masked = bert.tokenize([words[0]])
    ids = np.insert(masked['input_ids'], 2, bert.tokenizer.mask_id, axis=1)
    rows = {'input_ids': ids, 'input_mask': np.ones_like(ids), 'segment_ids': np.zeros_like(ids)}
    wanted = np.argsort(-bert.mlm_logits(rows)[0, 2])[:2]
    assert [word['token'] for word in best] == bert.tokenizer.tokens(wanted)


def test_what_a_model_in_memory_cannot_do_is_one_line(encoder):
    bert = Bert.load(encoder)
    rows = bert.tokenize('a')
    for ask, message in (
        (lambda: bert.embed(['a'], layers=()), r'^layers=\(\) must be a list of whole numbers'),
        (lambda: bert.embed(['a'], layers=(9,)), '^layers: no layer 9'),
        (lambda: bert.embed(['a'], pool='none'), "pool='none' gives no single vector"),
        (lambda: bert.embed([['a', 'b']]), r'texts\[0\] must be a text, or a tuple of two'),
        (lambda: bert.embed({'text': 'a'}), "texts must be a text .*not a dict: {'text': 'a'}"),
        (lambda: bert('abc'), "rows of `tokenize` are needed, .*, not 'abc'"),
        (lambda: bert({**rows, 'segment_ids': rows['input_ids'][0]}), 'rows of `tokenize` are'),
        (lambda: bert(dict.fromkeys(rows, np.ones((1, 65), int))), 'rows of 65 word pieces'),
        (lambda: bert.mlm_logits(rows, [[3]]), r'whole numbers \[1, P\] from 0 to 2'),
        (lambda: bert.tokenize(['a'], multiple=0), 'multiple=0 must be a whole number'),
        (lambda: bert.tokenize(['a'], max_length=0), 'max_length=0: this model reads 3 to 64'),
        (lambda: bert.fill_mask('[MASK]', top=0), 'top=0 must be a whole number from 1'),
        (lambda: Bert(bert.source, 'float99'), "compute_dtype='float99' must be"),
    ):
        with refused(message):
            ask()


def test_a_fresh_model_is_the_one_that_pre_training_begins_with(encoder):
    loaded = Bert.load(encoder)  # of seed 7, saved before its first step
    fresh = Bert.fresh(loaded.config, loaded.tokenizer, seed=7)
    same = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
    jax.tree.map(same, fresh.params, loaded.params)
    with refused('model.vocab_size=999'):
        Bert.fresh(dataclasses.replace(loaded.config, vocab_size=999), loaded.tokenizer)


def test_a_model_without_a_masked_lm_head_says_so(encoder):
    source = load_source(encoder)
    params = {'encoder': source.params['encoder']}
    bert = Bert(source._replace(bert=source.bert._replace(params=params)))
    assert bert(bert.tokenize(['a'])).pooled.shape == (1, 32)
    for ask in (lambda: bert.fill_mask('[MASK]'), lambda: bert.mlm_logits(bert.tokenize(['a']))):
        with refused('has no head for masked words'):
            ask()
