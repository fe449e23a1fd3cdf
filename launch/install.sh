# Sourced by quickstart.sh and test.sh: makes a virtual environment where there is none that works and installs
# this checkout into it, at fixed versions.
#
#   source launch/install.sh WHAT [VENV] [VERSIONS]
#
# WHAT is what pip shall install: ".", ".[test]"; VENV is .venv where not given, and VERSIONS the Pythons that serve,
# the best first. Editable, so that the folder's own files run; done again only when what it was made from changed.
venv=${2:-.venv} versions=${3:-3.13 3.12 3.11} constraints=constraints.txt
[[ "$1" != *beam* ]] || constraints=constraints-beam.txt

# The Pythons that may be version $1: the user's choice alone, or those on the PATH, of pyenv and of uv.
candidates() {
  if [ -n "${PYTHON:-}" ]; then
    echo "$PYTHON"
  else
    printf '%s\n' "python$1" python3 python
    ls -d "$(pyenv root 2>/dev/null)/versions/$1".*/bin/python 2>/dev/null || true
    uv python find --system --no-python-downloads "$1" 2>/dev/null || true
  fi
}

# Says nothing of a Python that cannot run: pyenv puts names on the PATH that only answer "command not found".
version_of() {
  "$1" -c "import ${2:-ensurepip, ssl}, platform; print(platform.python_version())" 2>/dev/null
}

find_python() {
  local version candidate
  for version in $versions; do
    while read -r candidate; do
      if [[ "$(version_of "$candidate")" == "$version".* ]]; then
        echo "$candidate"
        return
      fi
    done < <(candidates "$version")
  done
  echo "error: no Python ${versions// / or } that can make an environment: ${PYTHON:-none on the PATH, in pyenv or in uv}:" \
    "install one, or name it: PYTHON=/path/to/python${versions%% *} bash ..." >&2
  exit 2
}

# An environment that works is kept, unless the user names another Python.
has=$(version_of "$venv/bin/python" pip) || has=
[[ " $versions " == *" ${has%.*} "* ]] || has=
if [ -n "${PYTHON:-}" ] || [ -z "$has" ]; then
  python=$(find_python) || exit 2
  takes=$(version_of "$python")
  if [ "$has" != "$takes" ]; then
    old=
    [ ! -e "$venv" ] || old=" in place of ${has:-one that does not work}"
    echo "making $venv with Python $takes$old"
    "$python" -m venv --clear "$venv"
  fi
fi

# What it was made from is noted after the install, so that one which broke off is done again.
wanted="$1 $(cat setup.cfg pyproject.toml "$constraints" | cksum)"
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
  echo "installing $1 into $venv (a minute or more)"
  # uv takes a tenth of pip's time. Of pip's settings it is told the index alone, so pip is tried where it fails.
  index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
  # Most of what is installed is never imported: what is, Python compiles then.
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile)
  if ! { "${pip[@]}" uv && env ${index:+"UV_DEFAULT_INDEX=$index"} "$venv/bin/python" -m uv pip install --quiet \
    --python "$venv/bin/python" -c "$constraints" -e "$1"; }; then
    echo "uv could not: pip installs it (some minutes)"
    "${pip[@]}" -c "$constraints" -e "$1"
  fi
  echo "$wanted" > "$venv/installed"
fi
