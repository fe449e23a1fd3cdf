"""Every command of README.md and docs/: its flags and settings exist, and it runs as printed.

The slow test runs the commands, page by page, in one folder such as a user has, at a size that a
test can have. What it changes in a command stands in SIZES and EXTRA; what it cannot run, and why,
in ELSEWHERE. A command that is in no list is run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import random
import re
import textwrap
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest

from bert_jax.configs import schema
from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from tests.helpers import commands, pages
from tests.helpers.pages import ROOT, Command
from tests.helpers.shell import Shell, fault_of

COMMANDS = pages.commands()
RECORD = 'it is the record of a measurement that took minutes or hours'
ELSEWHERE = {  # page, what its command has in it: why it is not run here
    ('*', r'launch/(quickstart|test)\.sh'): 'it installs from the package index; CI runs both',
    ('*', r'\bpip install|-m venv'): 'it installs from the package index',
    ('*', r'gs://|tpu_vm\.sh|gcloud|--topology=h100'): 'it needs a cloud, or an accelerator',
    (
        'docs/clusters.md',
        r'sbatch|kubectl',
    ): 'it needs a cluster; tests/launch/cluster has stand-ins',
    ('*', r'docker|Dockerfile'): 'it needs docker',
    ('*', r'--input=hf:'): 'it needs the Hub; tests/input_pipeline/text reads local data sets',
    (
        '*',
        r'HOST:\d+',
    ): 'it needs two machines; tests/bert_jax/runs/pretraining starts such processes',
    ('*', r'--engine=beam'): 'it needs .venv-beam; tests/beam runs it',
    (
        '*',
        r'--suite=glue',
    ): 'it needs runs of all GLUE tasks; tests/bert_jax/runs/finetuning makes them',
    ('*', r'-m benchmarks\.'): RECORD,
    ('docs/results.md', ''): RECORD,
    (
        'docs/modernbert.md',
        r'--data=records(1024|8192)\b|=phase0\b',
    ): 'its batches need many chips; tests/bert_jax/runs/pretraining runs small ones',
    (
        'docs/export.md',
        r'--format=onnx|served/serve',
    ): 'it needs the extra onnx; tests/parity has it',
    ('docs/export.md', r'--workdir=runs/sts'): 'it needs a sentence encoder; tests/parity has one',
    ('docs/deberta.md', r'microsoft/|deberta-mrpc'): 'it needs the Hub; tests/parity has such ones',
    ('docs/modernbert.md', r'answerdotai/'): 'it needs the Hub; tests/parity has such a directory',
    ('docs/roberta.md', r'runs/xlmr'): 'it needs the Hub; tests/parity has such directories',
    (
        'docs/more_encoders.md',
        r'distilbert/|EuroBERT/|teacher=bert-base',
    ): 'it needs the Hub, or a large model; tests/parity has such directories',
    (
        'docs/studies.md',
        r'--workdir=',
    ): 'it takes hours; tests/bert_jax/reports/studies runs a small one',
    (
        'docs/own_studies.md',
        r'--workdir=',
    ): 'it takes hours; tests/bert_jax/reports/studies plans this one',
    (
        'docs/sentence_embeddings.md',
        r'--task=hard\.json',
    ): 'eight texts have the same hard negatives; tests/bert_jax/train has triplets',
    (
        'docs/distillation.md',
        r'embedding\.loss=mse|teacher=minilm',
    ): 'it needs texts and a teacher; tests/bert_jax/runs/finetuning teaches a student',
    ('docs/performance.md', r'GLIBC_TUNABLES'): 'a setting of the shell, for Linux alone',
}
# Pages whose Python is run as well, after all commands.
PAGES_WITH_PYTHON = (
    'features retrieval sentence_embeddings serving search sparse_vectors late_interaction'.split()
)
PYTHON = [f'docs/{name}.md' for name in PAGES_WITH_PYTHON]
NOT_COMMANDS = {  # page, how a block without a command begins
    ('docs/beam.md', '... -- --'): 'the end of a command, for Beam',
    ('docs/results.md', '--init_from=minilm'): 'flags that the commands after it share',
}
# Flags that the text names and that are no flags of ours: Beam's, Google's, SQuAD's scorer's.
OF_OTHERS = {
    'help',
    'runner',
    'dask_npartitions',
    'do_lower_case',
    'na-prob-thresh',
    'use_v2_feature_names',
}
SECTIONS = {
    'model': schema.ModelConfig,
    'optimizer': schema.OptimizerConfig,
    'runtime': schema.RuntimeConfig,
    'phases': schema.Phase,
    'embedding': schema.EmbeddingConfig,
    'sparse': schema.SparseTraining,
    'late_interaction': schema.LateInteractionSettings,
    'ranking': schema.RankingConfig,
    'distillation': schema.DistillationConfig,
    'replaced_tokens': schema.ReplacedTokensConfig,
}
FILE_ENDINGS = ('py', 'safetensors', 'stablehlo')
SIZES = {  # what is replaced in a command
    r'--vocab_size=\S+': '--vocab_size=300',
    r'--new_words=\S+': '--new_words=20',
    r'model\.vocab_size=\S+': 'model.vocab_size=300',
    r'--steps=\S+': '--steps=8',
    r'--hours=10\b': '--steps=8',  # of a run; a plan of as many is quick
    r'--seeds=\S+': '--seeds=0',
    r'--sweep="[^"]*"': '--sweep="seed=0"',
    r'\bENCODER\b': 'runs/mini',
    r'--task=conll2003\b': '--task=conll2003_sentences',  # without documents' context: 512 wide
}
TINY = {
    'hidden_size': 16,
    'num_heads': 1,
    'intermediate_size': 32,
    'vocab_size': 300,
}
MODELS = [
    'huggingface --output=minilm',
    'huggingface --output=bert-base-uncased',
    'google --output=uncased_L-12_H-768_A-12',
]
QUICK = ['epochs=1', 'max_seq_length=32', 'batch_size=8', 'train_examples=8']
# To draw what is dropped is most of what a small model compiles.
DROPPED = ('hidden_dropout=0', 'attention_dropout=0')
EXTRA = {  # what is added to a program's own flags
    'preprocess': '--workers=1 --dupe_factor=2 --eval_fraction=0.2',
    'train_retvec': '--set phases.0.steps=8 --set phases.0.batch_size=8'
    ' --set optimizer.warmup_steps=1',
    'plan': '--nocompile',
    'finetune': ' '.join(f'--set {change}' for change in (*QUICK, *DROPPED)),
    'transfer': ' '.join(f'--set {change}' for change in (*QUICK, *DROPPED)),
    'feature_based': ' '.join(f'--set {change}' for change in QUICK)
    + ' --approaches=last --set_bilstm lstm_width=8',
}


def elsewhere(command: Command) -> str | None:
    """Why this command is not run here; None: it is."""
    if command.page.startswith('docs/notes/'):
        return RECORD
    for (page, pattern), reason in ELSEWHERE.items():
        if page in ('*', command.page) and re.search(pattern, command.text):
            return reason
    return None


def settings_of(name: str, arguments: list[str]) -> schema.Config | None:
    """The configuration that the command's --config and --set make; UserError for a mistake."""
    kinds = {'pretrain': 'bert_base', 'plan': 'bert_base', 'finetune': None, 'feature_based': None}
    if name not in kinds:
        return None
    words = iter(arguments)
    changes = [
        next(words) if word == '--set' else word.removeprefix('--set=')
        for word in words
        if word == '--set' or word.startswith('--set=')
    ]
    given = [word.removeprefix('--config=') for word in arguments if word.startswith('--config=')]
    preset = given[0] if given and not given[0].endswith(('.py', '.json')) else kinds[name]
    return apply(load(preset) if preset else schema.FinetuneConfig(), changes)


