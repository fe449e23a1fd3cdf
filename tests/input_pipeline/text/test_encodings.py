"""Text in another encoding than UTF-8 is refused, with a command that converts it."""

import bz2
import gzip
import os
import re
import subprocess

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text import corpus
from bert_jax.input_pipeline.text.encodings import guess_encoding, read_utf8
from bert_jax.input_pipeline.text.lines import Report, TextOptions
from bert_jax.input_pipeline.text.record_files import Reader
from bert_jax.input_pipeline.text.units import SmallFiles, units

BAD = 'A célula é a unidade básica da vida.'
GOOD = 'The cell is the unit of life.'
LANGUAGES = {
    'latin1': [BAD, 'Größe über Äpfel', 'Hyvää yötä, älä mene pois.', 'Það er gott veður í dag.'],
    'cp1252': ['L’été, « Élève » — œuvre très naïve', 'It’s a “test”, isn’t it?'],
    'cp1251': ['Клетка является основной единицей жизни.', 'Клітина є основною одиницею життя.'],
    'gb18030': ['细胞是生命的基本单位。他在上海工作。', '細胞是生命的基本單位。他在上海工作。'],
    'shift_jis': ['細胞は生命の基本単位です。これはテストです。'],
    'euc-kr': ['세포는 생명의 기본 단위이다. 나는 학교에 간다.'],
}
CASES = [(name, text) for name, texts in LANGUAGES.items() for text in texts]


def lines_of(bad, all, encoding='latin1'):
    """Return the bytes of `all` lines, of which the last `bad` are not UTF-8."""
    lines = [GOOD.encode()] * (all - bad) + [BAD.encode(encoding)] * bad
    return b''.join(line + b'\n' for line in lines)


def read(path, report=None, **options):
    return list(corpus.read_documents(str(path), TextOptions(**options), report))


def run_command(message, **environment):
    """Carry out the command that stands in a message."""
    command = re.search(r'convert it \((.*?)\) and put', str(message))[1]
    subprocess.run(['sh', '-c', command], env={**os.environ, **environment}, check=True)


@pytest.mark.parametrize('encoding,text', CASES)
def test_the_encoding_of_a_text_is_told_by_trial(encoding, text):
    assert guess_encoding(f'{text}\n'.encode(encoding) * 3)[0] == encoding


@pytest.mark.parametrize(
    'name,text', [('cp1250', 'Zażółć gęślą jaźń, łąka.'), ('koi8_r', 'Клетка')]
)
def test_an_encoding_that_none_fits_is_not_named(name, text):
    assert guess_encoding(text.encode(name)) == ('', '')


@pytest.mark.parametrize('bad,all,refused', [(19, 20, 0), (20, 400, 1), (20, 401, 0), (50, 999, 1)])
def test_a_file_is_refused_from_twenty_lines_and_five_percent_on(tmp_path, bad, all, refused):
    (tmp_path / 'a.txt').write_bytes(lines_of(bad, all))
    report = Report()
    if refused:
        with pytest.raises(UserError, match=f'a.txt: {bad} of {all} lines.*latin-1 .célula'):
            read(tmp_path / 'a.txt')
    else:
        read(tmp_path / 'a.txt', report)
        assert f'invalid UTF-8 in {bad} line(s)' in report.lines()[0]


def test_the_share_is_of_the_file_whatever_unit_sees_it(tmp_path):
    # All of the lines that are not UTF-8 are in the last of the units.
    for bad, refused in ((300, False), (900, True)):
        path = tmp_path / f'{bad}.txt'
        path.write_bytes(lines_of(bad, 10_000).replace(b'\n', b'\n\n', 5_000))
        parts = units(str(path), unit_bytes=1 << 15)
        assert len(parts) > 2
        last = parts[-1]
        if refused:
            with pytest.raises(UserError, match='900 of 15,000 lines'):
                list(corpus.read_unit(last))
        else:
            assert list(corpus.read_unit(last))


