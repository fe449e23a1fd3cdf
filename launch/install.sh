# Sourced by quickstart.sh and test.sh: makes a virtual environment where there is none and installs
# this checkout into it, at fixed versions.
#
#   source launch/install.sh WHAT [VENV] [CONSTRAINTS]
#
# WHAT is what pip shall install: ".", ".[test]"; VENV is .venv and CONSTRAINTS constraints.txt where not given.
# Editable, so that the folder's own files run; done again only when what it was made from changed.

# The interpreter: the user's choice first, then what most has been run on.
find_python() {
  for candidate in "${PYTHON:-}" python3.12 python3.11 python3.13 python3 python; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo 'error: no Python 3.11, 3.12 or 3.13 is on the PATH: install one, or name it: PYTHON=/path/to/python3.11 bash ...' >&2
  exit 2
}

# The environment is made once, with a pip of its own.
venv=${2:-.venv} constraints=${3:-constraints.txt}
if [ ! -x "$venv/bin/pip" ]; then
  python=$(find_python) || exit 2
  echo "making $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi

# What it was made from is noted after the install, so that one which broke off is done again.
wanted="$1 $(cat setup.cfg pyproject.toml "$constraints" | cksum)"
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
  echo "installing $1 into $venv (some minutes)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$constraints" -e "$1"
  echo "$wanted" > "$venv/installed"
fi
