"""The pipeline of each kind of model: records of text in, JSON objects out.

Owns, for each kind, what it is asked and answers: the roles of a record, its rows, what of the
outputs leaves the device, and the answer; which head has which is in train/task_heads.py. Rows and
spans are made as in fine-tuning (input_pipeline/tasks). Must not know files, batches or how rows
get to the device.

A record is a dictionary of role -> text; 'text' of a token classifier may be a list of words,
'choices' is a list.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import special

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.input_pipeline.tasks.features import make_text_rows, make_window_rows, pool_windows
from bert_jax.input_pipeline.tasks.squad import SpanExample, SpanTask
from bert_jax.input_pipeline.tasks.tagging import TaggedExample, TaggingTask
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

Record = Mapping[str, Any]
Answer = dict[str, Any]
# Masked words of a text that are answered, as in pre-training (max_predictions_per_seq).
# A fixed number, so that rows with one mask and with many share a program.
_MASKS = 20


@dataclass(frozen=True)
class Pipeline:
    """What one kind of model is asked and answers; `Predictor` runs it.

    Attributes:
      labels: what the model's outputs are called.
      tokenizer: the model's.
      max_length: word pieces of its longest row.
      top: how many candidates an answer lists.
      options: those of the task that it was trained on, and what was chosen for it.
      required, optional: roles of a record, the keys that it must and may have.
      lists: those of them that may be a list of texts.
      scored_as: the head that computes the outputs of a row, where it is not the model's own.
      per_position: whether outputs are [N, S, ...].
      in_windows: whether a text may be read in several rows, `doc_stride` word pieces apart.
    """

    labels: tuple[str, ...]
    tokenizer: Tokenizer
    max_length: int
    top: int
    options: Mapping[str, Any]

    required: ClassVar[tuple[str, ...]] = ('text',)
    optional: ClassVar[tuple[str, ...]] = ('text_b',)
    lists: ClassVar[tuple[str, ...]] = ()
    scored_as: ClassVar[str | None] = None
    per_position: ClassVar[bool] = False
    in_windows: ClassVar[bool] = False

    def rows(self, records: Sequence[Record]) -> Arrays:
        """Make rows of the records: INPUT_KEYS [N, S] int32, and what else `answers` needs.

        A record has one row unless the class says otherwise.

        Raises:
          UserError: one of the records cannot be answered; by itself it raises the same.
        """
        return _make_rows(records, self.tokenizer, self.max_length)

    def reduce(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Return what of a batch's outputs [B, ...] leaves the device; runs there, compiled."""
        return outputs

    def answers(self, records: Sequence[Record], rows: Arrays, outputs: Arrays) -> list[Answer]:
        """Return an answer for each record, an object that JSON can hold.

        Args:
          records: what is answered.
          rows: what `rows` made of these records.
          outputs: what `reduce` left, [N, ...] for N rows.
        """
        replies = []
        for i in range(len(records)):
            replies.append(self.answer({name: array[i] for name, array in outputs.items()}))
        return replies

    def answer(self, outputs: Arrays) -> Answer:
        """Return the answer for a record of one row, whose outputs these are."""
        raise NotImplementedError


class OfWholeText(Pipeline):
    """Scores of a text, or a pair: of one row, or the mean over the windows of a longer one.

    Windows begin `doc_stride` word pieces apart; without that option what is beyond a row is cut.
    """

    in_windows = True

    def rows(self, records: Sequence[Record]) -> Arrays:
        """Make a row of each record, or of each window; `example_index` says whose."""
        stride = self.options.get('doc_stride')
        return _make_rows(records, self.tokenizer, self.max_length, stride)

    def answers(self, records: Sequence[Record], rows: Arrays, outputs: Arrays) -> list[Answer]:
        """Return an answer for each record, by the mean over its windows."""
        return super().answers(records, rows, pool_windows(rows, outputs, len(records)))


class TextClassification(OfWholeText):
    """A text, or a pair, has one of the labels."""

    def answer(self, outputs: Arrays) -> Answer:
        """Return {'label', 'probability', 'probabilities': {label: p}}.

        Of a cross-encoder also {'scores': {label: score}}, which it is compared by elsewhere.
        """
        shares = _softmax(outputs['logits'])
        best = int(shares.argmax())
        answer = {
            'label': self.labels[best],
            'probability': float(shares[best]),
            'probabilities': _name_shares(self.labels, shares),
        }
        if 'activation' in self.options:
            answer['scores'] = _name_shares(self.labels, outputs['logits'])
        return answer


