"""Where the quickstart's text comes from, and the fine-tuning task that is cut from it.

Two sources with the same attributes and methods: the docstrings of the installed packages, and the
user's own corpus. Owns what identifies a source (so that a second run knows it again); how text is
read, split and cut into a task is input_pipeline's.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.tokenizer.vocabulary import Casing, detect_casing, name_casing
from bert_jax.reports.quickstart import docstrings
from bert_jax.reports.quickstart.commands import say
from bert_jax.reports.quickstart.text_split import Document, hashed, read, split

# Enough for several megabytes of prose and ten classes of a task.
PACKAGES = 20
# Of a document of the user's, what is held out together: about a page.
PART_SENTENCES = 8


class Docstrings:
    """The documentation of the installed packages with most Python source.

    Attributes:
      title: what it is.
      question: what the task asks.
      group: what is held out together, in words.
      inputs: what it depends on, as JSON values.
      line_pieces: how many word pieces its lines for pre-training have at most; None: it has a
        sentence a line.
    """

    question = 'which library does a docstring come from?'
    group = 'modules'
    line_pieces: int | None = None

    def __init__(self) -> None:
        # The text depends on nothing but the packages, so a second run knows it by them.
        self._packages = docstrings.installed_packages(PACKAGES)
        if not self._packages:
            raise UserError(
                'no Python packages are installed here: install this one with its dependencies, or'
                ' give --corpus'
            )
        self.title = f'the docstrings of {len(self._packages)} installed packages'
        self.inputs: dict[str, Any] = {
            'packages': {p.name: [p.distribution, p.version, p.bytes] for p in self._packages}
        }

    def documents(self) -> Iterator[Document]:
        """Yield the documents, in their order."""
        return docstrings.read(self._packages)

    def casing(self, text: Path) -> Casing:
        """Return that of the paper, for the text is English."""
        return name_casing(['en'])

    def make_task(self, text: Path, vocabulary: Path, pieces: int, folder: Path) -> None:
        """Write the task; of any length, for a docstring says at its beginning what it is about."""
        from bert_jax.reports.quickstart.tasks import library_task

        library_task(read(text), folder)


class Corpus:
    """The user's text, at most about `limit` bytes of it, documents chosen by a hash.

    Its attributes are those of Docstrings.
    """

    question = 'is a passage whole, or mixed with another?'
    group = 'parts of documents'
    # Three lines to a row: of fewer, next sentence prediction could seldom take the next.
    line_pieces: int | None = 10

    def __init__(
        self, patterns: Sequence[str], options: TextOptions, limit: int, language: str | None
    ):
        """Find the files; `language`: of the text, where the user named it."""
        from etils import epath

        from bert_jax.input_pipeline.text.corpus import units

        # Files by name, size and time of change; objects in a store by what the store says of them.
        self._patterns, self._options, self._limit = patterns, options, limit
        self._language = language
        files: list[list[Any]] = []
        chosen = [file for unit in units(patterns, options) for file in unit.files()]
        for path in sorted({Path(file.path) for file in chosen if '://' not in file.path}):
            stat = path.stat()
            files.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
        remote = [file for file in chosen if '://' in file.path]
        files += [[file.path, file.bytes, epath.Path(file.path).stat().mtime] for file in remote]
        self.title = ', '.join(patterns)
        self.inputs = {'corpus': files, 'options': dataclasses.asdict(options), 'limit': limit}

    def documents(self) -> Iterator[Document]:
        """Yield parts of the documents with the smallest hashes that together keep the limit.

        They are in the order of the text.
        """
        from bert_jax.input_pipeline.text.corpus import Report, read_documents

        # A heap of what is kept, largest hash on top: the smallest hashes are a sample that does
        # not depend on the order of the files, and memory holds no more than the limit.
        kept: list[tuple[float, int, str, list[str]]] = []
        report, size, total = Report(), 0, 0
        bytes_of = lambda sentences: sum(len(sentence.encode()) for sentence in sentences)
        for number, raw in enumerate(read_documents(self._patterns, self._options, report)):
            name = f'{raw.name[0]}:{raw.name[1]}'
            total += bytes_of(raw.sentences)
            size += bytes_of(raw.sentences)
            heapq.heappush(kept, (-hashed(f'sample {name}'), number, name, raw.sentences))
            # Over the limit the largest hash goes, but one document always stays.
            while size > self._limit and len(kept) > 1:
                size -= bytes_of(heapq.heappop(kept)[-1])
        for line in report.lines():  # invalid bytes, lines that were cut
            say(line)

        # What is not used is said, with the flag that changes it.
        if size < total:
            amount = f'{size / 1e6:.1f} of {total / 1e6:.1f} MB are used'
            say(f'{self.title}: {amount}, documents chosen by a hash (--corpus_mb for more)')
        # In parts, and not as a whole: of a document on one side alone nothing could be asked.
        for _, _, name, sentences in sorted(kept, key=lambda item: item[1]):
            for i in range(0, len(sentences), PART_SENTENCES):
                part = tuple(sentences[i : i + PART_SENTENCES])
                yield Document(name, f'{name} {i}', '', part)

    def casing(self, text: Path) -> Casing:
        """Return the casing that the language wants: as it is named, or as its words tell."""
        if self._language:
            return name_casing([self._language])
        with open(text / 'train.txt', encoding='utf-8') as file:
            return detect_casing(Counter(file.read(1_000_000).split()))

    def make_task(self, text: Path, vocabulary: Path, pieces: int, folder: Path) -> None:
        """Write the task, of passages that fit a row.

        Args:
          text: the text folder.
          vocabulary: the tokenizer's folder.
          pieces: word pieces of the vocabulary that a row of the model has room for.
          folder: the task's.
        """
        from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
        from bert_jax.reports.quickstart.tasks import mixing_task

        mixing_task(read(text), Tokenizer.load(vocabulary), pieces, folder)


Source = Docstrings | Corpus


def write_text(source: Source, folder: Path) -> None:
    """Write the text folder of a source (text_split.py), and say what is in it."""
    train, held_out, dropped = split(source.documents(), folder).values()
    say(
        f'{train["bytes"] / 1e6:.1f} MB of {train["sentences"]:,} sentences in'
        f' {train["documents"]:,} documents to learn from;'
        f' {held_out["bytes"] / 1e6:.1f} MB held out'
        f' ({held_out["groups"]:,} of {train["groups"] + held_out["groups"]:,} {source.group});'
        f' {dropped["documents"]:,} documents and {dropped["sentences"]:,} sentences dropped as'
        ' copies'
    )
