#!/usr/bin/env python3
"""The dashboard in a real browser: every view renders, keys and narrow screens work, hostile text stays text.

    dashboard.py --build build/release [--screenshots DIR]

Needs Chromium (Debian: chromium), which it drives over a pipe with the DevTools protocol.
"""
import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'><svg onload=window.hit=1>"


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, chromium, profile):
        here_read, there_write = os.pipe()
        there_read, here_write = os.pipe()

        def fds():  # the protocol uses descriptors 3 and 4
            os.dup2(there_read, 200)
            os.dup2(there_write, 201)
            os.dup2(200, 3)
            os.dup2(201, 4)

        self.process = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--disable-dev-shm-usage", "--window-size=1280,900", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=fds, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(there_read)
        os.close(there_write)
        self.read, self.write = here_read, here_write
        self.buffer, self.number, self.session, self.console = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def message(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.read, 1 << 16)
            if not piece:
                raise SystemExit("the browser has ended")
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, **params):
        self.number += 1
        ask = {"id": self.number, "method": method, "params": params}
        if self.session:
            ask["sessionId"] = self.session
        os.write(self.write, json.dumps(ask).encode() + b"\0")
        while True:
            m = self.message()
            if m.get("id") == self.number:
                if "error" in m:
                    raise SystemExit(f"{method}: {m['error']}")
                return m["result"]
            if m.get("method") == "Log.entryAdded":
                self.console.append(m["params"]["entry"]["text"])
            if m.get("method") == "Runtime.exceptionThrown":
                self.console.append(json.dumps(m["params"]["exceptionDetails"])[:500])
            if m.get("method") == "Network.requestWillBeSent":
                url = m["params"]["request"]["url"]
                assert url.startswith(("http://127.0.0.1:", "about:", "data:")), f"the page asked for {url}"

    def js(self, text):
        """The value of an expression; a promise is awaited."""
        r = self.call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{text}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def wait(self, condition):
        """Until the condition holds; the page is asked after each frame, the runner limits the time."""
        self.js(f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 20); look(); }})")

    def open(self, url):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait("document.querySelector('main[data-ready]')")

    def view(self, fragment):
        self.js(f"document.getElementById('main').removeAttribute('data-ready'); location.hash = {json.dumps(fragment)}")
        self.wait("document.querySelector('main[data-ready]')")
        error = self.js("document.querySelector('main .error')?.textContent")
        assert not error, f"{fragment}: {error}"

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" and len(key) == 1 else "")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def shot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait()


def shell(*words):
    subprocess.run([str(w) for w in words], check=True, stdout=subprocess.DEVNULL)


def train(miles, d, model, name, lr):
    shell(miles, "train", "--hf-checkpoint", model, "--save", d / name, "--prompt-data", d / "prompts.jsonl",
          "--input-key", "messages", "--label-key", "label", "--apply-chat-template", "--num-rollout", "3",
          "--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "8",
          "--global-batch-size", "16", "--lr", lr, "--rm-type", "deterministic_random",
          "--eval-interval", "1", "--eval-prompt-data", "unseen", d / "few.jsonl", "--eval-max-response-len", "6",
          "--n-samples-per-eval-prompt", "1")


