"""Writes a table of a run's losses: a place of one's own for metrics (docs/extending.md)."""

from pathlib import Path


class Table:
    def __init__(self, path, step):
        # what came after the checkpoint comes again
        lines = Path(path).read_text().splitlines(True) if step else []
        self.file = open(path, 'w')
        self.file.writelines(line for line in lines if int(line.split('\t')[0]) <= step)

    def write(self, line):  # line.step of line.total, line.metrics, line.eta in seconds or None
        loss = line.metrics.get('shuffled_loss')
        print(line.step, line.metrics['split'], loss, sep='\t', file=self.file, flush=True)

    def close(self):
        self.file.close()
