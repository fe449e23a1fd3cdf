"""The documentation strings of the installed Python packages, as documents of sentences.

English prose that every installation already has: no download, nothing third-party in
this repository. Owns which packages are read, where their docstrings are (found with
`ast`, so nothing is imported or run) and how they are cleaned to prose. It must not know
what the text is for: what is held out is text_split.py's, near-duplicates near_duplicates.py's.
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

import sentencex

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
        """Size of its Python source."""
        return sum(size for _, size in self.files)


def installed_packages(limit: int = 20) -> list[Package]:
    """The `limit` installed packages with most Python source, the smallest first.

    Smallest first because near_duplicates keeps the first of two equal texts, and where a
    large package repeats another's text (tensorflow keras', jax numpy's) the small one is
    the author.
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

        # Two distributions may share a name (google): the larger stands for it.
        for name, members in files.items():
            package = Package(
                name,
                distribution.name,
                distribution.version,
                tuple(sorted(members)),
                str(distribution.locate_file('')),
            )
            if name not in by_name or package.bytes > by_name[name].bytes:
                by_name[name] = package

    # Ties by name, so that the order is the same on every machine.
    largest = sorted(by_name.values(), key=lambda p: (-p.bytes, p.name))[:limit]
    return largest[::-1]


def read(packages: Iterable[Package], workers: int = 2) -> Iterator[Document]:
    """The documents of the packages, in the order of packages, files and places in the file.

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
    """The documents of one file; a file that does not parse has none."""
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
    for name, text in _docstrings(tree):
        sentences = to_sentences(text)
        if len(sentences) >= MIN_SENTENCES:
            documents.append(Document(package, file, name, tuple(sentences)))
        else:
            short += sentences
    if len(short) >= MIN_SENTENCES:
        documents.append(Document(package, file, '(short)', tuple(short)))
    return documents


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of the module and of each definition in it, in order."""
    # Depth first, in the order of the file; conditions are looked into, for definitions hide there.
    todo: list[tuple[str, ast.AST]] = [('', tree)]
    while todo:
        name, node = todo.pop(0)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield name, text

        # Functions inside of functions too: some have documentation.
        inner = [
            c
            for c in ast.iter_child_nodes(node)
            if isinstance(c, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.Try))
        ]
        todo[:0] = [
            (f'{name}.{c.name}'.strip('.') if hasattr(c, 'name') else name, c) for c in inner
        ]


# --- cleaning: lines -> paragraphs -> sentences ---------------------------------------

_UNDERLINE = re.compile(r'^[-=~^"*+#]{3,}$')
_SKIPPED_SECTIONS = {'references', 'reference', 'see also', 'methods', 'bibliography', 'signature'}
_PROSE_DIRECTIVES = {
    'note',
    'warning',
    'tip',
    'important',
    'caution',
    'hint',
    'attention',
    'admonition',
}
_DIRECTIVE = re.compile(r'^\.\.(?:\s+([\w:-]+?)::)?(?:\s+(.*))?$')
_HEADING = re.compile(r'^[A-Z][\w ]{1,24}:$')
_TABLE = re.compile(r'^[\s|+=\-:*]+$|^\||\|$|^[+=]{3,}')
_NUMPY_PARAMETER = re.compile(r'^[*\w][\w*., ]* : ')
_FIELD = re.compile(r'^:(\w+)[^:]*:\s*(.*)$')
_PARAMETER = re.compile(r'^[`*]{0,2}[A-Za-z_][\w.]*[`*]{0,2}(?:\s?\([^)]*\))?\s*:(?:\s+|$)')
_BULLET = re.compile(r'^(?:[-*+\u2022]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+')
_CODE = re.compile(
    r'^(?:import |from [\w.]+ import|def |class \w+[(:]|return |print\(|with .*:$|for .* in .*:$|if'
    r' .*:$|else:$|[@$%!#])'
    r'|^[\w.\[\], ]+ [-+*/]?= |^[\w.]+\(.*\)?[,;]?$|^[\])}]'
)


