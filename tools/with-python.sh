#!/usr/bin/env bash
# with-python.sh PACKAGE SCRIPT ARGS... - runs a script that needs a Python package.
#
# Packages serve as oracles in tests only.  One that is not installed is brought into
# build/python; where that cannot be done, the test is skipped with a sentence.
set -u
package=$1
shift
python=python3

can_import() { "$python" -c "import $package" 2>/dev/null; }
if ! can_import; then
    python=build/python/bin/python3
    [ -x $python ] || python3 -m venv build/python >/dev/null 2>&1
    can_import || build/python/bin/pip install --quiet "$package" >/dev/null 2>&1
fi
if ! can_import; then
    echo "skipped: the Python package $package is missing and pip cannot install it"
    exit 0
fi
exec "$python" "$@"