# What is known without running anything.


@pytest.fixture(scope='module')
def flags() -> dict[str, set[str]]:
    """{NAME of a program: its flags}, by its --help."""

    def of(file: pathlib.Path) -> set[str]:
        said = commands.run(file.stem, '--help').stdout
        found = re.findall(r'^  --(\[no\])?(\w+)$', said, re.M)
        return {name for _, name in found} | {f'no{name}' for no, name in found if no}

    files = [f for f in (ROOT / 'launch').glob('*.py') if '\napp.run(' in _unindented(f)]
    return {file.stem: of(file) for file in files}


def _unindented(file: pathlib.Path) -> str:
    return re.sub(r'^ +', '', file.read_text(), flags=re.M)


def unknown_flags(command: Command, flags: dict[str, set[str]]) -> list[str]:
    """What of the command no program of ours takes."""
    if command.ours is None:
        return []
    name, arguments = command.ours
    place = f'{command.page}:{command.line}'
    if name not in flags:
        return [f'{place}: no bert_jax.launch.{name}']
    given = {word[2:].split('=')[0] for word in arguments if word.startswith('--')}
    return [f'{place}: {name} has no --{flag}' for flag in given - flags[name]]


def test_every_program_and_every_flag_of_a_command_is_there(flags):
    assert len(flags) > 10 and 'workdir' in flags['pretrain'] and 'nosegment' in flags['preprocess']
    assert not [fault for command in COMMANDS for fault in unknown_flags(command, flags)]


