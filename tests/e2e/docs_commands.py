#!/usr/bin/env python3
"""Runs the commands that the docs for newcomers show, and checks what these pages refer to.

    tests/e2e/docs_commands.py --build build/release

Every fenced block `sh` of README.md and docs/GETTING_STARTED.md is run, page by page in one shell, unless
a comment `<!-- ci: not run ... -->` precedes it; a block `python` whose first line is `# NAME.py` is
written to that file.  The shell stands in a copy of the project's layout with a short quickstart run.
Where a page downloads a model or data, the quickstart's model and two problems in GSM8K's format take
their place, and recipes run one small rollout.

Further checks: links to files exist and README.md lists all pages, flags exist in docs/cli.md, and every
message that docs/TROUBLESHOOTING.md quotes is one of the program.
"""
import argparse
import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

PAGES = ["README.md", "docs/GETTING_STARTED.md"]
OTHER_FLAGS = {"--help", "--local-dir", "--logdir", "--mpi", "--install"}  # of hf, tensorboard, srun, check-deps.sh
SMALL = ("--num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 2 --global-batch-size 4 "
         "--rollout-max-response-len 8 --eval-max-response-len 8")
GSM8K = [{"question": "Anna has 3 eggs and finds 4 more. How many eggs does Anna have?", "answer": "3+4=7\n#### 7"},
         {"question": "Ben puts 900 coins and then 600 coins in a box. How many are in the box?",
          "answer": "900+600 = <<900+600=1500>>1500\n#### 1,500"}]
PROLOGUE = """set -euo pipefail
server=
stop_server() { [ -z "$server" ] || { kill "$server"; wait "$server" || true; server=; }; }
wait_for_server() { # ends the page when the server has not come up
  for _ in $(seq 300); do
    curl -s -o /dev/null "localhost:$1/health" && return
    kill -0 "$server" || exit 1
    sleep 0.1
  done
  exit 1
}
trap stop_server EXIT
"""


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)


def blocks(page):
    """(language, text, line) of the fenced blocks that are to be run."""
    found, skip = [], False
    lines = open(page).read().split("\n")
    at = 0
    while at < len(lines):
        fence = re.match(r"```(\w*)$", lines[at])
        if not fence:
            skip = lines[at].startswith("<!-- ci: not run")
            at += 1
            continue
        end = lines.index("```", at + 1)
        if not skip and fence[1] in ("sh", "python"):
            found.append((fence[1], "\n".join(lines[at + 1:end]) + "\n", at + 1))
        skip, at = False, end + 1
    return found


# --- the place of the commands ------------------------------------------------------------


def python_with(package):
    """A Python that has the package, which is installed where that can be done; or None."""
    said = subprocess.run(["tools/with-python.sh", package, "-c", "import sys; print(sys.executable)"],
                          stdout=subprocess.PIPE, text=True).stdout.strip()
    return None if said.startswith("skipped:") else said


def make_gsm8k(work, python):
    """The files of openai/gsm8k; without pyarrow, JSON and a module that reads it under that name."""
    has = subprocess.run([python, "-c", "import pyarrow.parquet"], stderr=subprocess.DEVNULL).returncode == 0
    for split in ("train", "test"):
        path = f"{work}/data/gsm8k/main/{split}-00000-of-00001.parquet"
        write(path, json.dumps(GSM8K))
        if has:
            program = ("import json, sys, pyarrow, pyarrow.parquet as p\n"
                       "p.write_table(pyarrow.Table.from_pylist(json.load(open(sys.argv[1]))), sys.argv[1])")
            subprocess.run([python, "-c", program, path], check=True)
    if not has:
        write(work + "/stubs/pyarrow/__init__.py", "")
        write(work + "/stubs/pyarrow/parquet.py", "import json\n\n\nclass read_table:\n"
              "    def __init__(self, path, columns):\n        self.path = path\n\n"
              "    def to_pylist(self):\n        return json.load(open(self.path))\n")


def make_place(work, build, python):
    os.symlink(os.path.abspath(build + "/miles"), work + "/miles")
    for name in ("recipes", "tools"):
        os.symlink(os.path.abspath(name), f"{work}/{name}")
    for name in ("make", "pip"):
        write(f"{work}/bin/{name}", "#!/bin/sh\n", 0o755)
    write(work + "/bin/python3", f'#!/bin/sh\nexec {python} "$@"\n', 0o755)
    write(work + "/bin/hf", '#!/bin/sh\n[ "$1 $3" = "download --local-dir" ] || exit 1\nmkdir -p "$4"\n'
          'cp -rL build/quickstart/sft/latest/. "$4"\n', 0o755)
    make_gsm8k(work, python)
    env = dict(os.environ, PATH=f"{work}/bin:{os.environ['PATH']}", PYTHONPATH=work + "/stubs",
               MILES_BUILD=os.path.abspath(build), MILES_DEVICE="cpu")
    subprocess.run(["recipes/quickstart.sh", "build/quickstart"], cwd=work, check=True, stdout=subprocess.DEVNULL,
                   env=dict(env, SFT_STEPS="60", ROLLOUTS="8"))
    return env


