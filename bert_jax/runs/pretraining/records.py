"""The records of a pre-training run: a --data directory, and which phase reads which.

Owns what is refused of them before the run begins. Imports no jax, so that a mistake is reported
at once.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.model.embedding_kinds import OF_WORDS
from bert_jax.configs.objectives import OBJECTIVES
from bert_jax.configs.schema import ModelConfig, Phase, PretrainConfig
from bert_jax.input_pipeline.records.shards import Manifest, check_files
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.workdir.workdir import Workdir

if TYPE_CHECKING:
    from bert_jax.train.pretraining_program import InputKind


@dataclass(frozen=True)
class Records:
    """A --data directory and its manifest."""

    directory: str
    manifest: Manifest

    def identity(self) -> dict[str, Any]:
        """Return what a resumed run must find alike, wherever the records lie; JSON values."""
        # Names without their folder: the same records may lie elsewhere after a restart.
        names = sorted((s.file, s.records, s.crc32c) for s in self.manifest.files)
        return {
            'seq_len': self.manifest.seq_len,
            'objective': self.manifest.objective,
            'checksum': zlib.crc32(repr(names).encode()),
        }

    def lasting_path(self) -> str:
        """Return the directory as it can be found from other folders too."""
        return self.directory if '://' in self.directory else os.path.abspath(self.directory)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Read the copy of the tokenizer that the records were made with."""
        return Tokenizer.load(epath.Path(self.directory) / 'tokenizer')

    def kind(self, masked_lm_prob: float | None = None) -> InputKind:
        """Return what the program must know of their rows, the drawing of masks included.

        masked_lm_prob: the share of tokens that is predicted; None: as the records were made for.
        """
        from bert_jax.train.dynamic_masking import DynamicMasking
        from bert_jax.train.pretraining_program import InputKind

        # Static masks are in the records; dynamic ones are drawn in the step, by the options that
        # the records were made with, and with the ids of their tokenizer.
        masking, manifest = None, self.manifest
        if manifest.masking == 'dynamic':
            options, tokenizer = manifest.options, self.tokenizer
            masking = DynamicMasking(
                masked_lm_prob or options['masked_lm_prob'],
                manifest.max_predictions,
                tuple(options['mask_mix']),
                options['whole_word'],
                tokenizer.mask_id,
                tokenizer.vocab_size,
                tokenizer.sep_id,
                # in the options of jobs that took another than BERT's
                'roberta' if 'mask_rule' in options else 'bert',
                tokenizer.special_ids,
            )

        # Both objectives label a pair; without one there is no second loss.
        nsp, packed = manifest.objective in ('nsp', 'sop'), manifest.spec.packed
        return InputKind(manifest.seq_len, manifest.max_predictions, nsp, packed, masking)


def match_phases(config: PretrainConfig, directories: Sequence[str]) -> list[Records]:
    """Find the records of each phase, by seq_len.

    Args:
      config: the settings of the run.
      directories: of records, or N=DIR for those of phases.N.

    Raises:
      UserError: a directory is missing, ambiguous, unused or unfit.
    """
    if not directories:
        raise UserError('--data: name the records directory (bert-preprocess makes one)')

    # Each directory by itself, and the phase that it is named for.
    named: dict[int, Records] = {}
    unnamed, candidates = [], []
    for given in directories:
        number, directory = split_phase(given)
        records = Records(directory, Manifest.load(directory))
        _check_records(config, records)
        candidates.append(records)
        if number is None:
            unnamed.append(records)
        elif number >= len(config.phases) or number in named:
            last = len(config.phases) - 1
            raise UserError(f'--data={given}: phases are 0 to {last}, each named once')
        else:
            named[number] = records

    # Together: phases share one embedding table, so one vocabulary.
    if len({r.manifest.tokenizer_fingerprint for r in candidates}) > 1:
        raise UserError(
            '--data: the directories were made with different tokenizers: make them with one'
        )

    # Each phase by its length: exactly one directory, or the user meant something else.
    chosen = []
    for i, phase in enumerate(config.phases):
        several = [named[i]] if i in named else unnamed
        fit = [r for r in several if r.manifest.seq_len == phase.seq_len]
        if len(fit) != 1:
            lengths = [r.manifest.seq_len for r in several]
            raise UserError(
                f'phases.{i}.seq_len={phase.seq_len}: {len(fit)} of the --data directories have'
                f' that length (theirs: {lengths}): give exactly one, or --data={i}=DIR'
            )
        _check_share(i, phase, fit[0].manifest)
        chosen.append(fit[0])
    unread = [r.directory for r in unnamed if r not in chosen]
    if unread:
        raise UserError(f'--data={unread[0]}: no phase reads it: leave it out')
    return chosen


def _check_records(config: PretrainConfig, records: Records) -> None:
    """Raise UserError where no phase of a run can read records, or they are not whole."""
    directory, manifest = records.directory, records.manifest
    if not config.model.holds(manifest.vocab_size):
        raise UserError(
            f'--data={directory} was made with a vocabulary of {manifest.vocab_size} entries,'
            f' but model.vocab_size={config.model.vocab_size}: add --set'
            f' model.vocab_size={manifest.vocab_size}, or make the records with the other'
            ' tokenizer'
        )
    if manifest.seq_len not in {phase.seq_len for phase in config.phases}:
        raise UserError(
            f'--data={directory} has seq_len={manifest.seq_len}, which no phase uses: '
            f'--set phases.0.seq_len={manifest.seq_len}, or leave it out'
        )
    check_model_reads(config.model, manifest, directory)
    if manifest.masking == 'static' and OBJECTIVES[config.objective].masks_in_step:
        raise UserError(
            f'--data={directory}: the records are masked already, and objective='
            f'{config.objective} masks in each step: make them with --masking=dynamic'
        )
    faults = check_files(directory, manifest.files)
    if faults:
        raise UserError(
            f'--data={directory}: {faults[0]} ({len(faults)} such files): copy or make the'
            ' records again'
        )


