"""Span tasks: find the answer to a question in its context (SQuAD v1.1, v2.0, and the user's own).

This file owns the windows that a long context is cut into, and how start and end scores become
answer texts (run_squad.py). Files are read by squad_files.py and scored by squad_score.py. It
must not know the model: `decode` sees the best start and end positions of each window.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks import squad_files, squad_score
from bert_jax.input_pipeline.tasks.base import (
    Arrays,
    Files,
    Predictions,
    Task,
    require_labels,
    write_text,
)
from bert_jax.input_pipeline.tasks.features import cut_spans, make_empty_rows, write_row
from bert_jax.input_pipeline.tasks.squad_files import SpanExample
from bert_jax.input_pipeline.tasks.task_file import TaskFile
from bert_jax.input_pipeline.tasks.task_metrics import entropy
from bert_jax.input_pipeline.text.tables import FORMATS, Table

_LENGTHS = ('doc_stride', 'max_query_length', 'max_answer_length', 'n_best')
_OPTIONS = ('unanswerable', *_LENGTHS, 'null_threshold', 'scorer')
_VERSIONS = {'squad_v1': 'v1.1', 'squad_v2': 'v2.0'}
_SCORES_V2 = tuple(
    'f1 exact total HasAns_exact HasAns_f1 HasAns_total NoAns_exact NoAns_f1 NoAns_total best_exact'
    ' best_f1 tuned_exact tuned_f1 best_exact_thresh best_f1_thresh tuned_exact_thresh'
    ' tuned_f1_thresh'.split()
)
# A row: the ids of a question; the encoding of its whole context; the window's pieces of it; bool
# for each, whether this window shows it with the most context; and example_index, pieces, left_out,
# start and end position.
_Window = tuple[np.ndarray, Any, slice, np.ndarray, tuple[int, ...]]


@dataclass(frozen=True)
class SpanTask(Task[SpanExample]):
    """Extractive question answering; defaults are those of run_squad.py:75-150.

    Attributes:
      files: split -> files in the SQuAD format, or tables.
      unanswerable: some questions have no answer (v2.0): '' is an answer, and the scores are
      v2.0's.
      doc_stride: word pieces between the starts of two windows on one context; the default, 128, is
        a third of a row in rows of more than 512.
      max_query_length: word pieces kept of a question.
      max_answer_length: word pieces of the longest answer considered.
      n_best: answers listed for each question.
      null_threshold: '' is answered where its score exceeds the best answer's by more than this.
      scorer: whose figures f1 and exact_match are: squad, or korquad (F1 by characters).

    A JSON task file is an object of kind ("span") and files, and optionally the attributes from
    `unanswerable` on. Without columns the files are in the SQuAD format, with them tables as for
    classification: {"question", "context", "answer", "start", "id"}: answer and start (its place in
    the context in characters; optional, the first occurrence) are one or, in JSON, a list; no
    answer is '' or an empty list.
    """

    name: str
    files: Files = field(repr=False)
    unanswerable: bool = False
    doc_stride: int = 128
    in_windows = True
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    null_threshold: float = 0.0
    scorer: str = 'squad'

    kind = 'span'
    kinds = ('span',)
    names = tuple(_VERSIONS)
    head = 'span'
    labels = ()
    label_keys = ('start_positions', 'end_positions')
    num_outputs = 2  # start, end
    slow_features = True

    @classmethod
    def from_name(cls, name: str, data_dir: str) -> SpanTask:
        """Make SQuAD v1.1 or v2.0 on its official files in `data_dir`, or tensorflow-datasets."""
        # The training split is the table's own default; dev is "validation" there.
        if data_dir.startswith('tfds:'):
            columns = {name: name for name in ('id', 'question', 'context')}
            columns |= {'answer': 'answers.text', 'start': 'answers.answer_start'}
            table = Table(
                data_dir.removeprefix('tfds:'),
                columns,
                tfds=f'squad/{_VERSIONS[name]}',
            )
            files = {'train': (table,), 'dev': (dataclasses.replace(table, split='validation'),)}
        else:
            version = _VERSIONS[name]
            files = {}
            for split in ('train', 'dev'):
                path = os.path.join(data_dir, f'{split}-{version}.json')
                files[split] = (Table(path, {}, format='squad'),)
        return cls(name, files, unanswerable=name == 'squad_v2')

    @classmethod
    def from_task_file(cls, file: TaskFile) -> SpanTask:
        """Make a task of questions, of files in the SQuAD format or of tables."""
        roles = dict.fromkeys(('question', 'context', 'answer', 'start', 'id'), False)
        formats, lists = ('squad', *FORMATS), ('answer', 'start')
        files = {}
        for split, listed in file.tables(roles, _OPTIONS, formats, lists).items():
            files[split] = tuple(squad_files.settle_format(file.name, table) for table in listed)
        given = {name: file.get(name) for name in _OPTIONS if name in file.description}
        return cls(file.name, files, **given)

    def __post_init__(self) -> None:
        for name in _LENGTHS:
            value = getattr(self, name)

            # True is an int to isinstance
            if type(value) is not int or not 0 < value < 2**31:
                raise UserError(
                    f'task {self.name}: {name}={value!r}: must be a positive whole number'
                )
        if self.scorer not in squad_score.SCORERS:
            raise UserError(
                f'task {self.name}: scorer {self.scorer!r} is none of'
                f' {", ".join(squad_score.SCORERS)}'
            )

    @property
    def options(self) -> dict[str, Any]:
        """Return windows, answer lengths, and whether there may be no answer."""
        return {name: getattr(self, name) for name in _OPTIONS}

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]  # a field of other families
        """Name the official scorers' figures, in percent; F1 selects."""
        return ('f1', 'exact') if self.unanswerable else ('f1', 'exact_match')

    @property
    def scores(self) -> tuple[str, ...]:
        """Name what the official scorer reports; of v2.0 also by kind of question and threshold."""
        if not self.unanswerable:
            return self.metrics
        return _SCORES_V2

    def _read_examples(self, split: str) -> list[SpanExample]:
        # Repeated ids are in some public files; their answers overwrite each other, which is worth
        # a word. Training questions whose answer is not found are left out, which is logged.
        examples = squad_files.read(self.files[split], self.unanswerable, split)
        if len({example.id for example in examples}) < len(examples):
            logging.warning('%s %s: some question ids come more than once', self.name, split)
        if split != 'train' or not examples:
            return examples
        return squad_files.select_usable(self.name, examples, self.file_names(split))

    def labelled(self, examples: Sequence[SpanExample]) -> bool:
        """Tell whether all answers are known."""
        return all(example.answers is not None for example in examples)

    def features(
        self, examples: Sequence[SpanExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """Lay out [CLS] question [SEP] window of the context [SEP]; one row for each window.

        That is run_squad.py:227-437.

        Returns:
          INPUT_KEYS [N, S], the label_keys [N] (0, which is [CLS], where the window does not hold
          the whole answer) and:
          example_index [N]  which example the window belongs to
          starts, ends [N, S]  characters of the context that a piece covers; 0 outside the context
          pieces, left_out [N]  of the question, at its first window: its pieces, and those cut
          best_context [N, S] bool  whether this window shows the piece with the most context (:542)
        """
        windows = list(self._iterate_windows(examples, tokenizer, max_seq_length))
        features = make_empty_rows(len(windows), max_seq_length, tokenizer.pad_id)
        names = ('example_index', 'pieces', 'left_out', *self.label_keys)
        columns = np.array([numbers for *_, numbers in windows], np.int32).reshape(-1, len(names)).T
        features |= dict(zip(names, columns.copy(), strict=True))
        shape = (len(windows), max_seq_length)
        features |= {name: np.zeros(shape, np.int32) for name in ('starts', 'ends')}
        features['best_context'] = np.zeros(shape, np.bool_)

        # Row by row: the question as first text, the window as second, and for each piece of the
        # window where in the text it came from.
        for row, (question, context, span, best, _) in enumerate(windows):
            begin = write_row(features, row, tokenizer, question, context.ids[span])
            inside = slice(begin, begin + span.stop - span.start)
            features['starts'][row, inside] = context.starts[span]
            features['ends'][row, inside] = context.ends[span]
            features['best_context'][row, inside] = best
        return features

    def _iterate_windows(
        self, examples: Sequence[SpanExample], tokenizer: Any, max_seq_length: int
    ) -> Iterator[_Window]:
        """Cut each context into stretches that fit behind the question, and find the answer."""
        between, stride = tokenizer.layout.separators, self.doc_stride
        # As in the original's rows of 384, or a document had dozens of windows of thousands.
        if stride == SpanTask.doc_stride and max_seq_length > 512:
            stride = max_seq_length // 3
        questions = tokenizer.encode_batch([example.question for example in examples])
        # SQuAD asks five questions of a context: it is tokenised once.
        encode = functools.cache(tokenizer.encode_with_offsets)
        for index, (example, question) in enumerate(zip(examples, questions, strict=True)):
            context = encode(example.context)
            asked, question = len(question), question[: self.max_query_length]

            # [CLS], the last [SEP] and those between take three places, or what the layout has.
            room = max_seq_length - len(question) - 2 - between
            if room < 1:
                raise UserError(
                    f'max_seq_length={max_seq_length}: question {example.id!r} leaves no room for'
                    ' its context; use at least 128'
                )

            # The answer counts for a window only where it is there as a whole; else the window
            # points to [CLS], as for "no answer".
            first, last = _find_answer_pieces(example, context)
            for span, best in cut_windows(len(context.ids), room, stride):
                shift = len(question) + 1 + between - span.start
                inside = span.start <= first and last < span.stop
                answer = (first + shift, last + shift) if inside else (0, 0)
                # Of the question, and once: the context is in windows and loses nothing.
                cut = (0, 0) if span.start else (asked, asked - len(question))
                yield question, context, span, best, (index, *cut, *answer)

    def decode(
        self, examples: Sequence[SpanExample], features: Arrays, outputs: Arrays
    ) -> Predictions:
        """Return the n best texts of each question over all its windows, and the answer.

        That is run_squad.py:741-925.
        """
        from scipy.special import softmax

        # All windows of all questions in one array, in which a question's spans are a stretch.
        candidates = self._find_candidates(features, outputs)
        edges = np.searchsorted(candidates['example'], np.arange(len(examples) + 1))

        # The smallest score for "no answer" counts: the window that is least sure of there being
        # none speaks for the question.
        null_scores = np.full(len(examples), np.inf)
        np.minimum.at(
            null_scores, features['example_index'], outputs['null_scores'].astype(np.float64)
        )
        answers, nbest, null_odds = {}, {}, {}

        # Question by question: the best texts, and whether "no answer" beats them.
        for index, example in enumerate(examples):
            spans = slice(edges[index], edges[index + 1])
            scored = (candidates[name][spans] for name in ('score', 'first', 'last'))
            texts = self._choose_texts(example.context, *scored)
            answer = texts[0][0] if texts else ''
            if self.unanswerable:
                null = float(null_scores[index])
                # Without any span the null answer is infinitely better; JSON has no infinity, so a
                # number beyond all logits.
                odds = null - texts[0][1] if texts else 1e9
                null_odds[example.id] = odds
                if odds > self.null_threshold:
                    answer = ''
                texts = sorted([*texts, ('', null)], key=operator.itemgetter(1), reverse=True)

            # Probabilities over what is listed, as run_squad.py has them; a question without any
            # text has none.
            scores = np.array([score for _, score in texts] or [0.0])
            nbest[example.id] = [
                {'text': text, 'probability': float(p), 'score': float(score)}
                for (text, score), p in zip(texts, softmax(scores), strict=False)
            ]
            answers[example.id] = answer
        extras: dict[str, dict[str, Any]] = {'nbest': nbest}
        if self.unanswerable:
            extras['null_odds'] = null_odds
        return Predictions(answers, extras)

    def _find_candidates(self, features: Arrays, outputs: Arrays) -> Arrays:
        """Return all spans allowed, by example and then by score.

        Columns of M spans: example, score, first and last character [M].
        """
        starts, ends = outputs['start_indices'], outputs['end_indices']
        context = features['ends'] > 0
        rows = np.arange(len(context))[:, None]

        # A span starts in the context, in the window that shows its first piece best, ends in
        # the context, not before it starts, and is not too long.
        start, end = starts[:, :, None], ends[:, None, :]
        allowed = (
            (features['best_context'] & context)[rows, starts][:, :, None]
            & context[rows, ends][:, None, :]
            & (end >= start)
            & (end - start < self.max_answer_length)
        )

        # From the pairs that are allowed to their example, score and characters.
        row, i, j = np.nonzero(allowed)
        start_scores = outputs['start_scores'].astype(np.float64)
        spans = {
            'example': features['example_index'][row],
            'score': start_scores[row, i] + outputs['end_scores'][row, j],
            'first': features['starts'][row, starts[row, i]],
            'last': features['ends'][row, ends[row, j]],
        }

        # By example, best first; a stable sort, so that ties stay in the order of windows.
        order = np.lexsort((-spans['score'], spans['example']))
        return {name: values[order] for name, values in spans.items()}

    def _choose_texts(
        self, context: str, scores: np.ndarray, firsts: np.ndarray, lasts: np.ndarray
    ) -> list[tuple[str, float]]:
        """Return up to n_best different texts, best first, as they are in the context."""
        # The same text from two places or windows is one answer, with its best score.
        best: dict[str, float] = {}
        for score, first, last in zip(scores, firsts, lasts, strict=True):
            text = ' '.join(context[first:last].split())
            if text and text not in best:
                best[text] = float(score)
                if len(best) == self.n_best:
                    break
        return list(best.items())

    def constant_loss(self, features: Arrays) -> float:
        """Return the mean of the entropies of start and end positions."""
        return (entropy(features['start_positions']) + entropy(features['end_positions'])) / 2

    def score(self, examples: Sequence[SpanExample], predictions: Predictions) -> dict[str, float]:
        """Return the figures of the official scorer, in percent.

        A question without a prediction is scored as it does, which is logged.

        Raises:
          UserError: the answers are not known, nothing is predicted, or an extra lacks questions.
        """
        require_labels(self, examples)
        # `require_labels` has refused examples whose answers are unknown
        truths = {example.id: [text for text, _ in example.answers or ()] for example in examples}

        # What the official scripts pass over is passed over and said; what they crash on is
        # refused.
        answered = [name for name in truths if name in predictions.answers]
        if not answered:
            raise UserError(
                f'task {self.name}: none of the {len(predictions.answers)} predictions is of one of'
                f' the {len(truths)} questions: are they of another split?'
            )
        unknown = len(predictions.answers) - len(answered)
        if unknown:
            message = '%s: %d predictions are of other questions, and are left out'
            logging.warning(message, self.name, unknown)
        missing = len(truths) - len(answered)
        if missing:
            message = '%s: %d of %d questions have no prediction'
            logging.warning(message, self.name, missing, len(truths))

        # v1.1 needs texts alone; v2.0 also tunes its threshold, and for that needs all extras or
        # none.
        scorer = squad_score.SCORERS[self.scorer]
        if not self.unanswerable:
            return squad_score.score_version1(truths, predictions.answers, scorer)
        for stem, extra in predictions.extras.items():
            lacking = [name for name in answered if name not in extra]
            if lacking:
                raise UserError(
                    f'{stem}.json lacks {len(lacking)} of the {len(answered)} questions that are '
                    f'answered, the first is {lacking[0]!r}: give it all of them, or move it away '
                    'to score without it'
                )
        if missing and 'null_odds' in predictions.extras:
            logging.warning(
                '%s: best_exact and best_f1 take questions without a prediction for unanswered, '
                'and do not count them in the mean, as the official script: they may exceed 100',
                self.name,
            )

        # The best text that is not '': what would be answered under another threshold.
        nbest = predictions.extras.get('nbest', {})
        best = {}
        for name, items in nbest.items():
            texts = [item['text'] for item in items if item['text']]
            best[name] = texts[0] if texts else ''
        null_odds = predictions.extras.get('null_odds')
        return squad_score.score_version2(
            truths, predictions.answers, null_odds, best or None, scorer
        )

    def write_predictions(
        self, folder: str, examples: Sequence[SpanExample], predictions: Predictions
    ) -> None:
        """Write predictions.json, nbest.json, and for v2.0 null_odds.json.

        predictions.json is id -> text, as the leaderboard takes it.
        """
        for stem, data in {'predictions': predictions.answers, **predictions.extras}.items():
            write_text(
                os.path.join(folder, f'{stem}.json'),
                json.dumps(data, ensure_ascii=False, indent=1) + '\n',
            )

    def read_predictions(self, path: str, examples: Sequence[SpanExample]) -> Predictions:
        """Read predictions.json, and for v2.0 nbest.json and null_odds.json in its folder."""
        return squad_files.read_predictions(path, self.unanswerable)


def cut_windows(length: int, room: int, stride: int) -> list[tuple[slice, np.ndarray]]:
    """Return the windows on a context of `length` pieces, as `cut_spans` does.

    With each comes a bool [stop - start]: whether no other window gives that piece more context,
    which is min(pieces to the left, pieces to the right) + 0.01 * window length; the first of
    equals (:534-570).
    """
    spans = cut_spans(length, room, stride)
    starts, stops = np.array([(span.start, span.stop) for span in spans]).T

    # [windows, pieces]: how much context each window gives each piece, -1 where it does not show
    # it. A longer window wins by a hundredth of its length.
    pieces = np.arange(length)[None, :]
    left, right = pieces - starts[:, None], stops[:, None] - 1 - pieces
    context = np.where(
        (left >= 0) & (right >= 0), np.minimum(left, right) + 0.01 * (stops - starts)[:, None], -1.0
    )

    # argmax takes the first of equals, as the original's > does.
    best = context.argmax(axis=0)
    return [(span, best[span] == number) for number, span in enumerate(spans)]


def _find_answer_pieces(example: SpanExample, context: Any) -> tuple[int, int]:
    """Return the first and last piece of the context that the first answer touches.

    (-1, -1) where there is none.
    """
    if not example.answers or not len(context.ids):
        return -1, -1

    # Blanks at its ends belong to no piece.
    text, start = example.answers[0]
    begin = start + len(text) - len(text.lstrip())
    end = start + len(text.rstrip())

    # Pieces are in order: the first that ends after the answer begins, the last that starts before
    # it ends.
    first = int(np.searchsorted(context.ends, begin, side='right'))
    last = int(np.searchsorted(context.starts, end, side='left')) - 1
    return (first, last) if first <= last and first < len(context.ids) else (-1, -1)
