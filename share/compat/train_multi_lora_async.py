#!/usr/bin/env python3
"""train_multi_lora_async.py FLAGS - runs miles train-async, which trains several adapters at once with
--multi-lora-n-adapters, in place of Miles' train_multi_lora_async.py; see train.py."""
import sys

import train

train.run("train-async", sys.argv[1:])
