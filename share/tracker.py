#!/usr/bin/env python3
"""tracker.py RUN [--wandb online|offline] [--mlflow URI] [--trackio] ... - gives the metrics of a run to trackers.

RUN is the directory of --save.  metrics.jsonl and timing.jsonl in it are the source: what a tracker has not received yet stays
there, and trackers.json remembers how far each has come.  A tracker that cannot be reached is tried again, and never delays the
run or the other trackers.

`miles train` starts this program with --follow for --use-wandb, --use-mlflow and --use-trackio; it then sends rows as the run
writes them until its standard input ends, and for --linger seconds more.  Without --follow it sends what is left and ends: that is
how to catch up after an outage.  Exit status 3: something could not be sent.

wandb and trackio need their Python packages, an offline directory of W&B and MLflow do not.  The packages' own environment
variables (WANDB_API_KEY, WANDB_BASE_URL, MLFLOW_TRACKING_TOKEN, ...) apply."""
import argparse
import base64
import importlib.util
import json
import math
import os
import re
import struct
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib

FILES = ("metrics.jsonl", "timing.jsonl")
AXES = {"train/*": "train/step", "rollout/*": "rollout/step", "multi_turn/*": "rollout/step", "passrate/*": "rollout/step",
        "perf/*": "rollout/step", "eval/*": "eval/step"}
MOST_ROWS = 200  # given to a tracker at once


# --- rows --------------------------------------------------------------------------------------------------------------


def placed(line):
    """The metrics of a line, with the axis they belong to and their place on it."""
    row = json.loads(line)
    rollout, step = row.pop("rollout", 0), row.pop("step", None)
    kind = "train" if step is not None else "eval" if any(k.startswith("eval/") for k in row) else "rollout"
    row = {k: v for k, v in row.items() if v is not None}
    return row, kind + "/step", step if step is not None else rollout


class Rows:
    """The rows of a file from a given one on; only whole lines count."""

    def __init__(self, path, skip):
        self.path, self.skip, self.offset, self.inode = path, skip, 0, None

    def read(self):
        """The next rows.  A run that resumes replaces its file, whose first rows are those that were there before."""
        try:
            with open(self.path, "rb") as f:
                inode = os.fstat(f.fileno()).st_ino
                if inode != self.inode:
                    self.inode, self.offset, self.seen = inode, 0, 0
                f.seek(self.offset)
                out = []
                for line in f:
                    if not line.endswith(b"\n") or len(out) == MOST_ROWS:
                        break
                    self.offset += len(line)
                    self.seen += 1
                    if self.seen > self.skip:
                        out.append(placed(line))
                return out
        except FileNotFoundError:
            return []


class State:
    """How many rows each tracker has, and its run's id; trackers.json."""

    def __init__(self, run):
        self.path, self.lock = os.path.join(run, "trackers.json"), threading.Lock()
        try:
            with open(self.path, encoding="utf-8") as f:
                self.all = json.load(f)
        except (FileNotFoundError, ValueError):
            self.all = {}

    def of(self, name):
        return self.all.setdefault(name, {"rows": [0] * len(FILES)})

    def save(self):
        with self.lock:
            with open(self.path + ".new", "w", encoding="utf-8") as f:
                json.dump(self.all, f)
            os.replace(self.path + ".new", self.path)


# --- W&B, without its package -------------------------------------------------------------------------------------------


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A field of a protocol buffer: bytes and text with a length, whole numbers as varints."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


