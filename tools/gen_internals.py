#!/usr/bin/env python3
"""Writes src/text/jinja/jinja_internals.inc: names with a leading underscore that objects have.

usage: gen_internals.py > src/text/jinja/jinja_internals.inc     (needs jinja2 3.1 and Python 3.11)

Jinja's sandbox answers an attribute that begins with an underscore with a SecurityError where
the object has it, and with an UndefinedError where it has not.
"""
import jinja2
from jinja2 import runtime, utils

TEMPLATE = jinja2.Environment().from_string("")
UNDEFINED = jinja2.Undefined(name="x")
KINDS = [
    ("NONE", None), ("BOOL", True), ("INT", 1), ("FLOAT", 1.5), ("STR", ""), ("LIST", []),
    ("TUPLE", ()), ("DICT", {}), ("RANGE", range(1)), ("UNDEFINED", UNDEFINED),
    ("ITER", (x for x in ())), ("NAMESPACE", utils.Namespace()), ("CYCLER", utils.Cycler(1)),
    ("JOINER", utils.Joiner()), ("METHOD", "".join), ("FUNC", TEMPLATE.new_context().resolve),
    ("LOOP", runtime.LoopContext([], jinja2.Undefined, None)),
    ("MACRO", runtime.Macro(jinja2.Environment(), None, "m", [], False, False, False)),
    ("SELF", runtime.TemplateReference(TEMPLATE.new_context())), ("VIEW", {}.keys()),
]


def names_of(kind, thing):
    if kind == "FUNC":
        thing = raise_exception
    names = {n for n in dir(thing) if n.startswith("_")}
    if kind == "TUPLE":
        names &= set(dir(tuple))
    return names


def raise_exception():
    pass


def main():
    has = {}
    for kind, thing in KINDS:
        for name in names_of(kind, thing):
            has.setdefault(name, []).append(kind)
    print("/* Made by tools/gen_internals.py; do not edit. */")
    for name in sorted(has):
        kinds = "ALL" if len(has[name]) == len(KINDS) else " | ".join(f"K({k})" for k in has[name])
        print(f'{{ "{name}", {kinds} }},')


if __name__ == "__main__":
    main()
