"""Evaluation as one call: a fine-tuned model, held-out records, a file of answers, or vectors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.cli import app
from bert_jax.configs.errors import UserError
from bert_jax.runs.calls import Path, called
from bert_jax.runs.calls.vectors import KINDS, READ_BY, VectorOptions

if TYPE_CHECKING:
    from bert_jax.runs.workdir.results import EvaluateResult

Suite = Literal['glue']

# What is read for some of what is scored alone.
_READ_BY: dict[str, tuple[str, ...]] = {
    **READ_BY,
    'noise_seed': ('noise',),
    'output': (*KINDS, 'suite'),
    'runs': ('suite',),
    'suite': ('runs',),
    'init_from': KINDS,
}
# What is scored, each with what does not go with it; then vectors, of which there is one kind.
_APART: dict[str, tuple[str, ...]] = {
    'predictions': ('workdir', 'init_from', 'data', 'noise', 'sts', 'pairs', 'translations'),
    'data': ('task', 'data_dir', 'noise'),
    'doc_stride': ('predictions', 'data', 'noise', *KINDS),
}
_APART |= {
    what: ('data', 'noise', 'task', 'data_dir', *KINDS[number + 1 :])
    for number, what in enumerate(KINDS)
}
_APART['suite'] = (
    *('workdir', 'init_from', 'predictions', 'data', 'task', 'split', 'noise', 'doc_stride'),
    *KINDS,
)
_APART |= {what: (*_APART[what], 'split') for what in KINDS if what != 'retrieval'}


@dataclass(frozen=True)
class Asked:
    """What is scored: a model, or a file of predictions, and on what."""

    workdir: str | None
    task: str | None
    data_dir: str | None
    split: str | None
    predictions: str | None
    data: str | None
    noise: str | None
    noise_seed: int
    init_from: str | None
    output: str | None
    doc_stride: int | None
    suite: Suite | None
    runs: str | None

    def check(self, vectors: VectorOptions) -> None:
        """Raise UserError for what is missing, or is not read by what is scored."""
        values = vars(self) | vars(vectors)
        given = [*(name for name, value in vars(self).items() if value), *vectors.given()]
        for flag, readers in _READ_BY.items():
            if flag in given and not any(values[reader] for reader in readers):
                raise UserError(f'--{flag} needs {" or ".join(f"--{r}" for r in readers)}')
        for what, others in _APART.items():
            if values[what] and (strange := [name for name in others if name in given]):
                raise UserError(f'--{strange[0]} does not go with --{what}: leave one of them out')
        if self.predictions and not (self.task or vectors.retrieval):
            raise UserError('--predictions needs --task')
        if self.workdir and self.init_from:
            raise UserError('name either --workdir or --init_from')
        if self.workdir:
            from bert_jax.runs.workdir.workdir import Workdir

            Workdir(self.workdir).check(flag='workdir')
        elif not (self.predictions or self.init_from or self.suite):
            raise UserError('name --workdir, or --predictions with --task and --data_dir')
        if self.output:
            app.check_output_file('output', self.output)


def evaluate(
    workdir: Path | None = None,
    *,
    task: Path | None = None,
    data_dir: Path | None = None,
    split: str | None = None,
    predictions: Path | None = None,
    data: Path | None = None,
    noise: str | None = None,
    noise_seed: int = 0,
    init_from: Path | None = None,
    vectors: VectorOptions | None = None,
    output: Path | None = None,
    doc_stride: int | None = None,
    suite: Suite | None = None,
    runs: str | None = None,
) -> EvaluateResult:
    """Score a model, or a file of answers, as bert-evaluate does.

    Every setting that the workdir knows is read from it. Results are kept in its folder eval.

    Args:
      workdir: folder of a run of fine-tuning or pre-training.
      task: another task with the same head and labels; None: the one it was fine-tuned on.
      data_dir: the folder of the task's files; None: as in fine-tuning.
      split: the split to score; None: dev, of records those held out (eval), of vectors test.
      predictions: this file is scored in place of a model, in the task's official format.
      data: records directory, for a workdir of pre-training.
      noise: score with typos, as 'typos:0.05,0.1'.
      noise_seed: which words have a typo, and which typo.
      init_from: in place of `workdir`, to score vectors: whatever `Bert.load` takes.
      vectors: on which texts vectors are scored.
      output: of vectors: a JSON file that is to get the scores; of a suite: the zip to submit;
        None: glue_submission.zip.
      doc_stride: a text that is longer than a row is scored by windows that begin so many word
        pieces after each other; None: as trained, which cuts the text of a classifier.
      suite: all tasks of a benchmark: the table is the text of the result, and a zip is written.
      runs: of a suite: a glob of workdirs; the best on dev stands for its task.

    Raises:
      UserError: what is asked does not go together, or cannot be read, in one line.
    """
    plain = lambda path: None if path is None else os.fspath(path)
    names = (plain(task), plain(data_dir), split, plain(predictions), plain(data))
    asked = Asked(
        plain(workdir), *names, noise, noise_seed, plain(init_from), plain(output), doc_stride,
        suite, runs,
    )  # fmt: skip
    with called():
        asked.check(vectors or VectorOptions())
        return _run(asked, vectors or VectorOptions())


def _run(asked: Asked, vectors: VectorOptions) -> EvaluateResult:
    """Score what is asked for. Each branch imports only what it needs: answers need no model."""
    workdir, task, data_dir, split = asked.workdir or '', asked.task, asked.data_dir, asked.split
    text: list[str] = []
    report: dict[str, Any] = {}
    if asked.suite:
        from bert_jax.runs.finetuning import glue

        best, output = glue.find_runs(asked.runs or ''), asked.output or 'glue_submission.zip'
        table = glue.table(best)
        # At once: to make the submission may predict test sets for hours.
        if app.in_command():
            print(table, flush=True)
        else:
            text.append(table)
        glue.submit(best, data_dir, output)
        text.append(f'wrote {output}')
    elif any(getattr(vectors, what) for what in KINDS):
        from bert_jax.runs.calls.vectors import scores

        model = asked.workdir or asked.init_from
        report = scores(vectors, model, asked.workdir, asked.predictions, split or 'test')
        if asked.output:
            from etils import epath

            from bert_jax.configs.files.store import write_note

            write_note(epath.Path(asked.output), report, 2)
    elif asked.predictions:
        from bert_jax.input_pipeline.tasks import score_file

        report = score_file(asked.predictions, task or '', data_dir or '', split or 'dev')
    elif asked.data:
        from bert_jax.runs.pretraining import held_out

        report = held_out.evaluate(workdir, asked.data, split or 'eval')
    elif asked.noise:
        from bert_jax.runs.robustness import noise

        # A table; the same numbers are in the workdir.
        typos = noise.parse(asked.noise)
        text.append(noise.measure(workdir, task, data_dir, split, typos, asked.noise_seed))
    else:
        from bert_jax.runs.finetuning import evaluation

        report = evaluation.evaluate(workdir, task, data_dir, split, text.append, asked.doc_stride)
    from bert_jax.runs.workdir.results import EvaluateResult

    return EvaluateResult(workdir, report, '\n'.join(text))
