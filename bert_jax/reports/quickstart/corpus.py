"""Where the quickstart's text comes from, and the fine-tuning task that is cut from it.

Two sources with one interface: the docstrings of the installed packages, and the user's own
corpus. Owns what identifies a source (so that a second run knows it again); how text is read,
split and cut into a task is input_pipeline's.
"""

from __future__ import annotations

import abc
import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.lines import TextOptions

# Enough for several megabytes of prose and ten classes of a task.
PACKAGES = 20
# Of a document of the user's, what is held out together: about a page.
PART_SENTENCES = 8


class Source(abc.ABC):
    """A text, and the task that is cut from it.

    Attributes:
      title: what it is.
      question: what the task asks.
      inputs: what it depends on, as JSON values.
      line_pieces: its sentences are cut to lines of so many word pieces for pre-training, if any.
    """

    title: str
    question: str
    inputs: dict[str, Any]
    line_pieces: int | None

    @abc.abstractmethod
    def make(self, folder: Path) -> None:
        """Writes the text folder (bert_jax/reports/quickstart/text_split.py)."""

    @abc.abstractmethod
    def cased(self, text: Path) -> bool:
        """Whether the vocabulary of the text folder should tell capitals and accents apart."""

    @abc.abstractmethod
    def make_task(self, text: Path, vocabulary: Path, pieces: int, folder: Path) -> None:
        """Writes the fine-tuning task cut from the text folder.

        `pieces`: word pieces of the vocabulary that a row of the model has room for.
        """


class Docstrings(Source):
    """The documentation of the installed packages with most Python source."""

    question = 'which library does a docstring come from?'
    line_pieces = None

    def __init__(self) -> None:
        # The text depends on nothing but the packages, so a second run knows it by them.
        from bert_jax.reports.quickstart import docstrings

        self._packages = docstrings.installed_packages(PACKAGES)
        if not self._packages:
            raise UserError(
                'no Python packages are installed here: install this one with its dependencies, or'
                ' give --corpus'
            )
        self.title = f'the docstrings of {len(self._packages)} installed packages'
        self.inputs = {
            'packages': {p.name: [p.distribution, p.version, p.bytes] for p in self._packages}
        }

    def make(self, folder: Path) -> None:
        from bert_jax.reports.quickstart import docstrings, text_split
        from bert_jax.reports.quickstart.stages import say

        counts = text_split.split(docstrings.read(self._packages), str(folder))
        say(describe(counts, 'modules'))

    def cased(self, text: Path) -> bool:
        del text
        return False  # English, as the paper has it

    def make_task(self, text: Path, vocabulary: Path, pieces: int, folder: Path) -> None:
        from bert_jax.reports.quickstart import tasks, text_split

        del vocabulary, pieces  # a docstring says at its beginning what it is about
        tasks.library_task(text_split.read(str(text)), str(folder))


