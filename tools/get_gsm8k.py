#!/usr/bin/env python3
"""get_gsm8k.py [DIR] - GSM8K as prompt files for miles: DIR/train.jsonl and DIR/test.jsonl.

DIR is data/gsm8k unless given.  The source is the dataset openai/gsm8k of the Hugging Face Hub, whose
files DIR/main/train-*.parquet and DIR/main/test-*.parquet are downloaded if they are missing.  Needs
the Python packages pyarrow and, for the download, huggingface_hub.

A row has the fields that recipes/*-gsm8k.sh read:

    {"messages": [{"role": "user", "content": QUESTION and an instruction}], "label": "72"}

The label is the number after #### at the end of GSM8K's answer.  The instruction asks for the final
answer in \\boxed{}, which the reward --rm-type math compares with the label.
"""
import glob
import json
import os
import sys

REPO = "openai/gsm8k"
SPLITS = {"train": "main/train-00000-of-00001.parquet", "test": "main/test-00000-of-00001.parquet"}
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def parquet_files(folder, split):
    """The split's files below the folder, downloaded if there are none."""
    found = sorted(glob.glob(os.path.join(folder, "main", split + "-*.parquet")))
    if found:
        return found
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        sys.exit(f"get_gsm8k.py: {folder}/{SPLITS[split]} does not exist, and downloading it needs a package: "
                 "pip install huggingface_hub")
    return [hf_hub_download(REPO, SPLITS[split], repo_type="dataset", local_dir=folder)]


def prompt_row(row):
    answer = row["answer"].rpartition("####")
    label = answer[2].strip().replace(",", "")
    if not answer[1] or not label:
        raise ValueError(f"this answer has no number after ####: {row['answer']!r}")
    content = row["question"].strip() + "\n\n" + INSTRUCTION
    return {"messages": [{"role": "user", "content": content}], "label": label}


def convert(folder, split):
    try:
        import pyarrow.parquet
    except ImportError:
        sys.exit("get_gsm8k.py: reading parquet files needs a package: pip install pyarrow")
    rows = []
    for path in parquet_files(folder, split):
        rows += [prompt_row(r) for r in pyarrow.parquet.read_table(path, columns=["question", "answer"]).to_pylist()]
    path = os.path.join(folder, split + ".jsonl")
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    os.replace(path + ".tmp", path)
    print(f"{path}: {len(rows)} problems")


def main():
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1].startswith("-")):
        sys.exit(__doc__)
    folder = sys.argv[1] if len(sys.argv) == 2 else "data/gsm8k"
    os.makedirs(folder, exist_ok=True)
    for split in SPLITS:
        convert(folder, split)


if __name__ == "__main__":
    main()
