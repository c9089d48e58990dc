#!/usr/bin/env python3
"""serve_qos.py --miles PROGRAM [--long] - quality of service of `miles serve` and `miles router`, from the outside.

    connections   many idle keep-alive connections and many streams at once, with their memory; --long: 10,000
    restart       three restarts under a loop of requests, over --handover-socket: none fails
    limits        requests, tokens and concurrent requests of a key: 429, Retry-After, x-ratelimit-*
    log           the access log's lines, SIGHUP, rotation by size; the key is nowhere in it
    metrics       the counters of all that"""
import argparse
import http.client
import json
import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serve_setup import Server, make_model  # noqa: E402


def ok(what):
    print("ok  ", what, flush=True)


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def address(url):
    u = urllib.parse.urlsplit(url)
    return u.hostname, u.port


def request_bytes(path, body=None):
    data = json.dumps(body).encode() if body is not None else b""
    head = f"{'POST' if body is not None else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(data)}\r\nContent-Type: application/json\r\n\r\n" if data else "\r\n"
    return head.encode() + data


# --- connections ------------------------------------------------------------------

def dial(at, requests):
    """Sends each request on a connection of its own."""
    socks = []
    for r in requests:
        s = socket.create_connection(at, timeout=30)
        s.sendall(r)
        s.setblocking(False)
        socks.append(s)
    return socks


def hear(socks, ends, seconds):
    """Waits until each reply has `ends`."""
    sel, waiting = selectors.DefaultSelector(), {}
    for s in socks:
        sel.register(s, selectors.EVENT_READ)
        waiting[s] = b""
    end = time.monotonic() + seconds
    while waiting:
        assert time.monotonic() < end, f"{len(waiting)} of {len(socks)} replies are missing after {seconds} s"
        for key, _ in sel.select(1):
            s = key.fileobj
            piece = s.recv(1 << 16)
            assert piece, f"the server closed a connection: {waiting[s][-300:]}"
            waiting[s] += piece
            if ends in waiting[s]:
                assert waiting[s].startswith(b"HTTP/1.1 200"), waiting[s][:200]
                sel.unregister(s)
                del waiting[s]


def text(server, path, headers=None):
    status, page = server.ask(path, headers=headers)
    assert status == 200, page
    return page


def number(page, name, labels=""):
    """The sum of a metric's values whose labels have this text."""
    found = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
             if re.match(re.escape(name) + r"[ {]", line) and labels in line]
    assert found, f"no {name} with {labels} in\n{page}"
    return sum(found)


def connections(miles, n, seconds):
    """Idle connections, each after a request; then streams that are all open before the first token."""
    server = Server(miles, "--max-queued-requests", "100000", "--threads", "1")
    pid, at = server.proc.pid, address(server.url)
    health = request_bytes("/health")
    hear(dial(at, [health] * 20), b"\r\n\r\n", 60)
    before, begin = resident(pid), time.monotonic()
    idle = dial(at, [health] * n)
    hear(idle, b"\r\n\r\n", seconds)
    each = (resident(pid) - before) / n
    assert each < 12 << 10, f"an idle connection takes {each:.0f} bytes"
    assert number(text(server, "/metrics"), "sglang:http_connections") >= n
    ok(f"{n} idle connections, {each:.0f} bytes each, {time.monotonic() - begin:.1f} s")
    for s in idle:
        s.close()

    body = {"input_ids": [1, 2, 3], "stream": True,
            "sampling_params": {"max_new_tokens": 4, "ignore_eos": True, "temperature": 0}}
    assert server.ask("/pause_generation", {})[0] == 200
    begin = time.monotonic()
    streams = dial(at, [request_bytes("/generate", body)] * n)
    wait_for("streams are missing", lambda: number(text(server, "/metrics"), "sglang:key_running_requests") == n)
    each = (resident(pid) - before) / n
    assert server.ask("/continue_generation", {})[0] == 200
    hear(streams, b"[DONE]", seconds)
    ok(f"{n} streams at once, {each:.0f} bytes each, {time.monotonic() - begin:.1f} s")
    assert each < 32 << 10, f"a stream takes {each:.0f} bytes"
    for s in streams:
        s.close()
    server.stop()


