#!/usr/bin/env python3
"""`miles serve` and `miles router` over TLS: curl, openssl s_client, Python's client and our own.

    tests/e2e/serve_tls.py --miles build/release/miles

With the package openai (tools/with-python.sh openai ...) also OpenAI's client.
"""
import argparse
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile

from serve_setup import Server

BODY = json.dumps({"text": "abc", "sampling_params": {"max_new_tokens": 8, "sampling_seed": 3, "ignore_eos": True}})


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **more)


class Certificates:
    """An authority, a server's certificate for 127.0.0.1 and localhost, a client's; an authority nobody trusts."""

    def __init__(self, path):
        self.path = path
        self.authority("ca")
        self.authority("other")
        self.signed("server", "ca", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self.signed("elsewhere", "ca", "subjectAltName=DNS:example.org")
        self.signed("stranger", "other", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self.signed("client", "ca", "extendedKeyUsage=clientAuth")
        run("openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", self("server.key"), "-out", self("locked.key"), check=True)

    def __call__(self, name):
        return os.path.join(self.path, name)

    def authority(self, name):
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" + name, "-days", "2",
            "-keyout", self(name + ".key"), "-out", self(name + ".pem"), check=True)

    def signed(self, name, by, extension):
        run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" + name, "-keyout", self(name + ".key"),
            "-out", self(name + ".csr"), check=True)
        with open(self("ext"), "w") as f:
            f.write(extension)
        run("openssl", "x509", "-req", "-in", self(name + ".csr"), "-CA", self(by + ".pem"), "-CAkey", self(by + ".key"),
            "-CAcreateserial", "-days", "2", "-extfile", self("ext"), "-out", self(name + ".pem"), check=True)

    def flags(self, name):
        return ["--ssl-certfile", self(name + ".pem"), "--ssl-keyfile", self(name + ".key")]


def curl(url, *words):
    return run("curl", "-sS", "--max-time", "20", *words, url)


def test_curl(c, miles):
    plain = Server(miles)
    s = Server(miles, *c.flags("server"))
    try:
        assert s.url.startswith("https://"), s.url
        expected = curl(plain.url + "/generate", "-d", BODY)
        reply = curl(s.url + "/generate", "--cacert", c("ca.pem"), "-d", BODY)
        assert json.loads(reply.stdout)["output_ids"] == json.loads(expected.stdout)["output_ids"], reply
        # Several requests on one connection, one of them streamed and one large.
        with open(c("big.json"), "w") as f:
            json.dump(json.loads(BODY) | {"rid": "x" * 3000000}, f)
        many = curl(s.url + "/health", "--cacert", c("ca.pem"), "-d", json.dumps(json.loads(BODY) | {"stream": True}), s.url + "/generate",
                    "--next", "-sS", "--cacert", c("ca.pem"), "-d", "@" + c("big.json"), s.url + "/generate",
                    "--next", "-sS", "--cacert", c("ca.pem"))
        assert "data: [DONE]" in many.stdout and many.returncode == 0, many.stderr
        # A client that does not know the authority, and another name.
        assert curl(s.url + "/health").returncode == 60
        assert curl(s.url.replace("127.0.0.1", "localhost") + "/health", "--cacert", c("ca.pem")).returncode == 0
        # HTTP without TLS, bytes that are neither, a client that says nothing.
        assert curl(s.url.replace("https", "http") + "/health").returncode != 0
        port = int(s.url.rsplit(":", 1)[1])
        for junk in b"\x16\x03\x01\xff\xff" + b"\0" * 70, b"\0", b"":
            with socket.create_connection(("127.0.0.1", port)) as k:
                k.sendall(junk)
        assert curl(s.url + "/health", "--cacert", c("ca.pem")).returncode == 0
    finally:
        s.stop()
        plain.stop()


