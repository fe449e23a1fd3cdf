"""Tasks that give every word of a sentence a tag.

They are CoNLL-2003 and the user's own (paper section 5.3).

This file owns how sentences become rows, with or without the sentences around them, and how the
tags of first pieces become the words' tags. Column files and entity scores are
scores/entities.py's. It must not know the model.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import (
    INPUT_KEYS,
    Arrays,
    Example,
    Predictions,
    Task,
    write_text,
)
from bert_jax.input_pipeline.tasks.predictions import complete
from bert_jax.input_pipeline.tasks.scores import entities
from bert_jax.input_pipeline.tasks.scores.constant_baseline import entropy
from bert_jax.input_pipeline.tasks.task_file import (
    TABLE_ENTRIES,
    labels_of,
    require_entries,
    tables_of,
    unknown_label,
)
from bert_jax.input_pipeline.text.tables import FORMATS, Table, unique_id
from bert_jax.input_pipeline.text.whole_text import located, plain_name

KINDS = ('tagging',)
NAMES = ('conll2003', 'conll2003_sentences')
_SETTINGS = ('kind', 'files', 'labels', 'metrics', *TABLE_ENTRIES, 'document_context', 'comment')
_METRICS = ('entity_f1', 'accuracy')
_COLUMN_FILES = ('.txt', '.tsv', '.conll', '.bio', '.iob', '.iob2')
_KINDS_2003 = ('PER', 'LOC', 'ORG', 'MISC')


@dataclass(frozen=True)
class TaggedExample(Example):
    """A sentence's words, their tags, and which document it is of.

    `label`: indices into the task's labels; None where unknown.
    """

    words: tuple[str, ...]
    label: tuple[int, ...] | None
    document: str


@dataclass(frozen=True)
class TaggingTask(Task[TaggedExample]):
    """Tagging; see `Task` for the attributes.

    Attributes:
      files: split -> its tables or column files (format "conll"), read one after the other.
      document_context: fill each row with the words around its sentence in the same document.
      comment: lines of a column file that begin with it are left out.
      spelled: tag in the files -> label, where files call labels otherwise (by a number).
    """

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    files: Mapping[str, tuple[Table, ...]] = field(repr=False)
    document_context: bool = False
    comment: str = ''
    spelled: Mapping[str, str] = field(default_factory=dict, repr=False)

    kind = 'tagging'
    head = 'tokens'
    label_keys = ('label_ids', 'label_weights')

    def __post_init__(self) -> None:
        # Before any file is opened: metrics, labels, and that they fit together.
        for name in self.metrics:
            if name not in _METRICS:
                raise UserError(
                    f'task {self.name}: metric {name!r} is none of {", ".join(_METRICS)}'
                )
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise UserError(
                f'task {self.name}: "labels" must list two or more different labels, not'
                f' {list(self.labels)}'
            )
        if 'entity_f1' in self.metrics and not entities.is_entities(self.labels):
            raise UserError(
                f'task {self.name}: entity_f1 needs labels O, B-X and I-X (or of IOBES or BILUO),'
                f' not {", ".join(self.labels)[:100]}'
            )

    @property
    def options(self) -> dict[str, Any]:
        """Whether rows are filled with what stands around a sentence."""
        return {'document_context': self.document_context}

    @property
    def scores(self) -> tuple[str, ...]:
        """The accuracy of words too, and of entities precision, recall and the F1 of each kind."""
        if 'entity_f1' not in self.metrics:
            return self.metrics
        kinds = dict.fromkeys(label[2:] for label in self.labels if label[2:])
        of_kinds = (f'entity_f1_{kind}' for kind in kinds)
        more = ('entity_precision', 'entity_recall', *of_kinds, 'accuracy')
        return tuple(dict.fromkeys((*self.metrics, *more)))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have files."""
        return tuple(self.files)

    def examples(self, split: str) -> list[TaggedExample]:
        """Reads a split; ids are numbers from 0.

        Where labels are B-X and I-X, tags are brought to that and begin with B-
        (`entities.as_bio`).
        """
        self.require_split(split)
        places = {label: place for place, label in enumerate(self.labels)}

        # Tags become indices; before that, all schemes become BIO, or half of the entities of IOB1
        # would be lost.
        bio, repaired, other = entities.is_bio(self.labels), 0, 0
        examples: list[TaggedExample] = []
        for name, sentence, document in self._sentences(split):
            label = None
            if sentence.tags is not None:
                read = [self.spelled.get(tag, tag) for tag in sentence.tags]
                tags = entities.as_bio(read) if bio else read
                other += entities.beyond_bio(read) if bio else 0
                repaired += sum(a[:1] == 'I' and a != b for a, b in zip(read, tags, strict=True))
                self._require_labels(sentence, tags)
                label = tuple(places[tag] for tag in tags)
            examples.append(TaggedExample(name, tuple(sentence.words), label, document))
        if not examples:
            raise UserError(
                f'{", ".join(table.where for table in self.files[split])}: no sentences'
            )

        # Said, because it may also be errors of the file.
        if repaired:
            logging.info(
                '%s %s: %d tags I-X that begin an entity are read as B-X (IOB1 tags, or errors in'
                ' BIO ones)',
                self.name,
                split,
                repaired,
            )
        if other:
            said = '%s %s: %d tags of IOBES, BILUO or BMES are read as B-X and I-X'
            logging.info(said, self.name, split, other)
        return examples

    def _require_labels(self, sentence: entities.Sentence, tags: Sequence[str]) -> None:
        """UserError for a tag that is no label, at the place of its word."""
        for word, tag in enumerate(tags):
            if tag not in self.labels:
                said = unknown_label(self.name, tag, self.labels)
                raise UserError(f'{sentence.place_of(word)}: {said}')

    def _sentences(self, split: str) -> Iterator[tuple[str, entities.Sentence, str]]:
        """(id, sentence, document) of every file of a split."""
        # Column files know documents by -DOCSTART- or # newdoc, tables by a column. The number of
        # the file is part of a document's name, so files share none.
        test = split.startswith('test')
        lines: dict[str, str] = {}
        for number, table in enumerate(self.files[split]):
            lengths, columns = [], table.format in ('conll', 'conllu')
            for sentence, row in (
                ((sentence, {}) for sentence in entities.read_lines(table, self.comment, test))
                if columns
                else entities.read_table(table, test)
            ):
                # In tables a sentence without a column of documents is its own.
                name = unique_id(row, sentence.where, lines)
                document = sentence.document if columns else row.get('document', name)
                yield name, sentence, f'{number}:{document}'
                lengths.append(len(sentence.words))
            if said := entities.check_lengths(table.where, lengths, columns):
                logging.warning('%s', said)

    def respelled(self, example: TaggedExample, respell: Callable[[str], str]) -> TaggedExample:
        """Every word, which keeps its tag."""
        return dataclasses.replace(example, words=tuple(map(respell, example.words)))

    def features(
        self, examples: Sequence[TaggedExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """[CLS] sentence [SEP]; one row for each sentence.

        With `document_context` the row is filled up with what stands around it, half on each side.

        A sentence that is longer than a row goes on in another one. Besides INPUT_KEYS [N, S]
        int32:
          label_ids [N, S] int32, label_weights [N, S] float32  the tag, and 1, at the first piece
            of each of the sentence's words
          word_index [N, S] int32  which word of the sentence begins there; -1 elsewhere
          example_index [N]  which sentence
        """
        # 1. All words of all sentences in one call, taken apart again in the same order.
        words = list(itertools.chain.from_iterable(example.words for example in examples))
        pieces = iter(tokenizer.encode_words(words))
        rows: list[tuple[int, np.ndarray, int, np.ndarray]] = []

        # 2. Rows, document by document: neighbours in the list that are of one document are its
        # sentences. Without context every sentence is a document of its own.
        document = (
            (lambda example: example.document)
            if self.document_context
            else (lambda example: example.id)
        )
        first = 0
        for _, members in itertools.groupby(examples, document):
            lengths = [len(example.words) for example in members]
            own_pieces = [next(pieces) for _ in range(sum(lengths))]
            rows += _rows_of(first, lengths, own_pieces, max_seq_length - 2)
            first += len(lengths)

        # 3. The arrays, padding everywhere until a row is written.
        features = {
            name: np.zeros((len(rows), max_seq_length), np.int32)
            for name in (*INPUT_KEYS, 'label_ids')
        }
        features['input_ids'].fill(tokenizer.pad_id)
        features['label_weights'] = np.zeros((len(rows), max_seq_length), np.float32)
        features['word_index'] = np.full((len(rows), max_seq_length), -1, np.int32)
        features['example_index'] = np.array([row[0] for row in rows], np.int32)
        for row, (index, ids, begin, starts) in enumerate(rows):
            end = len(ids) + 1
            features['input_ids'][row, : end + 1] = [tokenizer.cls_id, *ids, tokenizer.sep_id]
            features['input_mask'][row, : end + 1] = 1

            # Only the first piece of a word is trained on and decoded (paper section 5.3): its
            # place in the row is behind [CLS] and the context on the left.
            place = np.flatnonzero(starts >= 0)
            words_there = starts[place]
            place = place + 1 + begin
            features['word_index'][row, place] = words_there
            features['label_weights'][row, place] = 1.0
            if examples[index].label is not None:
                label = np.array(examples[index].label, np.int32)
                features['label_ids'][row, place] = label[words_there]
        return features

    def decode(
        self,
        examples: Sequence[TaggedExample],
        features: Arrays,
        outputs: Arrays,
    ) -> Predictions:
        """The best tag of each word's first piece.

        A word without any (a lone control character) gets O, or the first label.
        """
        # Words without a piece keep this; no row shows them.
        nothing = 'O' if 'O' in self.labels else self.labels[0]
        tags = [[nothing] * len(example.words) for example in examples]
        best = outputs['logits'].argmax(axis=2)
        for row, place in zip(*np.nonzero(features['word_index'] >= 0), strict=True):
            example, word = features['example_index'][row], features['word_index'][row, place]
            tags[example][word] = self.labels[best[row, place]]
        return Predictions(
            {example.id: tags_of for example, tags_of in zip(examples, tags, strict=True)}
        )

    def constant_loss(self, features: Arrays) -> float:
        """The entropy of the tags of all words."""
        return entropy(features['label_ids'][features['label_weights'] > 0])

    def constant_scores(self, examples: Sequence[TaggedExample]) -> dict[str, float]:
        """Of the most frequent tag, given to every word; {} where no tag is known."""
        places = [place for example in examples for place in example.label or ()]
        if not places:
            return {}
        tag = self.labels[np.bincount(places).argmax()]
        answers = {example.id: [tag] * len(example.words) for example in examples}
        return self.score(examples, Predictions(answers))

    def score(
        self, examples: Sequence[TaggedExample], predictions: Predictions
    ) -> dict[str, float]:
        """The task's metrics as fractions.

        With entity_f1 also precision, recall and every kind's F1.

        Accuracy compares tags as they stand, as conlleval does: predictions in IOB1 with the truth
        in IOB1. UserError as for other tasks.
        """
        # Entities are the same in both schemes; tags word by word are compared in that of the
        # predictions.
        given = complete(self, examples, predictions)
        # `complete` has refused examples without a label
        truth = [[self.labels[place] for place in example.label or ()] for example in examples]
        if entities.is_bio(self.labels) and entities.is_iob1(given):
            said = '%s: the predictions are IOB1 tags, so the accuracy of words is in IOB1'
            logging.info(said, self.name)
            truth = [entities.as_iob1(tags) for tags in truth]

        # Words of all sentences as one list: a long sentence counts for its length.
        pairs = [pair for a, b in zip(truth, given, strict=True) for pair in zip(a, b, strict=True)]
        scores = {'accuracy': float(np.mean([a == b for a, b in pairs]))}
        if 'entity_f1' in self.metrics:
            scores = entities.entity_scores(truth, given) | scores
        return {name: scores[name] for name in self.metrics} | scores

    def write_predictions(
        self, folder: str, examples: Sequence[TaggedExample], predictions: Predictions
    ) -> None:
        """predictions.txt as conlleval takes it.

        A line is a word, its true tag (left out where unknown) and the predicted one; a blank line
        follows each sentence.
        """
        # The true tag goes between word and prediction, where conlleval looks for it.
        lines = []
        for example in examples:
            words = [word.replace('\n', ' ') for word in example.words]  # a line each
            columns = [words, predictions.answers[example.id]]
            if example.label is not None:
                columns.insert(1, [self.labels[place] for place in example.label])
            lines += [' '.join(cells) for cells in zip(*columns, strict=True)] + ['']
        write_text(os.path.join(folder, 'predictions.txt'), '\n'.join(lines) + '\n')

    def read_predictions(self, path: str, examples: Sequence[TaggedExample]) -> Predictions:
        """A column file whose last column is the prediction.

        It has all sentences of `examples`, in their order.
        """
        # A file of columns has no ids, so it must have the same sentences, one by one.
        sentences = list(entities.read_columns(path, comment=self.comment))
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
            if entities.is_bio(self.labels) and entities.beyond_bio(tags):
                tags = entities.as_bio(tags)
            self._require_labels(sentence, tags)
            answers[example.id] = tags
        return Predictions(answers)


def _rows_of(
    first: int, lengths: Sequence[int], pieces: Sequence[np.ndarray], room: int
) -> Iterator[tuple[int, np.ndarray, int, np.ndarray]]:
    """The rows of a document, whose sentences have `lengths` words, of which these are the pieces.

    Yields (example, the row's pieces, where in them the sentence's own begin, word_index of those
    own pieces). Sentence i is example first + i.
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
        while True:
            end = min(begin + room, stop)
            if end < stop:  # cut before a word, unless one word fills the row
                cuts = np.flatnonzero(starts[begin + 1 - base : end + 1 - base] >= 0)
                end = begin + 1 + int(cuts[-1]) if cuts.size else end

            # What room is left is filled with the document around: half on each side, or more on
            # one where the other has no more.
            spare = room - (end - begin)
            left = min(begin, max(spare // 2, spare - (len(stream) - end)))
            right = min(len(stream) - end, spare - left)
            yield (
                first + sentence,
                stream[begin - left : end + right],
                left,
                starts[begin - base : end - base],
            )
            begin = end
            if begin >= stop:
                break
        word += length


def by_name(name: str, data_dir: str) -> TaggingTask:
    """CoNLL-2003 English in `data_dir`.

    With the context of the document, as in the paper, or sentence by sentence.

    The files are train.txt, valid.txt and test.txt, or as the shared task named them eng.train,
    eng.testa and eng.testb.
    """
    # Copies of CoNLL-2003 go round under two sets of names.
    original = {'train': 'eng.train', 'dev': 'eng.testa', 'test': 'eng.testb'}
    if any(located(os.path.join(data_dir, file)) for file in original.values()):
        names = original
    else:
        names = {'train': 'train.txt', 'dev': 'valid.txt', 'test': 'test.txt'}
    files = {
        split: (Table(os.path.join(data_dir, file), {}, format='conll'),)
        for split, file in names.items()
    }

    # O first, then B- and I- of each kind.
    labels = ('O', *(f'{side}-{kind}' for kind in _KINDS_2003 for side in 'BI'))
    return TaggingTask(name, labels, ('entity_f1',), files, document_context=name == 'conll2003')


def from_description(name: str, description: dict[str, Any], folder: str) -> TaggingTask:
    """The task that a JSON task file describes.

    The file is an object of:
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
                entities, or those of IOBES and BILUO, or without kinds (O, B, I); not needed for
                the 17 universal parts of speech of CoNLL-U
      metrics   entity_f1 (the default for such labels), accuracy (of words); the first selects
      document_context  optional, false: fill each row with the sentences around it (-DOCSTART-
                        and # newdoc lines part documents)
      comment   optional: lines of a column file that begin with it are left out
    """
    require_entries(name, description, _SETTINGS, ('files',))
    roles = dict.fromkeys(('tokens', 'tags', 'sentence', 'document', 'id'), False)
    formats = ('conll', 'conllu', *FORMATS)
    tables = tables_of(name, description, folder, roles, formats, ('tokens', 'tags'))
    files = {}
    for split, listed in tables.items():
        files[split] = tuple(_with_format(name, split, table) for table in listed)

    # Only the universal parts of speech are known beforehand.
    every = [table for listed in files.values() for table in listed]
    if not all(table.format == 'conllu' and not table.columns for table in every):
        require_entries(name, description, _SETTINGS, ('labels',))
    labels, spelled = labels_of(description)
    labels = labels or tuple(entities.PARTS_OF_SPEECH)
    selects = 'entity_f1' if entities.is_entities(labels) else 'accuracy'
    if 'metrics' not in description and entities.is_otherwise_spelled(labels):
        logging.warning(
            'task %s: labels like %s are scored word by word: for entities give them names as in'
            ' "labels": {%s: "B-X", ...}',
            *(name, labels[-1], json.dumps(labels[-1], ensure_ascii=False)),
        )
    metrics = tuple(description.get('metrics') or [selects])
    return TaggingTask(
        name,
        labels,
        metrics,
        files,
        description.get('document_context', False),
        description.get('comment', ''),
        spelled,
    )


def _with_format(name: str, split: str, table: Table) -> Table:
    """The table with its format settled. UserError where columns are missing."""
    # By its suffix; a .tsv with words is meant as columns here, not as a table.
    for form, endings in (('conll', _COLUMN_FILES), ('conllu', ('.conllu',))):
        if not table.format and not table.tfds and plain_name(table.path).endswith(endings):
            table = dataclasses.replace(table, format=form)
    if table.only and table.format in ('conll', 'conllu'):
        raise UserError(f'task {name}: files.{split}: "only" is for tables, not for {table.path}')
    if table.format == 'conllu':
        if table.columns not in ({}, {'tags': 3}, {'tags': 4}):
            raise UserError(
                f'task {name}: "columns" of a CoNLL-U file is {{"tags": 3}}, the universal part of'
                f' speech, or {{"tags": 4}}, the treebank\'s own, not {table.columns}'
            )
        return table
    for role, column in table.columns.items() if table.format == 'conll' else ():
        if role not in ('tokens', 'tags') or type(column) is not int:
            raise UserError(
                f'task {name}: columns.{role}: a column file has "tokens" and "tags", each by its '
                'place from 0; a table with names is "format": "tsv"'
            )
    if table.format != 'conll' and (
        missing := [role for role in ('tokens', 'tags') if role not in table.columns]
    ):
        raise UserError(f'task {name}: "columns" does not say which column of {split} is {missing}')
    return table
