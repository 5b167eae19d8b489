# Shared by quickstart and test: make .venv beside this folder's parent and install flray into it, if missing or outdated.
# With the extra packages of FLRAY_EXTRAS, by default those for development; an environment that has these is enough for any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
want="$(cat pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1)"
extras="${FLRAY_EXTRAS-dev}"
have="$(cat .venv/.flray-installed 2>/dev/null || true)"
if [ "$have" != "$want dev" ] && [ "$have" != "$want $extras" ] && [ "$have" != "$want" ]; then
  python="${PYTHON:-python3}"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "flray needs Python 3.11 or newer; found: $("$python" --version 2>&1). Set PYTHON to one, for example PYTHON=python3.12 $0" >&2
    exit 2
  }
  echo "flray: installing into .venv (once; about one to four minutes)"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  # Without byte code of what is never imported: half the time, 300 MB less.
  .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}"
  echo "$want $extras" > .venv/.flray-installed
  # Which the first lines of the YAML files there name, for editors.
  [ ! -d search_spaces ] || .venv/bin/flray schema > search_spaces/schema.json
fi
export PATH="$PWD/.venv/bin:$PATH"
unset PYTHONDONTWRITEBYTECODE # else every process compiles flray anew, an eighth of its start