class WandbDirectory:
    """offline-run-DATE-ID/run-ID.wandb, which `wandb sync` uploads: a log of LevelDB whose records are wandb's messages."""

    BLOCK = 32768

    def __init__(self, o, state, config):
        self.o, self.state, self.config = o, state, config
        self.file = None

    def start(self):
        """Rows are few, so that the file is written anew from the first one."""
        mine = self.state.of("wandb-offline")
        mine["rows"] = [0] * len(FILES)
        mine.setdefault("id", self.o.wandb_run_id or os.urandom(4).hex())
        mine.setdefault("began", time.strftime("%Y%m%d_%H%M%S"))
        root = os.path.join(self.o.wandb_dir or self.o.run, "wandb")
        self.dir = os.path.join(root, f"offline-run-{mine['began']}-{mine['id']}")
        os.makedirs(os.path.join(self.dir, "files"), exist_ok=True)
        self.file = open(os.path.join(self.dir, f"run-{mine['id']}.wandb"), "wb")
        self.file.write(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
        self.number, self.step, self.summary = 0, 0, {}
        self.record(21, field(1, field(1, "0.19.0") + field(2, "0.13.0")))  # written as by, readable from
        self.record(17, self.run_record(mine["id"]))
        for name, axis in AXES.items():
            self.record(12, field(1, axis))
            self.record(12, field(2, name) + field(4, axis))

    def run_record(self, run_id):
        out = field(1, run_id)
        if self.o.wandb_team:
            out += field(2, self.o.wandb_team)
        out += field(3, self.o.wandb_project or "miles")
        items = b"".join(field(1, field(1, k) + field(16, json.dumps(v))) for k, v in self.config.items())
        out += field(4, items)
        if self.o.wandb_group:
            out += field(6, self.o.wandb_group)
        out += field(8, self.o.wandb_run_name or run_id)
        return out + field(17, field(1, int(time.time())))

    def record(self, number, message):
        self.number += 1
        self.write(field(1, self.number) + field(number, message))

    def write(self, data):
        """Splits a record at the borders of blocks."""
        first = True
        while first or data:
            room = self.BLOCK - self.file.tell() % self.BLOCK
            if room < 7:
                self.file.write(b"\0" * room)
                continue
            part, data = data[:room - 7], data[room - 7:]
            kind = (1 if not data else 2) if first else (4 if not data else 3)
            self.file.write(struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part)
            first = False

    def send(self, rows):
        for row, axis, place in rows:
            row = {**row, axis: place}
            items = b"".join(field(1, field(1, k) + field(16, json.dumps(v))) for k, v in row.items())
            self.record(2, items + field(2, field(1, self.step)))
            self.step += 1
            self.summary.update(row)
        self.file.flush()

    def finish(self):
        if not self.file:
            return
        self.record(3, b"".join(field(1, field(1, k) + field(16, json.dumps(v))) for k, v in self.summary.items()))
        self.record(18, field(1, 0))
        self.file.close()


# --- trackers of other programs ---------------------------------------------------------------------------------------


class Wandb:
    """Through the package wandb, which uploads."""

    def __init__(self, o, state, config):
        self.o, self.state, self.config, self.run = o, state, config, None

    def start(self):
        import wandb
        mine = self.state.of("wandb")
        self.run = wandb.init(project=self.o.wandb_project or "miles", entity=self.o.wandb_team, group=self.o.wandb_group,
                              id=self.o.wandb_run_id or mine.get("id"), name=self.o.wandb_run_name, dir=self.o.wandb_dir or self.o.run,
                              resume="allow", mode="online", config=self.config)
        mine["id"] = self.run.id
        for name, axis in AXES.items():
            self.run.define_metric(axis)
            self.run.define_metric(name, step_metric=axis)

    def send(self, rows):
        for row, axis, place in rows:
            self.run.log({**row, axis: place})

    def finish(self):
        if self.run:
            self.run.finish()


class Trackio:
    """Through the package trackio."""

    def __init__(self, o, state, config):
        self.o, self.state, self.config, self.run = o, state, config, None

    def start(self):
        import trackio
        mine = self.state.of("trackio")
        mine.setdefault("name", os.path.basename(os.path.abspath(self.o.run)))
        self.trackio, self.place = trackio, sum(mine["rows"])
        self.run = trackio.init(project=self.o.trackio_project or "miles", name=mine["name"], config=self.config, resume="allow")

    def send(self, rows):
        for row, axis, place in rows:
            self.trackio.log({**row, axis: place}, step=self.place)
            self.place += 1

    def finish(self):
        if self.run:
            self.trackio.finish()


class Mlflow:
    """Through the REST API of an MLflow server."""

    def __init__(self, o, state, config):
        self.o, self.state, self.config, self.id = o, state, config, None
        self.uri = (o.mlflow or os.environ.get("MLFLOW_TRACKING_URI") or "http://127.0.0.1:5000").rstrip("/")

    def ask(self, path, body):
        q = urllib.request.Request(f"{self.uri}/api/2.0/mlflow/{path}", json.dumps(body).encode(),
                                   {"Content-Type": "application/json"})
        if os.environ.get("MLFLOW_TRACKING_TOKEN"):
            q.add_header("Authorization", "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"])
        elif os.environ.get("MLFLOW_TRACKING_USERNAME"):
            pair = os.environ["MLFLOW_TRACKING_USERNAME"] + ":" + os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
            q.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
        with urllib.request.urlopen(q, timeout=30) as reply:
            return json.loads(reply.read() or b"{}")

    def experiment(self):
        name = self.o.mlflow_experiment_name or "miles"
        try:
            return self.ask("experiments/create", {"name": name})["experiment_id"]
        except urllib.error.HTTPError as e:
            if e.code != 400:
                raise
        found = self.ask("experiments/search", {"max_results": 1, "filter": "name = '%s'" % name.replace("'", "''")})
        return found["experiments"][0]["experiment_id"]

    def start(self):
        mine = self.state.of("mlflow")
        self.id = self.o.mlflow_run_id or mine.get("id")
        if self.id:
            return
        run = self.ask("runs/create", {"experiment_id": self.experiment(), "start_time": int(1000 * time.time()),
                                       "run_name": self.o.mlflow_run_name or os.path.basename(os.path.abspath(self.o.run))})
        self.id = mine["id"] = run["run"]["info"]["run_id"]
        self.state.save()
        params = [{"key": self.key(k), "value": str(v)[:500]} for k, v in self.config.items() if v is not None]
        for i in range(0, len(params), 100):
            self.ask("runs/log-batch", {"run_id": self.id, "params": params[i:i + 100]})

    @staticmethod
    def key(name):
        return re.sub(r"[^a-zA-Z0-9_\-./\s]", "_", name)

    def send(self, rows):
        now = int(1000 * time.time())
        metrics = [{"key": self.key(k), "value": v, "timestamp": now, "step": place} for row, axis, place in rows
                   for k, v in {**row, axis: place}.items()]
        for i in range(0, len(metrics), 1000):
            self.ask("runs/log-batch", {"run_id": self.id, "metrics": metrics[i:i + 1000]})

    def finish(self):
        if self.id:
            self.ask("runs/update", {"run_id": self.id, "status": "FINISHED", "end_time": int(1000 * time.time())})


