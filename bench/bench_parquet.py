#!/usr/bin/env python3
"""String columns of parquet files against pyarrow, CPU time of one thread each, in one run.

    make build/release/bench/bench_parquet
    bench/bench_parquet.py [--program PATH] [--megabytes N]

Texts are sentences of random words; the files are written by pyarrow, with five codecs, long and
short texts, without and with a dictionary.  "values" is pyarrow's read_table, memory-mapped, against
views of the values; "rows" is its to_pylist and json.dumps against our rows of JSON.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import pyarrow
import pyarrow.parquet

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))

from random_text import WORDS  # noqa: E402

GOAL = 1.0


def texts(n_byte, low, high):
    rng, out, n = random.Random(1), [], 0
    while n < n_byte:
        out.append(" ".join(rng.choices(WORDS, k=rng.randrange(low, high))))
        n += len(out[-1])
    return out


def best(f, rounds=5):
    times = []
    for _ in range(rounds):
        start = time.process_time()
        f()
        times.append(time.process_time() - start)
    return min(times)


def peer(path):
    def table():
        return pyarrow.parquet.read_table(path, columns=["text"], use_threads=False, memory_map=True)

    def rows():
        for row in table().to_pylist():
            json.dumps(row, ensure_ascii=False)
    return best(table), best(rows, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bench/bench_parquet")
    parser.add_argument("--megabytes", type=int, default=40)
    args = parser.parse_args()
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    n, missed = args.megabytes * 10**6, False
    cases = [("long", texts(n, 50, 400), False), ("short", texts(n // 4, 1, 6), False)]
    cases.append(("repeated", random.Random(1).choices(cases[1][1][:1000], k=n // 40), True))
    with tempfile.TemporaryDirectory() as folder:
        for name, column, dictionary in cases:
            for codec in ("none", "snappy", "zstd", "gzip", "lz4"):
                path = f"{folder}/x.parquet"
                pyarrow.parquet.write_table(pyarrow.table({"text": column}), path, compression=codec,
                                            use_dictionary=dictionary)
                out = subprocess.run([args.program, path, "text"], check=True, capture_output=True, text=True)
                ours, (table, rows) = json.loads(out.stdout), peer(path)
                mb, ratio = ours["bytes"] / 1e6, table / ours["values_s"]
                missed |= ratio < GOAL
                print("%-8s %-6s values %6.0f MB/s, %5.2f times pyarrow's (goal %.1f)%s; rows %5.0f MB/s, %5.1f "
                      "times" % (name, codec, mb / ours["values_s"], ratio, GOAL, " MISS" if ratio < GOAL else "",
                                 mb / ours["rows_s"], rows / ours["rows_s"]), flush=True)
    sys.exit(missed)


main()
