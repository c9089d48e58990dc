#!/usr/bin/env python3
"""turns.py [MILES] [CONVERSATIONS] [SECONDS]: conversations with a tool that takes its time.

A rollout of 64 conversations on the quickstart's model with random weights.  Each turn ends
after some ten tokens, and the tool sleeps for a second before it replies.  While it sleeps,
the engine decodes the other conversations, so that the rollout takes the time of the longest
conversation and not the sum over all steps in which a turn ended.
"""
import json
import os
import subprocess
import sys
import tempfile

TOOL = """while read -r line; do sleep %s
case "$line" in
*'"turn": 1,'* | *'"turn": 2,'*) echo '{"text": " no "}' ;;
*) echo '{"done": true, "reward": 1}' ;;
esac; done
"""


def main():
    build = os.path.join(os.path.dirname(__file__), "..", "build", "release")
    miles = sys.argv[1] if len(sys.argv) > 1 else os.path.join(build, "miles")
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0

    with tempfile.TemporaryDirectory() as d:
        subprocess.run([os.path.join(build, "tools", "quickstart_make"), d, "1"], check=True,
                       stdout=subprocess.DEVNULL)
        with open(f"{d}/tool.sh", "w") as f:
            f.write(TOOL % seconds)
        stop = [str(i) for i in range(10, 40)]
        subprocess.run(
            [miles, "train", "--hf-checkpoint", f"{d}/model", "--prompt-data", f"{d}/prompts.jsonl",
             "--input-key", "messages", "--label-key", "label", "--apply-chat-template",
             "--custom-generate-function-path", f"cmd:sh {d}/tool.sh", "--generate-max-turns", "8",
             "--reward-workers", str(n), "--rollout-batch-size", str(n // 4),
             "--n-samples-per-prompt", "4", "--rollout-max-response-len", "96",
             "--rollout-stop-token-ids", *stop, "--num-rollout", "1",
             "--rm-type", "zero",
             "--lr", "0", "--save", f"{d}/run"], check=True, stdout=subprocess.DEVNULL)
        timing, metrics = ({k: v for line in open(f"{d}/run/{name}.jsonl")
                            for k, v in json.loads(line).items()}
                           for name in ("timing", "metrics"))
    turns = metrics["multi_turn/multi_turn_metric/round_number_max"]
    print(f"{n} conversations of up to {turns:g} turns, a tool of {seconds:g} s: rollout "
          f"{timing['perf/rollout_time']:.2f} s, of which {timing['perf/engine_time']:.2f} s in the "
          f"engine; the longest conversation waits {turns * seconds:g} s for the tool")


main()
