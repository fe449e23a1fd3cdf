"""The plan of a study: what rows share, what is refused, what a dry run says."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig
from bert_jax.configs.studies import study
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study
from bert_jax.reports.studies import estimate, inputs, table
from bert_jax.reports.studies.inputs import Input, Inputs
from bert_jax.reports.studies.plan import Plan, identity
from bert_jax.reports.studies.steps import Folder
from tests.helpers import commands, pages
from tests.helpers.files import write_lines
from tests.helpers.refusals import refused

BASE = PretrainConfig(
    model=ModelConfig(vocab_size=100, hidden_size=16, num_layers=1, num_heads=1, max_position=64),
    phases=(Phase(32, 10, 4), Phase(64, 10, 4)),
    optimizer=OptimizerConfig(warmup_steps=1),
)
TASK = Column('mrpc', 'MRPC', learning_rates=(1e-3, 1e-4), examples=320)
READ = Inputs({'': Input('text', ('--input=t',), size=1000)}, {'MRPC': Input('files')}, None)


def plan_of(folder, *rows: Row, **more) -> Plan:
    columns = more.pop('columns', (TASK,))
    return Plan(Study('title', BASE, columns, rows, **more), READ, Folder(str(folder)))


def without_files(made: Study, folder) -> Plan:
    return Plan(made, inputs.given(made, (), (), '', needed=False), Folder(str(folder)))


def kinds(plan: Plan) -> dict[str, int]:
    names = [name.partition('/')[0] for name in plan.steps]
    return {kind: names.count(kind) for kind in dict.fromkeys(names)}


def test_rows_and_studies_share_what_is_the_same(tmp_path):
    plan = without_files(study.load('pretraining_tasks')['paper'], tmp_path)
    # Three kinds of records in two lengths; five rows of five tasks; the BiLSTM's row has the
    # pre-training of the one above it.
    assert kinds(plan) == {'vocabulary': 1, 'records': 6, 'pretraining': 4, 'finetune': 25}
    for position, step in enumerate(plan.steps.values()):
        assert all(need in list(plan.steps)[:position] for need in step.needs)

    # One BERT for all studies, also where a row names what is the default.
    first = set()
    for name in ('pretraining_tasks', 'model_size', 'masking', 'steps', 'feature_based'):
        plan = without_files(study.load(name)['cpu'], tmp_path)
        row = 'L4 H128 A2' if name == 'model_size' else plan.study.rows[0].name
        first.add(plan.pretraining[row, 0].step)
    assert len(first) == 1
    for mix, count in (((0.8, 0.1, 0.1), 2), ((0.8, 0.2, 0.0), 4)):
        plan = plan_of(tmp_path, Row('a'), Row('b', records={'mask_mix': mix}))
        assert kinds(plan)['records'] == count

    # The study of docs/own_studies.md: two vocabularies, each with records of its own.
    blocks = pages.blocks(pages.ROOT / 'docs/own_studies.md')
    [code] = [block.lines for block in blocks if block.language == 'python']
    write_lines(tmp_path / 'mine.py', (line for _, line in code))
    [made] = study.load(str(tmp_path / 'mine.py')).values()
    wanted = {'vocabulary': 2, 'records': 4, 'pretraining': 4, 'finetune': 4}
    assert kinds(without_files(made, tmp_path)) == wanted


def test_settings_that_change_no_result_change_no_folder(tmp_path):
    """So a study may be stopped and go on with other logging."""
    base = plan_of(tmp_path, Row('a'))
    chatty = plan_of(tmp_path, Row('a', pretraining={'runtime.log_every': 7, 'name': 'x'}))
    other = plan_of(tmp_path, Row('a', pretraining={'optimizer.b2': 0.9}))
    assert list(chatty.steps) == list(base.steps) != list(other.steps)
    # Settings that came later are absent where they are as before: such steps keep their names.
    then = identity(dataclasses.replace(BASE, record_order='blocks'))
    assert not {'record_order', 'pair_loss'} & then.keys()
    now = identity(dataclasses.replace(BASE, pair_loss=False))
    assert (now['record_order'], now['pair_loss']) == ('spread', False)


def test_steps_and_their_commands(tmp_path):
    """Those that chosen rows and seeds need, from the flags that a user would type."""
    row = Row('b', records={'mask_mix': (0.0, 1.0, 0.0), 'segment': True, 'dedup': 'lines'})
    more = {'vocabulary': {'vocab_size': 100, 'lower_case': False}, 'may_differ': ('text',)}
    plan = plan_of(tmp_path, Row('a'), row, seeds=(0, 1), **more)
    assert len(plan.chosen((), ())) == len(plan.steps)
    first, short, _, pretraining, cell = steps = plan.chosen(('b',), (1,))
    assert [step.about for step in steps] == [
        'vocabulary of a',
        'records of b, 32 word pieces a row',
        'records of b, 64 word pieces a row',
        'pre-training of b, seed 1',
        'MRPC of b, seed 1',
    ]
    flags = ['--input=t', f'--output={tmp_path}/v', '--vocab_size=100', '--lower_case=false']
    assert list(first.commands(tmp_path / 'v')) == [('train_vocab', flags)]
    [(name, flags)] = short.commands(tmp_path / 'r')
    options = '--eval_fraction=0.005 --mask_mix=0.0,1.0,0.0 --segment=true --dedup=lines'
    assert name == 'preprocess' and flags[3:] == [*options.split(), '--seq_len=32']
    [(name, flags)] = cell.commands(tmp_path / 'c')
    assert name == 'finetune' and f'--init_from={tmp_path}/{pretraining.name}' in flags
    assert '--sweep=optimizer.peak_lr=0.001,0.0001;seed=0' in flags


def test_checkpoints_are_lines_of_one_pretraining(tmp_path):
    keeps = {'runtime.keep_every': 10, 'runtime.checkpoint_every': 10}
    plan = plan_of(tmp_path, Row('a', pretraining=keeps, checkpoints=(10, 20)))
    assert kinds(plan) == {'vocabulary': 1, 'records': 2, 'pretraining': 1, 'finetune': 2}
    sources = []
    for step in (10, 20):
        [(_, flags)] = plan.steps[plan.cells[f'a @{step}', 'MRPC', 0]].commands(tmp_path)
        [source] = [flag for flag in flags if flag.startswith('--init_from')]
        sources.append(source.partition('/pretraining/')[2].partition('/')[2])
    assert sources == ['checkpoints/10', '']


@pytest.mark.parametrize(
    'row, line',
    [
        (Row('a', records={'sequence_length': 3}), "row 'a': records: there is no option"),
        (Row('a', records={'input': 'x'}), "no option 'input'"),
        (Row('a', records={'dupe_factor': 0}), '--dupe_factor=0: must be from 1'),
        (Row('a', records={'packing': True, 'masking': 'dynamic'}), '--packing is for'),
        (Row('a', vocabulary={'vocab_sizes': 9}), r'did you mean vocab_size\?'),
        (Row('a', vocabulary={'vocab_size': 1}), '--vocab_size=1: must be from 7'),
        (Column('mrpc', 'M', 'acuracy'), r"column 'M': mrpc has no metric 'acuracy'.*accuracy\?"),
        (Column('mrcp', 'M'), r'--task=mrcp: unknown;.*did you mean mrpc\?'),
        (Column('squad_v2', 'S', 'exact_match'), "no metric 'exact_match', but f1, exact, total"),
        (Column('mrpc', 'M', approach='last'), "row 'a', column 'M': last is for tasks of kind"),
        (HeldOut('mlm_loss', 'L', language='ko'), "no language 'ko': give it as --corpus=ko=GLOB"),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_mistakes_are_found_before_anything_runs(tmp_path, row, line):
    (tmp_path / 'text.txt').write_text('words')
    with refused(line):
        if isinstance(row, Row):
            plan_of(tmp_path, row)
        made = Study('t', BASE, (row,), (Row('a'),))
        inputs.given(made, (f'{tmp_path}/text.txt',), (), '', needed=False)
    assert [file.name for file in tmp_path.iterdir()] == ['text.txt']


def test_inputs_are_named_and_remembered(tmp_path):
    made, text, task = Study('t', BASE, (TASK,), (Row('a'),)), tmp_path / 'text.txt', tmp_path / 'm'
    text.write_text('words')
    task.mkdir()
    corpus = (str(text),)
    for patterns, folders, line in (
        ((), (), '--corpus=GLOB is required'),
        (corpus, (), '--data_dir=mrpc=FOLDER is required'),
        (corpus, ('mrcp=x',), r"no column or task 'mrcp' \(did you mean"),
    ):
        with refused(line):
            inputs.given(made, patterns, folders, '', needed=True)
    given = lambda: inputs.given(made, corpus, (f'mrpc={task}',), '', needed=True)
    read, folder = given(), tmp_path / 'run'
    inputs.remember(folder, made, read)
    inputs.remember(folder, made, read)

    # The table needs no flags: the plan of what is remembered is the same.
    again = inputs.remembered(folder, made)
    plans = [Plan(made, each, Folder(str(folder))) for each in (read, again)]
    assert list(plans[0].steps) == list(plans[1].steps)
    text.write_text('other words')
    with refused('the text is not what the studies in'):
        inputs.remember(folder, made, given())


def test_two_files_of_one_name_do_not_share_a_table(tmp_path):
    named = {}
    for folder, text in (('one', 'x'), ('other', 'y'), ('copy', 'x')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 'mine.py').write_text(text)
        named[folder] = table.named(f'{tmp_path}/{folder}/mine.py')
    assert str(table.folder_of('w', named['one']['file'])) == 'w/tables/mine'
    table.check_own(tmp_path / 'tables', named['one'])  # none is there
    table.write(plan_of(tmp_path, Row('a')), tmp_path / 'tables', named['one'])
    message = f'tables has the table of another study of that name, {tmp_path}/one/mine.py: rename'
    with refused(message):
        table.check_own(tmp_path / 'tables', named['other'])
    table.check_own(tmp_path / 'tables', named['copy'])  # as on another machine
    table.check_own(tmp_path / 'tables', named['one'] | {'digest': 'changed'})
    (tmp_path / 'tables/table.json').write_text('{"lines": []}')  # of an older version
    table.check_own(tmp_path / 'tables', named['other'])


def test_flags_that_do_not_go_together_are_one_line():
    flags = ('--study=masking', '--scale=cpu', '--workdir=x', '--table', '--seeds=0')
    result = commands.run('study', *flags)
    line = 'study: error: --table has all that is there: leave --seeds out\n'
    assert (result.returncode, result.stderr) == (2, line)


def test_the_estimate_by_hand(tmp_path):
    """Runs, FLOPs and disk of what is left, counted here from the shapes."""
    plan = plan_of(tmp_path, Row('a'), columns=(TASK, HeldOut('mlm_loss', 'loss')))
    work = estimate.work(plan, list(plan.steps.values()))
    counts = {'vocabulary': 1, 'records': 2, 'pretraining': 1, 'finetune': 2, 'feature_based': 0}
    assert work.runs == counts

    def row(length: int, predictions: int) -> int:
        # H = 16, F = 3072, V = 100, one layer.
        layer = 4 * 16 * 16 + 2 * 16 * 3072
        attention = 2 * length * length * 16
        head = predictions * (16 * 16 + 16 * 100)
        return 6 * (layer * length + attention + head + 16 * 16)

    pretraining = 40 * row(32, 5) + 40 * row(64, 10)
    finetuning = 2 * 320 * 3 * row(128, 0)  # two rates, 3 epochs of 128
    assert work.flops == pretraining + finetuning
    assert work.unknown == [] and work.bytes > 0
    with refused('GB are free: make room'):
        estimate.check_disk(tmp_path / 'not' / 'there', 1e18)
    rows = Row('a'), Row('b', finetuning={'epochs': 4.0})
    unknown = plan_of(tmp_path, *rows, columns=(dataclasses.replace(TASK, examples=0),))
    assert estimate.work(unknown, list(unknown.steps.values())).unknown == ['MRPC']

    # The rate of runs under way: one that has no log line yet is left out.
    plan = plan_of(tmp_path, Row('a'), Row('b', pretraining={'optimizer.b2': 0.9}))
    for run, rates in zip(plan.pretraining.values(), ((), (0.25, 0.75)), strict=True):
        folder = plan.folder.of(run.step)
        folder.mkdir(parents=True)
        lines = [{'step': step, 'model_tflops': rate} for step, rate in enumerate(rates)]
        if lines:
            text = ''.join(json.dumps(line) + '\n' for line in lines)
            (folder / 'metrics.jsonl').write_text(text)
    assert estimate.rate(plan, None) == (0.5e12, 'the median of what is pre-trained so far')
