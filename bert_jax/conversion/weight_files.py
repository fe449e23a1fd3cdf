"""Files of weights: safetensors, and the pickles of PyTorch, whole or in shards, read as arrays.

Owns their reading and what is said of a damaged one. Must not know what the arrays are for.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import ml_dtypes
import numpy as np
import safetensors
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.conversion.parameters import Tensors, join_names

# The types of safetensors that numpy, with ml_dtypes, can hold.
_DTYPES = {
    'F64': np.float64,
    'F32': np.float32,
    'F16': np.float16,
    'BF16': ml_dtypes.bfloat16,
    'I64': np.int64,
    'I32': np.int32,
}


def read_tensors(folder: epath.Path, safe: str, pickled: str) -> tuple[Tensors, list[str]]:
    """Every tensor in the directory, by its name there, and what is to be said of them.

    safe, pickled: how the file of tensors is called, in either format. UserError where there is
    none, or it is damaged.
    """
    # safetensors before pickles, one file before shards; the first that is there is read.
    for file, read_file in ((safe, _read_safetensors), (pickled, _read_pickle)):
        index = folder / f'{file}.index.json'
        if (folder / file).exists():
            tensors = read_file(folder / file)
            break
        if index.exists():
            tensors = _read_shards(index, read_file)
            break
    else:
        other = [name for name in ('tf_model.h5', 'flax_model.msgpack') if (folder / name).exists()]
        beside = f' ({other[0]} is not read)' if other else ''
        raise UserError(f'{folder}: no {safe} or {pickled} in it{beside}: download the weights too')

    # Everything becomes float32; half-precision files are read, and it is said.
    floats: collections.Counter[str] = collections.Counter()
    for tensor in tensors.values():
        if not np.issubdtype(tensor.dtype, np.integer) and tensor.dtype != np.float32:
            floats[str(tensor.dtype)] += 1
    remarks = [f'{count} tensors are {dtype}: read as float32' for dtype, count in floats.items()]
    return tensors, remarks


def _read_shards(index: epath.Path, read_file: Callable[[epath.Path], Tensors]) -> Tensors:
    """Return the tensors of all files that an index names."""
    tensors: Tensors = {}
    places = read_object(index).get('weight_map')
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UserError(
            f'{index}: its weight_map does not give every tensor the name of a file: download it'
            ' again'
        )

    # The index is a file from elsewhere: a name in it must be one of a file beside it, so that it
    # cannot lead to another folder.
    for file in sorted(set(places.values())):
        is_beside = '\0' not in file and epath.Path(file).name == file
        if not (is_beside and (index.parent / file).is_file()):
            raise UserError(
                f'{index} names {file}, which is not beside it: download that shard too'
            )
        tensors |= read_file(index.parent / file)
    differ = set(places) ^ set(tensors)
    if differ:
        raise UserError(
            f'{index}: it and the shards do not hold the same names: {join_names(differ)}'
        )
    return tensors


def _read_safetensors(file: epath.Path) -> Tensors:
    # [(name, {dtype, shape, data})]: bytes, of which numpy makes arrays without copying.
    try:
        views = safetensors.deserialize(file.read_bytes())
    except OSError as error:
        raise UserError(f'{file}: cannot be read ({error.strerror or error})') from None
    except safetensors.SafetensorError as error:
        raise UserError(
            f'{file}: not a whole safetensors file ({error}): download it again'
        ) from error
    other = {view['dtype'] for _, view in views} - set(_DTYPES)
    if other:
        raise UserError(
            f'{file}: tensors of type {", ".join(sorted(other))}: only {", ".join(_DTYPES)} can be'
            ' read'
        )
    tensors = {}
    for name, view in views:
        tensors[name] = np.frombuffer(view['data'], _DTYPES[view['dtype']]).reshape(view['shape'])
    return tensors


def _read_pickle(file: epath.Path) -> Tensors:
    """Return what torch's reader of tensors alone, which runs no code, finds in a .bin file."""
    try:
        import torch
    except ImportError:
        raise UserError(
            f'{file}: only safetensors are read without PyTorch: where torch and transformers are'
            ' installed, convert it with AutoModel.from_pretrained(DIR).save_pretrained(DIR), or'
            ' install torch here'
        ) from None

    # weights_only refuses code in the pickle.
    try:
        tensors = torch.load(str(file), map_location='cpu', weights_only=True)
    except Exception as error:  # whatever damage or code in it raises
        raise UserError(
            f'{file}: torch cannot read it as plain tensors ({type(error).__name__}): it is damaged'
            ' or not to be trusted'
        ) from error

    # From here on: a dictionary of names and plain tensors, or a refusal that says what it was.
    plain = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not plain or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        held = f'a {type(tensors).__name__}'
        if isinstance(tensors, dict):
            held += f' of {", ".join(sorted(map(str, tensors)))[:120]}'
        raise UserError(
            f'{file}: holds {held}, and not a dictionary of tensors: save the state_dict of the'
            ' model alone, or the model with save_pretrained(DIR)'
        )
    for name, t in tensors.items():
        if t.layout != torch.strided or t.is_quantized or t.is_complex():
            raise UserError(
                f'{file}: {name} is a sparse, quantised or complex tensor: save it as plain numbers'
            )

    # numpy has no bfloat16, nor float8: those go through float32, which holds all their values.
    numpy_has = (torch.float16, torch.float32, torch.float64)
    arrays = {}
    for name, t in tensors.items():
        if t.is_floating_point() and t.dtype not in numpy_has:
            t = t.float()
        arrays[name] = t.detach().numpy()
    return arrays
