#!/usr/bin/env python3
"""miles_compat.py --build BUILD - launch scripts of Miles run unedited with share/compat first on PATH
and PYTHONPATH: a small one in their style trains a model, others start as many ranks as they ask for.

With MILES_CHECKOUT, the folder of a checkout of Miles, its own shell scripts run, too, up to the
command line of miles, whose flags must all be known.  They see no program but those listed here: some
kill every Python process of the machine first."""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

COMPAT = os.path.abspath("share/compat")

SCRIPT = """
set -ex
CKPT_ARGS=(
   --hf-checkpoint {dir}/model
   --load {dir}/run/
   --save {dir}/run/
   --save-interval 2
)
ROLLOUT_ARGS=(
   --prompt-data {dir}/prompts.jsonl
   --input-key messages
   --label-key label
   --apply-chat-template
   --rollout-shuffle
   --rm-type math
   --num-rollout 2
   --rollout-batch-size 2
   --n-samples-per-prompt 4
   --rollout-max-response-len 8
   --global-batch-size 8
)
PERF_ARGS=(
   --tensor-model-parallel-size 1
   --sequence-parallel
   --use-dynamic-batch-size
   --max-tokens-per-gpu 512
)
GRPO_ARGS=(--advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28)
SGLANG_ARGS=(--rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.7 --sglang-attention-backend fa3)
ray stop --force
ray start --head --node-ip-address 127.0.0.1 --num-gpus 1 --disable-usage-stats
RUNTIME_ENV_JSON="{{ \\"env_vars\\": {{ \\"PYTHONPATH\\": \\"/opt/Megatron-LM/\\", \\"MILES_DEVICE\\": \\"cpu\\" }} }}"
ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json="${{RUNTIME_ENV_JSON}}" \\
   -- python3 {driver} \\
   --actor-num-nodes 1 \\
   --actor-num-gpus-per-node 1 \\
   ${{CKPT_ARGS[@]}} ${{ROLLOUT_ARGS[@]}} ${{GRPO_ARGS[@]}} ${{PERF_ARGS[@]}} ${{SGLANG_ARGS[@]}} \\
   --optimizer adam --lr 1e-4
ray stop
"""


def check(good, what):
    if not good:
        sys.exit("failed: " + what)


def environment(**more):
    return dict(os.environ, PATH=COMPAT + ":" + os.environ["PATH"], PYTHONPATH=COMPAT, **more)


def trains(build, root, driver):
    """The script as a user starts it."""
    os.makedirs(root)
    subprocess.run([build + "/tools/quickstart_make", root, "1"], check=True)
    with open(root + "/run.sh", "w") as f:
        f.write(SCRIPT.format(dir=root, driver=driver))
    with open(root + "/" + driver, "w") as f:
        f.write("raise SystemExit('this is the train.py of Miles')\n")
    done = subprocess.run(["bash", "run.sh"], cwd=root, env=environment(MILES=os.path.abspath(build + "/miles")),
                          capture_output=True, text=True, timeout=200)
    check(done.returncode == 0, driver + " ends with %d:\n%s" % (done.returncode, done.stderr[-2000:]))
    with open(root + "/run/latest_checkpointed_iteration.txt") as f:
        check(f.read().strip() == "1", driver + " saves both rollouts")


def starts_ranks(root):
    """The command lines of jobs, by programs that print them."""
    def submit(*words, **env):
        done = subprocess.run(["ray", "job", "submit", "--", "python3", *words], capture_output=True, text=True,
                              cwd=root, env=environment(MILES="/bin/echo", MILES_MPIRUN="echo mpirun", **env))
        return done.stdout.strip()

    check(submit("train.py", "--lr", "1") == "train --lr 1", "one rank is a plain process")
    check(submit("a/train_async.py", "--actor-num-nodes", "2", "--actor-num-gpus-per-node=8") ==
          "mpirun -n 16 /bin/echo train-async --actor-num-nodes 2 --actor-num-gpus-per-node=8", "16 ranks")
    check(submit("a/train_multi_lora_async.py", "--multi-lora-n-adapters", "4") ==
          "train-async --multi-lora-n-adapters 4", "the driver of several adapters")
    check(submit("train.py", "--actor-num-gpus-per-node", "8", MILES_FLAGS="--dry-run") ==
          "train --actor-num-gpus-per-node 8 --dry-run", "a dry run is one process")
    check(submit("train.py", "--actor-num-nodes", "x") == "", "a number of nodes that is none")
    with open(root + "/train.py", "w") as f:
        f.write("print('the train.py of Miles')\n")
    direct = subprocess.run(["python3", "train.py", "--lr", "1"], capture_output=True, text=True, cwd=root,
                            env=environment(MILES="/bin/echo"))
    check(direct.stdout == "train --lr 1\n", "python3 train.py without ray")
    for words in (["start", "--head", "--num-gpus", "16"], ["status"], ["stop", "--force"]):
        done = subprocess.run(["ray", *words], capture_output=True, text=True, env=environment(TMPDIR=root))
        check(done.returncode == 0, "ray " + words[0])
        check(words != ["status"] or "/16.0 GPU" in done.stdout, "ray status counts GPUs")
    waited = subprocess.run(["python3", "-c", "import ray; ray.init(address='auto', ignore_reinit_error=True); "
                             "print(int(ray.cluster_resources().get('GPU', 0))); ray.shutdown()"], capture_output=True,
                            text=True, env=environment())
    check(waited.returncode == 0 and int(waited.stdout) >= 512, "import ray counts the GPUs that scripts wait for")
    check(subprocess.run(["ray", "up"], capture_output=True, env=environment()).returncode == 1, "ray up is refused")


