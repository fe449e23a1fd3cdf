"""The commands: `python -m bert_jax.launch` lists them."""

import sys

# Here, and in words that any Python can read, because this file runs before any command.
if sys.version_info < (3, 11):
    sys.stderr.write(
        'bert_jax needs Python 3.11, 3.12 or 3.13, this is %d.%d: use `python3.13 -m ...`\n'
        % sys.version_info[:2]
    )
    raise SystemExit(2)
if sys.platform == 'win32':
    sys.stderr.write('bert_jax runs on Linux and macOS: on Windows use it inside WSL\n')
    raise SystemExit(2)
if __name__ == 'launch':  # from a checkout, as the commands were called before
    sys.stderr.write('launch is bert_jax.launch now: python -m bert_jax.launch.NAME\n')
    raise SystemExit(2)
