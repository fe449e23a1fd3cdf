"""Pre-training as one call, from the names of records and a preset to a trained workdir."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.cli.common_flags import CommonFlags, check_growth_ends, configured
from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.runtime import Tracker
from bert_jax.configs.schema import PretrainConfig
from bert_jax.runs.calls import Path, Settings, called, changes_of, paths

if TYPE_CHECKING:
    from bert_jax.mesh.processes import ClusterAddress
    from bert_jax.runs.pretraining.records import Records
    from bert_jax.runs.pretraining.train import PretrainResult
    from bert_jax.runs.sources.fitting import InitBy


class Asked(NamedTuple):
    """What decides the settings of a run."""

    config: str | PretrainConfig | None
    data: tuple[str, ...]
    workdir: str | None
    common: CommonFlags
    settings: list[str]
    init_from: str | None
    init_by: InitBy


def pretrain(
    config: str | PretrainConfig,
    data: Path | Sequence[Path] = (),
    workdir: Path | None = None,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    track: Tracker | None = None,
    settings: Settings = (),
    init_from: Path | None = None,
    init_by: InitBy = 'weights',
    print_map: bool = False,
    dry_run: bool = False,
    profile: int = 0,
    cluster: ClusterAddress | None = None,
) -> PretrainResult:
    """Pre-train on records made by bert-preprocess, as bert-pretrain does.

    The same call goes on from the newest checkpoint in the workdir. In the main thread SIGTERM,
    SIGINT and SIGHUP ask it to save and stop, which the result says.

    Args:
      config: a preset's name, a Python file or a saved config.json, or the settings themselves. A
        preset takes its vocabulary and row lengths from the records.
      data: the records directory, or one for each length that the phases need.
      workdir: folder of the run.
      steps: optimizer steps of the whole run; None, here and below: as the configuration says.
      batch_size: sequences a step.
      learning_rate: the peak of the learning rate.
      track: where metrics go besides the workdir.
      settings: other settings by their dotted names, as {'optimizer.weight_decay': 0.1}.
      init_from: start from these weights: whatever `Bert.load` takes.
      init_by: how they are taken, as --init_by of the command.
      print_map: whether every name in `init_from` is printed with the array that it is here.
      dry_run: compile one step of each phase and print its sizes; nothing is written.
      profile: how many steps of each phase are traced into the workdir.
      cluster: how several processes of one run, which all make this call, find each other.

    Raises:
      UserError: settings, records, source or folder do not fit, in one line.
    """
    source, folder = (None if path is None else os.fspath(path) for path in (init_from, workdir))
    with called():
        common = CommonFlags(
            steps=steps, batch_size=batch_size, learning_rate=learning_rate, track=track
        )
        asked = Asked(config, paths(data), folder, common, changes_of(settings), source, init_by)
        return _run(asked, dry_run, cluster, {'print_map': print_map, 'profile_steps': profile})


def _run(
    asked: Asked, dry_run: bool, cluster: ClusterAddress | None, shown: dict[str, Any]
) -> PretrainResult:
    """Do what `pretrain` was asked for; `shown`: arguments that `train.pretrain` takes too."""
    # One process: all is checked without jax. Several meet first, and compare what each was started
    # with, so that a mistake on one host ends all of them and none waits for it.
    ready = lambda: _checked(asked, dry_run)
    with contextlib.ExitStack() as stack:
        if cluster is None:
            config, records = ready()
        else:
            from bert_jax.mesh import processes
            from bert_jax.runs.pretraining import same_run

            # Paths as given: hosts that name another folder would part their checkpoints.
            names = ('workdir', 'init_from', 'init_by')
            same = {f'--{name}': getattr(asked, name) for name in names} | {'--dry_run': dry_run}
            say = lambda checked: same_run.description(checked[0], checked[1], same)
            config, records = stack.enter_context(processes.joined_run(cluster, ready, say))

        from bert_jax.runs.pretraining import train

        folder = asked.workdir or ''
        if dry_run:
            train.print_sizes(config, records)
            return train.PretrainResult(folder, 0)
        init_from, init_by = asked.init_from, asked.init_by
        return train.pretrain(
            config, records, folder, init_from=init_from, init_by=init_by, **shown
        )


def _checked(asked: Asked, dry_run: bool) -> tuple[PretrainConfig, list[Records]]:
    """Read what this process was asked for, and check it without jax."""
    from bert_jax.runs.pretraining.records import match_phases

    if asked.init_by != 'weights' and not asked.init_from:
        raise UserError(f'--init_by={asked.init_by} needs --init_from')
    config = configuration(asked)
    if config.tuning.method != 'full' and not (asked.init_from or dry_run):
        raise UserError(
            f'tuning.method={config.tuning.method} leaves most weights as they are, and fresh ones'
            ' are worth nothing: name trained ones with --init_from'
        )
    untrained = config.model.words.untrained(config.model)
    if untrained and not (asked.init_from or dry_run):
        raise UserError(untrained)
    if not asked.workdir and not dry_run:
        raise UserError('--workdir is required: a folder for this run')
    return config, match_phases(config, asked.data)


def configuration(asked: Asked) -> PretrainConfig:
    """Return the settings of a run: of its configuration, what the other arguments change in it.

    With `init_from` the model is the one there; a preset takes vocabulary and lengths of the
    records. UserError where they contradict each other, or the batch of a new run grows to its end.
    """
    from bert_jax.runs.pretraining.records import begun_settings, settings_of_records

    config, is_preset = load.named(asked.config, PretrainConfig)
    before = []
    if is_preset:
        before += settings_of_records(config, asked.data, bool(asked.init_from))
    begun = begun_settings(asked.workdir, config.phases if is_preset else ())
    before += begun
    if asked.init_from:
        from bert_jax.runs.sources.fitting import shape_settings

        before += shape_settings(asked.init_from, asked.data, asked.workdir, asked.init_by)
    before += asked.common.settings(config, asked.settings)
    made = configured(config, [*before, *asked.settings], is_preset)
    if not begun:
        check_growth_ends(made)
    return made
