"""The network of a run of launch.train_retvec, as an encoder begins with it.

Owns how such a workdir is told from others, and its weights put into a model. How it is trained is
launch/pretraining/words.py's.
"""

from __future__ import annotations

from bert_jax.train.checkpoint import load_params
from bert_jax.train.state import TrainState, load_params_into
from launch.workdir.workdir import Workdir


def is_workdir(where: str | None) -> bool:
    """Whether that is a workdir of launch.train_retvec."""
    if not where:
        return False
    # Of the workdirs those alone have words in their data.json.
    workdir = Workdir(where)
    return workdir.data_file.exists() and 'words' in workdir.data()


def put_into(state: TrainState, where: str) -> TrainState:
    """A fresh state with the network of that workdir; UserError where it has no checkpoint yet."""
    params, _ = load_params(where)
    embeddings = load_params_into(
        state.params['encoder']['embeddings'], params, f'--init_from={where}', 'retvec'
    )
    encoder = {**state.params['encoder'], 'embeddings': embeddings}
    return state._replace(params={**state.params, 'encoder': encoder})
