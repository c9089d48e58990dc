/* An arithmetic tool for tool calls: calculator(expression). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "rl/builtins.h"

#define DEPTH 64     /* maximum nesting of brackets and signs */
#define MAX_POWER 64 /* maximum integer exponent */

/* The parser's position, and an error message for the model once parsing failed. */
typedef struct reader {
    const char *at, *end;
    const char *wrong;
    int depth;
} reader;

static double sum(reader *r);

static double wrong(reader *r, const char *sentence) {
    if (!r->wrong)
        r->wrong = sentence;
    return 0.0;
}

static char peek(reader *r) {
    while (r->at < r->end && *r->at == ' ')
        r->at++;
    return r->at < r->end ? *r->at : 0;
}

static bool take(reader *r, const char *sign) {
    size_t n = strlen(sign);

    peek(r);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, sign, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* Digits with an optional fraction: JSON's number syntax, without an exponent. */
static double number(reader *r) {
    const char *begin = r->at;
    ml_json v = { .type = ML_JSON_NUMBER };
    int n_point = 0;
    double x = 0.0;

    for (; r->at < r->end && ((*r->at >= '0' && *r->at <= '9') || *r->at == '.'); r->at++)
        n_point += *r->at == '.';
    v.text = (ml_str){ begin, (size_t)(r->at - begin) };
    if (!v.text.len || *begin == '.' || n_point > 1 || !ml_json_f64(&v, &x))
        return wrong(r, "error: a number was expected");
    return x;
}

static double atom(reader *r) {
    double x;

    if (!take(r, "(")) {
        peek(r);
        return number(r);
    }
    x = sum(r);
    return take(r, ")") ? x : wrong(r, "error: a bracket is not closed");
}

static double factor(reader *r);

/* Integer exponents only: products are the same on every machine. */
static double power(reader *r) {
    double base = atom(r), x = 1.0, n;

    if (!take(r, "**") && !take(r, "^"))
        return base;
    n = factor(r);
    if (!(n >= 0.0 && n <= MAX_POWER) || n != floor(n))
        return wrong(r, "error: exponents are whole numbers from 0 to 64");
    for (int i = 0; i < (int)n; i++)
        x *= base;
    return x;
}

/* -2**2 is -(2**2). */
static double factor(reader *r) {
    double x;

    if (r->depth >= DEPTH)
        return wrong(r, "error: the expression is too deep");
    r->depth++;
    x = take(r, "-") ? -factor(r) : power(r);
    r->depth--;
    return x;
}

static double product(reader *r) {
    double x = factor(r);

    while (!r->wrong) {
        if (take(r, "*"))
            x *= factor(r);
        else if (take(r, "/")) {
            double y = factor(r);
            x = y != 0.0 ? x / y : wrong(r, "error: division by zero");
        } else
            break;
    }
    return x;
}

static double sum(reader *r) {
    double x = product(r);

    while (!r->wrong) {
        if (take(r, "+"))
            x += product(r);
        else if (take(r, "-"))
            x -= product(r);
        else
            break;
    }
    return x;
}

static void evaluate(char out[80], ml_str expression) {
    reader r = { .at = expression.ptr, .end = expression.ptr + expression.len };
    double x = sum(&r);

    if (!r.wrong && peek(&r))
        wrong(&r, "error: this is no expression of numbers, + - * / ** and brackets");
    if (!r.wrong && !isfinite(x))
        wrong(&r, "error: the result is too large");
    if (r.wrong)
        snprintf(out, 80, "%s", r.wrong);
    else
        snprintf(out, 80, "%.15g", x == 0.0 ? 0.0 : x);
}

/* The tool's answer to one call. */
static void answer(char out[80], const miles_call *call) {
    ml_str arguments = { call->arguments, call->arguments_len };
    const ml_json *doc, *expression;
    ml_arena a;

    ml_arena_init(&a, "a call");
    if (call->name_len != 10 || memcmp(call->name, "calculator", 10) != 0)
        snprintf(out, 80, "error: there is one tool, calculator(expression)");
    else if (ml_json_parse(&doc, &a, arguments, "arguments", NULL) != ML_OK ||
             !(expression = ml_json_get(doc, "expression")) ||
             expression->type != ML_JSON_STRING)
        snprintf(out, 80, "error: calculator takes a string, expression");
    else
        evaluate(out, expression->text);
    ml_arena_release(&a);
}

static int run(const miles_turn_in *in, miles_turn_out *out, miles_error *err) {
    (void)err;
    for (int64_t i = 0; i < in->n_call; i++) {
        char text[80];
        answer(text, &in->call[i]);
        out->append_message(out, "tool", text, strlen(text));
    }
    return 0;
}

const miles_generate ml_generate_calculator = {
    { sizeof(miles_generate), MILES_GENERATE, "calculator", NULL,
      "executes calls of a tool calculator(expression); a response without one ends it" },
    MILES_ROLE_TOOL,
    run
};