# Programs that scripts of Miles may run; the second list does nothing.
REAL = "bash awk basename cat cut date dirname env envsubst false grep head id printf python3 sed seq sort tail tr true uniq wc xargs"
NOTHING = "pkill sleep nvidia-smi ssh scp rsync mkdir rm curl wget hf huggingface-cli pip kill hostname killall touch cp apt-get ip"

ARGUMENTS = [("glm5-disagg", "GLM-5_4layer p2p 0 127.0.0.1"), ("p2p_weight_transfer", "p2p 0 127.0.0.1"),
             ("multi-node", "broadcast 0"), ("nemotron-3-super", "head 127.0.0.1")]

RECORDER = """#!/usr/bin/env bash
printf '%s\\0' "$@" > "$RECORD"
"""


def sandbox(root):
    tools = root + "/bin"
    os.makedirs(tools)
    for name in REAL.split():
        os.symlink(os.path.realpath(sys.executable) if name == "python3" else shutil.which(name), tools + "/" + name)
    for name in NOTHING.split():
        os.symlink("true", tools + "/" + name)
    with open(root + "/miles", "w") as f:
        f.write(RECORDER)
    os.chmod(root + "/miles", 0o755)
    return tools


def real_scripts(build, root, checkout):
    """Every shell script of a checkout that submits a job."""
    tools, seen, without = sandbox(root), 0, []
    for path in sorted(glob.glob(checkout + "/scripts/**/*.sh", recursive=True) +
                       glob.glob(checkout + "/examples/**/*.sh", recursive=True)):
        with open(path) as f:
            text = f.read()
        if "ray job submit" not in text:
            continue
        record = root + "/record"
        if os.path.exists(record):
            os.remove(record)
        names = "BASE_DIR BASE_FOLDER MODEL_DIR DATA_DIR MODELS_DIR DATASETS_DIR"
        env = {n: "/nowhere" for n in names.split()}
        env["OUTPUT_DIR"] = root
        env.update(PATH=COMPAT + ":" + tools, PYTHONPATH=COMPAT, MILES=root + "/miles", MILES_MPIRUN=root + "/mpirun",
                   RECORD=record, HOME=root, TMPDIR=root, WANDB_KEY="k", WANDB_API_KEY="k",
                   MASTER_ADDR="127.0.0.1", NODE_RANK="0", WORLD_SIZE="1", RANK="0", CUDA_VISIBLE_DEVICES="0,1", RAY_ADDRESS="http://127.0.0.1:8265")
        with open(root + "/mpirun", "w") as f:
            f.write('#!/usr/bin/env bash\nshift 2\nexec "$@"\n')
        os.chmod(root + "/mpirun", 0o755)
        try:
            words = next((a for part, a in ARGUMENTS if part in path), "").split()
            subprocess.run(["bash", path, *words], cwd=checkout, env=env, stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=30)
        except subprocess.TimeoutExpired:
            pass
        for _ in range(50 if "--no-wait" in text else 0):
            time.sleep(0 if os.path.exists(record) else 0.1)
        if not os.path.exists(record):
            without.append(os.path.relpath(path, checkout))
            continue
        seen += 1
        with open(record) as f:
            words = f.read().split("\0")[:-1]
        done = subprocess.run([build + "/miles", *words, "--dry-run"], capture_output=True, text=True)
        unknown = re.findall(r".*(?:unknown flag|is not a flag|needs a value).*", done.stderr)
        check(not unknown, "%s:\n%s" % (path, "\n".join(unknown)))
    print("%d scripts of %s start miles; not reached: %s" % (seen, checkout, ", ".join(without) or "none"))
    check(seen > len(without), "most scripts reach miles")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    args = p.parse_args()
    build = os.path.abspath(args.build)
    with tempfile.TemporaryDirectory() as root:
        for driver in ("train.py", "train_async.py"):
            trains(build, root + "/" + driver[:-3], driver)
        starts_ranks(root)
        checkout = os.environ.get("MILES_CHECKOUT")
        if checkout:
            real_scripts(build, root, os.path.abspath(checkout))
        else:
            print("skipped: scripts of a checkout of Miles: MILES_CHECKOUT is not set")


main()
