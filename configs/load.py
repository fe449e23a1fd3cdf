"""Finds the configuration that `--config` names: a preset, a Python file, or a saved config.json.

A Python file is code and is run: it must be the user's own or trusted. A JSON file is data.
"""

from __future__ import annotations

import os
import pathlib
import runpy
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, suggest
from bert_jax.configs.presets import (
    albert,
    bert,
    deberta,
    distilbert,
    eelbert_retvec,
    electra,
    eurobert,
    finetune,
    modernbert,
    mpnet,
    quickstart,
    roberta,
    xlm_roberta,
)

C = TypeVar('C', schema.PretrainConfig, schema.FinetuneConfig)


# A preset is a function here, of the name that --config takes.
PRESETS: dict[str, Callable[[], schema.Config]] = {
    preset.__name__: preset
    for preset in (
        albert.albert_base,
        albert.albert_large,
        albert.albert_xlarge,
        albert.albert_xxlarge,
        bert.bert_base,
        bert.bert_large,
        bert.bert_medium,
        bert.bert_mini,
        bert.bert_mini_cpu,
        bert.bert_multilingual,
        bert.bert_small,
        bert.bert_tiny,
        deberta.deberta_v2_xlarge,
        deberta.deberta_v2_xxlarge,
        deberta.deberta_v3_base,
        deberta.deberta_v3_large,
        deberta.deberta_v3_small,
        deberta.deberta_v3_xsmall,
        deberta.mdeberta_v3_base,
        distilbert.distilbert_base,
        eelbert_retvec.eelbert_mini,
        eelbert_retvec.eelbert_tiny,
        eelbert_retvec.uno_eelbert,
        electra.electra_base,
        electra.electra_large,
        electra.electra_small,
        eurobert.eurobert_210m,
        eurobert.eurobert_2_1b,
        eurobert.eurobert_610m,
        finetune.finetune,
        modernbert.ettin_17m,
        modernbert.ettin_32m,
        modernbert.ettin_68m,
        modernbert.mmbert_base,
        modernbert.mmbert_base_recipe,
        modernbert.mmbert_small,
        modernbert.mmbert_small_recipe,
        modernbert.modernbert_base,
        modernbert.modernbert_base_recipe,
        modernbert.modernbert_large,
        modernbert.modernbert_tiny_cpu,
        mpnet.mpnet_base,
        quickstart.quickstart,
        quickstart.quickstart_finetune,
        eelbert_retvec.retvec_tiny,
        roberta.roberta_base,
        roberta.roberta_base_2k,
        roberta.roberta_large,
        xlm_roberta.bge_m3,
        xlm_roberta.camembert_base,
        xlm_roberta.camembert_large,
        xlm_roberta.xlmr_base,
        xlm_roberta.xlmr_large,
    )
}


def list_presets(kind: type[schema.Config] | None = None) -> list[str]:
    """Return the names of the configurations that this package ships; with `kind` of that class."""
    names = []
    for name, preset in sorted(PRESETS.items()):
        if kind is None or type(preset()) is kind:
            names.append(name)
    return names


def load(name_or_path: str, kind: type[schema.Config] | None = None) -> schema.Config:
    """Return the configuration of a preset, a .py file with `get_config()`, or a saved .json file.

    Raises UserError where there is no such thing, or it holds no configuration; of the presets it
    offers those of `kind`. That what is found is of that class is not looked at.
    """
    # A preset's name wins over a file of that name, so that it means the same in every folder.
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]()
    path = pathlib.Path(name_or_path)
    if not os.path.isfile(path):
        offered = list_presets(kind)
        raise UserError(
            f'--config={name_or_path}: neither a file nor a preset; the presets are'
            f' {", ".join(offered)}{suggest(name_or_path, offered)}'
        )
    if path.suffix == '.json':
        return schema.read(path)
    if path.suffix != '.py':
        raise UserError(f'--config={name_or_path}: expected a .py or .json file')
    config = run_file(path, 'get_config')
    if not isinstance(config, schema.Config):
        raise UserError(
            f'{path}: get_config() returned {type(config).__name__}, not a PretrainConfig or'
            ' FinetuneConfig'
        )
    return config


def load_config(config: str | C | None, kind: type[C], default: C | None = None) -> tuple[C, bool]:
    """Return the configuration that was asked for, and whether it is a preset's by its name.

    Raises UserError where it is none of class `kind`, or there is neither a name nor a default.
    """
    loaded: schema.Config | None
    if isinstance(config, str):
        loaded = load(config, kind)
    elif config is not None:
        loaded = config
    else:
        loaded = default
    if loaded is None:
        names = ', '.join(list_presets(kind))
        raise UserError(
            f'--config is required: a preset ({names}), a Python file or a saved config.json'
        )

    # A fine-tuning preset for pre-training would fail later, far from its cause.
    name = config if isinstance(config, str) else loaded.name
    if type(loaded) is not kind:
        raise UserError(
            f'--config={name}: holds a {type(loaded).__name__}, but this program takes a'
            f' {kind.__name__}'
        )
    return loaded, isinstance(config, str) and config in PRESETS


def run_file(path: pathlib.Path, function: str) -> Any:
    """Return what that function of a file returns; UserError, naming the line, where it fails.

    The file is code and is run.
    """
    try:
        # Its name is not '__main__': a file that is also a program is not run as one.
        return runpy.run_path(os.fspath(path))[function]()
    except KeyError as error:  # of the file's names, or raised by the file itself
        if error.args != (function,):
            raise UserError(_where(path, error)) from error
        raise UserError(f'{path}: defines no {function}()') from error
    # SystemExit too: a file that is a program by itself would end this one without a word.
    except (Exception, SystemExit) as error:
        raise UserError(_where(path, error)) from error


def _where(path: pathlib.Path, error: BaseException) -> str:
    """Return `error` in one line, with the line of the file `path` that it came from."""
    if isinstance(error, SyntaxError):
        return f'{path}:{error.lineno}: {error.msg}'

    # The deepest line of the user's own file: what it called lies in our code, and says less.
    frames = traceback.extract_tb(error.__traceback__)
    lines = [1, *(frame.lineno for frame in frames if frame.filename == os.fspath(path))]
    message = str(error) if isinstance(error, UserError) else f'{type(error).__name__}: {error}'
    # Names as files of before have them.
    if isinstance(error, ImportError) and error.name is not None:
        if error.name.split('.')[0] in ('configs', 'input_pipeline', 'launch'):
            message = f'{error.name} is in the package bert_jax now: import bert_jax.{error.name}'
        elif error.name.startswith('bert_jax.configs.presets'):
            message += (
                ": a preset is had by its name now, as bert_jax.configs.load.load('bert_tiny')"
            )
    return f'{path}:{lines[-1]}: {message}'