def split_phase(data: str) -> tuple[int | None, str]:
    """Return the phase that N=DIR of --data names, or None, and the directory."""
    number, equals, directory = data.partition('=')
    if equals and number.isdecimal():
        return int(number), directory
    return None, data


def list_directories(data: Sequence[str]) -> list[str]:
    """Return the directories of --data, those of named phases in their order."""
    given = sorted(map(split_phase, data), key=lambda pair: -1 if pair[0] is None else pair[0])
    return [directory for _, directory in given]


def _check_share(number: int, phase: Phase, manifest: Manifest) -> None:
    """Raise UserError where a phase masks a share that its records have no room for."""
    share = phase.masked_lm_prob
    if share is None:
        return
    name = f'phases.{number}.masked_lm_prob={share}'
    if manifest.masking == 'static':
        raise UserError(
            f'{name}: the records are masked already: make them with --masking=dynamic, or --set'
            f' phases.{number}.masked_lm_prob=none'
        )
    room = manifest.options['masked_lm_prob']
    if share > room:
        raise UserError(
            f'{name}: the records have room for {room}: lower it, or make them with'
            f' --masked_lm_prob={share}'
        )


def list_record_settings(
    preset: PretrainConfig, directories: Sequence[str], named_shape: bool
) -> list[str]:
    """Return what a preset takes from its records: vocabulary, lengths and positions.

    Args:
      preset: the preset, whose own values are for records that nobody has named.
      directories: those of --data.
      named_shape: whether the model's shape is another one's, so that lengths alone are taken.
    """
    manifests = [Manifest.load(directory) for directory in directories]
    if not manifests:
        return []
    settings, model = {}, preset.model
    lengths = [manifest.seq_len for manifest in manifests]
    # Phases find their records by length; of other lengths the first are those of the first phase.
    if len(lengths) == len(preset.phases) and set(lengths) != {p.seq_len for p in preset.phases}:
        settings = {f'phases.{i}.seq_len': length for i, length in enumerate(lengths)}
        if not named_shape and max(lengths) > model.max_position:
            settings['model.max_position'] = max(lengths)
    entries = manifests[0].vocab_size
    if not named_shape and not model.holds(entries):
        settings['model.vocab_size'] = entries
    changes = [f'{name}={value}' for name, value in settings.items()]
    if changes:
        logging.info(f'of --data: {", ".join(changes)}')
    return changes


def read_begun_settings(workdir: str | None, phases: Sequence[Phase] = ()) -> list[str]:
    """Return settings of the run that has a checkpoint in `workdir`, which its command may not say.

    So the command that began a run before these followed from the rest goes on with it: the order
    of records where it is not the default, the warm-up, and the growth of the batch of `phases`, a
    preset's.
    """
    if workdir is None:
        return []
    folder = Workdir(workdir)
    with reading(folder):
        if not folder.config_file.exists():
            return []
    begun = folder.config()
    if not isinstance(begun, PretrainConfig) or not folder.newest_step():
        return []
    settings = [f'optimizer.warmup_steps={begun.optimizer.warmup_steps}']
    for i, (phase, before) in enumerate(zip(phases, begun.phases)):
        if phase.growth_steps and before.growth_steps:
            settings.append(f'phases.{i}.batch_warmup_steps={before.batch_warmup_steps}')
    if begun.record_order != PretrainConfig.record_order:
        logging.info(f'{folder}: goes on with record_order={begun.record_order}, as it began')
        settings.append(f'record_order={begun.record_order}')
    return settings


def check_model_reads(model: ModelConfig, manifest: Manifest, directory: str) -> None:
    """Raise UserError where the records have what the model has no place for."""
    flag = f'--data={directory}'
    # several examples a row: each token may see all of its own, and no others
    if manifest.spec.packed:
        for name, wanted in (('attention', 'bidirectional'), ('bilstm', False)):
            value = getattr(model, name)
            if value != wanted:
                raise UserError(
                    f'{flag} has packed rows, which model.{name}={value} cannot keep apart: '
                    f'--set model.{name}={wanted}, or make the records without --packing'
                )

    # Labels of pairs that no head reads would be trained on without a word.
    if manifest.objective != 'full_sentences' and not model.traits.pairs:
        raise UserError(
            f'{flag} has pairs (--objective={manifest.objective}), which {model.traits.name} is'
            ' not trained to tell apart: make the records with --objective=full_sentences'
        )

    # Numbers of whole words are beyond every table, where jax would read its last row.
    if manifest.known_words and model.embedding != OF_WORDS:
        raise UserError(
            f'{flag} has whole words, which model.embedding={model.embedding} has no vectors for:'
            f' --set model.embedding={OF_WORDS}, or make the records with a tokenizer of word'
            ' pieces'
        )
    if model.embedding == OF_WORDS and not manifest.known_words:
        raise UserError(
            f'{flag} has word pieces, and model.embedding={OF_WORDS} reads whole words: make'
            ' records with a tokenizer of bert-train-vocab --model=words'
        )

    # A segment's number is a row of the type table; jax clamps, so a missing row goes unnoticed.
    segments = 1 if manifest.objective == 'full_sentences' else 2
    if not model.reads_segments(segments):  # jax would read the last row there is
        raise UserError(
            f'{flag} has pairs of segments (--objective={manifest.objective}), but'
            f' model.type_vocab_size={model.type_vocab_size}: --set'
            f' model.type_vocab_size={segments}, or make the records with'
            ' --objective=full_sentences'
        )
