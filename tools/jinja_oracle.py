"""Jinja2 in the environment that transformers sets up for chat templates.

What the interpreter in src/text is held to; used by gen_jinja_cases.py and diff_jinja.py.
"""
import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

CLOCK = datetime.datetime(2025, 3, 7, 16, 5, 9)

# Errors whose text is compared; of the others only the class.
OWN_ERRORS = (
    "TemplateError UndefinedError SecurityError TemplateSyntaxError TemplateAssertionError "
    "TemplateRuntimeError FilterArgumentError"
).split()


class Generation(jinja2.ext.Extension):
    """The tag {% generation %}: notes where its text lies in what was rendered before."""

    tags = {"generation"}
    rendered, spans = [], []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller):
        text = caller()
        begin = len("".join(Generation.rendered))
        Generation.spans.append([begin, begin + len(text)])
        return text


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
)
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = lambda format: CLOCK.strftime(format)


def render(template, context):
    """{"output": text, "generation": spans} or {"error": "Class: message", "line": n}"""
    Generation.rendered, Generation.spans = [], []
    try:
        compiled = environment.from_string(template)
        scope = compiled.new_context(context)
        for piece in compiled.root_render_func(scope):
            Generation.rendered.append(piece)
    except RecursionError:
        return {"error": "RecursionError: maximum recursion depth exceeded"}
    except Exception as e:  # whatever it is, it is the result
        result = {"error": f"{type(e).__name__}: {e}"}
        if isinstance(e, jinja2.exceptions.TemplateSyntaxError):
            result = {"error": f"{type(e).__name__}: {e.message}", "line": e.lineno}
        return result
    result = {"output": "".join(Generation.rendered)}
    if Generation.spans:
        result["generation"] = Generation.spans
    return result


def same_error(a, b):
    kind = a.split(":")[0]
    return a == b if kind in OWN_ERRORS else kind == b.split(":")[0]
