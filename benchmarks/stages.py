"""The offline job in one process, with the processor time of each of its stages.

  python -m benchmarks.stages FILE.json [--flags of bert-preprocess]

Clocks are put around the functions of the stages, which are called for a document or for a thousand
examples at a time, so that measuring costs little. A stage's time is its own: without that of the
stages that it calls.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.input_pipeline.preprocess import job, runs, stages
from bert_jax.input_pipeline.records import fields, shards
from bert_jax.input_pipeline.text import corpus
from bert_jax.input_pipeline.tokenizer import Tokenizer

# (name of the stage, module or class, function that is the stage).
CLOCKS: tuple[tuple[str, Any, str], ...] = (
    ('reading text', corpus, 'read_unit'),
    ('tokenising', Tokenizer, 'encode_document'),
    ('spilling', runs, 'save'),
    ('gathering documents', runs, 'sorted_documents'),
    ('pairing', stages, 'make_examples'),
    ('laying out rows', stages, 'lay_out'),
    ('masking', stages, 'mask'),
    ('encoding', fields, 'encode'),
    ('counting', fields, 'count'),
    ('sorting', runs, 'sorted_records'),
    ('writing', shards, 'write_shard'),
    ('other', job, 'preprocess'),
)


class Clock:
    """Processor time by name; what runs inside another name counts for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: list[str] = []
        self._since = 0.0

    def _charge(self) -> None:
        # The time since the last charge goes to the innermost stage that runs; then the count
        # begins again.
        now = time.process_time()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def around(self, name: str, function: Callable) -> Callable:
        """Return `function`, with its processor time counted under `name`.

        Of a generator that is the time in which it makes its items.
        """

        def call(*arguments: Any, **named: Any) -> Any:
            self._charge()
            self._running.append(name)
            try:
                result = function(*arguments, **named)
            finally:
                self._charge()
                self._running.pop()
            return self._items(name, result) if isinstance(result, Iterator) else result

        return call

    def _items(self, name: str, items: Iterator) -> Iterator:
        # The clock itself marks the end, because items may be None.
        following = self.around(name, lambda: next(items, self))
        while (item := following()) is not self:
            yield item


def main() -> None:
    """Run bert-preprocess in one process and writes {stage: CPU-seconds} to FILE.json."""
    clock, file = Clock(), sys.argv.pop(1)

    # The program is changed before it runs: each function is replaced, where its callers look it
    # up, by itself within a clock. One process, for clocks do not see others.
    for name, owner, attribute in CLOCKS:
        setattr(owner, attribute, clock.around(name, getattr(owner, attribute)))
    sys.argv.append('--workers=1')
    try:
        runpy.run_module('bert_jax.launch.preprocess', run_name='__main__', alter_sys=True)
    finally:
        with open(file, 'w') as out:
            json.dump(clock.seconds, out)


if __name__ == '__main__':
    main()
