#!/usr/bin/env python3
"""environments.py --build BUILD [openenv|verifiers-v0|verifiers-v1|checkout ...] - environments of other packages train a
small model: an OpenEnv server, a verifiers environment, and the example modules of a checkout of Miles
($MILES_CHECKOUT) that need no other package.  In each train step the log-probs of rollout and training are
equal to the bit.  tools/with-python.sh gives the packages."""
import argparse
import glob
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request

SERVER = """
import sys
import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    message: str


class Heard(Observation):
    message: str = ""


class Letters(Environment):
    '''Counts vowels, three turns long.'''
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(episode_id="0", step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id or "0", step_count=0)
        return Heard(message="write vowels", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        n = sum(c in "aeiou" for c in action.message)
        return Heard(message=f"{n} more", done=self._state.step_count >= 3, reward=n / 10)

    @property
    def state(self):
        return self._state


app = create_app(Letters, Say, Heard, env_name="letters", max_concurrent_envs=64)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""

VERIFIERS_V0 = """
import verifiers as vf
from datasets import Dataset


class Counting(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "more"}]


def vowels(completion, **kwargs):
    return sum(c in "aeiou" for m in completion if m["role"] == "assistant" for c in m["content"]) / 10


def load_environment(**kwargs):
    data = Dataset.from_list([{"question": "write vowels", "answer": "a"}])
    return Counting(dataset=data, rubric=vf.Rubric(funcs=[vowels]), max_turns=2)
"""

# Two agents play: a writer answers twice, and a critic reads what it wrote.
VERIFIERS_V1 = """
import itertools
import verifiers.v1 as vf


def vowels(trace):
    return sum(c in "aeiou" for m in trace.assistant_messages for c in m.content or "") / 10


class WriteTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def count(self, trace) -> float:
        return vowels(trace)


