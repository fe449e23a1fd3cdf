"""What a pre-training run says of itself, and says again after an interruption.

Rates, means, discarded steps.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shutil
import signal

import numpy as np
import pytest
from flax import traverse_util

from bert_jax.configs.schema import ModelConfig
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.fields import RecordSpec
from bert_jax.runs.pretraining import held_out, records
from bert_jax.runs.sources import source
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.train import checkpoint
from tests.helpers import commands
from tests.helpers.events import points
from tests.helpers.files import read_json
from tests.helpers.finetuning import stopping_after
from tests.helpers.processes import mistake
from tests.helpers.records import write_meaningless
from tests.helpers.refusals import refused
from tests.helpers.tiny_models import tokenizer
from tests.helpers.trees import equal

SETTINGS = (
    'model.hidden_size=16 model.num_layers=1 model.num_heads=2 model.intermediate_size=32'
    ' phases.0.seq_len=16 phases.0.steps=20 phases.0.batch_size=8 optimizer.warmup_steps=12'
    ' optimizer.peak_lr=0.01 runtime.log_every=10 runtime.checkpoint_every=20'
    f' model.vocab_size={tokenizer().vocab_size} model.max_position=16'
).split()
# What is drawn is shown to go on where the first run is cut; it is most of what compiles.
UNDROPPED = ('model.hidden_dropout=0', 'model.attention_dropout=0')
TIMES = ('seconds step_ms tokens_per_s sequences_per_s model_tflops input_wait memory_gib').split()


def pretrain(folder: pathlib.Path, *runs: tuple[int, str, list[str]]) -> tuple[list[str], str]:
    """Makes runs one after the other; what each ended with, and the log.

    A run is (after which step a signal stops it, name of its workdir, changed settings and other
    flags).
    """
    ended, log = [], ''
    for stop_at, name, changes in runs:
        arguments = ['--config=bert_tiny', f'--workdir={folder}/{name}']
        if not any(change.startswith('--data=') for change in changes):
            arguments.append(f'--data={folder}/records')
        arguments += [c if c.startswith('--') else f'--set={c}' for c in (*SETTINGS, *changes)]
        with pytest.MonkeyPatch.context() as patch:
            stopping_after(stop_at, patch)
            done = commands.run('pretrain', *arguments)
        ended.append(f'{done.returncode}')
        if done.returncode == 2:
            ended[-1] += done.stderr.splitlines()[-1].removeprefix('pretrain: error')
        log += done.stderr
    return ended, log


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with 390 records of 16 tokens whose text means nothing."""
    folder = tmp_path_factory.mktemp('loop')
    write_meaningless(folder / 'records')
    return folder


