#!/usr/bin/env python3
"""diff_trackers.py --build BUILD - every number of a run is read back from the trackers that got it.

    W&B       the offline directory that we write, by wandb's messages; `wandb sync --dry-run` finds it
    MLflow    a local `mlflow server`, which starts only after the run has ended: nothing is lost in the outage
    Trackio   its package's own storage

metrics.jsonl has the same bytes as that of a run without trackers.  A package that is missing skips its part."""
import argparse
import glob
import importlib.util
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zlib


def train(build, d, name, *more, env=None):
    words = [build / "miles", "train", "--hf-checkpoint", d / "model", "--num-rollout", "2", "--rollout-batch-size", "2",
             "--n-samples-per-prompt", "4", "--num-steps-per-rollout", "2", "--lr", "1e-3", "--device", "cpu", "--save", d / name,
             "--prompt-data", d / "prompts.jsonl", "--input-key", "messages", "--label-key", "label", "--apply-chat-template",
             "--rm-type", "math", "--rollout-max-response-len", "8", *more]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    return done.stderr


def expected(run):
    """{(name, axis, place): value} of every number."""
    out = {}
    for file in ("metrics.jsonl", "timing.jsonl"):
        for row in map(json.loads, (run / file).read_text().splitlines()):
            rollout, step = row.pop("rollout"), row.pop("step", None)
            axis = "train" if step is not None else "eval" if any(k.startswith("eval/") for k in row) else "rollout"
            for k, v in row.items():
                out[k, axis, rollout if step is None else step] = v
    return out


def compare(what, got, want):
    missing = {k: v for k, v in want.items() if got.get(k) != v}
    assert not missing, f"{what} lacks {list(missing.items())[:3]} of {len(want)} numbers"
    print(f"ok   {what} has all {len(want)} numbers")


def axis_of(row):
    for axis in ("train", "eval", "rollout"):
        if axis + "/step" in row:
            return axis, row[axis + "/step"]
    raise AssertionError(f"a row without a step: {row}")


def records(path):
    """The records of a .wandb file, by wandb's messages: a log of LevelDB behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2
    data = pathlib.Path(path).read_bytes()
    assert data[:7] == b":W&B\xe1\xbe\0", data[:7]
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block
            at += 32768 - at % 32768
            continue
        crc, length, kind = struct.unpack("<IHB", data[at:at + 7])
        part = data[at + 7:at + 7 + length]
        assert crc == zlib.crc32(part, zlib.crc32(bytes([kind]))), f"{path}: bad checksum at {at}"
        parts += part
        at += 7 + length
        if kind in (1, 4):  # FULL, LAST
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def check_wandb(run):
    file, = glob.glob(str(run / "wandb/offline-run-*/run-*.wandb"))
    got, kinds = {}, []
    for record in records(file):
        kinds.append(record.WhichOneof("record_type"))
        if kinds[-1] == "history":
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            axis, place = axis_of(row)
            got.update({(k, axis, place): v for k, v in row.items()})
        if kinds[-1] == "run":
            assert record.run.project == "p" and record.run.run_id == "abc", record.run
            assert any(c.key == "lr" for c in record.run.config.update), "the flags are missing"
        if kinds[-1] == "metric" and record.metric.glob_name == "train/*":
            assert record.metric.step_metric == "train/step"
    assert kinds[:2] == ["header", "run"] and kinds[-1] == "exit" and "metric" in kinds and "summary" in kinds, set(kinds)
    compare("W&B's run file", got, expected(run))
    found = subprocess.run([sys.executable, "-m", "wandb", "sync", "--dry-run", os.path.dirname(file)], capture_output=True, text=True,
                           env=dict(os.environ, WANDB_SILENT="false"))
    assert "abc" in found.stdout + found.stderr, found
    print("ok   wandb sync finds the directory")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def check_mlflow(build, d, run, port):
    """The server was not there during the run; now it is."""
    uri = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
                               "--backend-store-uri", f"sqlite:///{d}/mlflow.db", "--artifacts-destination", str(d / "artifacts")],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=d)
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(uri + "/health").read()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        subprocess.run([sys.executable, "share/tracker.py", run, "--mlflow", uri, "--mlflow-experiment-name", "e"], check=True)
        import mlflow
        client = mlflow.MlflowClient(uri)
        one, = client.search_runs([client.get_experiment_by_name("e").experiment_id])
        assert one.info.status == "FINISHED" and one.data.params["lr"] == "0.001", one
        got = {}
        for name in one.data.metrics:
            for m in client.get_metric_history(one.info.run_id, name):
                got[name, m.step] = m.value
        want = {(k.replace("@", "_"), place): v for (k, _, place), v in expected(run).items()}
        compare("MLflow", got, want)
    finally:
        server.terminate()
        server.wait()


def check_trackio(run, home):
    code = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps(SQLiteStorage.get_logs("t", sys.argv[1]), default=str))
"""
    shown = subprocess.run([sys.executable, "-c", code, run.name], check=True, capture_output=True, text=True,
                           env=dict(os.environ, TRACKIO_DIR=str(home)))
    got = {}
    for row in json.loads(shown.stdout.splitlines()[-1]):
        row = row.get("metrics", row)
        axis, place = axis_of(row)
        got.update({(k, axis, place): v for k, v in row.items()})
    compare("Trackio", got, expected(run))


def has(name):
    found = importlib.util.find_spec(name) is not None
    if not found:
        print(f"not checked: the Python package {name} is missing")
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=pathlib.Path, required=True)
    build = p.parse_args().build.absolute()
    with tempfile.TemporaryDirectory() as name:
        d = pathlib.Path(name)
        subprocess.run([build / "tools/quickstart_make", d, "1"], check=True, stdout=subprocess.DEVNULL)
        env = dict(os.environ, TRACKIO_DIR=str(d / "trackio"), PATH=os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
        train(build, d, "plain")
        port, flags = free_port(), ["--use-wandb", "--wandb-mode", "offline", "--wandb-project", "p", "--wandb-run-id", "abc",
                                    "--use-mlflow", "--tracker-linger", "2"]
        flags += ["--mlflow-tracking-uri", f"http://127.0.0.1:{port}", "--mlflow-experiment-name", "e"]
        if has("trackio"):
            flags += ["--use-trackio", "--trackio-project", "t"]
        said = train(build, d, "run", *flags, env=env)
        assert "not all metrics have reached the trackers" in said, said
        print("ok   a tracker that cannot be reached does not stop the run")
        run = d / "run"
        assert (run / "metrics.jsonl").read_bytes() == (d / "plain/metrics.jsonl").read_bytes()
        print("ok   metrics.jsonl has the same bytes with and without trackers")
        check_wandb(run)
        if has("mlflow"):
            check_mlflow(build, d, run, port)
        if has("trackio"):
            check_trackio(run, d / "trackio")


if __name__ == "__main__":
    main()
