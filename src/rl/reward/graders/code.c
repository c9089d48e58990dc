/* code and code_partial: the program in a response, tested in a sandbox (base/sandbox.h).
 *
 * The tests are those of the label, or of the metadata, in the forms of the usual data sets:
 *
 *     "assert f(1) == 2", or a list of such texts          MBPP
 *     {"test": "def check(f): ...", "entry_point": "f"}    HumanEval
 *     {"inputs": [...], "outputs": [...]}                  APPS, TACO: standard input and output
 *     the same with "fn_name"                              calls with lists of arguments
 *     [{"input": ..., "output": ...}, ...]                 LiveCodeBench
 *
 * as JSON, or as a text that contains JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_out.h"
#include "base/sandbox.h"
#include "base/sha256.h"
#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/label.h"

/* --- the program ---------------------------------------------------------------------- */

/* The content of the last ``` block, or else the whole response. */
static ml_str program_of(ml_str response) {
    const char *at = response.ptr, *end = response.ptr + response.len;
    ml_str found = response;

    while (at < end && (at = memmem(at, (size_t)(end - at), "```", 3))) {
        const char *body = memchr(at, '\n', (size_t)(end - at)), *close;
        if (!body)
            break;
        body++;
        close = memmem(body, (size_t)(end - body), "```", 3);
        found = (ml_str){ body, (size_t)((close ? close : end) - body) };
        if (!close)
            break;
        at = close + 3;
    }
    return found;
}

/* --- tests ------------------------------------------------------------------------------ */

typedef struct exam {
    ml_arena *arena;
    ml_str source;  /* the JSON of the tests */
    ml_str program; /* of the response */
    bool all;       /* a test that fails ends it */
    int64_t n, n_passed;
    miles_error *err;
} exam;

/* Runs tests in the program's process.  It reads a line of JSON, and says how many tests
 * passed after a text that the program does not see: a program that exits has passed none. */
static const char harness[] =
    "def _tests():\n"
    "    import json, sys\n"
    "    given = json.loads(sys.stdin.readline())\n"
    "    out, scope, passed = sys.stdout, {'__name__': 'answer'}, 0\n"
    "    sys.setrecursionlimit(10000)\n"
    "    exec(compile(given['code'], 'answer.py', 'exec'), scope)\n"
    "    for text in given.get('asserts', []):\n"
    "        try:\n"
    "            exec(compile(text, 'test.py', 'exec'), dict(scope))\n"
    "            passed += 1\n"
    "        except Exception as error:\n"
    "            print(repr(error)[:200], file=sys.stderr)\n"
    "    def read(x):\n"
    "        if not isinstance(x, str):\n"
    "            return x\n"
    "        try:\n"
    "            return json.loads(x)\n"
    "        except ValueError:\n"
    "            return x\n"
    "    def same(a, b):\n"
    "        if isinstance(a, tuple):\n"
    "            a = list(a)\n"
    "        if isinstance(a, list) and isinstance(b, list):\n"
    "            return len(a) == len(b) and all(map(same, a, b))\n"
    "        if isinstance(a, float) or isinstance(b, float):\n"
    "            return abs(a - b) <= 1e-9 * max(1.0, abs(b))\n"
    "        return a == b\n"
    "    for args, want in zip(given.get('inputs', []), given.get('outputs', [])):\n"
    "        if isinstance(args, str):\n"
    "            args = [read(x) for x in args.split('\\n') if x.strip()]\n"
    "        want, name = read(want), given['fn_name']\n"
    "        try:\n"
    "            f = scope.get(name) or getattr(scope['Solution'](), name)\n"
    "            got = f(*args)\n"
    "            ok = same(got, want)\n"
    "            passed += ok or (isinstance(want, list) and len(want) == 1 and "
    "same(got, want[0]))\n"
    "        except Exception as error:\n"
    "            print(repr(error)[:200], file=sys.stderr)\n"
    "    out.write('\\n%s %d\\n' % (given['secret'], passed))\n"
    "    out.flush()\n"
    "_tests()\n";

static int run_program(const exam *x, ml_sandbox_result *r, ml_str code, ml_str input) {
    ml_err why = { 0 };

    if (ml_sandbox_run(r, &(ml_sandbox_opts){ .language = ML_SANDBOX_PYTHON }, code, input,
                       &why) == ML_OK)
        return 0;
    return ml_reward_fail(x->err, "%.470s", why.msg);
}