def test_every_flag_and_setting_that_the_text_names_is_there(flags):
    scripts = [*(ROOT / 'launch').glob('*.sh'), *(ROOT / 'benchmarks').glob('*.py')]
    elsewhere = {flag for file in scripts for flag in re.findall(r'--(\w+)', file.read_text())}
    known = set().union(*flags.values(), elsewhere, OF_OTHERS)
    sections = {name: set(schema.kinds(cls)) for name, cls in SECTIONS.items()}
    wrong = []
    for page in pages.PAGES:
        for code in re.findall(r'`([^`\n]+)`', pages.prose(page)):
            flag = re.match(r'--(\w[\w-]*)', code)
            if flag and flag[1] not in known:
                wrong.append(f'{page.name}: {code}')
            if ' --' in code:  # not a name such as bert-base-uncased
                wrong += unknown_flags(Command(page.name, 0, code), flags)
            setting = re.match(r'(?:--set )?(\w+)(?:\.[N\d])?\.([a-z_0-9]+)(?=[ =:]|$)', code)
            if setting and setting[1] in sections and setting[2] not in FILE_ENDINGS:
                wrong += [f'{page.name}: {code}'] * (setting[2] not in sections[setting[1]])
    assert not wrong


def test_every_setting_of_a_command_is_one():
    # A wrong name, type or value raises UserError, which says which.
    made = [settings_of(*command.ours) for command in COMMANDS if command.ours]
    assert sum(config is not None for config in made) > 10


def test_every_pre_training_names_its_configuration():
    # $: flags that a page has above.
    ours = [command for command in COMMANDS if command.ours and command.ours[0] == 'pretrain']
    named = ('--config', '--help', '$')
    assert len(ours) > 10
    assert not [c for c in ours if not any(word.startswith(named) for word in c.ours[1])]


def test_every_block_has_commands_or_says_what_it_is():
    unknown, used = [], set()
    for page in pages.PAGES:
        for block in pages.blocks(page):
            if block.language in ('', 'bash', 'sh') and not block.commands():
                number, first = block.lines[0]
                found = [k for k in NOT_COMMANDS if k[0] == block.page and first.startswith(k[1])]
                used |= set(found)
                unknown += [] if found else [f'{block.page}:{number}: {first}']
    assert not unknown, 'neither commands, nor in NOT_COMMANDS, nor marked ```text, ```python, ...'
    assert used == set(NOT_COMMANDS)


def test_what_is_not_run_is_still_in_the_pages():
    for page, pattern in ELSEWHERE:
        assert any(
            page in ('*', command.page) and re.search(pattern, command.text) for command in COMMANDS
        ), (page, pattern)
    assert sum(elsewhere(command) is None for command in COMMANDS) > 25


# What is run.


def here(command: Command) -> str:
    """The command at the size of a test."""
    text = command.text
    for pattern, replacement in SIZES.items():
        text = re.sub(pattern, replacement, text)
    if command.ours is None:
        return text
    name, arguments = command.ours
    extra = EXTRA.get(name, '')
    if '--dupe_factor' in text:  # else refused as given twice
        extra = extra.replace('--dupe_factor=2 ', '')
    if name == 'pretrain' and not any(word.startswith('--print') for word in arguments):
        config = settings_of(name, arguments)
        assert isinstance(config, schema.PretrainConfig)
        sizes = [size for size in _PHASE if f'--{size}=' not in text]  # else refused as given twice
        small = [f'phases.{i}.{size}=8' for i in range(len(config.phases)) for size in sizes]
        small += ['optimizer.warmup_steps=1', 'runtime.accumulation=1']
        small += [f'model.{change}' for change in DROPPED]
        if not any(word.startswith('--init_from') for word in arguments):
            # Of README's model others copy blocks and read the last four states.
            layers = 3 if command.page == 'README.md' else 1
            shape = TINY | {'num_layers': layers}
            small += [f'model.{k}={v}' for k, v in shape.items() if f'model.{k}=' not in text]
        extra = ' '.join(f'--set {change}' for change in small)
    # flags of its own come before what it starts or is piped to
    place = re.search(r' (--|\||>|#)( |$)', text)
    at = place.start() if place else len(text)
    return f'{text[:at]} {extra}{text[at:]}'


