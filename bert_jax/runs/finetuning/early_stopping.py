"""Early stopping: when a run ends for want of a better score, and the weights of the best so far.

Owns best/checkpoints/STEP (weights alone) and best/score.json, which comes after them and lets a
resumed run know its best. It must not know what is scored.
"""

from __future__ import annotations

import json
import math
import shutil
from typing import Any, NamedTuple

from absl import logging

from bert_jax.configs.errors import UserError, is_disk_full
from bert_jax.configs.files.store import write_note
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint


class StoppingRule(NamedTuple):
    """How scores on the way act on a run.

    Attributes:
      score_every: steps between them; 0: there are none.
      patience: so many in a row without a better one end the run; 0: never.
      keeps_best: whether it ends with the best weights; otherwise with the last.
    """

    score_every: int
    patience: int
    keeps_best: bool


class EarlyStopping:
    """Keeps the weights with the highest score on disk, and says when they are too old.

    Attributes:
      best_step: of the best weights; 0 before the first score.
      best_score: theirs.
    """

    def __init__(
        self, folder: str, patience_steps: int = 0, required: bool = True, resumed: bool = True
    ):
        """Take up what an interrupted run left in `folder`.

        Args:
          folder: the run's workdir.
          patience_steps: the run ends so many steps after its best; 0: never.
          required: whether a full disk ends the run; otherwise weights that do not fit are passed
            over, in a line.
          resumed: whether the run had a checkpoint to go on from; otherwise what is there may be
            another run's.
        """
        self._folder, self._required = Workdir(folder).best, required
        self._patience_steps = patience_steps
        self.best_step, self.best_score = 0, float('-inf')

        # The score is written after the weights, so a score whose weights are there is a true one.
        saved, score = self._folder / 'checkpoints', self._folder / 'score.json'
        if score.exists():
            try:
                noted = json.loads(score.read_text())
                step, value = int(noted['step']), float(noted['score'])
            except (ValueError, LookupError, TypeError) as error:
                raise UserError(f'{score}: not a score ({error}): use another --workdir') from error

            # A run that begins anew has nothing to do with the score of another.
            if resumed and not math.isnan(value) and (saved / str(step)).exists():
                self.best_step, self.best_score = step, value

        # One set of weights at most stays, that of the score.
        for step in checkpoint.list_saved_steps(self._folder):
            if step != self.best_step:  # interrupted before its score was saved, or another run's
                shutil.rmtree(saved / str(step))

    def keep_if_best(self, state: Any, score: float) -> None:
        """Keep the weights of `state` where their score is higher than all before; NaN is not."""
        if not score > self.best_score:
            return
        # The one before stays until the new score is written.
        with checkpoint.Checkpoints(self._folder, keep=2) as checkpoints:
            checkpoints.save(
                state._replace(opt_state={}), {'kind': 'finetune'}, required=self._required
            )

        # Passed over for lack of room: the older best, and its score, still hold.
        if int(state.step) not in checkpoint.list_saved_steps(self._folder):
            return

        # Only now the score, and with it the claim that these are the best.
        try:
            write_note(self._folder / 'score.json', {'step': int(state.step), 'score': score})
        except OSError as error:
            if self._required or not is_disk_full(error):
                raise
            logging.warning(f'{self._folder}: the best score is NOT SAVED ({error})')
            return
        self.best_step, self.best_score = int(state.step), score

    def should_stop(self, step: int) -> bool:
        """Tell whether the best score is too old at a step."""
        return 0 < self._patience_steps <= step - self.best_step

    def load_best(self) -> dict[str, Any]:
        """Read the best weights, as numpy arrays.

        Raises:
          NoRoom: a full disk kept them all from being saved.
        """
        if not self.best_step:
            raise checkpoint.NoRoom(
                f'{self._folder}: no weights that were scored could be saved, so there are no best:'
                ' make room and run the same command again, or --set select=last'
            )
        return checkpoint.load_params(self._folder, self.best_step)[0]