def test_small_files_are_judged_together(tmp_path):
    for i in range(8):
        (tmp_path / f'{i}.txt').write_bytes(lines_of(3, 3))
    assert isinstance(units(str(tmp_path))[0], SmallFiles)
    with pytest.raises(UserError, match='0.txt: 24 of 24 lines of this and other files'):
        read(tmp_path)


@pytest.mark.parametrize('choice', ['replace', 'skip'])
@pytest.mark.parametrize('encoding', ['latin1', 'cp1251'])
def test_a_choice_that_the_user_typed_goes_on(tmp_path, choice, encoding):
    text = BAD if encoding == 'latin1' else LANGUAGES['cp1251'][0]
    (tmp_path / 'a.txt').write_bytes(f'{GOOD}\n'.encode() + f'{text}\n'.encode(encoding) * 40)
    report = Report()
    (document,) = read(tmp_path / 'a.txt', report, on_bad_utf8=choice)
    assert len(document.sentences) == (41 if choice == 'replace' else 1)
    assert report.bad_utf8 == 40


def test_the_default_makes_the_manifest_of_replace():
    assert TextOptions().described() == TextOptions(on_bad_utf8='replace').described()


@pytest.mark.parametrize('locale', ['C', 'C.UTF-8'])
@pytest.mark.parametrize('name', ["it's a.txt", 'a.txt.gz', 'plain', 'a.bz2'])
def test_the_command_makes_the_file_utf8(tmp_path, monkeypatch, locale, name):
    monkeypatch.chdir(tmp_path)
    pack = {'a.txt.gz': gzip.compress, 'plain': gzip.compress, 'a.bz2': bz2.compress}
    (tmp_path / name).write_bytes(pack.get(name, bytes)(lines_of(30, 30)))
    with pytest.raises(UserError) as caught:
        read(name)
    run_command(caught.value, LC_ALL=locale)
    os.replace(f'{name}.utf8', name)
    (document,) = read(name)
    assert document.sentences == [BAD] * 30


@pytest.mark.parametrize(
    'lines, encoding, said',
    [(3, 'utf-16', 'it is UTF-16'), (1, 'cp1252', r'a.tsv:2: byte 14 is not UTF-8')],
)
def test_a_table_is_refused_with_the_command_that_converts_it(tmp_path, lines, encoding, said):
    text = 'text\tlabel\n' + f'{BAD}\t1\n' * lines
    (tmp_path / 'a.tsv').write_text(text, encoding=encoding)
    with pytest.raises(UserError, match=said) as caught:
        read_utf8(str(tmp_path / 'a.tsv'))
    run_command(caught.value)
    assert BAD in (tmp_path / 'a.tsv.utf8').read_text('utf-8')


def test_a_mixture_of_encodings_gets_no_command_that_would_spoil_it(tmp_path):
    (tmp_path / 'a.txt').write_bytes(lines_of(30, 30) + lines_of(30, 30, 'utf-8'))
    with pytest.raises(UserError, match='30 other lines are UTF-8') as caught:
        read(tmp_path / 'a.txt')
    assert 'iconv' not in str(caught.value)


def test_texts_to_answer_are_refused_before_the_first_one(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_bytes(lines_of(30, 600))
    with pytest.raises(UserError, match='30 of 600 lines are not UTF-8: .*iconv -f latin1'):
        next(iter(Reader(str(path), ('text',))))
    assert len(list(Reader(str(path), ('text',), skips=True))) == 600


def test_a_mended_file_is_looked_at_again(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_bytes(lines_of(30, 30))
    with pytest.raises(UserError):
        read(path)
    path.write_bytes(lines_of(1, 30))
    assert read(path)


def test_very_long_lines_without_an_end_are_cut_between_characters(tmp_path):
    path = tmp_path / 'a.txt'
    line = 'é' * 300_000 + ' '
    path.write_bytes(b''.join((line * 5).encode() + b'\n' for _ in range(4)) + b'\xe9\n')
    report = Report()
    read(path, report, max_line_bytes=1 << 22)
    assert report.bad_utf8 == 1
