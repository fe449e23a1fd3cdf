"""What an offline job can be asked for: the options of bert-preprocess, checked against each other.

Owns their defaults (google-research/bert create_pretraining_data.py:49-65 where it has them), their
help and which of them exclude each other. It must not know how the job is carried out. Flags are
made from here: what the rules need is imported where they are looked at, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.input_pipeline.text.lines import TextOptions

if TYPE_CHECKING:
    from bert_jax.input_pipeline.examples.static_masking import MaskingRule
    from bert_jax.input_pipeline.records.fields import RecordSpec


@dataclass(frozen=True, kw_only=True)
class PreprocessOptions(TextOptions):
    """The options of `bert-preprocess`; None means the default that its help describes.

    UserError for what cannot be, or not together.

    Attributes:
      input: files to read: a path or a glob, or several with commas; or tfds:NAME/SPLIT, or
        hf:NAME:SPLIT (a data set of the Hugging Face Hub); or these as LANGUAGE=PATTERN. Give the
        flag as often as there are inputs.
      tokenizer: tokenizer directory (bert-train-vocab makes one).
      output: folder for the records; it appears whole or not at all.
      seq_len: tokens a row, [CLS] and [SEP] included.
      max_predictions: most masked tokens a row; by default seq_len * masked_lm_prob, rounded up:
        20 at 128, 77 at 512.
      masked_lm_prob: share of tokens to predict.
      eval_masked_lm_prob: the share in held-out records; by default as --masked_lm_prob
        (ModernBERT: 0.15, where it trains on 0.3).
      mask_mix: shares of predicted tokens that become [MASK], stay the same, become a random
        token.
      whole_word: mask all pieces of a word together.
      ngram: mask runs of up to so many whole words, n of them with a chance in proportion to 1/n
        (ALBERT: 3).
      masking: static: masked here; dynamic: records keep the text and each training step draws
        its masks.
      mask_rule: bert: as many tokens as the share comes to, rounded, and no more than
        --max_predictions; roberta, dynamic only: rounded up or down by chance, without a limit,
        and random tokens are no special ones.
      packing: put several short examples into one row (not readable by google-research/bert);
        held-out rows have one each.
      max_packs: most examples a row, with --packing; by default 8, and in rows of more than 512
        tokens one for each 32.
      objective: nsp: is B the next text or a random one; sop: are A and B in order;
        full_sentences: no pair.
      sop_noise: sop: a text of one sentence stands beside a random one and is told as swapped, as
        the released code of ALBERT has it; without, it is cut in two.
      across_documents: full_sentences: rows are filled from the next document too, with a
        separator between (RoBERTa: FULL-SENTENCES; without it DOC-SENTENCES), and none is short.
      cut_sentences: full_sentences: a row ends where it is full, within a sentence too, and the
        next one goes on there (ModernBERT); packed rows are fuller by that.
      dupe_factor: passes over the text, each with other pairs and masks; by default 10, and 1
        with --masking=dynamic.
      short_seq_prob: share of documents, in each pass, cut into rows of a random shorter length.
      eval_fraction: share of documents held out, by a hash of their text; by default 0.005, or
        more for --min_eval_rows, or nothing where that is too few documents; 0: none.
      min_eval_rows: without --eval_fraction and --eval_input: hold out so many rows at least, by
        the size of the files, yet no more than a tenth of the documents; 0: 0.005 of any text.
      eval_input: files as for --input, whose documents are the held-out ones (then
        --eval_fraction is not used); copies of them in --input are dropped.
      language_exponent: with --input=LANGUAGE=PATTERN: the share of each language is raised to
        this power (1: as much as there is; 0: all alike); by default 0.7.
      language_repeats: with --input=LANGUAGE=PATTERN, in place of --language_exponent: how often
        a language's text is taken, as in ko=4,en=0.5; 1 where it is not named. Above 4 a warning
        says so.
      num_shards: training files to write; by default one for each 64 MB.
      workers: processes; by default one for each CPU. The output does not depend on it.
      cache_gb: text of a bucket is copied to the disk, next to --output, as it is read, and at
        most so much of it lies there at once, the workers' shares together; 0: none.
      dedup: leave one of all documents, or of all lines, that have the same tokens (in each
        split).
      seed: seed of pairs, masks and order.
      engine: local: processes on this machine; beam: an Apache Beam pipeline, with what follows
        -- as its options.
      beam_arguments: of --engine=beam: options of Beam's pipeline.
      overwrite: replace what another job left in --output.
    """

    input: str | tuple[str, ...]
    tokenizer: str
    output: str
    seq_len: int = option(128, within='[8, 65536]')
    max_predictions: int | None = None
    masked_lm_prob: float = option(0.15, within='(0, 1]')
    eval_masked_lm_prob: float | None = option(None, within='(0, 1]')
    mask_mix: tuple[float, float, float] = option((0.8, 0.1, 0.1), commas=True)
    whole_word: bool = False
    ngram: int = option(1, within='[1, 10]')
    masking: Literal['static', 'dynamic'] = 'static'
    mask_rule: Literal['bert', 'roberta'] = 'bert'
    packing: bool = False
    max_packs: int | None = option(None, within='[2, 1024]')
    objective: Literal['nsp', 'sop', 'full_sentences'] = 'nsp'
    sop_noise: bool = False
    across_documents: bool = False
    cut_sentences: bool = False
    dupe_factor: int | None = option(None, within='[1, 10000]')
    short_seq_prob: float = option(0.1, within='[0, 1]')
    eval_fraction: float | None = option(None, within='[0, 1)')
    min_eval_rows: int = option(500, within='[0, 2147483647]')
    eval_input: str | tuple[str, ...] | None = None
    language_exponent: float | None = option(None, within='[0, 1]')
    language_repeats: tuple[str, ...] = option((), commas=True)
    num_shards: int | None = option(None, within='[1, 99999]')
    workers: int | None = option(None, within='[1, 1024]')
    cache_gb: float = option(10.0, within='[0, inf)')
    dedup: Literal['none', 'documents', 'lines'] = 'none'
    seed: int = option(12345, within='[0, 9223372036854775808)')
    engine: Literal['local', 'beam'] = 'local'
    beam_arguments: tuple[str, ...] = option((), words='[-- PIPELINE OPTIONS]')
    overwrite: bool = False

    def __post_init__(self) -> None:
        from bert_jax.input_pipeline.preprocess.language_mixture import check_mixture, split_inputs

        # Each by itself: its interval, then what an interval cannot say.
        super().__post_init__()
        if self.max_predictions is not None and not 1 <= self.max_predictions <= self.seq_len:
            raise UserError(
                f'--max_predictions={self.max_predictions}: must be from 1 to'
                f' --seq_len={self.seq_len}'
            )
        _ = self.rule  # which checks itself
        for flag, given in (('input', self.input), ('eval_input', self.eval_input)):
            if given is not None:
                split_inputs(flag, given)

        self._check_together()
        named = self.eval_input is not None or self.eval_fraction is not None
        if named and self.min_eval_rows != type(self).min_eval_rows:
            raise UserError(
                '--min_eval_rows is for the default share: leave it out, or --eval_fraction and'
                ' --eval_input'
            )
        languages = split_inputs('input', self.input)
        check_mixture(self.language_exponent, self.language_repeats, languages)

    def _check_together(self) -> None:
        """Raise UserError for what does not go together."""
        dynamic, beam = self.masking == 'dynamic', ''.join(self.beam_arguments[:1])
        for wrong, message in (
            (
                self.ngram > 1 and dynamic,
                f'--ngram={self.ngram} is for --masking=static: the train step draws single tokens,'
                ' or words (--whole_word); leave one of them out',
            ),
            (
                self.sop_noise and self.objective != 'sop',
                f'--sop_noise is for --objective=sop, not {self.objective}',
            ),
            (
                self.across_documents and self.objective != 'full_sentences',
                f'--across_documents is for --objective=full_sentences, not {self.objective}',
            ),
            (
                self.cut_sentences and self.objective != 'full_sentences',
                f'--cut_sentences is for --objective=full_sentences, not {self.objective}',
            ),
            (
                self.cut_sentences and self.across_documents,
                '--cut_sentences does not go with --across_documents: leave one of them out',
            ),
            (
                self.eval_masked_lm_prob is not None
                and self.eval_masked_lm_prob > self.masked_lm_prob,
                f'--eval_masked_lm_prob={self.eval_masked_lm_prob}: must be at most'
                f' --masked_lm_prob={self.masked_lm_prob}, for which records have room',
            ),
            (
                self.mask_rule == 'roberta' and not dynamic,
                '--mask_rule=roberta draws in training: add --masking=dynamic',
            ),
            (
                self.mask_rule == 'roberta' and self.max_predictions is not None,
                '--max_predictions: --mask_rule=roberta has no limit, leave it out',
            ),
            (
                self.eval_input is not None and self.eval_fraction,
                '--eval_fraction and --eval_input both name the held-out split: give one of them',
            ),
            (beam and self.engine != 'beam', f'{beam}: pipeline options are for --engine=beam'),
            (
                '://' in self.output and self.engine == 'local',
                f'--output={self.output}: must be a local folder; copy the finished one to where it'
                ' is needed',
            ),
        ):
            if wrong:
                raise UserError(message)

    @property
    def inputs(self) -> str:
        """Return the flags --input as they were given."""
        texts = [self.input] if isinstance(self.input, str) else self.input
        return ' '.join(f'--input={text}' for text in texts)

    @property
    def rule(self) -> MaskingRule:
        """Return the masking rule; by default as many predictions as the longest row has."""
        from bert_jax.input_pipeline.examples.static_masking import MaskingRule

        predictions = self.max_predictions
        if predictions is None:
            predictions = math.ceil(self.seq_len * self.masked_lm_prob)
        shares = (self.masked_lm_prob, predictions, self.mask_mix)
        return MaskingRule(*shares, self.whole_word, self.ngram)

    def rule_of(self, split: str) -> MaskingRule:
        """Return the masking rule of a split's records."""
        if split == 'train' or self.eval_masked_lm_prob is None:
            return self.rule
        return dataclasses.replace(self.rule, probability=self.eval_masked_lm_prob)

    @property
    def spec(self) -> RecordSpec:
        """Return the schema of the training records."""
        from bert_jax.input_pipeline.records.fields import RecordSpec

        return RecordSpec(
            self.seq_len,
            self.rule.max_predictions,
            self.masking,
            self._packs if self.packing else 1,
        )

    @property
    def _packs(self) -> int:
        # Few enough that a row's arrays of examples stay short, and enough to fill it with short
        # ones: at 1,024 tokens 8 leave 3 % of Wikipedia's rows empty, 32 leave 0.2 %.
        many = self.seq_len // 32 if self.seq_len > 512 else 8
        return min(1024, many) if self.max_packs is None else self.max_packs

    @property
    def processes(self) -> int:
        """Return the workers on this machine."""
        return self.workers or os.cpu_count() or 1

    @property
    def cache_share(self) -> float:
        """Return how many bytes of a bucket one worker may have on the disk at once."""
        # Nobody knows how many workers of a pipeline share a disk.
        return 0.0 if self.engine == 'beam' else self.cache_gb * 1e9 / self.processes

    @property
    def passes(self) -> int:
        """Return the passes over the training documents: dynamic masking needs no duplicates."""
        if self.dupe_factor is not None:
            return self.dupe_factor
        # As the original: each pass masks other tokens. Masks drawn in training differ anyway.
        return 10 if self.masking == 'static' else 1