_PHASE = ('steps', 'batch_size')


def write_files(home: pathlib.Path) -> None:
    """What the user has before the first command: text, tasks, sentences."""
    rng = random.Random(0)
    letters = 'abcdefghijklmnoprstuvw'
    words = [''.join(rng.choices(letters, k=rng.randint(2, 7))) for _ in range(400)]
    sentence = lambda: ' '.join(rng.choices(words, k=8)) + '.'

    def put(name: str, text: str) -> None:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rows(line: str, count: int = 8, head: str = '', labels: Sequence[str] = '01') -> str:
        """Lines with a sentence for S, a word for W, their number for N, labels in turn for L."""
        made = [head] if head else []
        for number in range(count):
            values = {'W': words[number], 'N': str(number), 'L': labels[number % len(labels)]}
            parts = re.split(r'\b([SWNL])\b', line)
            made.append(''.join(values.get(p, sentence() if p == 'S' else p) for p in parts))
        return '\n'.join(made) + '\n'

    document = lambda: rows('S')
    for name in ('text/a.txt', 'text/b.txt', 'domain/a.txt', 'ko/a.txt', 'de/a.txt'):
        put(name, '\n'.join(document() for _ in range(40)))
    for number in range(40):
        put(f'books/{number}.txt', textwrap.fill(document() * 4, 70) + '\n')
    put('sentences.txt', rows('S', 6))
    put('texts.txt', rows('S', 3))
    put('pairs.tsv', rows('S\tS\tS\tS', 3, 'text\ttext_b\tsentence1\tsentence2'))

    ids, pair = '#1 ID\t#2 ID\t#1 String\t#2 String', 'sentence1\tsentence2'
    entailed = ('entailment', 'not_entailment')
    answer = {'question': 'Who?', 'answers': [{'text': words[0], 'answer_start': 0}]}
    questions = [{**answer, 'id': str(number)} for number in range(1, 9)]
    context = ' '.join(words[:9])
    article = {'title': 't', 'paragraphs': [{'context': context, 'qas': questions}]}
    for split in ('train', 'dev'):
        put(f'glue/MRPC/{split}.tsv', rows('L\tN\tN\tS\tS', head=f'Quality\t{ids}'))
        put(f'glue/RTE/{split}.tsv', rows('N\tS\tS\tL', 8, f'index\t{pair}\tlabel', entailed))
        put(f'alike/{split}.jsonl', rows('{"question": "S", "answer": "S"}', 12))
        put(f'squad/{split}-v1.1.json', json.dumps({'data': [article]}))
        put(f'{split}.tsv', rows('L\tS', 12, 'label\ttext', ('neg', 'pos')))
    put('glue/MRPC/test.tsv', rows('N\tN\tN\tS\tS', head=f'index\t{ids}'))
    put('glue/RTE/test.tsv', rows('N\tS\tS', head=f'index\t{pair}'))
    put('glue/STS-B/dev.tsv', rows('S\tS\tL', 8, f'{pair}\tscore', '012345'))
    put('questions.jsonl', json.dumps({'question': 'Who?', 'context': context}) + '\n')
    put('predictions.json', json.dumps({'1': words[0]}))
    files = {'train': 'alike/train.jsonl', 'dev': 'alike/dev.jsonl'}
    columns = {'anchor': 'question', 'positive': 'answer'}
    kinds = {'alike': 'embedding', 'lexical': 'sparse_embedding', 'late': 'late_interaction'}
    for name, kind in kinds.items():
        task = {'kind': kind, 'files': files, 'columns': columns}
        put(f'{name}.json', json.dumps(task))
    columns = {role: role for role in ('anchor', 'positive', 'negatives')}
    files = {split: f'alike/hard_{split}.jsonl' for split in ('train', 'dev')}
    put('rerank.json', json.dumps({'kind': 'ranking', 'files': files, 'columns': columns}))

    for name in ('train', 'valid', 'test'):
        put(f'conll2003/{name}.txt', rows('W X X B-PER\nW X X O\n', 16, '-DOCSTART- X X O\n'))
    for name in ('corpus', 'queries'):
        put(f'scifact/{name}.jsonl', rows('{"_id": "N", "text": "S"}'))
    put('scifact/qrels/test.tsv', 'query-id\tcorpus-id\tscore\n1\t2\t1\n')
    put('bm25.run', '1 Q0 2 1 0.5 bm25\n')
    english = {'train': 'en_lines-ud-train', 'dev': 'en_lines-ud-dev', 'test': 'en_pud-ud-test'}
    for name, files in (('en', english), ('de', {'test': 'de_pud-ud-test'})):
        files = {split: f'{file}.conllu' for split, file in files.items()}
        put(f'pos/{name}.json', json.dumps({'kind': 'tagging', 'files': files}))
        for file in files.values():
            put(f'pos/{file}', rows('# text = S\n1\tW\t_\tNOUN\t_\t_\t_\t_\t_\t_\n', 9))


