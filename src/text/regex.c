#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/arena.h"
#include "base/bug.h"
#include "text/regex_dialect.h"

#define MAX_PATTERN 65536
#define BOUNDED_STEPS 200000

/* An ml_regex is a pcre2_code; the type hides the PCRE2 header from users. */

struct ml_finder {
    ml_arena arena;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static ml_status compile(ml_regex **out, ml_str pattern, ml_err *err) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    int code = 0;
    size_t at = 0;
    pcre2_code *compiled;
    unsigned char why[200];

    *out = NULL;
    if (!context)
        return ml_fail(err, ML_ENOMEM, "out of memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    compiled = pcre2_compile((const unsigned char *)pattern.ptr, pattern.len,
                             PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        pcre2_get_error_message(code, why, sizeof why);
        return ml_fail(err, ML_EUNSUP, "regular expression \"%.*s\", at byte %zu: %s",
                       pattern.len > 200 ? 200 : (int)pattern.len, pattern.ptr, at, why);
    }
    /* Without JIT support, the interpreter finds the same matches. */
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    *out = (ml_regex *)compiled;
    return ML_OK;
}

ml_status ml_regex_new(ml_regex **out, const ml_unicode *u, ml_str pattern, ml_err *err) {
    ml_text t = { 0 };
    ml_status st;

    *out = NULL;
    if (pattern.len > MAX_PATTERN)
        return ml_fail(err, ML_EUNSUP,
                       "the regular expression has %zu bytes; the maximum is %d",
                       pattern.len, MAX_PATTERN);
    st = ml_regex_translate(&t, u, pattern, err);
    if (st == ML_OK)
        st = compile(out, (ml_str){ t.ptr ? t.ptr : "", t.len }, err);
    ml_text_release(&t);
    return st;
}

ml_status ml_regex_new_bounded(ml_regex **out, ml_str pattern, ml_err *err) {
    ml_text t = { 0 };
    ml_status st;

    *out = NULL;
    if (pattern.len > MAX_PATTERN)
        return ml_fail(err, ML_EUNSUP,
                       "the regular expression has %zu bytes; the maximum is %d",
                       pattern.len, MAX_PATTERN);
    ml_text_printf(&t, "(*LIMIT_MATCH=%d)", BOUNDED_STEPS);
    ml_text_add(&t, pattern.ptr, pattern.len);
    st = compile(out, (ml_str){ t.ptr, t.len }, err);
    ml_text_release(&t);
    return st;
}

void ml_regex_free(ml_regex *r) {
    pcre2_code_free((pcre2_code *)r);
}

ml_finder *ml_finder_new(void) {
    ml_arena a;
    ml_finder *f;

    ml_arena_init(&a, "finder");
    f = ML_NEW(&a, ml_finder, 1);
    f->arena = a;
    f->match = pcre2_match_data_create(1, NULL);
    f->context = pcre2_match_context_create(NULL);
    f->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)16 << 20, NULL);
    ML_BUG_IF(!f->match || !f->context);
    if (f->stack)
        pcre2_jit_stack_assign(f->context, NULL, f->stack);
    return f;
}

void ml_finder_free(ml_finder *f) {
    ml_arena a;

    if (!f)
        return;
    a = f->arena; /* also holds f itself */
    pcre2_match_data_free(f->match);
    pcre2_match_context_free(f->context);
    pcre2_jit_stack_free(f->stack);
    ml_arena_release(&a);
}

ml_status ml_regex_find(const ml_regex *r, ml_finder *f, ml_str text, size_t from,
                        size_t *begin, size_t *end, ml_err *err) {
    int rc = pcre2_match((const pcre2_code *)r, (const unsigned char *)text.ptr, text.len,
                         from, PCRE2_NO_UTF_CHECK, f->match, f->context);
    const size_t *at = pcre2_get_ovector_pointer(f->match);
    unsigned char why[200];

    if (rc == PCRE2_ERROR_NOMATCH)
        return ML_EAGAIN;
    if (rc < 0) {
        pcre2_get_error_message(rc, why, sizeof why);
        return ml_fail(err, ML_EFORMAT, "matching the tokenizer's pattern failed: %s", why);
    }
    *begin = at[0];
    *end = at[1];
    return ML_OK;
}
