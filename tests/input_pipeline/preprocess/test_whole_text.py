"""What stands between sentences is in records: a document is encoded as its text."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import tokenizers

from bert_jax.input_pipeline.preprocess import job_directory
from bert_jax.input_pipeline.text.corpus import Document, read_documents
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.tokenizer import normalizer, vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions
from bert_jax.runs import vocabulary_training as preparation
from tests.helpers import tokenizer_folders
from tests.helpers.jobs import killed_at, read, run
from tests.helpers.refusals import refused

# Spaces, none, two, tabs, line ends, blank lines; ends of sentences that run into what follows.
TEXTS = [
    'O gato dorme na cama. O cão corre no jardim.',
    'Primeira linha.  Dois espaços.\nOutra linha!\tUma tabulação?\n\n\nE o fim.',
    'Am 3. Mai kam er. Er ging;\xa0"Wohin?" fragte sie.\n  \n Nach Zürich!',
    'Ein Satz ohne Ende\nund noch einer\r\n\r\nÜber Öl. Ab.',
    '他来了。“好。”他说！我们走。\n\n第二段。 有空格。',
    '中国很大。。。“是吗？”是。\u3000全角空格。没有了',
    'مرحبا بكم. كيف الحال؟  نعم.\nسطر آخر.',
    'यह एक वाक्य है। वह दूसरा है।\n\nक्या?  हाँ।',
    "The people of the town don't think so. It's 'theirs'.  They've 1990.\x1c \x85 Yes...\n\nNo.",
    'One line\n\n\n  two lines \n\tthree lines.\n' + 'a long line that is cut ' * 9 + '\nthe end.',
]


OPTIONS = {
    'objective': 'full_sentences',
    'masking': 'dynamic',
    'eval_fraction': 0,
    'dupe_factor': 1,
}


def _written(folder: pathlib.Path, texts: list[str], name: str = 'a.jsonl') -> str:
    lines = (json.dumps({'text': text}) + '\n' for text in texts)
    (folder / name).write_text(''.join(lines))
    return str(folder / name)


def _trained(folder: pathlib.Path, model: str, **options) -> pathlib.Path:
    size = 340 if model == 'byte_bpe' else 190
    text = [*TEXTS, *tokenizer_folders.SCRIPTS] * 3
    vocabulary.train(text, VocabularyOptions(size, model, **options))[0].save(folder)
    return folder


def _albert(folder: pathlib.Path) -> pathlib.Path:
    """Writes a tokenizer.json of ALBERT's kind, which is run as it is: words with marks."""
    pre = tokenizers.pre_tokenizers
    metaspace = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace(prepend_scheme='always')])
    return tokenizer_folders.write(folder, pre_tokenizer=metaspace)


def _whole(document: Document) -> str:
    """The document's text, with what stands between its sentences."""
    parts = zip(document.spaces, document.sentences, strict=True)
    return ''.join(space + sentence for space, sentence in parts)


def _sentences(tokenizer: Tokenizer, document: Document) -> list[np.ndarray]:
    """The ids of each sentence of the document."""
    batches = tokenizer.encode_document(document.sentences, document.spaces, document.lined)
    return [ids for batch in batches for ids in batch]


FOLDERS = {
    'roberta': lambda folder: _trained(folder, 'byte_bpe'),
    'roberta, space before': lambda folder: _trained(folder, 'byte_bpe', add_prefix_space=True),
    'trained modernbert': lambda folder: _trained(folder, 'byte_bpe', layout='modernbert'),
    'modernbert': tokenizer_folders.modernbert,
    'mmbert': tokenizer_folders.mmbert,
    'xlm-r': tokenizer_folders.xlm_roberta,
    'compiled': lambda folder: tokenizer_folders.write(
        folder, **tokenizer_folders.FOREIGN['added tokens']
    ),
    'compiled marks': _albert,
    'unigram': lambda folder: _trained(folder, 'unigram', lower_case=False),
    'bpe': lambda folder: _trained(folder, 'bpe', lower_case=True),
    'wordpiece modernbert': lambda folder: _trained(folder, 'wordpiece', layout='modernbert'),
    'unigram modernbert': lambda folder: _trained(folder, 'unigram', layout='modernbert'),
    'bpe modernbert': lambda folder: _trained(folder, 'bpe', layout='modernbert'),
}

