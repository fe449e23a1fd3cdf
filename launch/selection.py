"""The best weights of a run so far, by the dev score: kept in best/ beside the checkpoints, so that a resumed run knows them.

Owns best/checkpoints/STEP (weights alone) and best/score.json, which comes after them. It must not know what is scored.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from etils import epath

from bert_jax import checkpoint
from launch.workdir import write_whole


class Best:
    """See above.

    Attributes:
      step: of the best weights; 0 before the first score.
      score: theirs.
    """

    def __init__(self, folder: str):
        """Takes up what an interrupted run left in `folder`."""
        self._folder = epath.Path(folder) / 'best'
        self.step, self.score = 0, float('-inf')
        saved = self._folder / 'checkpoints'
        if (self._folder / 'score.json').exists():
            known = json.loads((self._folder / 'score.json').read_text())
            if (saved / str(known['step'])).exists():
                self.step, self.score = known['step'], known['score']
        for path in saved.iterdir() if saved.exists() else ():
            if path.name != str(self.step):  # saved, but interrupted before its score was
                shutil.rmtree(path)

    def offer(self, state: Any, score: float) -> None:
        """Keeps the weights of `state` where their score is higher than all before."""
        if score <= self.score:
            return
        checkpoints = checkpoint.Checkpoints(self._folder, keep=2)  # the one before stays until the new score is written
        checkpoints.save(state._replace(opt_state={}), {'kind': 'finetune'})
        checkpoints.close()
        self.step, self.score = int(state.step), score
        write_whole(self._folder / 'score.json', json.dumps({'step': self.step, 'score': score}) + '\n')

    def params(self) -> dict[str, Any]:
        """The best weights, as numpy arrays."""
        return checkpoint.load_params(self._folder, self.step)[0]