def test_versions(c, miles):
    s = Server(miles, *c.flags("server"))
    try:
        at = s.url[len("https://"):]
        new = run("openssl", "s_client", "-connect", at, "-CAfile", c("ca.pem"), "-verify_return_error", input="")
        assert "Verification: OK" in new.stdout and "TLSv1.3" in new.stdout, new.stdout
        old = run("openssl", "s_client", "-connect", at, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0", input="")
        assert old.returncode != 0
    finally:
        s.stop()


def test_password_and_client(c, miles):
    s = Server(miles, "--ssl-certfile", c("server.pem"), "--ssl-keyfile", c("locked.key"), "--ssl-ca-certs", c("ca.pem"),
               env=os.environ | {"MILES_SSL_KEYFILE_PASSWORD": "secret"})
    try:
        ours = ["--cacert", c("ca.pem"), "--cert", c("client.pem"), "--key", c("client.key")]
        assert curl(s.url + "/health", *ours).returncode == 0
        assert curl(s.url + "/health", "--cacert", c("ca.pem")).returncode != 0
        assert curl(s.url + "/health", "--cacert", c("ca.pem"), "--cert", c("stranger.pem"), "--key", c("stranger.key")).returncode != 0
    finally:
        s.stop()


class Router:
    """A router over TLS with one worker, and the authorities it trusts."""

    def __init__(self, c, miles, worker, trusted):
        self.proc = subprocess.Popen([miles, "router", "--port", "0", "--worker-urls", worker, "--worker-api-key", "k", *c.flags("server")],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"SSL_CERT_FILE": c(trusted)})
        self.url = re.search(r"https://\S+", self.proc.stdout.readline()).group(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.send_signal(signal.SIGTERM)
        self.said = self.proc.communicate(timeout=20)[1]


def test_router_and_our_client(c, miles):
    with Server(miles, *c.flags("server"), "--api-key", "k") as s:
        direct = curl(s.url + "/generate", "--cacert", c("ca.pem"), "-H", "Authorization: Bearer k", "-d", BODY)
        with Router(c, miles, s.url, "ca.pem") as router:
            routed = curl(router.url + "/generate", "--cacert", c("ca.pem"), "-d", BODY)
        assert json.loads(routed.stdout)["output_ids"] == json.loads(direct.stdout)["output_ids"], routed
        with Router(c, miles, s.url, "other.pem") as router:
            routed = curl(router.url + "/generate", "--cacert", c("ca.pem"), "-d", BODY)
        assert "certificate verify failed" in routed.stdout + router.said, routed
        assert "SSL_CERT_FILE" in routed.stdout + router.said, routed
    with Server(miles, *c.flags("elsewhere"), "--api-key", "k") as s, Router(c, miles, s.url, "ca.pem") as router:
        routed = curl(router.url + "/generate", "--cacert", c("ca.pem"), "-d", BODY)
        assert "output_ids" not in routed.stdout
    assert "IP address mismatch" in routed.stdout + router.said, (routed, router.said)


def test_bad_files(c, miles):
    def refused(sentence, *flags):
        r = run(miles, "router", "--port", "0", "--worker-urls", "http://127.0.0.1:1", *flags)
        assert r.returncode == 2 and sentence in r.stderr, r.stderr
    refused("cannot load the certificate", "--ssl-certfile", c("missing.pem"))
    refused("cannot load the certificate", "--ssl-certfile", c("server.key"))
    refused("cannot load the private key", "--ssl-certfile", c("server.pem"))
    refused("cannot load the private key", "--ssl-certfile", c("server.pem"), "--ssl-keyfile", c("locked.key"), "--ssl-keyfile-password", "x")
    refused("private key", "--ssl-certfile", c("server.pem"), "--ssl-keyfile", c("client.key"))
    refused("cannot load the certificates", *c.flags("server"), "--ssl-ca-certs", c("server.key"))
    refused("need --ssl-certfile", "--ssl-keyfile", c("server.key"))


def test_openai(c, miles):
    try:
        import openai
    except ImportError:
        return "skipped: the package openai is missing"
    s = Server(miles, *c.flags("server"))
    try:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", http_client=openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=c("ca.pem"))))
        words = dict(model="tiny", prompt="abc", max_tokens=6, seed=3)
        whole = client.completions.create(**words).choices[0].text
        parts = client.completions.create(stream=True, **words)
        assert "".join(p.choices[0].text for p in parts if p.choices) == whole
        untrusting = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
        try:
            untrusting.models.list()
            raise AssertionError("an unknown authority was trusted")
        except openai.APIConnectionError:
            pass
    finally:
        s.stop()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", required=True)
    args = p.parse_args()
    miles = os.path.abspath(args.miles)
    n = 0
    with tempfile.TemporaryDirectory() as path:
        c = Certificates(path)
        for name, test in [x for x in globals().items() if x[0].startswith("test_")]:
            print("ok  ", name, test(c, miles) or "")
            n += 1
    print(f"{n} passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
