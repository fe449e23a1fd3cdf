"""Tasks that give every word of a sentence a tag.

They are CoNLL-2003 and the user's own (paper section 5.3).

This file owns how sentences become rows, with or without the sentences around them, and how the
tags of first pieces become the words' tags. Files and entity scores are conll.py's. It must
not know the model.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks import conll
from bert_jax.input_pipeline.tasks.base import (
    Arrays,
    Example,
    Files,
    Predictions,
    Task,
    list_answers,
    write_text,
)
from bert_jax.input_pipeline.tasks.features import make_empty_rows, write_row
from bert_jax.input_pipeline.tasks.task_file import (
    LABEL_ENTRIES,
    TaskFile,
    word_unknown_label,
)
from bert_jax.input_pipeline.tasks.task_metrics import entropy
from bert_jax.input_pipeline.text.encodings import located
from bert_jax.input_pipeline.text.tables import FORMATS, Table, unique_id


@dataclass(frozen=True)
class TaggedExample(Example):
    """A sentence's words, their tags, and which document it is of.

    `label`: indices into the task's labels; None where unknown.
    """

    words: tuple[str, ...]
    label: tuple[int, ...] | None
    document: str

    respelled = ('words',)


@dataclass(frozen=True)
class TaggingTask(Task[TaggedExample]):
    """Tagging; see `Task` for the attributes.

    Attributes:
      files: split -> its tables or column files (format "conll").
      document_context: fill each row with the words around its sentence in the same document.
      comment: lines of a column file that begin with it are left out.
      spelled: tag in the files -> label, where files call labels otherwise (by a number).

    A JSON task file is an object of:
      kind      "tagging"
      files     as for classification; a .txt, .tsv, .conll or .bio file is a column file ("format":
                "conll"): a word a line, a blank line after each sentence; a .conllu file ("conllu")
                is one of Universal Dependencies
      columns   of column files {"tokens", "tags"}: the columns of word and tag, 0 and -1 if not
                given; of CoNLL-U {"tags"}: 3 if not given, the universal part of speech, or 4, the
                treebank's own; of others {"tokens", "tags", "document", "id"}, where tokens and
                tags are lists (JSON) or texts with blanks between, or with "sentence" a word and
                its tag each: words of a sentence have the same there, or nothing below the first;
                neighbours of the same "document" are context for each other
      labels    list of all tags, or an object of tag in the files -> name; O, B-X and I-X for
                entities, or those of IOBES and BILUO, or without kinds (O, B, I); optional: those
                of the training files, of entities O, B-X and I-X; of CoNLL-U the 17 universal parts
                of speech
      metrics   entity_f1 (the default for such labels), accuracy (of words); the first selects
      dev_share, dev_seed  as for classification, of sentences
      document_context  optional, false: fill each row with the sentences around it (-DOCSTART-
                        and # newdoc lines part documents)
      comment   optional: lines of a column file that begin with it are left out
    """

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    files: Files = field(repr=False)
    document_context: bool = False
    comment: str = ''
    spelled: Mapping[str, str] = field(default_factory=dict, repr=False)

    kind = 'tagging'
    kinds = ('tagging',)
    names = ('conll2003', 'conll2003_sentences')
    list_columns = frozenset({'tokens', 'tags'})
    head = 'tokens'
    label_keys = ('label_ids', 'label_weights')

    @classmethod
    def from_name(cls, name: str, data_dir: str) -> TaggingTask:
        """Make CoNLL-2003 English in `data_dir`.

        With the context of the document, as in the paper, or sentence by sentence. The files are
        train.txt, valid.txt and test.txt, or as the shared task named them eng.train, eng.testa and
        eng.testb.
        """
        # Copies of CoNLL-2003 go round under two sets of names.
        names = ('eng.train', 'eng.testa', 'eng.testb')
        if not any(located(os.path.join(data_dir, file)) for file in names):
            names = ('train.txt', 'valid.txt', 'test.txt')
        files = {
            split: (Table(os.path.join(data_dir, file), {}, format='conll'),)
            for split, file in zip(('train', 'dev', 'test'), names, strict=True)
        }

        labels = _list_tags(('-PER', '-LOC', '-ORG', '-MISC'))
        return cls(name, labels, ('entity_f1',), files, document_context=name == 'conll2003')

    @classmethod
    def from_task_file(cls, file: TaskFile) -> TaggingTask:
        """Make a task of the tags that the file lists, or else of those of the training files."""
        roles = dict.fromkeys(('tokens', 'tags', 'sentence', 'document', 'id'), False)
        formats = ('conll', 'conllu', *FORMATS)
        entries = (*LABEL_ENTRIES, 'document_context', 'comment')
        files = {}
        for split, listed in file.tables(roles, entries, formats, cls.list_columns).items():
            files[split] = tuple(conll.settle_format(file.name, split, table) for table in listed)
        comment = file.get('comment', '')

        def read_tags(table: Table) -> Iterator[tuple[str, str]]:
            for sentence, _ in conll.read(table, comment, untagged=True):
                for word, tag in enumerate(sentence.tags or ()):
                    yield sentence.place_of(word), tag

        # Only the universal parts of speech are known beforehand.
        every = [table for listed in files.values() for table in listed]
        is_universal = all(table.format == 'conllu' and not table.columns for table in every)
        universal = conll.PARTS_OF_SPEECH if is_universal else ()
        labels, spelled = file.labels(files, universal, read_tags)
        # Whatever the scheme of the file is: tags are brought to B- and I- as they are read.
        if not file.get('labels') and conll.is_entities(labels):
            labels = _list_tags(sorted({label[1:] for label in labels if label != 'O'}))
        selects = 'entity_f1' if conll.is_entities(labels) else 'accuracy'
        if file.get('metrics') is None and conll.is_otherwise_spelled(labels):
            logging.warning(
                'task %s: labels like %s are scored word by word: for entities give them names as'
                ' in "labels": {%s: "B-X", ...}',
                *(file.name, labels[-1], json.dumps(labels[-1], ensure_ascii=False)),
            )
        metrics = tuple(file.get('metrics', (selects,)))
        in_context = file.get('document_context', False)
        return cls(file.name, labels, metrics, files, in_context, comment, spelled)

    def __post_init__(self) -> None:
        # Before any file is opened: metrics, labels, and that they fit together.
        self.check_names(('entity_f1', 'accuracy'))
        if 'entity_f1' in self.metrics and not conll.is_entities(self.labels):
            raise UserError(
                f'task {self.name}: entity_f1 needs labels O, B-X and I-X (or of IOBES or BILUO),'
                f' not {", ".join(self.labels)[:100]}'
            )

    @property
    def options(self) -> dict[str, Any]:
        """Return whether rows are filled with what is around a sentence."""
        return {'document_context': self.document_context}

    @property
    def scores(self) -> tuple[str, ...]:
        """Name the accuracy of words too, and of entities precision, recall and each kind's F1."""
        if 'entity_f1' not in self.metrics:
            return self.metrics
        names = [*self.metrics, 'entity_precision', 'entity_recall']
        names += [f'entity_f1_{label[2:]}' for label in self.labels if label[2:]]
        return tuple(dict.fromkeys([*names, 'accuracy']))

    def _read_examples(self, split: str) -> list[TaggedExample]:
        # Tags become indices; before that, where labels are B-X and I-X, all schemes become BIO, or
        # half of the entities of IOB1 would be lost.
        bio, repaired, other = conll.is_bio(self.labels), 0, 0
        examples: list[TaggedExample] = []
        for name, sentence, document in self._iterate_sentences(split):
            label = None
            if sentence.tags is not None:
                read = [self.spelled.get(tag, tag) for tag in sentence.tags]
                tags = conll.make_bio(read) if bio else read
                other += conll.count_beyond_bio(read) if bio else 0
                repaired += sum(a[:1] == 'I' and a != b for a, b in zip(read, tags, strict=True))
                self._require_labels(sentence, tags)
                label = tuple(map(self.labels.index, tags))
            examples.append(TaggedExample(name, tuple(sentence.words), label, document))

        # Said, because it may also be errors of the file.
        if repaired:
            logging.info(
                '%s %s: %d tags I-X that begin an entity are read as B-X (IOB1 tags, or errors in'
                ' BIO ones)',
                *(self.name, split, repaired),
            )
        if other:
            message = '%s %s: %d tags of IOBES, BILUO or BMES are read as B-X and I-X'
            logging.info(message, self.name, split, other)
        return examples

    def _require_labels(self, sentence: conll.Sentence, tags: Sequence[str]) -> None:
        """Raise UserError for a tag that is no label, at the place of its word."""
        for word, tag in enumerate(tags):
            if tag not in self.labels:
                message = word_unknown_label(self.name, tag, self.labels)
                raise UserError(f'{sentence.place_of(word)}: {message}')

    def _iterate_sentences(self, split: str) -> Iterator[tuple[str, conll.Sentence, str]]:
        """Yield (id, sentence, document) of every file of a split."""
        # Column files know documents by -DOCSTART- or # newdoc, tables by a column. The number of
        # the file is part of a document's name, so files share none.
        test = split.startswith('test')
        lines: dict[str, str] = {}
        for number, table in enumerate(self.files[split]):
            lengths, columns = [], table.format in ('conll', 'conllu')
            whole = dataclasses.replace(table, part=None)
            for sentence, row in conll.read(whole, self.comment, test):
                lengths.append(len(sentence.words))
                # Sentences of the same words are in the same part.
                if table.part and not table.part.has({'tokens': ' '.join(sentence.words)}):
                    continue
                # In tables a sentence without a column of documents is its own.
                name = unique_id(row, sentence.where, lines)
                document = sentence.document if columns else row.get('document', name)
                yield name, sentence, f'{number}:{document}'
            conll.check_lengths(table.where, lengths, columns)

    def features(
        self, examples: Sequence[TaggedExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """Lay out [CLS] sentence [SEP]; one row for each sentence.

        With `document_context` the row is filled up with what is around it, half on each side. A
        sentence that is longer than a row goes on in another one.

        Returns:
          INPUT_KEYS [N, S] int32 and:
          label_ids [N, S] int32, label_weights [N, S] float32  the tag, and 1, at the first piece
            of each of the sentence's words
          word_index [N, S] int32  which word of the sentence begins there; -1 elsewhere
          example_index [N]  which sentence
        """
        # 1. All words of all sentences in one call, taken apart again in the same order.
        words = list(itertools.chain.from_iterable(example.words for example in examples))
        pieces = iter(tokenizer.encode_words(words))
        rows: list[_Row] = []

        # 2. Rows, document by document: neighbours in the list that are of one document are its
        # sentences. Without context every sentence is a document of its own.
        document = operator.attrgetter('document' if self.document_context else 'id')
        first = 0  # of the document's sentences, by its place in `examples`
        for _, members in itertools.groupby(examples, document):
            lengths = [len(example.words) for example in members]
            theirs = list(itertools.islice(pieces, sum(lengths)))
            rows += _lay_out_document(first, lengths, theirs, max_seq_length - 2)
            first += len(lengths)

        # 3. The arrays, padding everywhere until a row is written.
        features = make_empty_rows(len(rows), max_seq_length, tokenizer.pad_id)
        shape = (len(rows), max_seq_length)
        features['label_ids'] = np.zeros(shape, np.int32)
        features['label_weights'] = np.zeros(shape, np.float32)
        features['word_index'] = np.full(shape, -1, np.int32)
        features['example_index'] = np.array([row.example for row in rows], np.int32)
        for number, row in enumerate(rows):
            write_row(features, number, tokenizer, row.ids)

            # Only the first piece of a word is trained on and decoded (paper section 5.3): its
            # place in the row is behind [CLS] and the context on the left.
            first_pieces = np.flatnonzero(row.word_index >= 0)
            positions, word = first_pieces + 1 + row.begin, row.word_index[first_pieces]
            features['word_index'][number, positions] = word
            features['label_weights'][number, positions] = 1.0
            label = examples[row.example].label
            if label is not None:
                features['label_ids'][number, positions] = np.array(label, np.int32)[word]
        return features

    def decode(
        self, examples: Sequence[TaggedExample], features: Arrays, outputs: Arrays
    ) -> Predictions:
        """Return the best tag of each word's first piece.

        A word without any (a lone control character) gets O, or the first label.
        """
        # Words without a piece keep this; no row shows them.
        nothing = 'O' if 'O' in self.labels else self.labels[0]
        tags = [[nothing] * len(example.words) for example in examples]
        best = outputs['logits'].argmax(axis=2)
        for row, position in zip(*np.nonzero(features['word_index'] >= 0), strict=True):
            example, word = features['example_index'][row], features['word_index'][row, position]
            tags[example][word] = self.labels[best[row, position]]
        ids = [example.id for example in examples]
        return Predictions(dict(zip(ids, tags, strict=True)))

    def constant_loss(self, features: Arrays) -> float:
        """Return the entropy of the tags of all words."""
        return entropy(features['label_ids'][features['label_weights'] > 0])

    def constant_scores(self, examples: Sequence[TaggedExample]) -> dict[str, float]:
        """Score the most frequent tag, given to every word; {} where no tag is known."""
        tags = [tag for example in examples for tag in example.label or ()]
        if not tags:
            return {}
        tag = self.labels[np.bincount(tags).argmax()]
        answers = {example.id: [tag] * len(example.words) for example in examples}
        return self.score(examples, Predictions(answers))

    def score(
        self, examples: Sequence[TaggedExample], predictions: Predictions
    ) -> dict[str, float]:
        """Return the task's metrics as fractions; with entity_f1 precision, recall, each kind's F1.

        Accuracy compares tags as they are, as conlleval does: predictions in IOB1 with the truth
        in IOB1. Raises UserError as for other tasks.
        """
        # Entities are the same in both schemes; tags word by word are compared in that of the
        # predictions.
        given = list_answers(self, examples, predictions)
        # `list_answers` has refused examples without a label
        truth = [[self.labels[tag] for tag in example.label or ()] for example in examples]
        if conll.is_bio(self.labels) and conll.is_iob1(given):
            message = '%s: the predictions are IOB1 tags, so the accuracy of words is in IOB1'
            logging.info(message, self.name)
            truth = [conll.make_iob1(tags) for tags in truth]

        # Words of all sentences as one list: a long sentence counts for its length.
        right: list[bool] = []
        for tags, answer in zip(truth, given, strict=True):
            right += map(operator.eq, tags, answer)
        scores = {'accuracy': float(np.mean(right))}
        if 'entity_f1' in self.metrics:
            scores = conll.score_entities(truth, given) | scores
        return {name: scores[name] for name in self.metrics} | scores

    def write_predictions(
        self, folder: str, examples: Sequence[TaggedExample], predictions: Predictions
    ) -> None:
        """Write predictions.txt as conlleval takes it.

        A line is a word, its true tag (left out where unknown) and the predicted one; a blank line
        follows each sentence.
        """
        # The true tag goes between word and prediction, where conlleval looks for it.
        lines = []
        for example in examples:
            words = [word.replace('\n', ' ') for word in example.words]  # a line each
            columns = [words, predictions.answers[example.id]]
            if example.label is not None:
                columns.insert(1, [self.labels[tag] for tag in example.label])
            lines += [' '.join(cells) for cells in zip(*columns, strict=True)] + ['']
        write_text(os.path.join(folder, 'predictions.txt'), '\n'.join(lines) + '\n')

    def read_predictions(self, path: str, examples: Sequence[TaggedExample]) -> Predictions:
        """Read a column file whose last column is the prediction.

        It has all sentences of `examples`, in their order.
        """
        # A file of columns has no ids, so it must have the same sentences, one by one.
        sentences = list(conll.read_columns(path, comment=self.comment))
        if len(sentences) != len(examples):
            raise UserError(
                f'{path}: {len(sentences)} sentences where the split has {len(examples)}'
            )
        answers = {}
        for sentence, example in zip(sentences, examples, strict=True):
            if len(sentence.words) != len(example.words):
                raise UserError(
                    f'{sentence.where}: {len(sentence.words)} words where sentence {example.id} has'
                    f' {len(example.words)}'
                )
            tags = [self.spelled.get(tag, tag) for tag in sentence.tags or ()]
            if conll.is_bio(self.labels) and conll.count_beyond_bio(tags):
                tags = conll.make_bio(tags)
            self._require_labels(sentence, tags)
            answers[example.id] = tags
        return Predictions(answers)


class _Row(NamedTuple):
    """A sentence, or a part of one, with what is around it.

    Attributes:
      example: the sentence's place among the examples.
      ids: the row's pieces.
      begin: where in them those of the sentence begin.
      word_index: of each piece of the sentence which word begins there; -1 where none does.
    """

    example: int
    ids: np.ndarray
    begin: int
    word_index: np.ndarray


def _lay_out_document(
    first: int, lengths: Sequence[int], pieces: Sequence[np.ndarray], room: int
) -> Iterator[_Row]:
    """Yield the rows of a document.

    Args:
      first: sentence i is example first + i.
      lengths: words of each sentence.
      pieces: ids of each word.
      room: pieces of a row at most.
    """
    # The document as one stream of pieces; word w has those from word_begins[w] on.
    sizes = np.array([len(word) for word in pieces], np.int64)
    stream = np.concatenate([*pieces, np.empty(0, np.int32)])
    word_begins = np.concatenate([[0], np.cumsum(sizes)])
    word = 0
    for sentence, length in enumerate(lengths):
        # The pieces of this sentence. Words without pieces (control characters alone) begin
        # nowhere.
        base, stop = int(word_begins[word]), int(word_begins[word + length])
        starts = np.full(stop - base, -1, np.int32)  # word_index of the sentence's pieces
        real = np.flatnonzero(sizes[word : word + length])
        starts[word_begins[word + real] - base] = real

        # Usually one row; as many as it takes for a long sentence.
        begin = base
        is_done = False  # a sentence without any piece has a row, too
        while not is_done:
            end = min(begin + room, stop)
            if end < stop:  # cut before a word, unless one word fills the row
                cuts = np.flatnonzero(starts[begin + 1 - base : end + 1 - base] >= 0)
                end = begin + 1 + int(cuts[-1]) if cuts.size else end

            # What room is left is filled with the document around: half on each side, or more on
            # one where the other has no more.
            spare = room - (end - begin)
            left = min(begin, max(spare // 2, spare - (len(stream) - end)))
            right = min(len(stream) - end, spare - left)
            ids = stream[begin - left : end + right]
            yield _Row(first + sentence, ids, left, starts[begin - base : end - base])
            begin = end
            is_done = begin >= stop
        word += length


def _list_tags(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return O first, then B and I with the end that each kind has."""
    return ('O', *(side + kind for kind in kinds for side in 'BI'))
