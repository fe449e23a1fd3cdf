"""The network of a run of bert-pretrain retvec, as an encoder begins with it.

Owns how such a workdir is told from others, and its weights put into a model. How it is trained is
bert_jax/runs/pretraining/retvec_training.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.configs.model.embedding_kinds import Retvec
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import load_params
from bert_jax.train.state import load_params_into

COMMAND = 'bert-pretrain retvec'


def is_workdir(name: str | None) -> bool:
    """Tell whether that is a workdir of bert-pretrain retvec."""
    if not name:
        return False
    # Of the workdirs those alone have words in their data.json.
    workdir = Workdir(name)
    return workdir.data_file.exists() and 'words' in workdir.data()


def put_into(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a model's parameters with the network of that workdir, placed as they were.

    Raises:
      UserError: it has no checkpoint yet.
    """
    network, _ = load_params(name)
    embeddings = load_params_into(
        params['encoder']['embeddings'], network, f'--init_from={name}', Retvec.network
    )
    return {**params, 'encoder': {**params['encoder'], 'embeddings': embeddings}}