# --- the commands -------------------------------------------------------------------------


def for_ci(text, port):
    text = text.replace("30000", str(port)).replace("iter_0000199", "iter_0000000")
    text = text.replace("curl -s", "curl -s --fail-with-body")
    text = re.sub(r"(recipes/qwen3-0\.6B-gsm8k\.sh[^#\n]*)", r"\1 " + SMALL + " ", text)
    return re.sub(r"(\./miles serve[^#\n]*).*",
                  rf"stop_server\n\1 --port {port} & server=$!\nwait_for_server {port}", text)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_page(page, work, env, openai):
    """The numbers of blocks that passed, that failed and that were skipped."""
    script, n, skipped, port = PROLOGUE, 0, 0, free_port()
    for language, text, line in blocks(page):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            if not name:
                print(f"{page}:{line}: a Python block begins with the name of its file, # NAME.py")
                return 0, 1, skipped
            write(f"{work}/{name[1]}", text)
        elif "import OpenAI" in text and not openai:
            print(f"skipped: {page}:{line} needs the Python package openai, and pip cannot install it")
            skipped += 1
        else:
            script += f"echo '== {page}:{line}'\n{for_ci(text, port)}"
            n += 1
    out = subprocess.run(["bash", "-c", script + "echo '== end'\n"], cwd=work, env=env, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace")
    if out.returncode == 0 and n > 0:
        return n, 0, skipped
    print(f"{page}: the last command below failed with status {out.returncode}\n{out.stdout[-6000:]}")
    return 0, 1, skipped


# --- what the pages refer to ---------------------------------------------------------------


def links():
    """What is wrong with them, as of the next two."""
    for page in glob.glob("*.md") + glob.glob("docs/*.md") + glob.glob("bench/*.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", open(page).read()):
            if "://" not in target and not os.path.exists(os.path.join(os.path.dirname(page), target)):
                yield f"{page}: there is no {target}"
    readme = open("README.md").read()
    for page in glob.glob("docs/*.md"):
        if f"]({page})" not in readme:
            yield f"README.md: the list of pages lacks {page}"


def flags():
    known = set(re.findall(r"^\| `(--[\w-]+)", open("docs/cli.md").read(), re.M)) | OTHER_FLAGS
    known |= {f"--no-{flag[2:]}" for flag in known}
    for page in PAGES + ["docs/TROUBLESHOOTING.md"]:
        for quoted in re.findall(r"```.*?```|`[^`]+`", open(page).read(), re.S):
            for flag in set(re.findall(r"(?<![\w-])--[a-z][\w-]+", quoted)) - known:
                yield f"{page}: there is no flag {flag} in docs/cli.md"


def messages():
    """A message is quoted by its fixed parts, with ... between them, in a first column."""
    source = ""
    for path in glob.glob("src/**/*.c*", recursive=True):
        source += re.sub(r'"\s*\n\s*"', "", open(path).read()).replace('\\"', '"')
    for row in re.findall(r"^\| (?:\d+ )?(`[^|]*) \|", open("docs/TROUBLESHOOTING.md").read(), re.M):
        for part in [p for quoted in re.findall(r"`([^`]+)`", row) for p in quoted.split("...")]:
            words = part.strip(" -:")
            if words and " " in words and words not in source and words != "truncated 100%":
                yield f"docs/TROUBLESHOOTING.md: no message of the program has the words: {words}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    build = p.parse_args().build
    passed = failed = skipped = 0
    for check in (links, flags, messages):
        wrong = list(check())
        print("\n".join(wrong) or f"ok   {check.__name__}")
        passed, failed = passed + (not wrong), failed + bool(wrong)
    with tempfile.TemporaryDirectory() as work:
        python = python_with("openai")
        env = make_place(work, build, python or shutil.which("python3"))
        for page in PAGES:
            ok, bad, left_out = run_page(page, work, env, python)
            print(f"{'FAIL' if bad else 'ok  '} {page}: {ok} blocks")
            passed, failed, skipped = passed + ok, failed + bad, skipped + left_out
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
