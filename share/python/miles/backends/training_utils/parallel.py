"""The ranks of a training function: one."""

from miles.training import ParallelState


def get_parallel_state():
    return ParallelState()
