"""A fine-tuned model's scores on text with typos, over the share of words that have one.

Owns the specification of --noise, and the table, the file and the picture of the result. What a
typo is is input_pipeline/text/typos.py's; which texts of an example may have one is its task's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError, suggest
from bert_jax.configs.files.store import write_note
from bert_jax.configs.schema import hash_config
from bert_jax.input_pipeline.tasks.base import Example, Task
from bert_jax.input_pipeline.text.typos import KINDS, Typos, is_word
from bert_jax.runs.finetuning.evaluation import TaskEvaluator
from bert_jax.runs.workdir import plots

ALL = 'typos'  # the kinds of all


class Noise(NamedTuple):
    """What --noise asks for.

    Attributes:
      kinds: names in KINDS.
      shares: of the words, in rising order.
    """

    kinds: tuple[str, ...]
    shares: tuple[float, ...]

    @property
    def name(self) -> str:
        """Return the kinds as the specification has them."""
        if set(self.kinds) == set(KINDS):
            return ALL
        return '+'.join(self.kinds)


def parse(text: str) -> Noise:
    """Parse KINDS:SHARE,SHARE, as in 'typos:0.05,0.1' or 'swap+leet:0.2'.

    Raises:
      UserError: it is anything else, or a share is outside 0..1.
    """
    kinds_text, colon, shares_text = text.partition(':')
    if not colon or not shares_text:
        raise UserError(f'--noise={text}: expected kinds and shares, as in --noise=typos:0.05,0.1')
    kinds = tuple(dict.fromkeys(kinds_text.split('+')))
    if kinds_text == ALL:
        kinds = tuple(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(
                f'--noise={text}: no kind of typo is called {kind!r}; there are {", ".join(KINDS)},'
                f' and {ALL} for all of them{suggest(kind, [*KINDS, ALL])}'
            )
    shares = []
    for word in shares_text.split(','):
        try:
            share = float(word)
        except ValueError:
            raise UserError(f'--noise={text}: {word!r} is no number') from None
        if not 0 <= share <= 1:
            raise UserError(
                f'--noise={text}: {word} is no share of the words: it must be from 0 to 1'
            )
        shares.append(share)
    return Noise(kinds, tuple(sorted(set(shares))))


def add_typos(task: Task, examples: Sequence[Example], typos: Typos) -> tuple[list[Example], float]:
    """Return the examples with typos in their texts, and the share of all words that has one.

    Which words those are depends on the seed, an example's id and the word's place alone.
    """
    changed: list[bool] = []

    def add_to(example: Example) -> Example:
        numbers = itertools.count()

        def respell(text: str) -> str:
            noisy = typos.text(text, example.id, next(numbers))
            for before, after in zip(text.split(), noisy.split(), strict=True):
                if is_word(before):
                    changed.append(before != after)
            return noisy

        return task.respelled(example, respell)

    made = [add_to(example) for example in examples]
    return made, sum(changed) / max(len(changed), 1)


def measure(
    workdir: str,
    task_name: str | None,
    data_dir: str | None,
    split: str | None,
    noise: Noise,
    seed: int,
) -> str:
    """Score the split without typos and with each share of them; return the table.

    Write noise/SPLIT-KINDS.json and .png into the workdir.

    Args:
      workdir: the fine-tuned run.
      task_name: another task; None: its own.
      data_dir: the folder of the task's files.
      split: what is scored.
      noise: which typos, in how many words.
      seed: which words have a typo, and which typo.

    Raises:
      UserError: as TaskEvaluator, and where the split has no labels.
    """
    trained = TaskEvaluator(workdir, task_name, data_dir, split)
    task, examples = trained.task, trained.examples
    if not task.labelled(examples):
        raise UserError(
            f'--split={trained.split}: task {task.name} has no labels there, so that nothing can be'
            ' scored: name another split'
        )

    # Without any typo first, with which the others are compared.
    rows = []
    for share in sorted({0.0, *noise.shares}):
        noisy, changed = add_typos(task, examples, Typos(share, seed, noise.kinds))
        scores = task.score(examples, trained.predict(noisy))
        rows.append({'share': share, 'changed': changed, 'metrics': scores})
    result = {
        'task': task.name,
        'split': trained.split,
        'metric': task.metric,
        'kinds': list(noise.kinds),
        'seed': seed,
        'examples': len(examples),
        'step': trained.step,
        'config_hash': hash_config(trained.config),
        'rows': rows,
    }

    # The file last: with it all of it is there.
    file = trained.workdir.noise / f'{trained.name}-{noise.name}.json'
    plots.save(file.with_suffix('.png'), _draw(result))
    write_note(file, result, 2)
    return f'{format_table(result)}\n{file}'


def format_table(result: dict[str, Any]) -> str:
    """Write the rows of a result as text, with how much the metric differs from the first."""
    metric, rows = result['metric'], result['rows']
    names = [metric, *(name for name in rows[0]['metrics'] if name != metric)]
    # A name may be longer than its numbers: entity_precision_ORG.
    widths = {name: max(12, len(name) + 2) for name in names}
    heads = ''.join(f'{name:>{width}}' for name, width in widths.items())
    lines = [f'{"typos":>7}{"changed":>9}{heads}  change']
    for row in rows:
        scores = row['metrics']
        lines.append(
            f'{row["share"]:7.1%}{row["changed"]:9.1%}'
            + ''.join(f'{scores[name]:{width}.4f}' for name, width in widths.items())
            + f'{scores[metric] - rows[0]["metrics"][metric]:+8.4f}'
        )
    return '\n'.join(lines)


def _draw(result: dict[str, Any]) -> plots.Chart:
    """Draw the task's metric over the share of words that have a typo."""
    metric = result['metric']
    points = [(100 * row['changed'], row['metrics'][metric]) for row in result['rows']]
    title = f'{result["task"]} {result["split"]}: {metric} with typos'
    curve = plots.Curve(metric, points, 'main', 0)
    return plots.Chart(title, metric, [curve], '% of words with a typo')
