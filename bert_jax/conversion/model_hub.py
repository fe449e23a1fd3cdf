"""Models by name from the Hugging Face Hub: downloaded once, then taken from the cache.

Owns what a name looks like, which files of a model are wanted, and what to say where it cannot be
had. The cache is huggingface_hub's (HF_HOME says where), shared with transformers. Must not know
what is in the files.
"""

from __future__ import annotations

import os
import pathlib
import re

from bert_jax.configs.errors import UserError

# OWNER/MODEL, or MODEL; and after an @ the branch, tag or commit of it.
_NAME = re.compile(r'(?P<repo>[\w-][\w.-]*(/[\w-][\w.-]*)?)(@(?P<revision>[\w./-]+))?')
# How the names of models begin that have no organisation.
_OLDEST = tuple('bert- albert- roberta- distilbert- distilroberta- xlm-roberta- camembert-'.split())
# Small files that say what the model is and how texts become its ids.
# The last two lines are of sentence-transformers: how it makes a vector of a text.
_SETTINGS = """
    config.json adapter_config.json
    vocab.txt vocab.json merges.txt spm.model spiece.model
    tokenizer.json tokenizer_config.json added_tokens.json special_tokens_map.json
    modules.json sentence_bert_config.json config_sentence_transformers.json
    *_*/config.json *_Dense/model.safetensors
""".split()
# {ending: patterns}, in the order of preference.
_WEIGHTS = {
    'safetensors': 'model.safetensors model-*.safetensors model.safetensors.index.json'
    ' adapter_model.safetensors',
    'bin': 'pytorch_model* adapter_model.bin',
}


def is_name(name: str) -> bool:
    """Tell whether `name` may be a model's name: [ORGANISATION/]MODEL[@REVISION].

    A path that is misspelt is none: the Hub has no more than the oldest models without an
    organisation, and what lies in a folder that is here is no organisation's.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    organisation, slash, _ = match['repo'].partition('/')
    if slash:
        return not os.path.isdir(organisation)
    return name.startswith(_OLDEST)


def fetch(name: str) -> str:
    """Return the local folder of a model, downloaded where it is not in the cache.

    Without a network the cache alone is asked. Weights are safetensors; a .bin only where there are
    none. UserError where the model cannot be had.
    """
    # Imported here: most runs never ask the Hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match = _NAME.fullmatch(name)
    assert match is not None, name  # is_name was asked before
    repo, revision = match['repo'], match['revision']
    nowhere = f'{name}: no such folder here'
    try:
        # Settings come with either; a second call takes them from the cache.
        for ending, weights in _WEIGHTS.items():
            wanted = [*_SETTINGS, *weights.split()]
            folder = snapshot_download(repo, revision=revision, allow_patterns=wanted)
            if any(pathlib.Path(folder).glob(f'*.{ending}')):
                break
        return folder  # without weights it is refused by its reader
    # Each error has another remedy; the last one is any failure of the network.
    except GatedRepoError:
        raise UserError(
            f'{name}: its owner asks for an agreement: accept it on its page, then log in with `hf'
            ' auth login`'
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f'{nowhere}, and no model of that name on the Hugging Face Hub: correct the path or the'
            ' name (a private one: `hf auth login`)'
        ) from None
    except RevisionNotFoundError:
        raise UserError(f'{name}: the Hugging Face Hub has no revision {revision} of it') from None
    except Exception as error:
        raise UserError(
            f'{nowhere}, and the Hugging Face Hub cannot be reached ({type(error).__name__}): where'
            f' there is a network run `hf download {repo} --local-dir DIR`, copy DIR here and'
            ' name it'
        ) from error