class Corpus(Source):
    """The user's text, at most about `limit` bytes of it, documents chosen by a hash."""

    question = 'is a passage whole, or mixed with another?'
    # Three lines to a row: of fewer, next sentence prediction could seldom take the next.
    line_pieces = 10

    def __init__(self, patterns: Sequence[str], options: TextOptions, limit: int):
        from etils import epath

        from bert_jax.input_pipeline.text.corpus import units
        from bert_jax.reports.quickstart.stages import fingerprint

        # Files by name, size and time of change; objects in a store by what the store says of them.
        self._patterns, self._options, self._limit = patterns, options, limit
        chosen = [file for unit in units(patterns, options) for file in unit.files()]
        files = fingerprint(sorted({Path(file.path) for file in chosen if '://' not in file.path}))
        remote = [file for file in chosen if '://' in file.path]
        files += [[file.path, file.bytes, epath.Path(file.path).stat().mtime] for file in remote]
        self.title = ', '.join(patterns)
        self.inputs = {'corpus': files, 'options': dataclasses.asdict(options), 'limit': limit}

    def make(self, folder: Path) -> None:
        from bert_jax.reports.quickstart import text_split
        from bert_jax.reports.quickstart.stages import say

        counts = text_split.split(self._sample(), str(folder))
        say(describe(counts, 'parts of documents'))

    def cased(self, text: Path) -> bool:
        # Lower-casing strips accents too: of other languages than English it takes more than it
        # gives, and it takes Hangul and other scripts apart.
        return self._options.language.split('-')[0] != 'en' or not is_latin(text / 'train.txt')

    def make_task(self, text: Path, vocabulary: Path, pieces: int, folder: Path) -> None:
        from bert_jax.input_pipeline.tokenizer import Tokenizer
        from bert_jax.reports.quickstart import tasks, text_split

        tokenizer, documents = Tokenizer.load(vocabulary), text_split.read(str(text))
        tasks.mixing_task(documents, tokenizer, pieces, str(folder))

    def _sample(self) -> Iterator[Any]:
        """The documents with the smallest hashes that together stay within the limit.

        In the order of the text.
        """
        from bert_jax.input_pipeline.text.corpus import Report, read_documents
        from bert_jax.reports.quickstart.stages import say
        from bert_jax.reports.quickstart.text_split import Document, hashed

        # A heap of what is kept, largest hash on top: the smallest hashes are a sample that does
        # not depend on the order of the files, and memory holds no more than the limit.
        kept: list[tuple[float, int, int, Document]] = []
        report, size, total = Report(), 0, 0
        for number, raw in enumerate(read_documents(self._patterns, self._options, report)):
            name = f'{raw.name[0]}:{raw.name[1]}'
            document = Document(name, name, '', tuple(raw.sentences))

            # Over the limit the largest hash goes, but one document always stays.
            length = sum(len(sentence.encode()) for sentence in raw.sentences)
            total += length
            size += length
            heapq.heappush(kept, (-hashed(f'sample {name}'), number, length, document))
            while size > self._limit and len(kept) > 1:
                size -= heapq.heappop(kept)[2]
        for line in report.lines():  # invalid bytes, lines that were cut
            say(line)

        # What is not used is said, with the flag that changes it.
        if size < total:
            amount = f'{size / 1e6:.1f} of {total / 1e6:.1f} MB are used'
            say(f'{self.title}: {amount}, documents chosen by a hash (--corpus_mb for more)')
        # In parts, and not as a whole: of a document on one side alone nothing could be asked.
        for _, _, _, whole in sorted(kept, key=lambda item: item[1]):
            for i in range(0, len(whole.sentences), PART_SENTENCES):
                sentences = whole.sentences[i : i + PART_SENTENCES]
                yield dataclasses.replace(whole, group=f'{whole.group} {i}', sentences=sentences)


def source(corpus: Sequence[str] | None, options: TextOptions, limit: int) -> Source:
    """The source that --corpus names; the docstrings without one."""
    return Corpus(corpus, options, limit) if corpus else Docstrings()


def describe(counts: dict[str, Any], groups: str) -> str:
    """One line about a text folder."""
    # Groups are what is held out together: modules, or documents.
    train, held_out, dropped = counts['train'], counts['held_out'], counts['dropped']
    return (
        f'{train["bytes"] / 1e6:.1f} MB of {train["sentences"]:,} sentences in'
        f' {train["documents"]:,} documents to learn from;'
        f' {held_out["bytes"] / 1e6:.1f} MB held out'
        f' ({held_out["groups"]:,} of {train["groups"] + held_out["groups"]:,} {groups});'
        f' {dropped["near_copy_documents"]:,} documents and {dropped["near_copy_sentences"]:,}'
        ' sentences dropped as near-duplicates'
    )


def is_latin(path: Path) -> bool:
    """Whether most letters of a text are Latin, judged by its first 200,000 characters."""
    with open(path, encoding='utf-8') as file:
        # The blocks of Latin letters, accents and all, end at U+024F.
        letters = [c for c in file.read(200_000) if c.isalpha()]
    return 2 * sum(c < '\u0250' for c in letters) > len(letters)
