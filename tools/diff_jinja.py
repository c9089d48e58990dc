#!/usr/bin/env python3
"""Random templates and conversations through `miles chat-template` and through Jinja2.

usage: diff_jinja.py [--miles build/release/miles] [--templates N] [--conversations N] [--seed N]

Needs the Python package jinja2 (3.1).  Prints every difference and ends with a count; exit
status 1 when there was one.  The templates of ../shared/fixtures take part when they are there.
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

import jinja_oracle

WORDS = [
    "", "a", "Hello World", "  pad ", "x,y,,z", "it's", 'say "hi"', "line\nbreak\n", "éàß", "日本語",
    "<b>&amp;</b>", "UPPER", "123", "-4", "1.5", "a\tb", "</think>answer", "100%", "{}", "ǆ İ ŉ", "Σας ΟΔΟΣ",
    "a\u2028b", "\x00\x1f", "🙂🙃", "tool_call",
]
CONTEXT = {
    "s": "Hello, World", "t": "  spaces\n", "e": "", "i": 7, "n": -3, "z": 0, "f": 2.5, "b": True,
    "none_": None, "l": [3, 1, 2], "ls": ["b", "A", "c"], "ll": [[1, 2], [3, 4]], "el": [],
    "d": {"b": 1, "a": "two", "items": [1], "c": None}, "ed": {},
    "lo": [{"n": "x", "v": 2, "k": {"q": 1}}, {"n": "Y", "v": 1}, {"n": "z", "v": 2, "on": True}],
    "u": "日本語 é", "big": 12345678901234567890123,
}


class Templates:
    """Random programs in the language, mostly well typed."""

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *options):
        return self.rng.choice(options)

    def string(self):
        text = self.rng.choice(WORDS).replace("\\", "\\\\").replace("\n", "\\n").replace("\x00", "0")
        text = text.replace("\x1f", "\\x1f").replace("\t", "\\t")
        return "'" + text.replace("'", "\\'") + "'"

    def literal(self):
        number = self.rng.choice([0, 1, 2, -3, 12, 0.5, 1.0, 2.25, 1e16, 1e-7, 3.0])
        return self.pick(str(number), "true", "none", "false", self.string(), "[1, 'a', none]", "{'a': 1, 'b': [2]}", "(1, 2)", "[]", "{}")

    def name(self):
        return self.pick(*CONTEXT, "missing", "x", "y", "ns.a", "lo[0].n", "lo[1]['v']", "d.a", "d['zz']")

    def text(self, depth):
        if depth <= 0:
            return self.pick("s", "t", "e", "u", "ls[0]", "lo[0].n", "d.a", self.string(), self.string())
        t, n, q = lambda: self.text(depth - 1), lambda: self.number(depth - 1), lambda: self.list(depth - 1)
        return self.pick(
            t, t, lambda: f"{t()} + {t()}", lambda: f"{t()} ~ {self.expr(depth - 1)}", lambda: f"({t()}){self.text_method()}",
            lambda: f"({t()})|{self.text_filter()}", lambda: f"({q()})|join({self.string()})", lambda: f"({self.expr(depth - 1)})|tojson",
            lambda: f"({self.expr(depth - 1)})|tojson(indent={self.pick(0, 2)}, sort_keys={self.pick('true', 'false')})",
            lambda: f"({self.expr(depth - 1)})|string", lambda: f"({t()})[{self.slice()}]", lambda: f"({t()}) * {self.rng.randint(0, 3)}",
            lambda: f"({t()} if {self.expr(depth - 1)} else {t()})", lambda: f"'%s/%r' % ({self.expr(depth - 1)}, {t()})",
            lambda: f"'{{}}-{{!r}}-{{:>5}}'.format({self.expr(depth - 1)}, {t()}, {n()})", lambda: f"({q()})|map('string')|join",
        )()

    def number(self, depth):
        if depth <= 0:
            return self.pick("i", "n", "z", "f", "l[0]", "lo[1].v", "0", "1", "2", "7", "2.5", "b")
        n, t, q = lambda: self.number(depth - 1), lambda: self.text(depth - 1), lambda: self.list(depth - 1)
        return self.pick(
            n, lambda: f"{n()} {self.pick('+', '-', '*', '//', '%', '/')} {n()}", lambda: f"({t()})|length", lambda: f"({q()})|length",
            lambda: f"({t()})|int", lambda: f"({t()})|float(1)", lambda: f"({n()})|round({self.rng.randint(0, 2)})", lambda: f"-{n()}",
            lambda: f"({n()})|abs", lambda: f"({t()}).find({self.string()})", lambda: f"({t()}).count('l')", lambda: f"(l + {self.pick('[4]', 'l', '[]')})|{self.pick('sum', 'max', 'min', 'first', 'last')}",
        )()

    def list(self, depth):
        if depth <= 0:
            return self.pick("l", "ls", "ll", "el", "lo", "[1, 'a', none]", "range(4)", "(1, 2)", "d", "s")
        q, t = lambda: self.list(depth - 1), lambda: self.text(depth - 1)
        return self.pick(
            q, lambda: f"({q()})|list", lambda: f"({q()})|{self.list_filter()}", lambda: f"({t()}).split({self.pick('', self.pick('None, 1', repr(' ')), repr('l'))})",
            lambda: f"[{self.expr(depth - 1)}, {self.expr(depth - 1)}]", lambda: f"({t()}).splitlines()", lambda: f"({q()})[{self.slice()}]",
            lambda: f"d.{self.pick('keys', 'values', 'items')}()|list", lambda: f"(({q()})|list + ({q()})|list)",
            lambda: f"lo|{self.pick('map', 'sort')}(attribute='{self.pick('v', 'n', 'k.q')}')|list", lambda: "d|dictsort",
            lambda: f"lo|selectattr('v', '{self.pick('eq', 'gt', 'lt', 'in')}', {self.pick('2', '1', '[1]')})|list",
        )()

    def expr(self, depth=3):
        if self.rng.random() < 0.12:
            return self.odd(depth)
        if depth <= 0:
            return self.pick(self.name(), self.name(), self.literal())
        e = lambda: self.expr(depth - 1)
        return self.pick(
            self.name, self.literal, lambda: self.text(depth), lambda: self.text(depth), lambda: self.number(depth), lambda: self.list(depth),
            lambda: f"({e()}) {self.pick('==', '!=')} ({e()})", lambda: f"{self.number(1)} {self.pick('<', '>=', '<=')} {self.number(1)}",
            lambda: f"{e()} {self.pick('and', 'or')} {e()}", lambda: f"not {e()}", lambda: f"({e()} if {e()} else {e()})", lambda: f"({e()} if {e()})",
            lambda: f"({e()}) is {self.pick('', 'not ')}{self.test()}", lambda: f"{self.literal()} {self.pick('in', 'not in')} {self.list(1)}",
            lambda: f"{{{self.string()}: {e()}, 'k': {e()}}}", lambda: f"({e()})|default({e()})",
        )()

    def odd(self, depth):
        """Whatever comes: mostly errors."""
        e = lambda: self.expr(depth - 2)
        return self.pick(
            lambda: f"{e()} {self.pick('+', '-', '*', '~', '//', '%', '/', '<', 'in')} {e()}", lambda: f"({e()})|{self.text_filter()}",
            lambda: f"({e()})|{self.list_filter()}", lambda: f"({e()}){self.text_method()}",
            lambda: f"({e()}){self.pick('[0]', '[-1]', '.a', '.n', '.items', '[i]', '[s]', '.append(1)', '.update({})', '.nope', '.nope()', '.get(1)', '.index(1)')}",
        )()

    def slice(self):
        part = lambda: self.pick("", "", "0", "1", "-1", "2", "-2", "9")
        return self.pick(f"{part()}:{part()}", f"{part()}:{part()}:{self.pick('', '1', '2', '-1', '-2')}")

    def text_filter(self):
        return self.pick(
            "trim", "upper", "lower", "title", "capitalize", "string", "default('d', true)", "replace('a', 'b')", "replace('l', '', 1)",
            "indent", "indent(2, true)", "indent('> ', blank=true)", "truncate(5)", "truncate(6, true, '..', 0)", "center(9)", "e", "safe",
            "striptags", "urlencode", "forceescape", "pprint", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "wordcount",
            "filesizeformat", "first", "last", "reverse", "format(1)", "safe|upper", "e + '<'", "wordwrap(9)",
        )

    def list_filter(self):
        return self.pick(
            "sort", "sort(reverse=true)", "unique|list", "reverse|list", "map('upper')|list", "map('string')|list", "map(attribute='n')|list",
            "map(attribute='v', default=0)|list", "select|list", "select('string')|list", "reject('none')|list", "selectattr('on')|list",
            "rejectattr('on', 'defined')|list", "items|list", "batch(2)|list", "batch(3, 'x')|list", "slice(2)|list", "slice(2, none)|list",
            "map('length')|list", "groupby('v')|list", "map('tojson')|list", "map('default', 1)|list", "select('in', [1, 'a'])|list",
        )

    def text_method(self):
        return self.pick(
            ".strip()", ".upper()", ".rsplit(' ', 1)[0]", ".startswith('He')", ".endswith(('d', 'x'))", ".replace('l', 'L')", ".title()",
            ".capitalize()", ".lower()", ".lstrip('H')", ".rstrip()", ".rfind('o')", ".partition(',')", ".zfill(9)", ".ljust(4)",
            ".center(8, '*')", ".join(ls)", ".format('a', 1)", ".isdigit()", ".isalpha()", ".isalnum()", ".swapcase()", ".casefold()",
            ".removeprefix('He')", ".removesuffix('d')", ".expandtabs(4)", ".istitle()", ".isspace()", ".isupper()", ".islower()",
            ".rpartition('o')", ".rindex('o')", ".isnumeric()", ".isascii()",
        )

    def test(self):
        return self.pick(
            "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence",
            "iterable", "true", "false", "callable", "odd", "even", "divisibleby(3)", "eq(1)", "ne 2", "lt(3)", "gt 0",
            "in([1, 2])", "lower", "upper", "sameas(none)", "escaped", "filter", "test",
        )

    def statement(self, depth=2):
        e, body = self.expr, lambda: self.body(depth - 1)
        tag = lambda text: "{%" + self.pick("", "-") + " " + text + " " + self.pick("", "-") + "%}"
        simple = [
            lambda: "{{ " + e() + " }}", lambda: "{{" + self.pick("-", "") + " " + e() + " " + self.pick("-", "") + "}}",
            lambda: self.pick("text ", " \n", "\n", "  x\n  ", "{# note #}", "  {#- c -#}\n"),
            lambda: tag(f"set {self.pick('x', 'y')} = {e()}"), lambda: tag(f"set ns.a = {e()}"),
            lambda: tag(f"set x, y = {e()}, {e()}"),
        ]
        if depth <= 0:
            return self.pick(*simple)()
        return self.pick(
            *simple,
            lambda: tag(f"if {e()}") + body() + tag("endif"),
            lambda: tag(f"if {e()}") + body() + tag(f"elif {e()}") + body() + tag("else") + body() + tag("endif"),
            lambda: tag(f"for {self.pick('x', 'y')} in {self.list(2)}") + body() + tag("endfor"),
            lambda: tag("for x, y in d.items()") + body() + tag("endfor"),
            lambda: tag(f"for x in {self.pick('l', 'ls', 'lo', 'd', 's', 'range(3)')}") + body() + tag("endfor"),
            lambda: tag(f"for x in l if {e()}") + body() + tag("else") + body() + tag("endfor"),
            lambda: tag("for x in lo") + "{{ loop.first }}{{ loop.last }}{{ loop.revindex }}" + body()
            + tag(f"if {e()}") + tag(self.pick("break", "continue")) + tag("endif") + tag("endfor"),
            lambda: tag(f"set {self.pick('x', 'y', 'ns.a')}") + body() + tag("endset"),
            lambda: tag(f"macro m(x, y={e(1)})") + body() + tag("endmacro") + "{{ m(" + e(1) + ") }}",
            lambda: tag("macro w()") + "<{{ caller() }}>" + tag("endmacro") + tag("call w()") + body() + tag("endcall"),
            lambda: tag(f"with x = {e()}") + body() + tag("endwith"),
            lambda: tag("filter " + self.pick("upper", "trim", "indent(2)")) + body() + tag("endfilter"),
            lambda: tag("generation") + body() + tag("endgeneration"),
        )()

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randint(1, 3)))

    def template(self):
        return "{% set ns = namespace(a=1) %}" + self.body(3) + self.pick("", "\n", "end")


OUR_TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] }}</{{ m['role'] }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "tools": "{%- if tools %}\n    {{- '<tools>' }}\n    {%- for t in tools %}\n        {{- t | tojson }}\n    {%- endfor %}\n"
    "    {{- '</tools>' }}\n{%- endif %}\n{%- for m in messages %}\n    {%- if m.content is string %}\n        {{- m.role + ': ' + "
    "m.content | trim }}\n    {%- elif m.content %}\n        {%- for p in m.content if p.type == 'text' %}\n            {{- p.text }}\n"
    "        {%- else %}\n            {{- '(nothing)' }}\n        {%- endfor %}\n    {%- endif %}\n    {%- for c in m.tool_calls or [] %}\n"
    "        {{- '<call>' ~ c.function.name ~ (c.function.arguments | tojson(indent=2)) ~ '</call>' }}\n    {%- endfor %}\n{%- endfor %}\n",
    "strict": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must take turns, not ' "
    "~ m.role ~ ' at ' ~ loop.index) }}{% endif %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
    "think": "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% if m.role == 'user' and ns.last < 0 %}{% set ns.last = "
    "messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% set c = m.content if m.content is string else "
    "(m.content | map(attribute='text') | select('string') | join(' ') if m.content else '') %}{% if loop.index0 < ns.last %}{{ "
    "c.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ c }}{% endif %}{{ '|' if not loop.last else '.' }}{% endfor %}"
    "{{ '<think>\\n\\n</think>' if enable_thinking is defined and enable_thinking is false }}",
    "macros": "{% macro arg(k, v, depth=0) %}{{ '  ' * depth }}{{ k }}={% if v is mapping %}{% for a, b in v | dictsort %}\n{{ arg(a, b, depth "
    "+ 1) }}{% endfor %}{% elif v is sequence and v is not string %}{{ v | join(',') }}{% else %}{{ v }}{% endif %}{% endmacro %}{% for m in "
    "messages %}{% for c in m.tool_calls | default([], true) %}{% for k, v in c.function.arguments.items() %}{{ arg(k, v) }}\n{% endfor %}"
    "{% endfor %}{{ m.content | string | title }}{% endfor %}",
}


class Conversations:
    def __init__(self, rng):
        self.rng = rng

    def text(self):
        r = self.rng
        return " ".join(r.choice(WORDS) for _ in range(r.randint(0, 4)))

    def value(self, depth=2):
        r = self.rng
        options = [
            lambda: r.randint(-5, 10**6), lambda: r.choice([0.1, 1.0, 1e22, -2.5e-8, 1e16]), lambda: r.random(),
            lambda: None, lambda: r.random() < 0.5, self.text, self.text, lambda: r.choice([2**63, -(2**70)]),
        ]
        if depth > 0:
            options += [
                lambda: [self.value(depth - 1) for _ in range(r.randint(0, 3))],
                lambda: {r.choice(WORDS): self.value(depth - 1) for _ in range(r.randint(0, 3))},
            ]
        return r.choice(options)()

    def message(self, role):
        r = self.rng
        m = {"role": role, "content": self.text()}
        if r.random() < 0.15:
            m["content"] = [{"type": r.choice(["text", "image"]), "text": self.text()} for _ in range(r.randint(0, 3))]
        elif r.random() < 0.05:
            m["content"] = None
        if role == "assistant" and r.random() < 0.3:
            m["tool_calls"] = [
                {"type": "function", "id": "call%05d" % i,
                 "function": {"name": r.choice(["add", "get"]), "arguments": {k: self.value() for k in r.sample("abcde", r.randint(0, 3))}}}
                for i in range(r.randint(1, 2))
            ]
        if role == "assistant" and r.random() < 0.2:
            m["reasoning_content"] = self.text()
        return m

    def row(self):
        r = self.rng
        roles = ["user", "assistant"] * 3
        if r.random() < 0.3:
            roles = [r.choice(["user", "assistant", "tool", "system", "developer"]) for _ in range(6)]
        messages = [self.message(role) for role in roles[: r.randint(0, 6)]]
        if r.random() < 0.3:
            messages.insert(0, self.message("system"))
        row = {"messages": messages, "add_generation_prompt": r.random() < 0.5, "bos_token": "<s>", "eos_token": "</s>"}
        if r.random() < 0.4:
            row["tools"] = [
                {"type": "function", "function": {"name": r.choice(["add", "get"]), "description": self.text(),
                 "parameters": {"type": "object", "properties": {k: {"type": "string", "description": self.text(), "x": self.value()}
                                for k in r.sample("pqrst", r.randint(0, 3))}, "required": ["p"]}}}
                for _ in range(r.randint(1, 3))
            ]
        if r.random() < 0.3:
            row["enable_thinking"] = r.random() < 0.5
        return row


class Miles:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.file = os.path.join(folder, "template.jinja")

    def render(self, template, contexts):
        """As jinja_oracle.render, for each context."""
        with open(self.file, "w", encoding="utf-8", newline="") as f:
            f.write(template)
        rows = "".join(json.dumps(dict({"messages": []}, **c), ensure_ascii=False) + "\n" for c in contexts)
        done = subprocess.run(
            [self.program, "chat-template", "--hf-checkpoint", self.folder, "--chat-template", self.file],
            input=rows.encode(), capture_output=True, timeout=60, check=False,
        )
        if done.returncode:
            words = done.stderr.decode().rstrip("\n").split(": ", 3)
            return [{"error": words[3] if len(words) > 3 else str(words)}] * len(contexts)
        results = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
        return [dict(r, output=r["text"]) if "text" in r else r for r in results]


def same(want, got):
    if "error" in want or "error" in got:
        return "error" in want and "error" in got and jinja_oracle.same_error(want["error"], got["error"])
    return want["output"] == got["output"] and want.get("generation") == got.get("generation")


def full(context):
    return dict({"messages": [], "tools": None, "documents": None, "add_generation_prompt": False}, **context)


def beyond_us(want, got):
    """Integers beyond 64 bits and texts with addresses in them are not compared."""
    return "OverflowError" in got.get("error", "") or " at 0x" in want.get("output", "") or " at 0x" in want.get("error", "")


def compare(miles, template, contexts, counts, what):
    for context, got in zip(contexts, miles.render(template, contexts)):
        want = jinja_oracle.render(template, full(context))
        counts["all"] += 1
        if beyond_us(want, got):
            counts["skipped"] += 1
        elif not same(want, got):
            counts["different"] += 1
            print(f"--- {what}\n{template if len(template) < 2000 else '...'}\n  want {want}\n  got  {got}")


def shared_templates():
    path = os.path.join(os.path.dirname(__file__), "../../shared/fixtures/jinja/templates.jsonl.gz")
    if not os.path.exists(path):
        print(f"skipped: {path} is missing: only the templates of this script are compared")
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    # A template that tells the time tells another one each time.
    return {r["name"]: r["template"] for r in rows if "strftime_now" not in r["template"]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", default="build/release/miles")
    p.add_argument("--templates", type=int, default=2000)
    p.add_argument("--conversations", type=int, default=30, help="for each real template")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    counts = {"all": 0, "skipped": 0, "different": 0}
    with tempfile.TemporaryDirectory() as folder:
        miles = Miles(a.miles, folder)
        for i in range(a.templates):
            rng = random.Random(f"{a.seed} {i}")
            compare(miles, Templates(rng).template(), [CONTEXT], counts, f"template {i}")
        for name, template in {**OUR_TEMPLATES, **shared_templates()}.items():
            rng = random.Random(f"{a.seed} {name}")
            rows = [Conversations(rng).row() for _ in range(a.conversations)]
            compare(miles, template, rows, counts, name)
    print(f"{counts['all']} rendered, {counts['skipped']} not comparable, {counts['different']} different")
    sys.exit(counts["different"] > 0)


if __name__ == "__main__":
    main()