# Their decoders leave out the space before a text.
PARTED = ('xlm-r', 'wordpiece modernbert', 'unigram modernbert', 'bpe modernbert')


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """A function that makes a tokenizer directory of a name, once."""
    made: dict[str, pathlib.Path] = {}

    def folder(name: str) -> pathlib.Path:
        if name not in made:
            made[name] = FOLDERS[name](tmp_path_factory.mktemp('tokenizer') / 'a')
        return made[name]

    return folder


@pytest.mark.parametrize('name', FOLDERS)
def test_a_document_has_the_ids_of_the_library_on_its_text(tmp_path, folders, name, monkeypatch):
    tokenizer = Tokenizer.load(folders(name))
    engine = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    engine.encode_special_tokens = True
    pattern = _written(tmp_path, TEXTS)
    for options in ({}, {'segment': False}, {'language': 'zh'}, {'max_line_bytes': 64}):
        for text, document in zip(TEXTS, read_documents(pattern, TextOptions(**options))):
            assert _whole(document) == text
            sentences = _sentences(tokenizer, document)
            assert len(sentences) == len(document.sentences)
            expected = engine.encode(text, add_special_tokens=False).ids
            assert np.concatenate(sentences).tolist() == expected, repr(text)

    # A border lies where the next sentence begins, with the white space before it.
    if tokenizer.kind in ('byte_bpe', 'fast') and name not in PARTED:
        document = next(read_documents(pattern))
        first, second = map(tokenizer.decode, _sentences(tokenizer, document))
        assert first.removeprefix(' ') == 'O gato dorme na cama.'
        assert second == ' O cão corre no jardim.'

    # A text that is cut because it is so long is still that text.
    monkeypatch.setattr(normalizer, '_LONG', 40)
    monkeypatch.setattr(normalizer, '_LONGEST', 300)
    if name in ('modernbert', 'mmbert', 'unigram modernbert', 'bpe modernbert'):
        long = ' '.join([TEXTS[8].replace('\x1c \x85', '')] * 20)
        (document,) = read_documents(_written(tmp_path, [long], 'b.jsonl'))
        batches = list(tokenizer.encode_document(document.sentences, document.spaces))
        ids = np.concatenate(_sentences(tokenizer, document)).tolist()
        assert ids == engine.encode(long, add_special_tokens=False).ids
        assert len(batches) > 1 or name == 'modernbert'


@pytest.mark.parametrize('cut', [False, True])
@pytest.mark.parametrize('name', ['roberta', 'modernbert'])
def test_rows_are_the_text(tmp_path, folders, name, cut):
    tokenizer = Tokenizer.load(folders(name))
    _written(tmp_path, TEXTS)
    options = OPTIONS | {'input': f'{tmp_path}/a.jsonl'}
    options |= {'cut_sentences': cut, 'short_seq_prob': 0}
    for length in (512, 24):
        output = tmp_path / f'out{length}'
        run(tmp_path, [folders(name)], seq_len=length, output=str(output), **options)
        rows = [row[row != tokenizer.pad_id][1:-1].tolist() for row in read(output)[1]]
        whole = [tokenizer.encode(text) for text in TEXTS]
        if length == 512:
            assert sorted(tokenizer.decode(row) for row in rows) == sorted(TEXTS)
        assert sum(map(len, rows)) == sum(map(len, whole))
        texts = [' '.join(['', *map(str, ids), '']) for ids in whole]
        for row in rows:
            assert any(' '.join(['', *map(str, row), '']) in text for text in texts)
        full = [len(row) == length - 2 for row in rows]
        assert not (cut and length == 24) or sum(full) >= len(rows) - len(TEXTS)


def test_lines_of_a_file_are_texts_of_roberta_and_parts_of_modernberts(tmp_path, folders):
    (tmp_path / 'a.txt').write_bytes(b'One line.\r\n  Two lines. Three.\nEnd \n\nOther.\n')
    ids = {}
    for name in ('roberta', 'modernbert'):
        tokenizer = Tokenizer.load(folders(name))
        for segment in (None, True):
            texts = []
            for each in read_documents(f'{tmp_path}/a.txt', TextOptions(segment)):
                texts.append(list(map(tokenizer.decode, _sentences(tokenizer, each))))
            ids[name, segment] = texts
    parted = [['One line.', '\n  Two lines.', ' Three.', '\nEnd'], ['Other.']]
    assert ids['roberta', None] == [['One line.', 'Two lines. Three.', 'End'], ['Other.']]
    assert ids['modernbert', None] == [['One line.', '\n  Two lines. Three.', '\nEnd'], ['Other.']]
    assert ids['roberta', True] == ids['modernbert', True] == parted


