#!/usr/bin/env python3
"""Texts of 1,000 random JSON schemas validate by the package jsonschema.

    tools/with-python.sh jsonschema tests/e2e/grammar_schemas.py --build build/release

The test program random_schemas makes the schemas and draws a text of each from its grammar.
"""
import argparse
import json
import os
import subprocess
import tempfile

import jsonschema


def reject_constant(name):
    raise ValueError(name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    build = parser.parse_args().build
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "texts")
        subprocess.run([os.path.join(build, "tests/unit/test_random_schemas")], check=True, timeout=900,
                       env=dict(os.environ, MILES_SCHEMA_OUT=path))
        with open(path, encoding="utf-8") as f:
            text = f.read().replace("\r", " ")
    decoder, at, n = json.JSONDecoder(parse_constant=reject_constant), 0, 0
    while at < len(text):
        (schema, value), at = decoder.raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        jsonschema.Draft202012Validator(schema).validate(value)
        n += 1
    assert n == 1000, n
    print("1 passed, 0 failed, 0 skipped")


main()
