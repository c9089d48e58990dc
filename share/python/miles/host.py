"""The program that runs this worker: requests to it, the run's arguments, user functions."""

import contextvars
import importlib
import importlib.util
import json
import os
import struct
import sys
import threading

args = None  # the namespace of the run's flags
call = contextvars.ContextVar("call", default=None)
_socket = None
_lock = threading.Lock()
_endpoint = None
_files = {}
HEAD = struct.Struct("=IIQd")


class Call:
    """A call of a generate function: the seeds of its requests."""

    def __init__(self, seed):
        self.seed, self.n = seed, 0

    def next_seed(self):
        """Another one for each request of the call, whatever other calls do meanwhile."""
        self.n += 1
        return (self.seed + self.n * 0x9E3779B97F4A7C15) & (2**63 - 1)


def _read(n):
    parts = []
    while n:
        part = _socket.recv(n)
        if not part:
            raise ConnectionError("miles has closed the connection")
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def ask(what, **more):
    """Asks miles and waits for the answer; an error becomes an exception."""
    text = json.dumps({"ask": what, **more}).encode()
    with _lock:
        _socket.sendall(HEAD.pack(len(text), 1, 0, 0.0) + text)
        size, _, _, _ = HEAD.unpack(_read(HEAD.size))
        answer = json.loads(_read(size) or b"null")
    if isinstance(answer, dict) and "error" in answer:
        raise ValueError(answer["error"])
    return answer["value"] if isinstance(answer, dict) else None


def endpoint():
    """Where the run's engine answers: host, port and key."""
    global _endpoint
    if _endpoint is None:
        _endpoint = ask("endpoint")
    return _endpoint


def key_of(name, port):
    """The key for a server; None: it is not the run's engine."""
    if _endpoint and name == _endpoint["host"] and port == _endpoint["port"]:
        return _endpoint.get("key")
    return None


def _file_module(path):
    """The module of a Python file, loaded once."""
    path = os.path.abspath(path)
    if path not in _files:
        folder = os.path.dirname(path)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        name = os.path.splitext(os.path.basename(path))[0]
        if name in sys.modules or not name.isidentifier():
            name = f"miles_user_{len(_files)}"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _files[path] = module
    return _files[path]


def split(path, default=None):
    """The module and the name in "file.py:name", "module:name" or "module.name"."""
    module, colon, name = path.rpartition(":") if ":" in path else (path, "", "")
    if module.endswith(".py"):
        return module, name or default
    if not colon:
        module, _, name = path.rpartition(".")
    return module, name


def load(path, default=None):
    """The object that a path names."""
    module, name = split(path, default)
    if module.endswith(".py"):
        found, what = getattr(_file_module(module), name, None), "file"
    else:
        if not module:
            raise ImportError(f"'{path}' has no module: expected package.module.function or file.py:function")
        found, what = importlib.import_module(module), f"module {module}"
        for part in name.split("."):
            found = getattr(found, part, None)
    if found is None:
        raise NameError(f"the {what} has no function {name}")
    return found
