"""The functions of Ray by which launch scripts of Miles wait for their nodes, without Ray.

The launcher of the job (mpirun, srun) connects the nodes and reports those that are missing, so there
are always as many GPUs as a script waits for."""
import os


def init(*_, **__):
    """There is nothing to connect to."""


def is_initialized():
    return True


def cluster_resources():
    return {"CPU": float(os.cpu_count() or 1), "GPU": float(1 << 20)}


available_resources = cluster_resources


def shutdown():
    """There is nothing to disconnect from."""


def __getattr__(name):
    raise AttributeError("ray.%s: share/compat/ray.py has only what launch scripts call; Ray is not used" % name)