class WriteTaskset(vf.Taskset[WriteTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for i in itertools.count():
            yield WriteTask(vf.TaskData(name=f"write#{i}", prompt="write vowels"), self.config.task)


class CriticTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class WriteEnvConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()


class WriteEnv(vf.Env[WriteEnvConfig]):
    async def run(self, task, agents):
        async with agents.writer.interaction(task) as writer:
            await writer.turn()
            await writer.turn("more")
        said = writer.trace.last_reply or "nothing"
        trace = await agents.critic.run(CriticTask(vf.TaskData(prompt="judge: " + said)))
        trace.record_reward("length", len(said) / 100)


__all__ = ["WriteTaskset", "WriteEnv"]
"""


def check(good, what):
    if not good:
        sys.exit("failed: " + what)


def write(path, text):
    with open(path, "w") as f:
        f.write(textwrap.dedent(text))


def train(build, root, name, *flags, rollouts=2, **env):
    """A short run; every train step compares log-probs."""
    command = [build + "/miles", "train", "--hf-checkpoint", root + "/model", "--prompt-data", root + "/prompts.jsonl",
               "--input-key", "messages", "--label-key", "label", "--num-rollout", str(rollouts),
               "--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "120",
               "--lr", "1e-3", "--overwrite", "--save", f"{root}/{name}", *flags]
    path = root + ":" + os.environ.get("PYTHONPATH", "")
    python = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]  # whose python3 the workers are
    done = subprocess.run(command, capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, PYTHONPATH=path, PATH=python, **env))
    said = done.stdout + done.stderr
    check(done.returncode == 0, f"{name} ends with {done.returncode}:\n{said[-3000:]}")
    check(said.count("forward_logp_max_diff 0,") == rollouts or "stale tokens" in said, f"{name}: log-probs differ:\n{said[-3000:]}")
    return said


def trained_samples(recorded):
    """The samples that --save-debug-rollout-data has written."""
    text = "".join(subprocess.run(["zstdcat", f], check=True, capture_output=True, text=True).stdout
                   for f in sorted(glob.glob(recorded)))
    return [json.loads(line) for line in text.splitlines()]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def openenv(build, root):
    try:
        import openenv  # noqa: F401
    except ImportError:
        return "the package openenv-core is not installed: pip install openenv-core"
    write(root + "/letters_server.py", SERVER)
    port = free_port()
    server = subprocess.Popen([sys.executable, root + "/letters_server.py", str(port)], stderr=subprocess.DEVNULL)
    try:
        while True:
            check(server.poll() is None, "the OpenEnv server ends")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        said = train(build, root, "openenv", "--custom-generate-function-path", "miles.adapters.openenv.OpenEnv",
                     OPENENV_ENV_URL=f"http://127.0.0.1:{port}")
        check("reward 0 to 0," not in said, "the environment gives no reward:\n" + said[-2000:])
    finally:
        server.kill()
        server.wait()
    return None


def verifiers_v0(build, root):
    try:
        import verifiers as vf
        from datasets import Dataset  # noqa: F401
        assert hasattr(vf, "MultiTurnEnv")
    except (ImportError, AssertionError):
        return "the packages verifiers (0.1) and datasets are not installed: pip install 'verifiers<0.2' datasets"
    write(root + "/counting.py", VERIFIERS_V0)
    said = train(build, root, "verifiers", "--custom-generate-function-path", "miles.adapters.verifiers.generate",
                 VERIFIERS_ENV="counting")
    check("reward 0 to 0," not in said, "the environment gives no reward:\n" + said[-2000:])
    return None


def verifiers_v1(build, root):
    try:
        import uv  # noqa: F401
        import verifiers.v1 as vf
        assert hasattr(vf, "EnvConfig")
    except (ImportError, AssertionError):
        return "the packages verifiers (0.4) and uv are not installed: pip install verifiers uv"
    write(root + "/writing.py", VERIFIERS_V1)
    rows = [{"messages": [{"role": "user", "content": f"task {i}"}], "label": "", "metadata": {"task": i}} for i in range(8)]
    write(root + "/tasks.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    local = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    flags = ("--custom-generate-function-path", "miles.adapters.verifiers.generate", "--use-session-server",
             "--prompt-data", root + "/tasks.jsonl", "--save-debug-rollout-data", root + "/verifiers-{rollout_id}.jsonl.zst")
    env = {"VERIFIERS_ENV": "writing", "VERIFIERS_ENV_ARGS": json.dumps({"writer": local, "critic": local})}
    first = train(build, root, "verifiers", *flags, **env)
    check("reward 0 to 0," not in first, "the environment gives no reward:\n" + first[-2000:])
    samples = trained_samples(root + "/verifiers-*.jsonl.zst")
    agents = [s["metadata"].get("agent") for s in samples]
    check(agents.count("writer") == agents.count("critic") == 16, f"16 episodes of two agents gave {agents}")
    check(all(s["reward"] is not None for s in samples), "a sample has no reward")
    train(build, root, "again", *flags, "--save-debug-rollout-data", root + "/again-{rollout_id}.jsonl.zst", rollouts=1, **env)
    again = trained_samples(root + "/again-0.jsonl.zst")
    check([s["tokens"] for s in again] == [s["tokens"] for s in samples[:16]], "another run with the seed draws other tokens")
    return None


EXAMPLES = [  # module, folder of the checkout for PYTHONPATH, packages that it needs, flags
    ("examples/experimental/multi_agent", "", "", "--rm-type deterministic_random --rollout-max-context-len 512 "
     "--custom-generate-function-path "
     "examples.experimental.multi_agent.rollout_with_multi_agents.generate_with_multi_agents"),
    ("examples/infra_features/train_infer_mismatch_helper/mis.py", "", "torch", "--rm-type deterministic_random "
     "--use-tis --custom-tis-function-path "
     "examples.infra_features.train_infer_mismatch_helper.mis:compute_mis_weights_with_cp"),
    ("examples/experimental/search-r1/generate_with_search.py", "examples/experimental/search-r1", "",
     "--custom-generate-function-path generate_with_search.generate --custom-rm-path generate_with_search.reward_func"),
    ("examples/retool_v2/tool_sandbox.py", "examples/retool_v2", "psutil", "--custom-rm-path tool_sandbox.reward_func "
     "--reward-key score --custom-generate-function-path miles.rollout.generate_hub.multi_turn.generate "
     "--generate-execute-tool-function-path tool_sandbox.execute_tool"),
    ("examples/experimental/openenv/openenv_generate.py", "examples/experimental/openenv", "",
     "--custom-rm-path openenv_generate.reward_func"),
    ("examples/experimental/nemo-gym/nemogym_generate.py", "examples/experimental/nemo-gym", "",
     "--custom-rm-path nemogym_generate.reward_func"),
    ("examples/swe-agent-harbor-docker/generate.py", "examples/swe-agent-harbor-docker", "",
     "--custom-rm-path generate.reward_func --rollout-function-path generate.RolloutFn"),
    ("examples/on_policy_distillation/qwen3_5_35b_selfdistill/rm.py",
     "examples/on_policy_distillation/qwen3_5_35b_selfdistill", "", "--custom-rm-path rm.reward_func"),
    ("tests/manual/compact_split_generate.py", "tests/manual", "", "--rm-type deterministic_random "
     "--custom-generate-function-path compact_split_generate.generate"),
    ("tests/e2e/sglang/utils/router_equivalence_generate.py", "tests/e2e/sglang/utils", "numpy",
     "--rm-type deterministic_random --custom-generate-function-path router_equivalence_generate.generate"),
]


def has(package):
    return subprocess.run([sys.executable, "-c", "import " + package], capture_output=True).returncode == 0


def checkout(build, root):
    """Example modules of Miles, unmodified."""
    miles = os.environ.get("MILES_CHECKOUT")
    if not miles:
        return "MILES_CHECKOUT is not set: name the folder of a checkout of Miles"
    for module, folder, package, flags in EXAMPLES:
        if package and not has(package):
            print(f"    {module}: needs {package}")
            continue
        os.environ["PYTHONPATH"] = f"{miles}:{miles}/{folder}"
        words = flags.split()
        if "search-r1" in module:
            write(root + "/search.jsonl", '{"messages": [{"role": "user", "content": "who?"}], '
                  '"label": {"ground_truth": {"target": ["Emma"]}}}\n')
            words += ["--prompt-data", root + "/search.jsonl", "--rollout-batch-size", "1"]
        train(build, root, "example", "--apply-chat-template", "--rollout-max-response-len", "24", *words, rollouts=1)
        print(f"    {module}: runs", flush=True)
    return None


CASES = {"openenv": openenv, "verifiers-v0": verifiers_v0, "verifiers-v1": verifiers_v1, "checkout": checkout}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    opts = parser.parse_args()
    skipped = []
    with tempfile.TemporaryDirectory() as root:
        subprocess.run([opts.build + "/tools/quickstart_make", root, "1"], check=True)
        for name in opts.cases or CASES:
            why = CASES[name](os.path.abspath(opts.build), root)
            print(f"{name}: {why or 'passed'}", flush=True)
            skipped += [why] if why else []
    if len(skipped) == len(opts.cases or CASES):
        print("skipped: " + skipped[0])


main()