class MultiLabelClassification(OfWholeText):
    """A text, or a pair, has any number of the labels (problem_type multi_label_classification).

    The option `thresholds` has the probabilities above which labels are given, as chosen on dev;
    one half where there is none.
    """

    def answer(self, outputs: Arrays) -> Answer:
        """Return {'labels': those above their thresholds, 'probabilities': {label: p}}."""
        # A sigmoid each: labels do not exclude one another. float64, as for the softmax below.
        shares = _name_shares(self.labels, special.expit(outputs['logits'].astype(np.float64)))
        thresholds = self.options.get('thresholds', {})
        labels = [label for label, p in shares.items() if p > thresholds.get(label, 0.5)]
        return {'labels': labels, 'probabilities': shares}


class Regression(OfWholeText):
    """A text, or a pair, has a number, or several: a regression."""

    def answer(self, outputs: Arrays) -> Answer:
        """Return {'value': the number}, or of several outputs {'values': {label: number}}."""
        if len(self.labels) == 1:
            value = float(outputs['logits'][0])
            if self.options.get('activation') == 'sigmoid':
                value = float(special.expit(value))
            return {'value': value}
        return {'values': _name_shares(self.labels, outputs['logits'])}


class NextSentencePrediction(Pipeline):
    """Whether the second text follows the first."""

    required, optional = ('text', 'text_b'), ()

    def answer(self, outputs: Arrays) -> Answer:
        """Return {'is_next', 'probability' that it is}; class 0 is the next sentence."""
        share = float(_softmax(outputs['logits'])[0])
        return {'is_next': share > 0.5, 'probability': share}