class OneProcess:
    """Runs commands of ours one after the other in a process that has imported jax."""

    def __init__(self, shell: Shell, pool: Executor):
        self.shell, self.pool = shell, pool

    def __call__(self, text: str) -> str | None:
        """Runs a line there, or in a shell if it is no command of ours alone; see Shell."""
        words = self.shell.words(text)
        if words is None:
            return self.shell(text)
        name = text.split()[0].removeprefix('bert-').replace('-', '_')
        name, words = pages.file_of(name, words)
        try:
            return fault_of(self.pool.submit(commands.run, name, *words).result(timeout=300))
        except Exception as error:
            return repr(error)

    def python(self, code: str) -> str | None:
        """Runs a page's Python there."""
        error = self.pool.submit(exec, code, {}).exception(timeout=300)
        return repr(error) if error else None


def run_page(page: str, run: OneProcess, done: set[str]) -> list[str]:
    """Runs the page's commands in order, but those in `done`: what fails, each with its place."""
    wrong = []
    for command in COMMANDS:
        if command.page == page and not elsewhere(command) and command.text not in done:
            done.add(command.text)
            text = here(command)
            if fault := run(text):
                wrong.append(
                    f'{command.page}:{command.line}: {command.text}\n  run as {text}\n  {fault}'
                )
    return wrong


@pytest.mark.slow
def test_every_command_runs_as_printed(tmp_path, monkeypatch):
    shell = Shell(tmp_path)
    shell.install()
    write_files(tmp_path)
    # They share one process, and what it has compiled; tests/docs/test_examples.py starts each.
    for name in ('JAX_NUM_CPU_DEVICES', 'HF_HUB_OFFLINE'):
        monkeypatch.setenv(name, shell.environment[name])
    spawned = multiprocessing.get_context('spawn')
    # A new one now and then forgets the programs of the pages before.
    options = {'max_tasks_per_child': 30, 'initializer': os.chdir, 'initargs': (tmp_path,)}
    done: set[str] = set()
    with ProcessPoolExecutor(1, spawned, **options) as pool:
        run = OneProcess(shell, pool)
        wrong = run_page('README.md', run, done)
        # What the other pages take for given, made of README's run: models of other programs.
        given = [f'bert-export --workdir=runs/mini --format={made}' for made in MODELS]
        # Records of the original have no manifest; ours lose theirs by another name.
        given += [
            'cat records128/train*.tfrecord > tf_examples.tfrecord-0',
            'cat records128/eval*.tfrecord > held_out.tfrecord-0',
        ]
        wrong += [fault for text in given if (fault := run(text))]
        # The page of examples/ has data of its own, and a test of its own.
        for page in pages.PAGES[1:-1]:
            wrong += run_page(pages.name_of(page), run, done)

        # Python too. That of docs/extending.md has a test of its own.
        for block in (block for page in PYTHON for block in pages.blocks(ROOT / page)):
            if block.language == 'python':
                code = '\n'.join(line for _, line in block.lines)
                if fault := run.python(code):
                    wrong.append(f'{block.page}:{block.lines[0][0]}: {fault}')
    assert not wrong, '\n\n'.join(wrong)