# --- following a run ----------------------------------------------------------------------------------------------------


class Feeder(threading.Thread):
    """Gives the rows to one tracker; tries again when it fails."""

    def __init__(self, name, tracker, run, state, ending, deadline):
        super().__init__(daemon=True)
        self.name_, self.tracker, self.state, self.ending, self.deadline = name, tracker, state, ending, deadline
        self.run_, self.done, self.pause = run, False, 1.0

    def attempt(self, what, *args):
        """Until it succeeds; False: there is no time left."""
        while True:
            try:
                what(*args)
                self.pause = 1.0
                return True
            except Exception as e:  # whatever the tracker raises, the rows stay on disk
                print(f"{time.strftime('%H:%M:%S')} {self.name_}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            if self.ending.is_set() and time.monotonic() + self.pause > self.deadline():
                return False
            self.ending.wait(self.pause) if not self.ending.is_set() else time.sleep(self.pause)
            self.pause = min(2 * self.pause, 60.0)

    def run(self):
        if not self.attempt(self.tracker.start):
            return
        mine = self.state.of(self.name_)
        files = [Rows(os.path.join(self.run_, f), n) for f, n in zip(FILES, mine["rows"])]
        while True:
            last, sent = self.ending.is_set(), 0  # read before the files, so that nothing written before the end is missed
            for i, f in enumerate(files):
                rows = f.read()
                if rows and not self.attempt(self.tracker.send, rows):
                    return
                mine["rows"][i] += len(rows)
                sent += len(rows)
            if sent:
                self.state.save()
            elif last:
                break
            else:
                self.ending.wait(1.0)
        self.done = self.attempt(self.tracker.finish)
        self.state.save()


def make_trackers(o, state, config):
    trackers = {}
    if o.wandb == "online" and not importlib.util.find_spec("wandb"):
        print("the Python package wandb is missing: writing a directory for wandb sync", file=sys.stderr, flush=True)
        o.wandb = "offline"
    if o.wandb:
        trackers["wandb" if o.wandb == "online" else "wandb-offline"] = (
            Wandb if o.wandb == "online" else WandbDirectory)(o, state, config)
    if o.mlflow is not None:
        trackers["mlflow"] = Mlflow(o, state, config)
    if o.trackio:
        trackers["trackio"] = Trackio(o, state, config)
    return trackers


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("run")
    p.add_argument("--follow", action="store_true")
    p.add_argument("--linger", type=float, default=30)
    p.add_argument("--wandb", choices=["online", "offline"])
    p.add_argument("--mlflow", metavar="URI", nargs="?", const="")
    p.add_argument("--trackio", action="store_true")
    for name in ("wandb-project", "wandb-team", "wandb-group", "wandb-run-id", "wandb-run-name", "wandb-dir",
                 "mlflow-experiment-name", "mlflow-run-name", "mlflow-run-id", "trackio-project"):
        p.add_argument("--" + name)
    return p.parse_args()


def main():
    o = options()
    if not os.path.exists(os.path.join(o.run, FILES[0])):
        raise SystemExit(f"{o.run}/metrics.jsonl is missing: name the directory of --save of a run")
    try:
        with open(os.path.join(o.run, "flags.json"), encoding="utf-8") as f:
            config = json.load(f)
    except FileNotFoundError:
        config = {}
    state, ending, end = State(o.run), threading.Event(), [math.inf]
    feeders = [Feeder(name, t, o.run, state, ending, lambda: end[0]) for name, t in make_trackers(o, state, config).items()]
    for f in feeders:
        f.start()
    if o.follow:
        sys.stdin.read()
    end[0] = time.monotonic() + o.linger
    ending.set()
    for f in feeders:
        f.join(max(0.0, end[0] + 5 - time.monotonic()))
    os._exit(0 if all(f.done for f in feeders) else 3)  # not held by a thread that still waits for a tracker


if __name__ == "__main__":
    main()