def few_files(miles):
    """A process that may open few files says so, and refuses connections rather than leaving them waiting."""
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    server = Server(miles, preexec_fn=limit, stderr=subprocess.PIPE)
    socks = [socket.create_connection(address(server.url), timeout=30) for _ in range(80)]
    refused = [s for s in socks[44:] if b"503" in s.recv(100)]
    assert len(refused) == 36, len(refused)
    for s in socks:
        s.close()
    server.proc.send_signal(signal.SIGTERM)
    said = server.proc.communicate(timeout=60)[1]
    assert "--max-connections" in said and "44 connections" in said, said
    ok("few files: a warning, and status 503 beyond the limit")


# --- restart ----------------------------------------------------------------------

class Loop(threading.Thread):
    """Requests in a loop, over a connection that is kept, and every third on a new one."""
    def __init__(self, at, kept):
        super().__init__()
        self.at, self.kept, self.n, self.failed, self.end = at, kept, 0, [], False

    def run(self):
        body = json.dumps({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}})
        conn = None
        while not self.end:
            try:
                conn = conn or http.client.HTTPConnection(*self.at, timeout=60)
                conn.request("POST", "/generate", body, {"Content-Type": "application/json"})
                reply = conn.getresponse()
                got = json.loads(reply.read())
                if reply.status != 200 or len(got["output_ids"]) != 8:
                    self.failed.append(f"{reply.status} {got}")
                if not self.kept or reply.getheader("Connection") == "close":
                    conn.close()
                    conn = None
            except Exception as e:  # noqa: BLE001 - any failure is what the test looks for
                self.failed.append(repr(e))
                conn = None
            self.n += 1


def start(words):
    proc = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = proc.stdout.readline()
    assert "http://" in line, f"{words}: {line}"
    return proc, re.search(r"https?://\S+", line).group(0)


def restart(miles, router):
    """With a router, the router is restarted, otherwise the server."""
    with tempfile.TemporaryDirectory(prefix="miles-qos-") as d:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = Server(miles) if router else None
        path = d + "/handover"
        if router:
            words = [miles, "router", "--worker-urls", server.url]
        else:
            words = [miles, "serve", "--model-path", make_model(d), "--drain-seconds", "300"]
        words += ["--port", str(port), "--handover-socket", path]
        proc, url = start(words)
        loops = [Loop(address(url), i % 2 == 0) for i in range(4)]
        for x in loops:
            x.start()
        for i in range(3):
            before = sum(x.n for x in loops)
            new, _ = start(words)
            assert proc.wait(timeout=60) == 0, "the server that was replaced failed"
            proc = new
            while sum(x.n for x in loops) < before + 20 and not any(x.failed for x in loops):
                time.sleep(0.02)
        for x in loops:
            x.end = True
        for x in loops:
            x.join()
        failed = [f for x in loops for f in x.failed]
        n = sum(x.n for x in loops)
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(timeout=60) == 0
        assert not failed, f"{len(failed)} of {n} requests were lost: {failed[:3]}"
        assert not os.path.exists(path), "the socket's path is left behind"
        if server:
            server.stop()
        other = subprocess.run([*words[:-1], d + "/" + "x" * 120], capture_output=True, text=True, timeout=60)
        assert other.returncode == 2 and "--handover-socket" in other.stderr, other.stderr
        ok(f"{'router' if router else 'server'}: 3 restarts, {n} requests, none lost")


# --- limits, log, metrics ---------------------------------------------------------

KEYS = """# keys of the test
key-a-secret name=alice requests-per-minute=3
key-b-secret name=bob tokens-per-minute=20
key-c-secret name=carol concurrent=1
key-d-secret
"""


