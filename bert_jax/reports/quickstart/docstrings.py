"""The docstrings of what bert_jax is installed with, as documents of English sentences.

Every installation has them, so nothing is downloaded and no text of others is in this repository.
Files are parsed with `ast`; nothing is imported or run. What is held out is text_split.py's.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.lines import Report, Text, TextOptions
from bert_jax.reports.quickstart.text_split import Document

_TEST_PARTS = re.compile(
    r'(^|_)(tests?|testing|testdata|conftest|mock|vendor|vendored|externals|extern)(_|$)'
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A docstring with fewer sentences goes together with the other short ones of its module.
_MIN_SENTENCES = 3
# Shorter is mostly a heading, longer mostly a list without full stops.
_MIN_WORDS, _MAX_CHARS = 4, 600
_READING = TextOptions(segment=True)


def find_distributions() -> list[metadata.Distribution]:
    """Return what bert_jax needs without its extras, by name, and what that needs in turn.

    Raises:
      UserError: none of it is installed.
    """
    distributions: dict[str, metadata.Distribution] = {}
    waiting = ['bert_jax']
    while waiting:
        try:
            distribution = metadata.distribution(waiting.pop())
        except metadata.PackageNotFoundError:  # what another platform needs
            continue
        if distribution.name in distributions:
            continue
        distributions[distribution.name] = distribution
        for requirement in distribution.requires or ():
            if not re.search(r';.*\bextra\b', requirement):
                waiting.append(re.split(r'[^\w.-]', requirement)[0])
    if len(distributions) < 2:
        raise UserError('bert_jax is not installed here with what it needs: give --corpus')
    return [distributions[name] for name in sorted(distributions) if name != 'bert_jax']


def iterate_docstrings(distributions: Iterable[metadata.Distribution]) -> Iterator[Document]:
    """Yield the documents of all modules but tests and what is vendored, by module."""
    modules = []
    for distribution in distributions:
        for file in sorted(distribution.files or ()):
            aside = any(_TEST_PARTS.search(Path(part).stem) for part in file.parts)
            if file.suffix == '.py' and '..' not in file.parts and not aside:
                modules.append((str(file), str(distribution.locate_file(file))))

    # Spawned and not forked: threads of the parent would be copied in the middle of their work.
    with ProcessPoolExecutor(2, mp_context=get_context('spawn')) as pool:
        for documents in pool.map(read_module, modules, chunksize=32):
            yield from documents


def read_module(module: tuple[str, str]) -> list[Document]:
    """Return the documents of (name, path); a module that does not parse has none.

    A docstring of several sentences is a document, and the module's short ones together are one.
    """
    name, path = module
    try:
        with warnings.catch_warnings():  # other people's invalid escapes are not news
            warnings.simplefilter('ignore')
            tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []

    documents: list[Document] = []
    short: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            sentences = extract_sentences(ast.get_docstring(node) or '')
            if len(sentences) >= _MIN_SENTENCES:
                documents.append(Document(name, sentences))
            else:
                short += sentences
    if len(short) >= _MIN_SENTENCES:
        documents.append(Document(name, short))
    return documents


# What becomes of a docstring's lines, in this order: what holds others goes first. An empty line
# ends a paragraph.
_SKIPPED = r'(?i:references?|see also|methods|bibliography|signature)'
_UNDERLINE = r'[-=~^"*+#]{3,}$'
_NOTES = r'(?:note|warning|tip|important|caution|hint|attention|admonition)'
_LINES = (
    (r'^ *(```|~~~)[\s\S]*?(?:^ *\1.*$|\Z)', ''),  # fenced code
    # Sections that are no prose: numpy's to the next heading, Google's as far as is indented.
    (rf'^{_SKIPPED}\n{_UNDERLINE}[\s\S]*?(?=^\S.*\n{_UNDERLINE}|\Z)', ''),
    (rf'^( *){_SKIPPED}:\n(?:\1 +\S.*\n?|\s*\n)*', '\n'),
    (r'^ *>>>.*(?:\n.*\S.*)*', ''),  # doctests, to the next empty line
    # Directives with their blocks; but the text of notes and warnings is prose.
    (rf'^( *)\.\.(?! {_NOTES}::)(?: .*)?$(?:\n(?:\1 +\S.*)?$)*', ''),
    (rf'^ *\.\. {_NOTES}::', '\n'),
    (rf'^.*\n *{_UNDERLINE}', ''),  # headings
    (r'^ *[A-Z][\w ]{1,24}:$', ''),
    (r'^[\s|+=\-:*]+$|^ *\|.*|.*\|$|^ *[+=]{3,}.*', ''),  # tables
    (  # code, by the look of a line
        r'^ *(?:import |from [\w.]+ import|def |class \w+[(:]|return |print\(|with .*:$'
        r'|for .* in .*:$|if .*:$|else:$|[@$%!#]|[\])}]).*'
        r'|^ *[\w.\[\], ]+ [-+*/]?= .*|^ *[\w.]+\(.*\)?[,;]?$',
        '',
    ),
    # Parameters: numpy's style has name and type on a line, reST's and Google's before text.
    (r'^ *[*\w][\w*., ]* : .*|^( *)\S+(?: \S+){0,2}\n(?=\1 +\S)', '\n'),
    (r'^ *:r?type[^:]*:.*', ''),
    (r'^ *:\w+[^:]*:', '\n'),
    # A bullet or a parameter begins a paragraph.
    (r'^ *(?:[-*+\u2022]|\(?\d{1,2}[.)]|\(?[a-z]\)) +', '\n'),
    (r'^ *[`*]{0,2}[A-Za-z_][\w.]*[`*]{0,2}(?: ?\([^)]*\))? *:(?: +|$)', '\n'),
    (r'::$', ':'),
)

# Markup within a paragraph.
_INLINE = (
    (r':[\w:+-]+:(?=`)', ''),  # :func:`name`
    (r'`([^`<>]*?)\s*<[^`]*>`_*', r'\1'),  # `text <url>`_
    (r'!?\[([^\]]*)\]\([^)]*\)', r'\1'),  # [text](url)
    (r'\s*\[[\w*, -]{1,12}\]_', ''),  # [1]_
    # A sentence with an address would have a hole: it is refused below.
    (r'(?:https?|ftp)://\S+|www\.\S+|\S+@\S+\.\w+', '~'),
    (r'`~?|(?<!\w)\*\*|\*\*(?!\w)', ''),
    (r'(?<![\w*])\*(?=\w)|(?<=\w)\*(?![\w*])', ''),
    (r'(?<=\w)_(?!\w)', ''),  # reference_
    # The modules of a class: a dot before a capital would end a sentence.
    (r'(?<![\w.])(?:[a-z_]\w*\.)+(?=[A-Z])', ''),
    (r'\s+', ' '),
)

# How prose is told: words, plain characters, and signs that hardly occur in any.
_WORD = re.compile(r"[A-Za-z][A-Za-z'\u2019-]+|\b[AaI]\b")
_PLAIN = re.compile(r"[A-Za-z ,.;'\u2019-]")
_NOT_PROSE = re.compile(
    r'[{}\\|<>^~$]|==|->|::|\.\.\. \.\.\.|__'
    # what is neither ASCII, nor a dash or a quotation mark, nor e, u, o or a with an accent
    r'|[^\x00-\x7f\u2010-\u2015\u2018-\u201d\xe9\xe8\xfc\xf6\xe4]'
)


def extract_sentences(docstring: str) -> list[str]:
    """Return the sentences of prose of a docstring, without markup.

    Code, doctest lines, tables, parameter types, citations and headings are left out, and so is a
    sentence of few words, of many signs, or without end.
    """
    text = docstring
    for pattern, replacement in _LINES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    # Markup goes before sentences are cut where full stops are: addresses have many.
    paragraphs = re.split(r'\n\s*\n', text)
    for pattern, replacement in _INLINE:
        paragraphs = [re.sub(pattern, replacement, paragraph) for paragraph in paragraphs]

    prose = []
    reader = Text('', _READING, Report(), segment=True)
    for sentence in reader.document('\n'.join(paragraphs)):
        enough = len(_WORD.findall(sentence)) >= _MIN_WORDS and len(sentence) <= _MAX_CHARS
        plain = len(_PLAIN.findall(sentence)) >= 0.9 * len(sentence)
        if enough and plain and not _NOT_PROSE.search(sentence):
            prose.append(sentence)
    return prose
