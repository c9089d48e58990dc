#!/usr/bin/env python3
"""Writes src/text/jinja/jinja_casing.inc: characters whose upper or title case is several characters.

Simple case comes from utf8proc; these are what Python (Unicode's SpecialCasing) does beyond it.
"""
import sys


def row(c):
    upper, title = ([ord(x) for x in s] for s in (chr(c).upper(), chr(c).title()))
    if len(upper) == 1 and len(title) == 1:
        return None
    pad = lambda s: ", ".join(f"0x{x:04x}" for x in s)
    return f"{{ 0x{c:04x}, {{ {pad(upper)} }}, {{ {pad(title)} }} }},"


print("/* Written by tools/gen_casing.py: { character, upper case, title case }. */")
print("/* clang-format off */")
for c in range(0x110000):
    if 0xD800 <= c < 0xE000:
        continue
    text = row(c)
    if text:
        sys.stdout.write(text + "\n")
