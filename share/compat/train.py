#!/usr/bin/env python3
"""train.py FLAGS - runs miles train in place of Miles' train.py.

The number of ranks is --actor-num-nodes times --actor-num-gpus-per-node: one rank is started as a
plain process, several by mpirun.  Environment:
  MILES         the program (default: miles on PATH, or build/release/miles of this checkout)
  MILES_MPIRUN  the launcher and its options (default: mpirun), such as "mpirun --hostfile hosts"
  MILES_FLAGS   flags that are added to the command line"""
import os
import shlex
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def number(flags, name):
    """The last value of a flag; 1 if it is not given."""
    value = "1"
    for i, word in enumerate(flags):
        if word == name and i + 1 < len(flags):
            value = flags[i + 1]
        elif word.startswith(name + "="):
            value = word[len(name) + 1:]
    if not value.isdigit() or int(value) < 1:
        sys.exit("%s '%s': expected a whole number from 1" % (name, value))
    return int(value)


def program():
    built = os.path.join(HERE, "..", "..", "build", "release", "miles")
    found = os.environ.get("MILES") or shutil.which("miles") or (os.path.exists(built) and os.path.abspath(built))
    return found or sys.exit("miles is not on PATH: set MILES to the program")


def command(name, flags):
    flags = flags + shlex.split(os.environ.get("MILES_FLAGS", ""))
    ranks = number(flags, "--actor-num-nodes") * number(flags, "--actor-num-gpus-per-node")
    one = [program(), name, *flags]
    if ranks == 1 or "--dry-run" in flags:
        return one
    return [*shlex.split(os.environ.get("MILES_MPIRUN") or "mpirun"), "-n", str(ranks), *one]


def run(name, flags):
    words = command(name, flags)
    if os.geteuid() == 0:  # Open MPI asks for both; images of Miles run as root
        os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    shown = ["..." if i and words[i - 1].endswith("-key") else w for i, w in enumerate(words)]
    print("+", " ".join(map(shlex.quote, shown)), file=sys.stderr, flush=True)
    try:
        os.execvp(words[0], words)
    except OSError as e:
        sys.exit("cannot run %s: %s" % (words[0], e.strerror))


if __name__ == "__main__":
    run("train", sys.argv[1:])
