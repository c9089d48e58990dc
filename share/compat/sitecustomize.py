"""Python imports this file at its start if the folder is on PYTHONPATH: python3 train.py in a
checkout of Miles then runs the train.py of this folder, which runs miles."""
import os
import sys


def own_driver():
    here = os.path.dirname(os.path.abspath(__file__))
    words = getattr(sys, "orig_argv", [])
    at = next((i for i, w in enumerate(words) if i and not w.startswith("-")), 0)
    name = os.path.basename(words[at]) if at and not {"-c", "-m"} & set(words[:at]) else ""
    ours = os.path.join(here, name)
    if name in ("train.py", "train_async.py", "train_multi_lora_async.py") and os.path.abspath(words[at]) != ours:
        os.execv(sys.executable, [sys.executable, ours] + words[at + 1:])


own_driver()
