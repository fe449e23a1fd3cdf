"""What a command can be told, as fields of frozen dataclasses that say what they mean.

Owns what is written beside a field: its help, the interval it must lie in, how it is written on a
command line. bert_jax/cli/flags.py makes flags of it. It must not know any option: those stand
where they are used, input_pipeline/preprocess/options.py for one, in files that import nothing
heavy, because `--help` reads them.

  @dataclass(frozen=True)
  class Options:
      input: str = required('file to read')
      rows: int = option(128, 'how many of them', within='[1, 1024]')
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import inside

_KEY = 'option'  # of a field's metadata


@dataclasses.dataclass(frozen=True)
class Option:
    """What is written beside a field.

    Attributes:
      help: its meaning, in a line.
      within: the numbers that it may be, as the interval '[0, 1)'; `check_intervals` looks.
      bounds: the least and the most that the command line takes, for options that do not look.
      commas: of a tuple: whether its items are one word with commas between; else the flag is given
      once for each.
      switch: (name, value): a flag --name that stands for this value.
    """

    help: str
    within: str | None = None
    bounds: tuple[float | None, float | None] = (None, None)
    commas: bool = False
    switch: tuple[str, str] | None = None


def option(default: Any, help: str, **beside: Any) -> Any:
    """A field that may be left out; `beside` is `Option`'s."""
    return dataclasses.field(default=default, metadata={_KEY: Option(help, **beside)})


def required(help: str, **beside: Any) -> Any:
    """A field without a default; `beside` is `Option`'s."""
    return dataclasses.field(metadata={_KEY: Option(help, **beside)})


def described(options: Any) -> list[tuple[dataclasses.Field, Option | None]]:
    """The fields of a dataclass or of its instance, each with what is written beside it."""
    return [(field, field.metadata.get(_KEY)) for field in dataclasses.fields(options)]


def check_intervals(options: Any) -> None:
    """Raises UserError for the first number of the instance that lies outside of its interval.

    It names the flag. None lies everywhere.
    """
    for field, about in described(options):
        value = getattr(options, field.name)
        if about and about.within and value is not None and not inside(value, about.within):
            raise UserError(f'--{field.name}={value}: must be {_in_words(about.within)}')


def _in_words(interval: str) -> str:
    """An interval as a rule: 'from 1 to 8' of '[1, 8]', 'at least 0' of '[0, inf)'."""
    # '[1, 8]' -> low '1', high '8'; brackets that close include the end, as in mathematics.
    low, high = interval[1:-1].split(', ')
    if interval[0] == '[' and interval[-1] == ']':
        return f'from {low} to {high}'
    least = f'{"at least" if interval[0] == "[" else "more than"} {low}'
    most = f'{"at most" if interval[-1] == "]" else "less than"} {high}'
    return least if high == 'inf' else f'{least} and {most}'