static void make_secret(char out[17], ml_str program, ml_str tests) {
    uint8_t hash[ML_SHA256_BYTES];
    ml_text all = { 0 };

    ml_text_add(&all, program.ptr, program.len);
    ml_text_add(&all, tests.ptr, tests.len);
    ml_sha256(hash, (ml_str){ all.ptr, all.len });
    for (int i = 0; i < 8; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
    ml_text_release(&all);
}

/* Tests in the program's process; `more` continues the members of its line. */
static int run_harness(exam *x, ml_str more) {
    ml_sandbox_result r = { 0 };
    ml_text line = { 0 };
    char secret[17], *said;
    int failed;

    make_secret(secret, x->program, more);
    ml_text_printf(&line, "{\"secret\": \"%s\", \"code\": ", secret);
    ml_json_quote(&line, x->program);
    ml_text_add(&line, more.ptr, more.len);
    ml_text_printf(&line, "}\n");
    failed = run_program(x, &r, ml_str_of(harness), (ml_str){ line.ptr, line.len });
    if (!failed && (said = strstr(r.out.ptr, secret)))
        x->n_passed += atoi(said + strlen(secret));
    ml_sandbox_result_release(&r);
    ml_text_release(&line);
    return failed;
}

/* The JSON text of a value. */
static ml_str text_of(const exam *x, const ml_json *v) {
    return (ml_str){ x->source.ptr + v->begin, v->end - v->begin };
}

static int run_asserts(exam *x, const ml_json *list, const char *entry_point) {
    ml_text more = { 0 };
    int failed;

    ml_text_printf(&more, ", \"asserts\": [");
    for (const ml_json *v = list->type == ML_JSON_ARRAY ? list->child : list; v;
         v = list->type == ML_JSON_ARRAY ? v->next : NULL) {
        ml_text test = { 0 };
        ml_text_add(&test, v->text.ptr, v->text.len);
        if (entry_point)
            ml_text_printf(&test, "\ncheck(%s)\n", entry_point);
        ml_text_printf(&more, "%s", x->n++ ? ", " : "");
        ml_json_quote(&more, (ml_str){ test.ptr, test.len });
        ml_text_release(&test);
    }
    ml_text_printf(&more, "]");
    failed = run_harness(x, (ml_str){ more.ptr, more.len });
    ml_text_release(&more);
    return failed;
}

static int run_calls(exam *x, const ml_json *fn, const ml_json *in, const ml_json *out) {
    ml_text more = { 0 };
    ml_str inputs = text_of(x, in), outputs = text_of(x, out), name = text_of(x, fn);
    int failed;

    ml_text_printf(&more, ", \"fn_name\": %.*s, \"inputs\": %.*s, \"outputs\": %.*s",
                   (int)name.len, name.ptr, (int)inputs.len, inputs.ptr, (int)outputs.len,
                   outputs.ptr);
    x->n += (int64_t)in->n;
    failed = run_harness(x, (ml_str){ more.ptr, more.len });
    ml_text_release(&more);
    return failed;
}

/* The next line without spaces at its end; empty lines at the end of a text do not count. */
static bool next_line(ml_str *rest, ml_str *line) {
    size_t n = 0;

    while (n < rest->len && rest->ptr[n] != '\n')
        n++;
    *line = (ml_str){ rest->ptr, n };
    while (line->len && strchr(" \t\r", line->ptr[line->len - 1]))
        line->len--;
    if (rest->len == 0)
        return false;
    n += n < rest->len;
    *rest = (ml_str){ rest->ptr + n, rest->len - n };
    return true;
}

static bool same_output(ml_str got, ml_str want) {
    ml_str a, b;

    got = ml_str_trim(got);
    want = ml_str_trim(want);
    for (bool more = true; more;) {
        bool first = next_line(&got, &a), second = next_line(&want, &b);
        if (first != second || !ml_str_eq(a, b))
            return false;
        more = first;
    }
    return true;
}

static int run_one(exam *x, const ml_json *in, const ml_json *out) {
    ml_str want = out->type == ML_JSON_STRING ? out->text : text_of(x, out);
    ml_sandbox_result r = { 0 };
    int failed;

    x->n++;
    if (x->all && x->n_passed < x->n - 1)
        return 0; /* an earlier one failed */
    failed = run_program(x, &r, x->program,
                         in->type == ML_JSON_STRING ? in->text : text_of(x, in));
    if (!failed && r.status == 0)
        x->n_passed += same_output((ml_str){ r.out.ptr, r.out.len }, want);
    ml_sandbox_result_release(&r);
    return failed;
}

static int run_pairs(exam *x, const ml_json *in, const ml_json *out) {
    int failed = 0;

    for (in = in->child, out = out->child; in && out && !failed;
         in = in->next, out = out->next)
        failed = run_one(x, in, out);
    return failed;
}

static int run_cases(exam *x, const ml_json *list) {
    int failed = 0;

    for (const ml_json *v = list->child; v && !failed; v = v->next) {
        const ml_json *in = ml_json_get(v, "input"), *out = ml_json_get(v, "output");
        if (!in || !out)
            return ml_reward_fail(x->err, "a test case has no \"input\" and \"output\"");
        failed = run_one(x, in, out);
    }
    return failed;
}

static int unknown(const exam *x) {
    return ml_reward_fail(
        x->err,
        "the tests of a coding task are not known: expected a label or metadata with "
        "Python "
        "tests, {\"inputs\": [...], \"outputs\": [...]}, {\"test\": ..., \"entry_point\": "
        "...} or [{\"input\": ..., \"output\": ...}]");
}

static int run_object(exam *x, const ml_json *t) {
    const ml_json *in = ml_json_get(t, "inputs"), *out = ml_json_get(t, "outputs"),
                  *fn = ml_json_get(t, "fn_name"), *test = ml_json_get(t, "test"),
                  *entry = ml_json_get(t, "entry_point"), *list = ml_json_get(t, "tests");

    list = list ? list : ml_json_get(t, "test_list");
    if (in && out && in->type == ML_JSON_ARRAY && out->type == ML_JSON_ARRAY)
        return fn && fn->type == ML_JSON_STRING ? run_calls(x, fn, in, out)
                                                : run_pairs(x, in, out);
    if (test && test->type == ML_JSON_STRING)
        return run_asserts(x, test,
                           entry ? ml_arena_str(x->arena, entry->text.ptr, entry->text.len)
                                 : NULL);
    if (list && list->type == ML_JSON_ARRAY)
        return run_asserts(x, list, NULL);
    return unknown(x);
}

static int run_tests(exam *x, const ml_json *t) {
    const ml_json *inner = NULL;

    if (t && t->type == ML_JSON_STRING &&
        ml_json_parse(&inner, x->arena, t->text, "the tests", NULL) == ML_OK &&
        (inner->type == ML_JSON_ARRAY || inner->type == ML_JSON_OBJECT)) {
        x->source = t->text;
        t = inner;
    }
    if (t && t->type == ML_JSON_OBJECT)
        return run_object(x, t);
    if (t && t->type == ML_JSON_STRING && t->text.len)
        return run_asserts(x, t, NULL);
    if (t && t->type == ML_JSON_ARRAY && t->child)
        return t->child->type == ML_JSON_STRING ? run_asserts(x, t, NULL) : run_cases(x, t);
    return unknown(x);
}

static int grade(const miles_reward_in *in, bool all, miles_reward_out *out,
                 miles_error *err) {
    exam x = { .program = program_of(ml_response(in)), .all = all, .err = err };
    ml_label l;
    int failed = 1;

    x.arena = &l.arena;
    if (ml_label_init(&l, in, err)) {
        bool own = l.label && (l.label->type != ML_JSON_STRING || l.label->text.len);
        x.source = own ? (ml_str){ in->label, in->label_len }
                       : (ml_str){ in->metadata, in->metadata_len };
        failed = run_tests(&x, own ? l.label : l.metadata);
    }
    if (!failed && x.n == 0)
        failed = ml_reward_fail(err, "the coding task has no test");
    if (!failed)
        out->reward = all ? (double)(x.n_passed == x.n) : (double)x.n_passed / (double)x.n;
    ml_label_release(&l);
    return failed;
}

static int run_all(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    return grade(in, true, out, err);
}

static int run_partial(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    return grade(in, false, out, err);
}

const miles_reward ml_reward_code = { { sizeof(miles_reward), MILES_REWARD, "code", NULL,
                                        "1 if the Python program in the response passes "
                                        "all tests of the label, in a sandbox" },
                                      run_all };

const miles_reward ml_reward_code_partial = {
    { sizeof(miles_reward), MILES_REWARD, "code_partial", NULL,
      "the part of the label's tests that the Python program in the response passes" },
    run_partial
};
