"""Loading of functions by name, and small helpers."""

import contextlib
import importlib
import inspect
import socket


class FunctionRegistry:
    """Functions that are found by name without a module, for tests."""

    def __init__(self):
        self._functions = {}

    @contextlib.contextmanager
    def temporary(self, name, fn):
        assert name not in self._functions, f"the function {name} is registered already"
        self._functions[name] = fn
        try:
            yield
        finally:
            del self._functions[name]

    def get(self, name):
        return self._functions.get(name)


function_registry = FunctionRegistry()


def load_function(path, *, sync_required=False):
    """The object at "package.module.name", "package.module:name" or "file.py:name"."""
    if not path:
        return None
    fn = function_registry.get(path)
    if fn is None:
        from miles import host

        fn = host.load(path)
    if sync_required and not callable(fn):
        raise ValueError(f"{path} is not a function")
    if sync_required and inspect.iscoroutinefunction(fn):
        raise ValueError(f"{path} is an async function; a synchronous one is required")
    return fn


async def call_agent_abort_hook(args):
    """Calls the function `abort` beside --custom-agent-function-path, if there is one."""
    path = getattr(args, "custom_agent_function_path", None) or ""
    module, _, _ = path.rpartition(".")
    if not module:
        return
    abort = getattr(importlib.import_module(module), "abort", None)
    if abort is not None:
        await abort(args)


class SingletonMeta(type):
    """A class of which there is one object."""

    _instances = {}

    def __call__(cls, *args, **kwargs):
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args, **kwargs)
        return cls._instances[cls]

    @staticmethod
    def clear_all_instances():
        SingletonMeta._instances.clear()


def is_port_available(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
        except (OSError, OverflowError):
            return False
        return True


def get_free_port(start_port=10000, consecutive=1):
    port = start_port
    while not all(is_port_available(port + i) for i in range(consecutive)):
        port += 1
    return port


def should_run_periodic_action(rollout_id, interval, num_rollout_per_epoch=None, num_rollout=None):
    """Whether something that is done every `interval` rollouts, after an epoch and at the end is due."""
    if interval is None:
        return False
    done = rollout_id + 1
    at_end = num_rollout is not None and done == num_rollout
    after_epoch = num_rollout_per_epoch is not None and done % num_rollout_per_epoch == 0
    return at_end or after_epoch or done % interval == 0


async def as_completed_async(tasks):
    import asyncio

    for task in asyncio.as_completed(tasks):
        yield await task


def filter_keys(d, interest_keys):
    return {k: d[k] for k in interest_keys}
