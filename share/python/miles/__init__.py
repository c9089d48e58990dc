"""The modules of Miles that user code imports, for functions in worker processes of miles.c.

Modules that are not here are taken from a checkout of Miles on PYTHONPATH, if there is one."""
