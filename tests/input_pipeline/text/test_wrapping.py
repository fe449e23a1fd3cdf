"""Lines that a width has broken: told from sentences and tables, and joined again."""

from __future__ import annotations

import random
import textwrap

import pytest

from bert_jax.input_pipeline.text.corpus import Report, TextOptions, read_documents
from bert_jax.input_pipeline.text.wrapping import Widths, join_broken_lines
from tests.helpers.refusals import refused

ENGLISH = (
    'the a of harbour window little never under again because yesterday stone I walked'.split()
)
KOREAN = '나는 어제 도서관에서 오래된 책을 읽었고 그 뒤에 집으로 갔다 친구가'.split()


def prose(words, sentences, seed=0):
    """Sentences of 4 to 25 words."""
    draw = random.Random(seed)
    return [' '.join(draw.choices(words, k=draw.randint(4, 25))) + '.' for _ in range(sentences)]


def share(lines):
    widths = Widths()
    watched = widths.watch((i, 0, text) for i, text in enumerate(lines))
    assert [text for _, _, text in watched] == list(lines)
    return widths.broken / max(1, widths.lines)


@pytest.mark.parametrize('words, width', [(ENGLISH, 100), (KOREAN, 45)])
def test_wrapped_paragraphs_are_found_in_any_script(words, width):
    """textwrap breaks them, which knows nothing of our rule."""
    paragraphs = [' '.join(prose(words, 8, seed)) for seed in range(40)]
    lines = [line for text in paragraphs for line in [*textwrap.wrap(text, width), '']]
    assert share(lines) > 0.85
    assert share([line for line in lines if line]) > 0.6  # without blank lines in between
    assert share(paragraphs) == share([s for text in paragraphs for s in text.split('. ')]) == 0


DRAW = random.Random(1)


@pytest.mark.parametrize(
    'lines',
    [
        prose(ENGLISH, 300),
        [f'{DRAW.randrange(10**6):>9}  {word:<30}  {DRAW.random():.6f}' for word in ENGLISH * 20],
        [f'{word:<20}|{word:<30}|end of the row' for word in ENGLISH * 20],
        [f'The little window number {i:03} is under the stone.' for i in range(100)],
        ENGLISH * 20,
        [' '.join(DRAW.choices(ENGLISH, k=DRAW.randint(5, 8))) + ',' for _ in range(200)],
        [
            ' '.join(DRAW.choices(['water', 'stone'], k=7)) + 'x' * DRAW.choice((0, 0, 0, 19))
            for _ in range(90)
        ],
        ['A line that stands for all of a file,', 'and another.'],
    ],
    ids='sentences table bars alike words verse even two_lines'.split(),
)
def test_other_lines_are_let_alone(lines):
    assert share(lines) == 0


def test_a_file_is_named_with_its_share_and_what_mends_it(tmp_path):
    wrapped = textwrap.wrap(' '.join(prose(ENGLISH, 60)), 70)
    (tmp_path / 'book.txt').write_text('\n'.join(wrapped))
    (tmp_path / 'other.txt').write_text('\n'.join(prose(ENGLISH, 20)))
    report = Report()
    list(read_documents(str(tmp_path), report=report))
    (said,) = report.lines()
    assert 'of the lines look broken at a width, in book.txt: ' in said and '--join_lines' in said

    # One file of little text among much: not worth a word.
    (tmp_path / 'other.txt').write_text('\n'.join(prose(ENGLISH, 2000)))
    (tmp_path / 'book.txt').write_text('\n'.join(wrapped[:15]))
    report = Report()
    list(read_documents(str(tmp_path), report=report))
    assert report.broken_lines and not report.lines()


def test_the_real_corpora(test_data):
    """All of them by their first lines: one is a novel as it was distributed, in 70 columns."""
    found = {}
    for path in sorted((test_data / 'corpora').glob('*.txt')):
        with path.open(encoding='utf-8') as file:
            found[path.name] = share([line.rstrip('\n') for _, line in zip(range(5000), file)])
    assert found.pop('hard_wrapped_de.txt') > 0.85
    assert len(found) >= 6 and set(found.values()) == {0}


# ---- joined


def paragraphs(text, drop_hyphens=False, most=10**6):
    lines = ((i, 100 * i, line) for i, line in enumerate(text.split('\n')))
    return [each[2] for each in join_broken_lines(lines, drop_hyphens, most)]


@pytest.mark.parametrize(
    'lines, kept, dropped',
    [
        ('One line\nand another', 'One line and another', None),
        ('我来了\n你呢', '我来了你呢', None),
        ('a well-\nknown word', 'a well-known word', 'a wellknown word'),
        ('Silben\u00ad\ntrennung', 'Silbentrennung', 'Silbentrennung'),
        ('Goethe-\nStrasse', 'Goethe-Strasse', 'Goethe-Strasse'),
        ('Haupt-\nund Nebensatz', 'Haupt- und Nebensatz', 'Haupt- und Nebensatz'),
        ('a dash -\nas here', 'a dash - as here', None),
    ],
)
def test_what_stands_between_two_lines(lines, kept, dropped):
    assert paragraphs(lines) == [kept]
    assert paragraphs(lines, drop_hyphens=True) == [kept if dropped is None else dropped]


def test_where_a_paragraph_ends():
    assert paragraphs('One\ntwo\n\nthree\nfour') == ['One two', '', 'three four']
    assert paragraphs('  One\ntwo\n  three\nfour') == ['One two', 'three four']  # indented
    assert paragraphs('  > One\n  > two') == ['> One > two']
    assert paragraphs('aa\nbb\ncc\ndd', most=3) == ['aa bb ', 'cc dd']
    lines = join_broken_lines(
        [(0, 5, 'One'), (1, 9, 'two'), (2, 13, ''), (3, 14, 'three')], False, 99
    )
    assert list(lines) == [(0, 5, 'One two'), (2, 13, ''), (3, 14, 'three')]


BOOK = 'Dr. Smith went home. He\nslept.\n\nA new paragraph! Is\nit?\n'


@pytest.mark.parametrize(
    'options, documents',
    [
        ({'join_lines': True}, 'Dr. Smith went home.|He slept.||A new paragraph!|Is it?'),
        (
            {'join_lines': True, 'documents': 'file'},
            'Dr. Smith went home.|He slept.|A new paragraph!|Is it?',
        ),
        (
            {'join_lines': True, 'documents': 'file', 'segment': False},
            'Dr. Smith went home. He slept.|A new paragraph! Is it?',
        ),
        ({'documents': 'file'}, 'Dr. Smith went home. He|slept.|A new paragraph! Is|it?'),
    ],
)
def test_documents_of_joined_lines(tmp_path, options, documents):
    (tmp_path / 'a.txt').write_text('\n' + BOOK)
    found = list(read_documents(str(tmp_path), TextOptions(**options)))
    documents = [document.split('|') for document in documents.split('||')]
    assert [each.sentences for each in found] == documents
    places = [1, 1 + BOOK.index('A new')][: len(found)]  # of the first line with text
    assert [each.name for each in found] == [('a.txt', place) for place in places]


def test_a_manifest_names_the_options_that_came_later_only_where_they_are_used():
    first = {'segment', 'language', 'text_column', 'on_bad_utf8', 'max_line_bytes'}
    assert set(TextOptions().described()) == first
    assert set(TextOptions(documents='file').described()) == {*first, 'documents'}
    with refused('--hyphens=drop: is for lines that are joined'):
        TextOptions(hyphens='drop')
