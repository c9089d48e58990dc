#!/usr/bin/env python3
"""train_async.py FLAGS - runs miles train-async in place of Miles' train_async.py; see train.py."""
import sys

import train

train.run("train-async", sys.argv[1:])
