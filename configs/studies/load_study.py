"""Finds the studies that `--study` names: shipped ones, or those of a user's Python file.

Such a file is code and is run. It defines what the shipped functions are:

  def get_studies() -> dict[str, Study]:       # by scale
      return {'cpu': Study(...), 'paper': Study(...)}
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from bert_jax.configs.errors import UserError, suggest
from bert_jax.configs.load import run_file
from bert_jax.configs.studies import beyond_paper, paper_tables
from bert_jax.configs.studies.study import Study

# A study is a function here, of the name that --study takes.
STUDIES: dict[str, Callable[[], dict[str, Study]]] = {
    'feature_based': paper_tables.feature_based,
    'masking': paper_tables.masking,
    'model_size': paper_tables.model_size,
    'modernbert': beyond_paper.modernbert,
    'pretraining_tasks': paper_tables.pretraining_tasks,
    'relatives': beyond_paper.relatives,
    'small_language': beyond_paper.small_language,
    'steps': paper_tables.steps,
}


def load_study(name_or_path: str) -> dict[str, Study]:
    """Return the studies that are shipped by a name, or of a .py file of one's own, by scale.

    Raises:
      UserError: there is none, or it is refused.
    """
    if name_or_path in STUDIES:
        return STUDIES[name_or_path]()
    path = pathlib.Path(name_or_path)
    if path.suffix != '.py' or not path.is_file():
        raise UserError(
            f'--study={name_or_path}: neither a .py file nor one of {", ".join(STUDIES)}'
            f'{suggest(name_or_path, STUDIES)}'
        )
    studies = run_file(path, 'get_studies')
    if not isinstance(studies, dict) or not studies:
        raise UserError(f"{path}: get_studies() must return {{'SCALE': Study(...)}}")
    return studies
