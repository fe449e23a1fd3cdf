"""The documentation strings of the installed Python packages, as documents of sentences.

English prose that every installation already has: no download, nothing third-party in
this repository. Owns which packages are read, where their docstrings are (found with
`ast`, so nothing is imported or run) and what of them is prose. Sentences are cut by
input_pipeline/text/lines.py; what is held out is text_split.py's.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

from bert_jax.input_pipeline.text.lines import Report, Text, TextOptions
from bert_jax.reports.quickstart.text_split import Document

# Installers and test tools come and go in an environment; the corpus should not change with them.
_TOOLS = {'pip', 'setuptools', 'wheel', 'pytest', 'pytest-xdist', 'bert-jax'}
_TEST_PARTS = re.compile(
    r'(^|_)(tests?|testing|testdata|conftest|mock|vendor|vendored|externals|extern)(_|$)'
)

# A document: fewer sentences make no pair of sentences worth predicting.
MIN_SENTENCES = 3

# A sentence: shorter is mostly a heading, longer mostly a list without full stops.
MIN_WORDS = 4
MAX_SENTENCE_CHARS = 600

_OPTIONS = TextOptions(segment=True)  # its fields are checked each time that it is made


@dataclasses.dataclass(frozen=True)
class Package:
    """An installed package, and its Python files with their sizes in bytes."""

    name: str
    distribution: str
    version: str
    files: tuple[tuple[str, int], ...]
    root: str

    @property
    def bytes(self) -> int:
        """Return the size of its Python source."""
        return sum(size for _, size in self.files)


def installed_packages(limit: int = 20) -> list[Package]:
    """Return the `limit` installed packages with most Python source, the smallest first.

    Smallest first because of two equal sentences the first is kept, and where a large package
    repeats another's text (tensorflow keras', jax numpy's) the small one is the author.
    """
    # By the name that is imported: one distribution may bring several packages.
    by_name: dict[str, Package] = {}
    for distribution in metadata.distributions():
        if distribution.name.lower().replace('_', '-') in _TOOLS:
            continue

        # Python files but those of tests, and of other libraries that are kept inside.
        files: dict[str, list[tuple[str, int]]] = {}
        for file in distribution.files or []:
            if (
                file.suffix == '.py'
                and '..' not in file.parts
                and not any(_TEST_PARTS.search(Path(p).stem) for p in file.parts)
            ):
                files.setdefault(Path(file.parts[0]).stem, []).append((str(file), file.size or 0))

        # Two distributions may share a name (google): the larger is taken.
        root = str(distribution.locate_file(''))
        for name, members in files.items():
            package = Package(
                name, distribution.name, distribution.version, tuple(sorted(members)), root
            )
            if name not in by_name or package.bytes > by_name[name].bytes:
                by_name[name] = package

    # Ties by name, so that the order is the same on every machine.
    largest = sorted(by_name.values(), key=lambda p: (-p.bytes, p.name))[:limit]
    return largest[::-1]


def read(packages: Iterable[Package], workers: int = 2) -> Iterator[Document]:
    """Yield the documents of the packages, in the order of packages, files and lines.

    A document is the docstring of one definition with MIN_SENTENCES or more sentences of
    prose; what a module's shorter ones say is one document more. Its label is the package,
    its group the module (the file's path under site-packages), its name the definition.
    """
    # Spawned and not forked: threads of the parent would be copied in the middle of their work.
    jobs = [(p.name, p.root, file) for p in packages for file, _ in p.files]
    with ProcessPoolExecutor(workers, mp_context=get_context('spawn')) as pool:
        for documents in pool.map(_read_module, jobs, chunksize=32):
            yield from documents


def _read_module(job: tuple[str, str, str]) -> list[Document]:
    """Return the documents of one file; a file that does not parse has none."""
    package, root, file = job
    try:
        source = (Path(root) / file).read_bytes()
        with warnings.catch_warnings():  # other people's invalid escapes are not news
            warnings.simplefilter('ignore')
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []

    # A definition with enough prose is a document; the short ones of a module are one together, or
    # much of the text would be lost.
    documents, short = [], []
    for name, text in _docstrings(tree, ''):
        sentences = to_sentences(text)
        if len(sentences) >= MIN_SENTENCES:
            documents.append(Document(package, file, name, tuple(sentences)))
        else:
            short += sentences
    if len(short) >= MIN_SENTENCES:
        documents.append(Document(package, file, '(short)', tuple(short)))
    return documents


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, docstring) of a module or definition and of all inside, in order."""
    text = ''
    if isinstance(node, (ast.Module, *_DEFINITIONS)):
        text = ast.get_docstring(node, clean=False) or ''
    if text:
        yield name, text
    # Conditions are looked into, for definitions hide there, and functions inside of functions.
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            yield from _docstrings(child, f'{name}.{child.name}'.strip('.'))
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _docstrings(child, name)


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


def to_sentences(docstring: str) -> list[str]:
    """Return the docstring's sentences of prose.

    They have at least MIN_WORDS words, mostly letters, and at most MAX_SENTENCE_CHARS characters.
    Code, doctest lines, tables, parameter types, citations and headings are left out.
    """
    text = inspect.cleandoc(docstring)
    for pattern, replacement in _LINES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    # Markup goes before sentences are cut where full stops are: addresses have many.
    paragraphs = re.split(r'\n\s*\n', text)
    for pattern, replacement in _INLINE:
        paragraphs = [re.sub(pattern, replacement, paragraph) for paragraph in paragraphs]
    reader = Text('', _OPTIONS, Report(), segment=True)
    return [sentence for sentence in reader.document('\n'.join(paragraphs)) if _is_prose(sentence)]


def _is_prose(sentence: str) -> bool:
    """Tell whether a sentence is worth reading: enough words, hardly any symbols."""
    return (
        len(sentence) <= MAX_SENTENCE_CHARS
        and len(_WORD.findall(sentence)) >= MIN_WORDS
        and not _NOT_PROSE.search(sentence)
        and len(_PLAIN.findall(sentence)) >= 0.9 * len(sentence)
    )
