r"""Before paying: what a pre-training run needs and costs on TPUs or GPUs that are not here.

  bert-plan --config=bert_large --topology=v5e:16x16 [--set a.b=c ...] [--all_layers] \
      [--json=FILE]

With the extra [plan] (pip install '.[plan]') the real train step is compiled for that TPU topology,
and its memory is the compiler's. For GPUs (h100:8) it is compiled on a machine that has them.
Elsewhere only what follows from shapes is told. Where a step does not fit, a change is named that
would do. docs/plan.md explains the lines.
"""

from __future__ import annotations

import glob
import importlib.util
import os
from dataclasses import dataclass

from bert_jax.cli import app
from bert_jax.cli.common_flags import apply_settings, check_growth_ends
from bert_jax.configs import load
from bert_jax.configs.options import option
from bert_jax.configs.schema import PretrainConfig
from bert_jax.runs.pretraining.planning import PlanOptions


@dataclass(frozen=True, kw_only=True)
class Plan(PlanOptions):
    """Print what a pre-training run needs and costs on chips that are not here.

    Attributes:
      config: a preset's name, a Python file with get_config() (it is run), or a saved config.json.
      settings: changes one setting, as in --set optimizer.peak_lr=2e-5.
    """

    config: str | None = None
    settings: tuple[str, ...] = option((), flag='set', settings=PretrainConfig)

    def __call__(self) -> None:
        """Print the plan, and write it where --json says.

        Raises:
          UserError: after that, where a phase does not fit.
        """
        from etils import epath

        from bert_jax.configs.files.store import write_note
        from bert_jax.costs.chips import parse_topology
        from bert_jax.runs.pretraining import planning

        if self.json is not None:  # before the minutes of compiling
            planning.check_json(self.json)

        # Settings and topology by name, which needs no jax.
        named, is_preset = load.load_config(self.config, PretrainConfig)
        config = apply_settings(named, self.settings, is_preset)
        check_growth_ends(config)
        chips = parse_topology(self.topology)
        _choose_platform(chips.chip.platform)
        config = planning.fit_budget(config, chips, self)

        # The plan is printed also where a phase does not fit: it says what would help.
        report, refusals = planning.make_plan(config, chips, self)
        print('\n'.join(planning.format_plan(report)))
        if self.json:
            write_note(epath.Path(self.json), report, 2)

        # Last, so that the plan is above the error and the exit code is still 2.
        if refusals:
            raise refusals[0]


def _choose_platform(platform: str) -> None:
    """Set, before jax is imported, what it may use.

    On a TPU host the chips are left alone, and of a GPU only what is needed is taken.
    """
    platforms = 'cpu'
    if platform == 'gpu' and glob.glob('/dev/nvidia[0-9]*'):
        for version in (12, 13):
            if importlib.util.find_spec(f'jax_cuda{version}_plugin'):
                platforms = 'cuda,cpu'
    os.environ['JAX_PLATFORMS'] = platforms
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')


if __name__ == '__main__':
    app.run(Plan)