def paragraphs(docstring: str) -> list[str]:
    """The prose of a docstring.

    Code, doctest lines, tables, parameter types, citations and headings are left out.
    """
    # The state of a reader of lines: whether it is inside a code fence, a doctest, a section that
    # is skipped, or an indented block that belongs to a directive at `block_indent`.
    lines = inspect.cleandoc(docstring).split('\n')
    prose: list[str] = []
    current: list[str] = []
    fence, doctest, skipped, block_indent = False, False, False, None

    def close() -> None:
        if current:
            prose.append(' '.join(current))
            current.clear()

    for number, line in enumerate(lines):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        following = lines[number + 1] if number + 1 < len(lines) else ''

        # First what ends a paragraph whatever else it is: fences and empty lines.
        if text.startswith(('```', '~~~')):
            close()
            fence = not fence
            continue
        if not text:
            close()
            doctest = False
            continue

        # Inside of something that is left out.
        if fence:
            continue
        if block_indent is not None:
            if indent > block_indent:
                continue
            block_indent = None

        # Headings: a line with an underline; those of some sections take the section away.
        if _UNDERLINE.match(text):
            continue
        if _UNDERLINE.match(following.strip()) and len(following.strip()) >= len(text) - 2:
            close()
            skipped = text.lower() in _SKIPPED_SECTIONS
            continue

        # Doctests go on to the next empty line: what they print follows without a mark.
        if text.startswith('>>>'):
            close()
            doctest = True
        if doctest or skipped:
            continue

        # Directives: of notes and warnings the text is prose, of all others the block is skipped.
        directive = _DIRECTIVE.match(text)
        if directive:
            close()
            kind, rest = directive.groups()
            if kind in _PROSE_DIRECTIVES:
                current += [rest] if rest else []
            else:
                block_indent = indent
            continue

        # Google's headings ("Args:"): only the line goes, and of some sections the block below it.
        if _HEADING.match(text):
            close()
            if text[:-1].lower() in _SKIPPED_SECTIONS:
                block_indent = indent
            continue

        # Tables and code, by the look of a line.
        if _TABLE.search(text) or _CODE.match(text):
            close()
            continue

        # Parameters: numpy's style has name and type on a line, reST's and Google's before the
        # text.
        following_indent = len(following) - len(following.lstrip()) if following.strip() else 0
        if _NUMPY_PARAMETER.match(text) or (following_indent > indent and len(text.split()) < 4):
            close()  # a parameter's name and type: what it means follows, indented
            continue
        field = _FIELD.match(text)
        if field:
            close()
            text = '' if field[1] in {'type', 'rtype'} else field[2]

        # What begins as a bullet or a parameter begins a paragraph.
        stripped = _PARAMETER.sub('', _BULLET.sub('', text))
        if stripped != text:
            close()

        # reST's mark for "code follows".
        if stripped.endswith('::'):
            block_indent = indent
            stripped = stripped[:-1]
        if stripped:
            current.append(stripped)
    close()
    return prose


# Markup within a line, in this order: what holds others goes first.
_INLINE = (
    (re.compile(r':[\w:+-]+:(?=`)'), ''),  # :func:`name`
    (re.compile(r'`([^`<>]*?)\s*<[^`]*>`_*'), r'\1'),  # `text <url>`_
    (re.compile(r'!?\[([^\]]*)\]\([^)]*\)'), r'\1'),  # [text](url)
    (re.compile(r'\s*\[[\w*, -]{1,12}\]_'), ''),  # [1]_
    # A sentence with an address would have a hole: it is refused below.
    (re.compile(r'(?:https?|ftp)://\S+|www\.\S+|\S+@\S+\.\w+'), '~'),
    (re.compile(r'`~?|(?<!\w)\*\*|\*\*(?!\w)'), ''),
    (re.compile(r'(?<![\w*])\*(?=\w)|(?<=\w)\*(?![\w*])'), ''),
    (re.compile(r'(?<=\w)_(?!\w)'), ''),  # reference_
    (re.compile(r'\s+'), ' '),
)
# How prose is told: words, plain characters, and signs that hardly stand in any.
_WORD = re.compile(r"[A-Za-z][A-Za-z'\u2019-]+|\b[AaI]\b")
_PLAIN = re.compile(r"[A-Za-z ,.;'\u2019-]")
_NOT_PROSE = re.compile(
    r'[{}\\|<>^~$]|==|->|::|\.\.\. \.\.\.|__'
    # what is neither ASCII, nor a dash or a quotation mark, nor e, u, o or a with an accent
    r'|[^\x00-\x7f\u2010-\u2015\u2018-\u201d\xe9\xe8\xfc\xf6\xe4]'
)


def to_sentences(docstring: str) -> list[str]:
    """The docstring's sentences of prose.

    Of at least MIN_WORDS words, mostly letters, and at most MAX_SENTENCE_CHARS characters.
    """
    sentences = []
    for paragraph in paragraphs(docstring):
        # Markup goes first: sentences are cut where full stops stand, and addresses have many.
        for pattern, replacement in _INLINE:
            paragraph = pattern.sub(replacement, paragraph)
        for sentence in _split(paragraph):
            if _is_prose(sentence):
                sentences.append(sentence)
    return sentences


def _split(paragraph: str) -> list[str]:
    """Sentences of a paragraph; one that would end inside a dotted name (`tf.Tensor`) goes on."""
    sentences = ['']

    # Pieces come with the white space after them: one without goes on in the next.
    for piece in sentencex.segment('en', paragraph):
        if sentences[-1] and not sentences[-1][-1].isspace():
            sentences[-1] += piece
        else:
            sentences.append(piece)
    return [s.strip() for s in sentences[1:]]


def _is_prose(sentence: str) -> bool:
    """Whether it is worth reading: enough words, hardly any symbols."""
    return (
        len(sentence) <= MAX_SENTENCE_CHARS
        and len(_WORD.findall(sentence)) >= MIN_WORDS
        and not _NOT_PROSE.search(sentence)
        and len(_PLAIN.findall(sentence)) >= 0.9 * len(sentence)
    )