def key_file(d, text, name="keys"):
    path = f"{d}/{name}"
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o600)
    return path


def ask(server, key, n=4, stream=False):
    conn = http.client.HTTPConnection(*address(server.url), timeout=60)
    body = {"input_ids": [1, 2, 3], "stream": stream, "sampling_params": {"max_new_tokens": n, "ignore_eos": True}}
    conn.request("POST", "/generate", json.dumps(body),
                 {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    reply = conn.getresponse()
    return reply.status, dict(reply.getheaders()), json.loads(reply.read()) if not stream else (conn, reply)


def check_limits(server):
    got = [ask(server, "key-a-secret") for _ in range(4)]
    assert [g[0] for g in got] == [200, 200, 200, 429], [g[0] for g in got]
    assert [g[1]["x-ratelimit-remaining-requests"] for g in got] == ["2", "1", "0", "0"], got
    assert got[0][1]["x-ratelimit-limit-requests"] == "3" and 1 <= int(got[3][1]["Retry-After"]) <= 20, got[3]
    assert "3 requests per minute" in got[3][2]["error"]["message"], got[3]
    assert got[3][2]["error"]["type"] == "rate_limit_error"
    assert ask(server, "key-b-secret", 40)[0] == 200  # 43 tokens of the 20 of a minute
    status, head, reply = ask(server, "key-b-secret")
    assert status == 429 and "20 tokens per minute" in reply["error"]["message"], reply
    assert head["x-ratelimit-remaining-tokens"] == "0" and 60 <= int(head["Retry-After"]) <= 75, head
    _, _, (conn, reply) = ask(server, "key-c-secret", 400, stream=True)
    status, head, refusal = ask(server, "key-c-secret")
    assert status == 429 and head["Retry-After"] == "1", (status, head)
    assert "1 concurrent requests" in refusal["error"]["message"], refusal
    reply.read()
    conn.close()
    end = time.monotonic() + 30
    while ask(server, "key-c-secret")[0] != 200:
        assert time.monotonic() < end
    assert ask(server, "key-d-secret")[0] == 200 and ask(server, "key-x-secret")[0] == 401
    assert server.ask("/pause_generation", {}, {"Authorization": "Bearer key-d-secret"})[0] == 401
    ok("limits of keys: requests, tokens, concurrent requests; 429 with Retry-After and x-ratelimit-*")


def wait_for(what, test):
    end = time.monotonic() + 30
    while not test():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def rows_of(path):
    try:
        with open(path) as f:
            return [json.loads(line) for line in f.read().splitlines()]
    except FileNotFoundError:
        return []


def check_log(server, log):
    wait_for("the log has no line of key4", lambda: any(r["key"] == "key4" for r in rows_of(log)))
    wait_for("the log has no line of status 401", lambda: any(r["status"] == 401 for r in rows_of(log)))
    rows = rows_of(log)
    first = rows[0]
    assert first["key"] == "alice" and first["route"] == "/generate" and first["status"] == 200, first
    assert first["prompt_tokens"] == 3 and first["completion_tokens"] == 4 and first["id"], first
    assert 0 <= first["queue_s"] <= first["ttft_s"] <= first["total_s"] < 60, first
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"]), first
    refused = [r for r in rows if r["status"] == 429]
    assert len(refused) >= 3 and refused[0]["key"] == "alice" and refused[0]["prompt_tokens"] is None, refused
    assert [r["key"] for r in rows if r["status"] == 401][0] is None
    with open(log) as f:
        assert "-secret" not in f.read(), "a key is in the log"
    os.rename(log, log + ".old")
    server.proc.send_signal(signal.SIGHUP)
    wait_for("SIGHUP opens no new log", lambda: os.path.exists(log))
    assert ask(server, "key-d-secret")[0] == 200
    wait_for("the new log has no line", lambda: len(rows_of(log)) >= 1)
    ok("access log: a JSON line for each request, without keys; SIGHUP opens a new file")


def check_metrics(server):
    head = {"Authorization": "Bearer key-d-secret"}
    page = text(server, "/metrics", head)
    name = "sglang:http_responses_total"
    assert number(page, name, 'endpoint="/generate",method="POST",status_code="200",key="alice"') == 3, page
    assert number(page, name, 'status_code="429",key="alice"') == 1
    assert number(page, name, 'status_code="401"') >= 2
    limited = "sglang:rate_limited_requests_total"
    assert number(page, limited, 'key="alice",limit="requests"') == 1
    assert number(page, limited, 'key="bob",limit="tokens"') == 1
    assert number(page, limited, 'key="carol",limit="concurrent"') >= 1
    assert number(page, "sglang:key_tokens_total", 'key="alice",kind="prompt"') == 9
    assert number(page, "sglang:key_tokens_total", 'key="alice",kind="generation"') == 12
    assert number(page, "sglang:key_running_requests") == 0
    for x in ("num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate", "prompt_tokens_total",
              "generation_tokens_total", "request_success_total", "http_connections", "http_connections_max",
              *(h + "_count" for h in ("time_to_first_token_seconds", "inter_token_latency_seconds",
                                       "e2e_request_latency_seconds", "queue_time_seconds",
                                       "prompt_tokens_histogram", "generation_tokens_histogram"))):
        assert number(page, "sglang:" + x) >= 0
    assert number(page, "process_resident_memory_bytes") > 1e6 and number(page, "process_open_fds") > 3
    series = [line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)), "a series occurs twice"
    ok(f"metrics: {len(series)} series, none twice")


def keys_and_log(miles):
    with tempfile.TemporaryDirectory(prefix="miles-qos-") as d:
        keys, admin = key_file(d, KEYS), key_file(d, "admin-secret\n", "admin")
        log = d + "/access.jsonl"
        server = Server(miles, "--api-key-file", keys, "--admin-api-key-file", admin, "--access-log", log)
        check_limits(server)
        check_log(server, log)
        check_metrics(server)
        server.stop()
        for text, why in ((KEYS, "each could change the server"), ("a b\n", "line 1: after the key, expected"),
                          ("a\nb name=\n", "line 2: a name has"), ("a\na\n", "line 2: the same key"),
                          ("a concurrent=0\n", "line 1: concurrent must be"), ("# none\n", "has no key")):
            done = subprocess.run([miles, "serve", "--model-path", d, "--api-key-file", key_file(d, text)],
                                  capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and why in done.stderr, (text, done.stderr)
        done = subprocess.run([miles, "router", "--api-key-file", key_file(d, "a tokens-per-minute=5\n")],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "does not support tokens-per-minute" in done.stderr, done.stderr
        ok("bad key files are refused with file, line and fix")
        server = Server(miles, "--access-log", log, "--access-log-max-bytes", "4096", "--rate-limit-requests", "2")
        got = [server.ask("/tokenize", {"prompt": "a"})[0] for _ in range(40)]
        assert got[:3] == [200, 200, 429], got
        wait_for("the log is not rotated", lambda: os.path.exists(log + ".1"))
        server.stop()
        assert len(rows_of(log)) + len(rows_of(log + ".1")) >= 20 and os.path.getsize(log + ".1") < 4096 + 1024
        ok("--rate-limit-requests without a key; the log is rotated by size")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", required=True)
    p.add_argument("--long", action="store_true")
    a = p.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n = 10000 if a.long else 300
    if hard < n + 300:
        print(f"skipped: {n} connections need ulimit -Hn {n + 300}; it is {hard}")
        return
    connections(a.miles, n, 240)
    few_files(a.miles)
    keys_and_log(a.miles)
    restart(a.miles, router=False)
    restart(a.miles, router=True)
    print("5 passed")


if __name__ == "__main__":
    main()
