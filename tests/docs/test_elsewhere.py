"""Another program's flag is answered with ours, and the page of them says the same."""

from __future__ import annotations

import functools
import re

import pytest

from bert_jax.cli import elsewhere
from bert_jax.cli.commands import name_as_typed
from bert_jax.configs.overrides import apply
from bert_jax.configs.schema import FinetuneConfig, PretrainConfig
from bert_jax.configs.section import names
from tests.helpers import commands
from tests.helpers.pages import ROOT

PAGE = ROOT / 'docs/coming_from_huggingface.md'
FILES = [f.stem for f in (ROOT / 'launch').glob('*.py') if not f.stem.startswith('__')]
SETTINGS = {'finetune': FinetuneConfig, 'transfer': FinetuneConfig, 'feature_based': FinetuneConfig}
SETTINGS |= dict.fromkeys(('pretrain', 'plan', 'train_retvec'), PretrainConfig)
NAMES = sorted(
    {
        name
        for table in elsewhere.TABLES.values()
        for there, _ in list(elsewhere.read_rows(table))[1:]
        for name in re.findall(r"[`']([\w-]+)", there)
    }
)


@functools.cache
def flags_of(file: str) -> frozenset[str]:
    """The flags of a command, by its --help, and --set, whose settings are checked apart."""
    found = re.findall(r'^  --(?:\[no\])?(\w+)$', commands.run(file, '--help').stdout, re.M)
    return frozenset({*found, 'set'})


def settings_of(file: str) -> list[str]:
    return names(SETTINGS[file]) if file in SETTINGS else []


def faults(line: str, file: str) -> list[str]:
    """What of the line is neither the command's, nor that of a command which the line names."""
    named = [f for f in FILES if f == file or re.search(rf'{name_as_typed(f)}(?![-\w])', line)]
    wrong = []
    for flag in re.findall(r'(?<!\S)--(\w+)', line):
        if not any(flag in flags_of(f) for f in named):
            wrong.append(f'--{flag}')
    for setting in re.findall(r'--set ([\w.]+)', line):
        kinds = [names(SETTINGS[f]) for f in named if f in SETTINGS]
        if not any(setting.replace('.0.', '.N.') in kind for kind in kinds):
            wrong.append(f'--set {setting}')
    return wrong


@pytest.mark.parametrize('file', FILES)
def test_what_is_proposed_exists_where_it_is_proposed(file):
    wrong = []
    own = sorted(flags_of(file))
    for name in NAMES:
        line = elsewhere.propose(name, name_as_typed(file), own, settings_of(file))
        assert line or name in own
        wrong += [f'{name}: {line}: {fault}' for fault in faults(line, file)]
    assert not wrong, '\n'.join(wrong)


def test_values_of_settings_are_possible():
    for table in elsewhere.TABLES.values():
        for change in re.findall(r'`--set ([\w.]+=[^`]+)`', table):
            tried = [cls for cls in (PretrainConfig, FinetuneConfig) if _takes(cls, change)]
            assert tried, change


def _takes(cls: type, change: str) -> bool:
    name = change.partition('=')[0]
    together = {
        'tuning.vectors': ['tuning.method=ia3'],
        'tuning.pooler': ['tuning.method=lora'],
        'select': ['score_every=1'],
        'embedding.loss=mse': ['embedding.teacher=minilm'],
    }
    if name not in names(cls):
        return False
    apply(cls(), [*together.get(name, []), *together.get(change, []), change])
    return True


@pytest.mark.parametrize('file', FILES)
@pytest.mark.parametrize('flag', ['--output-dir=x', '-nothing_of_the_kind', '--noteven'])
def test_no_command_says_it_in_the_words_of_the_library(file, flag):
    said = commands.run(file, flag)
    assert said.returncode == 2 and said.stdout == ''
    assert (
        f'{flag.lstrip("-").partition("=")[0]}: {name_as_typed(file)} has no such flag'
        in said.stderr
    )
    assert 'Unknown command line flag' not in said.stderr and said.stderr.count('\n') == 1


@pytest.mark.parametrize(
    ('typed', 'meant'),
    [
        ('pretrain --lr=1', 'its counterpart: --learning_rate '),
        ('plan --lr=1', '--set optimizer.peak_lr='),
        ('finetune --num_train_epochs=3', '--epochs'),
        ('transfer --num-train-epochs 3', '--set epochs='),
        ('pretrain --num_train_epochs 3', '--set phases.0.steps='),
        ('finetune -per_device_train_batch_size=8', '--batch_size, of all devices together'),
        ('finetune --warmup_ratio=0.1', '--set warmup_fraction='),
        ('pretrain --warmup_ratio=0.1', '--set optimizer.warmup_steps='),
        ('pretrain --max_seq_length=1', '--set phases.0.seq_len='),
        ('finetune --max_seq_length=1', '--set max_seq_length='),
        ('preprocess --max_seq_length=1', '--seq_len'),
        ('preprocess --mlm_probability=1', '--masked_lm_prob'),
        ('pretrain --mlm_probability=1', 'bert-preprocess: --masked_lm_prob'),
        ('pretrain --output_dir=x', '--workdir'),
        ('predict --output_dir=x', '--output'),
        ('finetune --report_to=wandb', '--track=wandb'),
        (
            'finetune --neftune_noise_alpha=1',
            'none: write an objective (docs/extending.md)',
        ),
        ('finetune --weight_decay=0', '--set optimizer.weight_decay='),
        (
            'preprocess --weight_decay=0',
            'bert-pretrain or bert-finetune: --set optimizer.weight_decay=',
        ),
        ('finetune --optimizer.eps=1', 'did you mean --set optimizer.eps=?'),
        ('pretrain --wieght_decay=1', 'did you mean --set optimizer.weight_decay=?'),
        ('pretrain --attention=xla', '--set model.attention= or --set runtime.attention=?'),
        ('pretrain --Batch-Size=1', 'did you mean --batch_size?'),
        ('verify_data --shows=a', 'did you mean --show?'),
        ('study --seed=1', 'did you mean --seeds?'),
        ('feature_based --patience=1', '--set patience='),
    ],
)
def test_a_flag_of_another_program_is_answered_with_ours(typed, meant):
    said = commands.run(*typed.split())
    assert said.returncode == 2 and meant in said.stderr


def test_the_page_has_the_tables():
    page = PAGE.read_text()
    for heading, table in elsewhere.TABLES.items():
        first, *others = [f'| {there} | {here} |' for there, here in elsewhere.read_rows(table)]
        wanted = '\n'.join([f'## {heading}', first, '|---|---|', *others, ''])
        assert wanted in page, f'{PAGE.name} lacks this table:\n{wanted}'


def test_each_name_is_explained_once():
    every = [
        name
        for table in elsewhere.TABLES.values()
        for there, _ in list(elsewhere.read_rows(table))[1:]
        for name in set(re.findall(r'`(\w+)', there)) - {'pipeline'}
    ]
    assert sorted(every) == sorted(set(every)) and len(every) > 200
