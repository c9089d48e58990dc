#!/usr/bin/env python3
"""prepare_data.py NAME DIR - a data set as the Hub ships it becomes DIR/train.jsonl and DIR/test.jsonl.

DIR has the downloaded files, parquet or jsonl, which `miles data show` reads (MILES names the program;
otherwise ./miles of this project).  NAME and the downloads it knows:

    gsm8k   hf download openai/gsm8k --repo-type dataset --local-dir DIR
            its splits of 7,473 and 1,319 problems
    dapo    hf download BytedTsinghua-SIA/DAPO-Math-17k --repo-type dataset --local-dir DIR
            or zhuzilin/dapo-math-17k: each problem once; every 87th is the test split, about 200
    aime    hf download HuggingFaceH4/aime_2024 --repo-type dataset --local-dir DIR
            or zhuzilin/aime-2024, BytedTsinghua-SIA/AIME-2024, math-ai/aime25 and others with the fields
            problem or question and answer: each problem once; all of them are the test split
    arithmetic  nothing is downloaded: sums and differences of numbers up to 30, each problem once; every
            eighth is the test split

A row has the fields that the recipes read:

    {"messages": [{"role": "user", "content": PROBLEM and an instruction}], "label": "72"}

The instruction of gsm8k asks for the final answer in \\boxed{}, for --rm-type math; that of dapo and aime
for a last line "Answer: ...", for --rm-type dapo.  Prompts that are messages keep the instruction they have.
The labels of arithmetic are regular expressions, for --rm-type regex: the response must end with the number.
"""
import glob
import json
import os
import random
import subprocess
import sys

BOXED = "{}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
ANSWER = ("Solve the following math problem step by step. The last line of your response should be of the form "
          "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
          "Remember to put your answer on its own line after \"Answer:\".")
HELD_OUT = 87  # of dapo, one problem in so many


def die(why):
    sys.exit(f"prepare_data.py: {why}")


def rows_of(paths):
    """The rows of data files, as miles reads them."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = os.environ.get("MILES", os.path.join(here, "miles"))
    for path in paths:
        try:
            shown = subprocess.Popen([program, "data", "show", path], stdout=subprocess.PIPE)
        except OSError as why:
            die(f"cannot run {program}, which reads the files: {why}; build it with make, or set MILES")
        yield from map(json.loads, shown.stdout)
        if shown.wait() != 0:
            die(f"{program} data show {path} failed")


def field(row, *names):
    """The first of these fields that the row has, in any spelling of its case."""
    lower = {k.lower(): v for k, v in row.items()}
    for name in names:
        if lower.get(name) is not None:
            return lower[name]
    die(f"a row has none of the fields {', '.join(names)}; it has {', '.join(row)}")


def final_number(answer):
    """GSM8K's answers end in #### and a number."""
    _, mark, number = answer.rpartition("####")
    number = number.strip().replace(",", "")
    if not mark or not number:
        die(f"this answer has no number after ####: {answer!r}")
    return number


def prompt_row(row, instruction, label_of=str):
    prompt = field(row, "messages", "prompt", "question", "problem")
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": instruction.format(prompt.strip())}]
    messages = [{"role": m["role"], "content": m["content"]} for m in prompt]
    truth = row.get("reward_model")  # as verl spells it
    label = truth["ground_truth"] if truth else field(row, "label", "answer", "solution")
    return {"messages": messages, "label": label_of(label)}


def once(rows):
    """Each prompt once: releases repeat problems, up to a hundred times."""
    seen = set()
    for row in rows:
        key = json.dumps(row["messages"], ensure_ascii=False)
        if key not in seen:
            seen.add(key)
            yield row


def sources(folder, pattern="**/*"):
    found = [p for kind in ("parquet", "jsonl") for p in glob.glob(f"{folder}/{pattern}.{kind}", recursive=True)]
    found = sorted(p for p in found if os.path.relpath(p, folder) not in ("train.jsonl", "test.jsonl"))
    if not found:
        die(f"{folder}/{pattern}: no .parquet and no .jsonl file; download the data first (prepare_data.py --help)")
    return found


def write(folder, split, rows):
    path = os.path.join(folder, split + ".jsonl")
    n = 0
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        for n, row in enumerate(rows, 1):
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(path + ".tmp", path)
    print(f"{path}: {n} problems")


def gsm8k(folder):
    for split in ("train", "test"):
        rows = rows_of(sources(folder, f"main/{split}-*"))
        write(folder, split, (prompt_row(r, BOXED, final_number) for r in rows))


def dapo(folder):
    rows = list(once(prompt_row(r, ANSWER) for r in rows_of(sources(folder))))
    write(folder, "train", (r for i, r in enumerate(rows) if i % HELD_OUT))
    write(folder, "test", rows[::HELD_OUT])


def aime(folder):
    write(folder, "test", once(prompt_row(r, ANSWER) for r in rows_of(sources(folder))))


def arithmetic(folder):
    sums = [(f"{a} + {b}", a + b) for a in range(1, 31) for b in range(1, 31)]
    differences = [(f"{a} - {b}", a - b) for a in range(1, 31) for b in range(1, a + 1)]
    rows = [{"messages": [{"role": "user", "content": f"What is {text}? Reply with the number only."}],
             "label": rf"(?<![0-9]){n}\.?\s*$"} for text, n in sums + differences]
    random.Random(1).shuffle(rows)
    os.makedirs(folder, exist_ok=True)
    write(folder, "train", (r for i, r in enumerate(rows) if i % 8))
    write(folder, "test", rows[::8])


def main():
    known = {f.__name__: f for f in (gsm8k, dapo, aime, arithmetic)}
    if len(sys.argv) != 3 or sys.argv[1] not in known:
        print(__doc__)
        sys.exit(0 if "--help" in sys.argv else 2)
    known[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