def without_times(path: pathlib.Path) -> list[dict]:
    """The lines of a metrics.jsonl without what the clock decides."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in read_metrics(path)]


def told_alike(whole: pathlib.Path, cut: pathlib.Path) -> list[dict]:
    """The lines of both runs, which have the same weights too, to the bit."""
    lines = without_times(whole / 'metrics.jsonl')
    assert without_times(cut / 'metrics.jsonl') == lines
    assert equal(checkpoint.load_params(whole)[0], checkpoint.load_params(cut)[0])
    return lines


def test_a_run_is_told_alike_whatever_interrupts_it(folder, binary):
    """Stopped between two log lines: the same lines, but for the clock."""
    ended, log = pretrain(folder, (0, 'whole', []), (13, 'cut', []), (0, 'cut', []))
    assert ended == ['0', '143', '0'], log
    whole = told_alike(folder / 'whole', folder / 'cut')
    assert [(m['step'], m['steps']) for m in whole] == [(10, 10), (20, 10)]

    # The rate of a line is its step's, in the file, in TensorBoard and in --print_schedule alike.
    printed = binary(
        'pretrain', '--config=bert_tiny', '--print_schedule', *(f'--set={c}' for c in SETTINGS)
    )
    table = [line.split() for line in printed.stdout.splitlines() if not line.startswith('#')]
    rates = {int(step): float(rate) for step, _, rate in table[1:]}
    told = [(m['step'], m['learning_rate']) for m in whole]
    assert told == [(step, pytest.approx(rates[step], rel=1e-6)) for step in (10, 20)]
    assert rates[10] == pytest.approx(0.01 * 9 / 12)
    assert points(folder / 'whole', 'train/learning_rate') == [
        (s, pytest.approx(r)) for s, r in told
    ]


def test_discarded_steps_are_told_and_when_they_go_on_their_records_are_named(folder):
    """A learning rate past all measure: the first step is made, and all after it are discarded.

    The last checkpoint is whole, and what there is is drawn.
    """
    changes = ['optimizer.peak_lr=1e37', 'optimizer.warmup_steps=0', 'optimizer.schedule=constant']
    changes += ['runtime.log_every=5', 'runtime.checkpoint_every=5', *UNDROPPED]
    (said,), log = pretrain(folder, (0, 'burnt', changes))
    assert '10 steps in a row, 2 to 11, had a non-finite loss or gradient' in said
    assert (
        f'they read rows 8 to 87 of the order of {folder}/records (epoch 0, from its row 8 on)'
        in said
    )
    assert re.search(
        r'the first of these steps read train-0000\d-of-00002.tfrecord records \d+ to \d+', said
    )
    assert len(re.findall(r'step (?:5|10)/20 train .* discarded_steps [45]\b', log)) == 2
    rates = [m['learning_rate'] for m in read_metrics(folder / 'burnt/metrics.jsonl')]
    assert rates == pytest.approx([1e37, 1e37])  # of a discarded step too
    assert checkpoint.load_params(folder / 'burnt')[1] == 10
    assert not list((folder / 'burnt/checkpoints').glob('*tmp*'))
    assert (folder / 'burnt/plots/losses.png').exists()


@pytest.mark.parametrize(
    'model, records_of, said',
    [
        (
            {'type_vocab_size': 1},
            {'objective': 'sop'},
            'pairs of segments .*model.type_vocab_size=2',
        ),
        (
            {'attention': 'left_to_right'},
            {'max_packs': 4},
            'packed rows.*model.attention=left_to_right',
        ),
        ({'bilstm': True}, {'max_packs': 4}, 'packed rows.*--set model.bilstm=False'),
        ({'type_vocab_size': 1}, {'objective': 'full_sentences'}, None),
        ({'type_vocab_size': 3, 'attention': 'left_to_right'}, {}, None),
    ],
)
def test_records_that_a_model_cannot_read_are_refused(model, records_of, said):
    manifest = shards.Manifest(16, 4, 'static', 'nsp', 30_522, 'ab' * 32, 0, {}, {}, ())
    call = lambda: records.check_model_reads(
        dataclasses.replace(ModelConfig(), **model),
        dataclasses.replace(manifest, **records_of),
        'DIR',
    )
    if said is None:
        call()
        return
    with refused('^--data=DIR has ' + said):
        call()


@pytest.mark.parametrize(
    'changes, said',
    [
        (['model.type_vocab_size=1'], 'model.type_vocab_size=1'),
        (['runtime.attention=cudnn'], 'runtime.attention=cudnn needs a GPU'),
        ([], '/nowhere: no such folder'),  # --init_from
    ],
)
def test_a_refused_command_leaves_no_folder(folder, binary, changes, said):
    arguments = ['--config=bert_tiny', f'--data={folder}/records', f'--workdir={folder}/a/new/run']
    arguments += [f'--set={change}' for change in (*SETTINGS, *changes)] + (
        [] if changes else ['--init_from=/nowhere']
    )
    refused = binary('pretrain', *arguments)
    assert said in mistake(refused) and not (folder / 'a').exists()


@pytest.mark.slow
def test_tuning_goes_on_from_a_model_and_keeps_what_it_trained(folder):
    """The encoder is in no checkpoint, and answers for it."""
    lora = [f'--init_from={folder}/begun', 'tuning.method=lora', 'tuning.rank=2']
    lora += ['model.num_layers=2', 'tuning.frozen_layers=1', 'phases.0.steps=10']
    adapters = [f'--init_from={folder}/begun', 'tuning.method=houlsby', 'model.num_layers=2']
    ended, log = pretrain(
        folder,
        (0, 'begun', ['model.num_layers=2', 'phases.0.steps=3', 'optimizer.warmup_steps=1']),
        (0, 'lora', [*lora, 'optimizer.warmup_steps=2']),
        (1, 'adapters', [*adapters, 'tuning.width=3']),
        (0, 'fresh', ['tuning.method=lora']),
        (0, 'drawn', [f'--init_from={folder}/begun', 'tuning.method=adamix']),
    )
    assert ended[:3] == ['0', '0', '143'], log
    assert ended[3].startswith('2: tuning.method=lora leaves most weights as they are')
    assert 'name trained ones with --init_from' in ended[3]
    assert ended[4].startswith('2: tuning.method=adamix: it is for fine-tuning')

    # Updates of one block's query and value, and both heads; so are the moments, which are saved.
    params, _ = checkpoint.load_params(folder / 'lora')
    names = {k: v.shape for k, v in traverse_util.flatten_dict(params, sep='/').items()}
    block = {k: v for k, v in names.items() if k.startswith('encoder/')}
    assert block == {
        f'encoder/layers/{name}_lora_{ab}/kernel': (1, 16, 2) if ab == 'a' else (1, 2, 16)
        for name in ('query', 'value')
        for ab in 'ab'
    }
    assert {name.split('/')[0] for name in names} == {'encoder', 'mlm', 'nsp'}
    saved = read_json(folder / 'lora/checkpoints/10/meta/metadata')['fingerprints']
    assert len(saved) == 3 * len(names) + 3 and not [k for k in saved if 'embeddings' in k]

    # Folded it is the encoder that it began with, but for two matrices of its upper block.
    begun, plain = (
        traverse_util.flatten_dict(source.load_plain(str(folder / name)).params, sep='/')
        for name in ('begun', 'lora')
    )
    other = {name for name in begun if not np.array_equal(begun[name], plain[name])}
    changed = {name for name in other if name.startswith('encoder/')}
    assert changed == {'encoder/layers/query/kernel', 'encoder/layers/value/kernel'}
    assert all(np.array_equal(begun[name][0], plain[name][0]) for name in changed)
    assert 'mlm/bias' in other

    # Fine-tuning, which needs a BERT, takes the folded one; adapters are told apart.
    with refused('has adapters .houlsby., which are no weights of BERT'):
        source.load_plain(str(folder / 'adapters'))
    assert source.read_source(str(folder / 'adapters')).model.tuning.width == 3


def test_a_phase_that_is_a_run_of_its_own_goes_on_with_weights_and_moments(folder):
    short = ['optimizer.algorithm=stable_adamw', 'optimizer.warmup_steps=1', 'phases.0.steps=2']
    short += UNDROPPED
    flags = [f'--init_from={folder}/first', '--init_by=weights_and_moments']
    said, log = pretrain(
        folder, (0, 'first', short), (0, 'second', short + flags), (0, 'second', short + flags[:1])
    )
    assert said[:2] == ['0', '0'], log
    assert "(data.init_by: 'weights_and_moments' -> None)" in said[2]
    assert 'step 2; schedule is new' in log
    assert checkpoint.load_opt_state(folder / 'second', 2)['1/count'] == 4

    # A run that has a checkpoint does not need its source again, and takes no other.
    shutil.move(folder / 'first', folder / 'elsewhere')
    other = [f'--init_from={folder}/elsewhere', *flags[1:]]
    said, log = pretrain(folder, (0, 'second', short + flags), (0, 'second', short + other))
    assert said[0] == '0' and 'data.init_from' in said[1], log


def test_a_student_goes_on_where_it_was_stopped_and_keeps_its_teacher(folder):
    """The same lines, and the same weights to the bit; no other teacher is taken."""
    pretrain(folder, (0, 'teacher', ['phases.0.steps=2', 'optimizer.warmup_steps=1']))
    short = ['phases.0.steps=6', 'optimizer.warmup_steps=2', 'runtime.log_every=1']
    learns = [*short, *UNDROPPED, f'distillation.teacher={folder}/teacher', 'model.num_layers=2']
    said, log = pretrain(
        folder,
        (0, 'not-run', [*learns, '--dry_run']),
        (0, 'student', learns),
        (3, 'cut-student', learns),
        (0, 'cut-student', learns),
        (0, 'cut-student', [*learns, f'distillation.teacher={folder}/student']),
    )
    assert said[:4] == ['0', '0', '143', '0'], log
    assert 'teacher' in said[4] and said[4].startswith('2')
    lines = told_alike(folder / 'student', folder / 'cut-student')
    assert {'soft_loss', 'cosine_loss', 'mlm_loss'} <= lines[-1].keys()


def test_masks_drawn_in_packed_rows_are_the_same_after_a_stop_and_for_a_teacher(folder):
    """Three runs on records whose masks are drawn: whole, cut, and of a student."""
    if not (folder / 'drawn').exists():
        write_meaningless(folder / 'drawn', spec=RecordSpec(16, 4, 'dynamic', 3))
    short = ['phases.0.steps=6', 'optimizer.warmup_steps=2', 'runtime.log_every=1', *UNDROPPED]
    short += ['runtime.accumulation=2', 'phases.0.batch_size=16', f'--data={folder}/drawn']
    learns = [*short, f'distillation.teacher={folder}/drawn-whole', 'distillation.method=minilm']
    learns += ['distillation.relation_heads=2', 'distillation.masked_lm_weight=1']
    said, log = pretrain(
        folder,
        (0, 'drawn-whole', short),
        (3, 'drawn-cut', short),
        (0, 'drawn-cut', short),
        (0, 'drawn-student', learns),
        (3, 'cut-drawn-student', learns),
        (0, 'cut-drawn-student', learns),
    )
    assert said == ['0', '143', '0', '0', '143', '0'], log
    lines = told_alike(folder / 'drawn-whole', folder / 'drawn-cut')
    taught = told_alike(folder / 'drawn-student', folder / 'cut-drawn-student')
    # The same tokens are masked with and without a teacher: the first loss is the same.
    assert taught[0]['mlm_loss'] == pytest.approx(lines[0]['mlm_loss'], rel=1e-6)
    assert taught[1]['relation_loss'] > 0


def test_phases_go_on_within_each_and_have_settings_of_their_own(folder):
    """Three phases of one length, on records of their own; cut in the second and in the third."""
    for number, name in enumerate(('drawn', 'drawn-1')):
        if not (folder / name).exists():
            write_meaningless(folder / name, number, RecordSpec(16, 4, 'dynamic', 3))
    phases = [
        {'seq_len': 16, 'steps': 4, 'batch_size': 8},
        {'seq_len': 16, 'steps': 4, 'batch_size': 8, 'schedule': 'constant', 'peak_lr': 0.02},
        {'seq_len': 16, 'steps': 3, 'batch_size': 8, 'schedule': 'wsd', 'decay_fraction': 1.0}
        | {'masked_lm_prob': 0.1, 'rope_theta': 500.0, 'warmup_steps': 0},
    ]
    phases[1]['warmup_steps'] = 2
    flags = [f'--data=0={folder}/drawn', f'--data=1={folder}/drawn-1', f'--data=2={folder}/drawn']
    runs = [f'phases={json.dumps(phases)}', 'model.positions=rotary', 'optimizer.warmup_steps=2']
    runs += ['runtime.log_every=1', 'runtime.checkpoint_every=3', *UNDROPPED, *flags]
    said, log = pretrain(
        folder,
        (0, 'phased', runs),
        (6, 'cut-phased', runs),
        (10, 'cut-phased', runs),
        (0, 'cut-phased', runs),
        (0, 'unfit', [*runs, 'phases.2.masked_lm_prob=0.2']),
        (0, 'unfit', [*runs[:-1], f'--data=7={folder}/drawn']),
    )
    assert said[:4] == ['0', '143', '143', '0'], log
    assert 'the records have room for 0.15' in said[4] and 'phases are 0 to 2' in said[5]
    lines = told_alike(folder / 'phased', folder / 'cut-phased')
    rates = [line['learning_rate'] for line in lines if line['split'] == 'train']
    assert rates[4:7] == pytest.approx([0.0, 0.01, 0.02]) and rates[7] == pytest.approx(0.02)
    assert rates[8:] == pytest.approx([0.01, 0.02 / 3, 0.01 / 3], rel=1e-5)
    assert source.read_source(str(folder / 'phased')).model.rope_theta == 500.0


@pytest.mark.parametrize(
    'changes, line',
    [
        (['model.hidden_size=32'], 'states of two widths have no cosine'),
        (['distillation.method=minilm'], 'relation_heads=12 does not divide the hidden size'),
        (['tuning.method=lora', '--init_from=teacher'], 'a student takes tuning.method=full'),
        (['distillation.teacher=nowhere'], 'nowhere'),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_before_the_run_begins(folder, changes, line):
    if not (folder / 'teacher').exists():
        pretrain(folder, (0, 'teacher', ['phases.0.steps=2', 'optimizer.warmup_steps=1']))
    changes = [c.replace('=teacher', f'={folder}/teacher') for c in changes]
    said, _ = pretrain(folder, (0, 'none', [f'distillation.teacher={folder}/teacher', *changes]))
    assert said[0].startswith('2') and line in said[0]
    assert not (folder / 'none').exists()


def test_a_batch_that_grows_goes_on_where_it_was_stopped(folder):
    """Inside the second of three sizes: the same lines, and the same weights to the bit."""
    grows = ['phases.0.batch_size=24', 'phases.0.batch_warmup_from=8', 'phases.0.steps=8']
    grows += ['phases.0.batch_warmup_steps=3', 'optimizer.warmup_steps=2', 'runtime.log_every=1']
    grows += ['runtime.accumulation=3', *UNDROPPED]
    said, log = pretrain(
        folder, (0, 'grown', grows), (4, 'cut-grown', grows), (0, 'cut-grown', grows)
    )
    assert said == ['0', '143', '0'], log
    told_alike(folder / 'grown', folder / 'cut-grown')


def test_two_programs_are_compiled_before_the_first_step_is_logged(folder, binary):
    """None for a single operation; in a process of its own, where none is compiled before."""
    short = ['phases.0.steps=2', 'optimizer.warmup_steps=1']
    short += ['runtime.log_every=1', 'runtime.checkpoint_every=2']
    arguments = ['--config=bert_tiny', f'--data={folder}/records', f'--workdir={folder}/compiled']
    arguments += [f'--set={change}' for change in (*SETTINGS, *short)]
    before = binary('pretrain', *arguments, JAX_LOG_COMPILES='1').stderr.partition('step 1/2')[0]
    assert re.findall(r'Finished XLA compilation of jit\((\w+)\)', before) == ['make', 'train_step']


@pytest.mark.slow
def test_a_run_from_before_there_was_a_choice_of_order_goes_on_with_the_one_it_began_with(folder):
    """The very command that began it; a new run takes the new order, and asking for that is refused
    where the older one has begun.
    """
    older = 'record_order=blocks'
    said, log = pretrain(
        folder,
        (0, 'uninterrupted', [older]),
        (8, 'older', [older]),
        (0, 'older', []),
        (0, 'newer', []),
        (0, 'older', ['record_order=spread']),
    )
    assert said[:4] == ['0', '143', '0', '0']
    assert "(record_order: 'blocks' -> 'spread')" in said[4]
    assert 'record_order' not in (folder / 'older/config.json').read_text()
    assert log.count('goes on with record_order=blocks, as it began') == 2
    assert read_json(folder / 'newer/config.json')['record_order'] == 'spread'
    whole, resumed, newer = (
        traverse_util.flatten_dict(checkpoint.load_params(folder / name)[0])
        for name in ('uninterrupted', 'older', 'newer')
    )
    assert all(np.array_equal(whole[path], resumed[path]) for path in whole)
    assert not all(np.array_equal(whole[path], newer[path]) for path in whole)


@pytest.mark.slow
def test_pairs_can_be_read_without_learning_what_they_are(folder):
    """The same bits as from records that are said to have no labels; the head stays as drawn."""
    manifest = shards.Manifest.load(folder / 'records')
    (folder / 'unlabelled').mkdir()
    shutil.copytree(folder / 'records', folder / 'unlabelled/records')
    dataclasses.replace(manifest, objective='full_sentences').save(folder / 'unlabelled/records')

    without = ['pair_loss=false', 'optimizer.weight_decay=0', 'runtime.eval_every=10']
    said, log = pretrain(
        folder,
        (0, 'labels', without[1:]),
        (0, 'without', without),
        (1, 'untrained', without),
        (0, 'labels', without),
    )
    assert said[:3] == ['0', '0', '143'] and '(pair_loss: True -> False)' in said[3], log
    said, log = pretrain(folder / 'unlabelled', (0, 'run', without[1:]))
    assert said == ['0'], log

    labels, found, begun, unlabelled = (
        traverse_util.flatten_dict(checkpoint.load_params(workdir)[0], sep='/')
        for workdir in (
            folder / 'labels',
            folder / 'without',
            folder / 'untrained',
            folder / 'unlabelled/run',
        )
    )
    assert all(np.array_equal(found[name], unlabelled[name]) for name in found)
    of_pairs = {name for name in found if name.startswith(('nsp/', 'encoder/pooler/'))}
    assert len(of_pairs) == 4
    assert {name for name in found if np.array_equal(found[name], begun[name])} == of_pairs
    assert not any(np.array_equal(labels[name], begun[name]) for name in of_pairs)

    # What is not learnt is not measured, while training and after it.
    told = {name for line in read_metrics(folder / 'without/metrics.jsonl') for name in line}
    assert 'mlm_loss' in told and not [name for name in told if name.startswith('nsp')]
    assert 'nsp_loss' in read_metrics(folder / 'labels/metrics.jsonl')[-1]
    own = dataclasses.replace(manifest, tokenizer_fingerprint=tokenizer().fingerprint)
    own.save(folder / 'unlabelled/records')
    measured = held_out.evaluate(
        str(folder / 'without'), str(folder / 'unlabelled/records'), 'train'
    )
    assert measured['metrics']['mlm_loss'] > 0 and 'nsp_loss' not in measured['metrics']


def test_a_closed_terminal_saves_as_sigterm_does_and_a_cut_file_is_told(folder, signal_handlers):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    with pytest.MonkeyPatch.context() as patch:
        stopping_after(15, patch, signal.SIGHUP)
        arguments = ['--config=bert_tiny', f'--data={folder}/records', f'--workdir={folder}/hung']
        done = commands.run('pretrain', *arguments, *(f'--set={c}' for c in SETTINGS))
    assert done.returncode == 128 + signal.SIGHUP, done.stderr
    assert checkpoint.list_saved_steps(folder / 'hung') == [15]
    (folder / 'hung' / 'metrics.jsonl').write_text('{"step": 10, "spl')
    said, log = pretrain(folder, (0, 'hung', []))
    assert said == ['0'] and 'the lines of steps 1 to 10 are missing' in log


def test_a_run_keeps_the_growth_that_it_began_with(folder):
    """A growth that does not end: refused of a new run, and gone on with."""
    grows = ['phases.0.batch_size=24', 'phases.0.batch_warmup_from=8', 'phases.0.steps=4']
    grows += ['phases.0.batch_warmup_steps=3', 'optimizer.warmup_steps=2']
    grows += ['runtime.accumulation=3', 'optimizer.schedule=constant', *UNDROPPED]
    said, _ = pretrain(folder, (0, 'endless', grows))
    assert said[0].startswith('2: phases.0: its batch grows for 6 steps, and it has 4')
    longer = [*grows, 'phases.0.steps=8']
    said, log = pretrain(folder, (2, 'endless', longer), (0, 'endless', grows))
    assert said == ['143', '0'], log
