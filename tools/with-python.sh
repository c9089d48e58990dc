#!/usr/bin/env bash
# with-python.sh PACKAGES SCRIPT ARGS... - runs a script that needs Python packages, whose names are
# separated by commas; a name may have a version as pip writes it (verifiers<0.2).
#
# Packages serve as oracles in tests only.  One that is not installed is brought into
# build/python, or $PYTHON_DIR for packages that need other versions of these than the other tests;
# where that cannot be done, the test is skipped with a sentence.
set -u
packages=${1//,/ }
imports=$(sed 's/[<>=!~][^,]*//g; s/,/, /g' <<< "$1")
shift
python=python3
dir=${PYTHON_DIR:-build/python}

can_import() { "$python" -c "import $imports" 2>/dev/null; }
if ! can_import; then
    python=$dir/bin/python3
    mkdir -p "$dir"
    ( # tests run two at a time; pip does not
        flock 9
        [ -x "$python" ] || python3 -m venv "$dir" >/dev/null 2>&1
        # shellcheck disable=SC2086 # one word for each package
        can_import || "$dir/bin/pip" install --quiet --no-compile $packages >/dev/null 2>&1
    ) 9> "$dir/.lock"
fi
if ! can_import; then
    echo "skipped: of the Python packages $imports one is missing, and pip cannot install it"
    exit 0
fi
exec "$python" "$@"