@pytest.mark.parametrize(
    'content, options, expected',
    [
        (b'A b.\n\n\tC.\n \nD.\n', {'documents': 'file'}, 'A b.\n\n\tC.\n \nD.'),
        (b'A b\nc. D.\n\nE\n', {'documents': 'file', 'join_lines': True}, 'A b c. D.\n\nE'),
        (b'A b\nc. D.\n  E\n', {'join_lines': True, 'segment': False}, 'A b c. D.\nE'),
        (b'ab ' * 40 + b'\ncd', {'join_lines': True, 'max_line_bytes': 64}, 'ab ' * 40 + 'cd'),
        (b'x' * 70 + b'\ny\n', {'max_line_bytes': 64}, 'x' * 70 + '\ny'),
        (
            b'<doc id="1" title="T">\nT\n\nA. B.\n \n\nC.  D\n</doc>\n',
            {},
            'A. B.\n \n\nC.  D',
        ),
    ],
)
def test_what_stands_between_sentences_is_read(tmp_path, content, options, expected):
    (tmp_path / 'a.txt').write_bytes(content)
    (document,) = read_documents(f'{tmp_path}/a.txt', TextOptions(**options))
    assert _whole(document) == expected
    assert all(sentence == sentence.strip() for sentence in document.sentences)


def test_copies_of_lines_are_found_whatever_is_before_them(tmp_path, folders):
    texts = ['Same line. Another one here.', 'First of all.\n\nSame line.  Last.', 'Same line.']
    _written(tmp_path, texts)
    options = OPTIONS | {'input': f'{tmp_path}/a.jsonl'}
    run(tmp_path, [folders('roberta')], dedup='lines', **options)
    tokenizer, rows = Tokenizer.load(folders('roberta')), read(tmp_path / 'out')[1]
    decoded = [tokenizer.decode(row[row != tokenizer.pad_id][1:-1]) for row in rows]
    assert ''.join(decoded).count('Same line.') == 1 and 'Last.' in ''.join(decoded)


@pytest.mark.parametrize('layout', ['modernbert', None])
def test_a_vocabulary_is_trained_on_the_whole_text(tmp_path, layout):
    layouts = {'layout': layout} if layout else {}
    options = VocabularyOptions(400, 'byte_bpe', min_frequency=1, **layouts)
    text = preparation.Text((_written(tmp_path, TEXTS),), None, (), TextOptions())
    preparation.train(options, text, tmp_path / 'a')
    trained = Tokenizer.load(tmp_path / 'a')
    assert trained.fingerprint == vocabulary.train(TEXTS, options)[0].fingerprint
    alone = [line.strip() for text in TEXTS for line in text.split('\n')]
    assert trained.fingerprint != vocabulary.train(alone, options)[0].fingerprint

    # Lines of a file: RoBERTa's vocabulary knows no line end of theirs.
    (tmp_path / 'a.txt').write_text('one line\ntwo lines\n' * 3)
    text = text._replace(patterns=(f'{tmp_path}/a.txt',))
    preparation.train(options, text, tmp_path / 'b')
    whole = [('one line\ntwo lines\n' * 3).strip()]
    lines = whole if layout else ['one line', 'two lines'] * 3
    print_of = Tokenizer.load(tmp_path / 'b').fingerprint
    assert print_of == vocabulary.train(lines, options)[0].fingerprint


def test_work_that_another_version_began_is_refused(tmp_path, folders, monkeypatch):
    _written(tmp_path, TEXTS * 30)
    given = {'input': f'{tmp_path}/a.jsonl', 'objective': 'full_sentences', 'seq_len': 32}
    job = lambda **options: run(tmp_path, [folders('roberta')], **given, **options)
    with monkeypatch.context() as patch:
        patch.setattr(job_directory, '_program', lambda: 'of 0.2.0')
        with killed_at('make_records'):
            job()
    with refused('unfinished work of another job.*the program has changed.*--overwrite'):
        job()
    job(overwrite=True)