class FillMask(Pipeline):
    """The words for each mask token in a text, of which there may be 20.

    For a pair also whether the second text follows, where the model has a next-sentence head.
    """

    tells_next: ClassVar[bool] = True

    def rows(self, records: Sequence[Record]) -> Arrays:
        """Make INPUT_KEYS, masked_lm_positions [N, 20], and masks [N]: how many are real."""
        # Rows as in fine-tuning, but a [MASK] written in the text becomes the token itself.
        rows = _make_rows(records, WithMasks(self.tokenizer), self.max_length)

        # Beyond the fixed number of positions a mask would go unanswered, and nobody would notice.
        masked = rows['input_ids'] == self.tokenizer.mask_id
        rows['masks'] = masked.sum(axis=1)
        count = int(rows['masks'].max(initial=0))
        if count > _MASKS:
            raise UserError(
                f'a text with {count} mask tokens: at most {_MASKS} are answered; split it'
            )
        for record, count in zip(records, rows['masks']):
            if not count and not (self.tells_next and 'text_b' in record):
                mask = self.tokenizer.special_tokens[4]
                raise UserError(
                    f'no {mask} in the pieces that are read: write one in place of each word'
                )

        # A stable sort puts the positions of masks first, in reading order; what follows them are
        # positions without a mask, whose answers nobody reads.
        masks_first = np.argsort(~masked, axis=1, kind='stable')
        rows['masked_lm_positions'] = masks_first[:, :_MASKS].astype(np.int32)
        return rows

    def reduce(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Return the best words, [B, 20, top], in place of the whole vocabulary."""
        # Pre-training's head and the masked-LM head alone name their logits differently.
        logits_BPV = outputs['logits' if 'logits' in outputs else 'prediction_logits']

        # The vocabulary is large and `top` is small: only the best leave the device.
        # A word table may have rows of no entry behind those of the vocabulary.
        entries = self.tokenizer.vocab_size
        best_BPK, words_BPK = jax.lax.top_k(logits_BPV[..., :entries], min(self.top, entries))

        # The softmax of the best alone, over the whole vocabulary: subtract its log-sum.
        log_sum_BP1 = jax.nn.logsumexp(logits_BPV, axis=-1, keepdims=True)
        reduced = {
            'words': words_BPK,
            'probabilities': jnp.exp(best_BPK - log_sum_BP1),
        }

        # Class 0 of a pair is the next sentence.
        if 'seq_relationship_logits' in outputs:
            reduced['next'] = jax.nn.softmax(outputs['seq_relationship_logits'])[:, 0]
        return reduced

    def answers(self, records: Sequence[Record], rows: Arrays, outputs: Arrays) -> list[Answer]:
        """Return {'masks'}, and for a pair 'is_next' and 'next_probability'.

        masks: for each in turn its best words, [{'token', 'probability'}, ...].
        """
        replies = []
        for i, record in enumerate(records):
            # Only as many of the 20 as the text has.
            answer: dict[str, Any] = {'masks': []}
            for m in range(rows['masks'][i]):
                tokens = self.tokenizer.spelled(outputs['words'][i, m])
                ranked = zip(tokens, outputs['probabilities'][i, m], strict=True)
                answer['masks'].append([{'token': t, 'probability': float(p)} for t, p in ranked])

            # For a single text the next-sentence head answers nothing that was asked.
            if 'text_b' in record and 'next' in outputs:
                p = float(outputs['next'][i])
                answer |= {'is_next': p > 0.5, 'next_probability': p}
            replies.append(answer)
        return replies


class FillMaskAlone(FillMask):
    """The words for each mask token, of a model that has no head besides."""

    tells_next = False


class QuestionAnswering(Pipeline):
    """An answer to a question, found in a context of any length."""

    in_windows = True
    required, optional = ('question', 'context'), ()
    per_position = True

    @functools.cached_property
    def task(self) -> SpanTask:
        """How contexts are cut into windows, and whether there may be no answer."""
        return SpanTask('predict', {}, **self.options)

    def _examples(self, records: Sequence[Record]) -> list[SpanExample]:
        return [SpanExample(str(i), r['question'], r['context'], ()) for i, r in enumerate(records)]

    def rows(self, records: Sequence[Record]) -> Arrays:
        """Make a row for each window of a context; `example_index` says whose."""
        # Besides the question: [CLS], [SEP] between and at the end, a piece of the context.
        others = 3 + self.tokenizer.layout.separators
        for question in self.tokenizer.encode_batch([r['question'] for r in records]):
            pieces = min(len(question), self.task.max_query_length)
            if pieces > self.max_length - others:
                raise UserError(
                    f'a question of {pieces} word pieces leaves no room for its context in a row of'
                    f' {self.max_length}; shorten it, or use a larger --max_seq_length'
                )
        return self.task.features(self._examples(records), self.tokenizer, self.max_length)

    def answers(self, records: Sequence[Record], rows: Arrays, outputs: Arrays) -> list[Answer]:
        """Return {'answer', 'probability', 'nbest': [{'text', 'probability'}, ...]}.

        The answer is '' where there is none.
        """
        # What fills the row up may not be chosen; [CLS] may, and means "no answer".
        real = rows['input_mask'] > 0

        # The score of "no answer" is that of [CLS] as start and end (paper section 4.3).
        best = {'null_scores': outputs['start_logits'][:, 0] + outputs['end_logits'][:, 0]}

        # The n best starts and ends; the task pairs them. Stable: the earlier of equal ones is
        # first.
        for side in ('start', 'end'):
            scores = np.where(real, outputs[f'{side}_logits'], -1e9)
            highest = np.argsort(-scores, axis=1, kind='stable')[:, : self.task.n_best]
            best[f'{side}_indices'] = highest
            best[f'{side}_scores'] = np.take_along_axis(scores, highest, axis=1)

        # Windows of one context become one answer, as in evaluation.
        examples = self._examples(records)
        predictions = self.task.decode(examples, rows, best)
        replies = []
        for example in examples:
            # A threshold may have made the answer '', which need not be in the list.
            text, nbest = predictions.answers[example.id], predictions.extras['nbest'][example.id]
            shares = {item['text']: item['probability'] for item in reversed(nbest)}
            listed = []
            for item in nbest[: self.top]:
                listed.append({'text': item['text'], 'probability': item['probability']})
            answer = {'answer': text, 'probability': shares.get(text, 0.0), 'nbest': listed}
            replies.append(answer)
        return replies


class TokenClassification(Pipeline):
    """A label for each word of a list, or of a text.

    The tokenizer splits a text into words, signs by themselves.
    """

    optional = ()
    lists = ('text',)
    per_position = True

    def _task(self) -> TaggingTask:
        return TaggingTask('predict', self.labels, (), {})

    def _examples(self, records: Sequence[Record]) -> list[TaggedExample]:
        # A list is taken word by word as it is; a text is parted as the tokenizer does.
        examples = []
        for i, record in enumerate(records):
            words = record['text']
            if isinstance(words, str):
                words = split_words(words, self.tokenizer)
            examples.append(TaggedExample(str(i), tuple(words), None, str(i)))
        return examples

    def rows(self, records: Sequence[Record]) -> Arrays:
        """Make a row for each record, or several for a long text.

        word_index [N, S] has the index of the word that begins there, else -1.
        """
        # A text of white space alone has no row.
        examples = self._examples(records)
        for record, example in zip(records, examples, strict=True):
            if isinstance(record['text'], str) and not example.words:
                raise UserError('a text without any words to label')
        return self._task().features(examples, self.tokenizer, self.max_length)

    def answers(self, records: Sequence[Record], rows: Arrays, outputs: Arrays) -> list[Answer]:
        """Return {'words', 'labels', 'probabilities'}, each a list with an entry for each word.

        A word has the label of its first piece (paper section 5.3).
        """
        # The labels as in evaluation; how certain they are is looked up with them.
        examples, probabilities = self._examples(records), _softmax(outputs['logits'])
        labels = self._task().decode(examples, rows, outputs).answers

        # A word without pieces keeps 0.0; word_index marks the first piece of each word.
        certain = [[0.0] * len(example.words) for example in examples]
        for row, position in zip(*np.nonzero(rows['word_index'] >= 0), strict=True):
            example, word = rows['example_index'][row], rows['word_index'][row, position]
            certain[example][word] = float(probabilities[row, position].max())
        replies = []
        for example, shares in zip(examples, certain):
            words = list(example.words)
            replies.append({'words': words, 'labels': labels[example.id], 'probabilities': shares})
        return replies


class MultipleChoice(Pipeline):
    """One of several continuations; each is a row of its own, so their number is free."""

    required, optional = ('text', 'choices'), ('start',)
    lists = ('choices',)
    scored_as = 'regressor'

    def rows(self, records: Sequence[Record]) -> Arrays:
        """Make a row for each choice, as multiple_choice.py has it."""
        # The text once for each of its choices, so both lists have a row each.
        texts, continuations = [], []
        for record in records:
            # A string is a sequence of texts too: each letter would become a choice.
            if isinstance(record['choices'], str) or len(record['choices']) < 2:
                raise UserError('"choices" must be a list of two or more texts')
            for choice in record['choices']:
                texts.append(record['text'])
                continuations.append(f'{record.get("start", "")} {choice}'.strip())
        return make_text_rows(texts, continuations, self.tokenizer, self.max_length)

    def answers(self, records: Sequence[Record], rows: Arrays, outputs: Arrays) -> list[Answer]:
        """Return {'choice': its index from 0, 'probability', 'probabilities': of all choices}.

        With 'label' where the model has as many labels as there are choices.
        """
        replies, begin = [], 0
        for record in records:
            # Rows of a record follow each other; the softmax is over them.
            count = len(record['choices'])
            p = _softmax(outputs['logits'][begin : begin + count, 0])
            best = int(p.argmax())
            begin += count
            answer: Answer = {'choice': best}
            if len(self.labels) == count:
                answer['label'] = self.labels[best]
            replies.append(answer | {'probability': float(p[best]), 'probabilities': p.tolist()})
        return replies


def _make_rows(
    records: Sequence[Record], tokenizer: Any, max_length: int, stride: int | None = None
) -> Arrays:
    """Make a row of each text, or pair of texts, or of each of its windows `stride` apart."""
    texts = [r['text'] for r in records], [r.get('text_b') for r in records]
    if stride:
        return make_window_rows(*texts, tokenizer, max_length, stride)
    return make_text_rows(*texts, tokenizer, max_length)


def split_words(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return the words of a text, as they are written in it.

    White space parts them, and every sign or ideograph is one.
    """
    # A word reaches from its first piece to the last one before the next word.
    encoding = tokenizer.encode_with_offsets(text)
    begins = np.flatnonzero(encoding.word_starts)
    if not len(begins):
        return []
    ends = np.append(begins[1:], len(encoding.ids)) - 1
    places = zip(encoding.starts[begins], encoding.ends[ends], strict=True)
    return [text[start:end].rstrip() for start, end in places]


class WithMasks:
    """The tokenizer, but the mask token's spelling in a text is the token itself."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._spelling = tokenizer, tokenizer.special_tokens[4]

    def __getattr__(self, name: str) -> Any:
        """Return what is the tokenizer's own."""
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text."""
        # Between two masks the text is tokenised by itself, all texts in one call.
        first: list[str] = []
        others: list[str] = []
        counts = []
        for text in texts:
            *before, last = text.split(self._spelling)
            if self.layout.mask_takes_space:
                before = [part.rstrip() for part in before]
            begin, *behind = [*before, last]
            first.append(begin)
            others += behind
            counts.append(len(behind))
        pieces = iter(self._tokenizer.behind_mask.encode_batch(others))
        mask = np.array([self._tokenizer.mask_id], np.int32)
        ids = []
        for begin_ids, count in zip(self._tokenizer.encode_batch(first), counts, strict=True):
            arrays = [begin_ids]
            for _ in range(count):
                arrays += [mask, next(pieces)]
            ids.append(np.concatenate(arrays))
        return ids


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, in float64, so that probabilities add up."""
    return special.softmax(logits.astype(np.float64), axis=-1)


def _name_shares(labels: Sequence[str], probabilities: np.ndarray) -> dict[str, float]:
    return dict(zip(labels, probabilities.tolist(), strict=True))
