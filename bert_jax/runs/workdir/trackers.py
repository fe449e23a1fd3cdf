"""Metrics to Weights & Biases or MLflow, as --track asks: writers for `RunContext(writers=...)`.

Owns their calls. Neither is installed with this project: `pip install bert_jax[wandb]` or
`bert_jax[mlflow]`. Where their data goes, and who may write there, is for their own environment
variables to say (WANDB_MODE=offline, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from bert_jax.configs.runtime import Tracker, check_tracker
from bert_jax.runs.workdir.tensorboard import scalars

if TYPE_CHECKING:
    from bert_jax.train.loop import LogEntry


def writers_of(track: Tracker | None, workdir: str) -> list[WandbWriter | MlflowWriter]:
    """Return the writers of a tracker, for a run whose name there is its folder's.

    WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME say in which project; else it is `bert_jax`. UserError
    where the tracker is not installed.
    """
    check_tracker(track)
    # Folders of one name are different runs.
    path = workdir if '://' in workdir else os.path.abspath(workdir)
    name = f'{os.path.basename(path)}-{hashlib.sha256(path.encode()).hexdigest()[:8]}'
    if track == 'wandb':
        return [WandbWriter(os.environ.get('WANDB_PROJECT', 'bert_jax'), name, workdir)]
    if track == 'mlflow':
        return [MlflowWriter(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'bert_jax'), name)]
    return []


class WandbWriter:
    """A run at Weights & Biases; points of a step that it has already are left out there."""

    def __init__(self, project: str, name: str, folder: str | None = None):
        """Go on with the run `name` of the project, or begin it, with files in `folder`."""
        import wandb

        self._run = wandb.init(project=project, id=name, name=name, dir=folder, resume='allow')

    def write(self, line: LogEntry) -> None:
        """Add a point to the curve 'SPLIT/NAME' of each number."""
        self._run.log(scalars(line), step=line.step)

    def close(self) -> None:
        """Send what is left, and ends the run there."""
        self._run.finish()


class MlflowWriter:
    """A run in MLflow, which shows points that come again twice."""

    def __init__(self, experiment: str, name: str):
        """Go on with the newest run `name` of the experiment, or begin it."""
        from mlflow import MlflowClient

        self._client = client = MlflowClient()
        existing = client.get_experiment_by_name(experiment)
        number = existing.experiment_id if existing else client.create_experiment(experiment)
        before = client.search_runs([number], f"attributes.run_name = '{name}'", max_results=1)
        run = before[0] if before else client.create_run(number, run_name=name)
        self._run_id = run.info.run_id
        client.update_run(self._run_id, status='RUNNING')

    def write(self, line: LogEntry) -> None:
        """Add a point to the curve 'SPLIT/NAME' of each number."""
        for name, value in scalars(line).items():
            self._client.log_metric(self._run_id, name, value, step=line.step)

    def close(self) -> None:
        """End the run there."""
        self._client.set_terminated(self._run_id)