def make_runs(build, d):
    shell(build / "tools/quickstart_make", d, "1")
    rows = (d / "unseen.jsonl").read_text().splitlines()[:4]
    (d / "few.jsonl").write_text("\n".join(rows) + "\n")
    prompts = [json.loads(x) for x in (d / "prompts.jsonl").read_text().splitlines()[:8]]
    prompts[0]["label"] = HOSTILE
    (d / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    train(build / "miles", d, d / "model", "one", "1e-3")
    train(build / "miles", d, d / "model", "two", "5e-4")


def plant_hostile_text(d):
    """As if the model had written markup."""
    import sqlite3
    db = sqlite3.connect(d / "one/run.db")
    db.execute("UPDATE samples SET response = ?, prompt = ? || prompt WHERE rollout = 2 AND place = 0", (HOSTILE, HOSTILE))
    db.commit()
    sample = db.execute("SELECT sample FROM samples WHERE rollout = 2 AND place = 0").fetchone()[0]
    db.close()
    return sample


def check(what, condition):
    if not condition:
        raise AssertionError(what)
    print("ok  ", what)


def check_views(b, url, hostile, shots):
    b.open(url)
    check("the overview has charts of both runs", b.js("document.querySelectorAll('#charts .card').length") >= 8 and
          b.js("document.querySelectorAll('#runs input').length") == 2)
    check("charts are drawn", b.js("""[...document.querySelectorAll('#charts canvas')].every(c =>
        c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x))"""))
    b.js("document.querySelector('#others').open = true")
    b.wait("document.querySelectorAll('#others .card').length > 5")
    check("all other metrics unfold", True)
    b.js("document.querySelector('#others').open = false")
    b.js("document.querySelector('#smoothing').value = 0.9; "
         "document.querySelector('#smoothing').dispatchEvent(new Event('input'))")
    check("smoothing applies", b.js("state.smoothing") == 0.9)
    b.js("document.querySelector('#charts canvas').focus()")
    b.press("+")
    check("the keyboard zooms", b.js("state.zoom !== null"))
    b.press("Escape")
    check("Escape shows all", b.js("state.zoom === null"))
    if shots:
        b.wait("document.querySelectorAll('#charts canvas').length > 8")
        b.shot(shots / "dashboard-overview.png")
    b.view("#/timeline")
    check("the timeline shows phases", b.js("document.querySelectorAll('#legend .swatch').length") >= 4)
    b.view("#/rollouts")
    check("a rollout lists its groups", b.js("document.querySelectorAll('main tbody tr').length") == 4)
    b.js("document.querySelectorAll('main th button')[2].click()")
    b.view("#/group/2/" + b.js("document.querySelector('main tbody a').hash").split("/")[-1])
    check("a group lists its samples", b.js("document.querySelectorAll('main tbody tr').length") == 4)
    b.view("#/rollouts/1/eval")
    check("an evaluation lists its answers", b.js("document.querySelectorAll('main tbody tr').length") == 4)
    b.view("#/prompt/1")
    check("a prompt is shown over the rollouts", b.js("document.querySelectorAll('main tbody tr').length") >= 4)
    b.view("#/search?go=1&min_reward=0.5")
    check("search finds samples", b.js("document.querySelectorAll('#found tbody tr').length") > 0)
    b.view(f"#/sample/2/{hostile + 1}")
    check("a sample has a conversation and tokens", b.js("document.querySelectorAll('#conversation .turn').length") >= 2 and
          b.js("document.querySelectorAll('#tokens span').length") > 5)
    for shade in ("advantage", "mask", "version", "log-prob"):
        b.js(f"document.querySelector('#shade').value = '{shade}'; "
             "document.querySelector('#shade').dispatchEvent(new Event('change'))")
        check(f"tokens are coloured by {shade}",
              b.js("[...document.querySelectorAll('#tokens span.other')].some(s => s.style.background)"))
    if shots:
        b.shot(shots / "dashboard-sample.png")
    b.press("p")
    b.wait(f"location.hash === '#/sample/2/{hostile}'")
    check("p shows the previous sample", True)


def check_hostile(b, hostile):
    for fragment in (f"#/sample/2/{hostile}", "#/search?go=1&rollout=2", "#/overview"):
        b.view(fragment)
        check(f"hostile text runs no script in {fragment}", b.js("window.hit === undefined") and
              b.js("document.querySelectorAll('main img, main script, main svg').length") == 0)
    b.view(f"#/sample/2/{hostile}")
    check("hostile text is shown as text", "onerror" in b.js("document.querySelector('#conversation').textContent"))


def check_narrow(b):
    b.size(360, 700)
    for fragment in ("#/overview", "#/timeline", "#/rollouts", "#/search", "#/control"):
        b.view(fragment)
        check(f"{fragment} fits a narrow screen", b.js("document.documentElement.scrollWidth") <= 360)
    b.size(1280, 900)
    b.press("3")
    b.wait("location.hash === '#/rollouts'")
    check("keys select views", True)


def check_control(b, url):
    try:
        urllib.request.urlopen(urllib.request.Request(url + "/api/control", method="POST", data=b'{"action": "stop"}',
                                                      headers={"Content-Type": "application/json"}))
        raise AssertionError("a request without the key was carried out")
    except urllib.error.HTTPError as e:
        check("control needs the key", e.code == 401)
    b.view("#/control")
    b.js("sessionStorage.setItem('key', 'sesame'); document.querySelector('main button').click()")
    b.wait("document.querySelector('#control-note').textContent")
    check("a run that has ended cannot be paused", "no process runs" in b.js("document.querySelector('#control-note').textContent"))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--screenshots", type=pathlib.Path)
    o = p.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        print("skipped: Chromium is not installed (Debian: chromium)")
        return
    with tempfile.TemporaryDirectory() as name:
        d = pathlib.Path(name)
        make_runs(o.build, d)
        hostile = plant_hostile_text(d)
        (d / "key").write_text("sesame\n")
        (d / "key").chmod(0o600)
        server = subprocess.Popen([o.build / "miles", "dashboard", d / "one", d / "two", "--port", "0",
                                   "--admin-api-key-file", d / "key"], stdout=subprocess.PIPE, text=True)
        url = server.stdout.readline().split()[-1]
        browser = Browser(chromium, d / "profile")
        try:
            check_views(browser, url, hostile, o.screenshots)
            check_hostile(browser, hostile)
            check_narrow(browser)
            check_control(browser, url)
            errors = [x for x in browser.console if "409" not in x and "favicon" not in x]
            check(f"the browser's console is clean {errors or ''}", not errors)
        finally:
            browser.close()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
