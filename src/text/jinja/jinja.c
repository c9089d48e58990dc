/* The public functions: compile and render, and how errors are reported. */
#include <setjmp.h>
#include <string.h>

#include "text/jinja/jinja_priv.h"

void ml_jinja_fault_release(ml_jinja_fault *f) {
    ml_text_release(&f->message);
    *f = (ml_jinja_fault){ 0 };
}

static void locate(ml_str src, size_t at, uint32_t *line, uint32_t *column) {
    size_t begin = 0;

    *line = 1;
    for (size_t i = 0; i < at && i < src.len; i++)
        if (src.ptr[i] == '\n') {
            ++*line;
            begin = i + 1;
        }
    *column = 1 + (uint32_t)ml_jstr_count_chars((ml_str){ src.ptr + begin, at - begin });
}

static ml_status report(const ml_jtrap *t, ml_str src, ml_jinja_fault *fault, ml_err *err) {
    uint32_t line, column;

    locate(src, t->at, &line, &column);
    if (fault) {
        fault->kind = t->kind;
        fault->line = line;
        fault->column = column;
        ml_text_add(&fault->message, t->message.ptr, t->message.len);
    }
    return ml_fail(err, ML_EFORMAT, "line %u, column %u: %s: %.*s", (unsigned)line,
                   (unsigned)column, t->kind, (int)t->message.len, t->message.ptr);
}

/* Converts all newlines to \n and removes one at the very end. */
static ml_str normalised(ml_arena *a, ml_str source) {
    char *s = ml_arena_take(a, source.len + 1, 1);
    size_t n = 0;

    for (size_t i = 0; i < source.len; i++) {
        bool is_cr = source.ptr[i] == '\r';
        if (is_cr && i + 1 < source.len && source.ptr[i + 1] == '\n')
            continue;
        s[n++] = is_cr ? '\n' : source.ptr[i];
    }
    if (n && s[n - 1] == '\n')
        n--;
    return (ml_str){ s, n };
}

static void compile(ml_jinja *t, ml_jtrap *trap) {
    ml_jtoks toks;
    ml_jparser *p = ML_NEW(&t->arena, ml_jparser, 1);

    ml_jlex(&toks, &t->arena, t->src, trap);
    p->arena = &t->arena;
    p->trap = trap;
    p->tok = toks.tok;
    ml_jparse(&t->body, p);
    ml_jscope_bind(t, trap);
}

ml_status ml_jinja_compile(ml_jinja **out, ml_str source, ml_jinja_fault *fault,
                           ml_err *err) {
    ml_arena a;
    ml_jinja *t;
    ml_jtrap trap;
    size_t valid = ml_utf8_valid(source);
    ml_status st;

    *out = NULL;
    if (valid < source.len)
        return ml_fail(err, ML_EFORMAT, "the template is not valid UTF-8 at byte %zu",
                       valid);
    if (source.len > ML_JINJA_SOURCE)
        return ml_fail(err, ML_EFORMAT, "the template has %zu bytes; the maximum is %d",
                       source.len, ML_JINJA_SOURCE);
    ml_arena_init(&a, "a chat template");
    t = ML_NEW(&a, ml_jinja, 1);
    t->arena = a; /* the template is allocated in its own arena */
    trap.arena = &t->arena;
    t->src = normalised(&t->arena, source);
    if (setjmp(trap.door) == 0) {
        compile(t, &trap);
        *out = t;
        return ML_OK;
    }
    st = report(&trap, t->src, fault, err);
    ml_jinja_free(t);
    return st;
}

void ml_jinja_free(ml_jinja *t) {
    ml_arena a;

    if (!t)
        return;
    a = t->arena;
    ml_arena_release(&a);
}

static void set_context(ml_jrun *r) {
    const ml_jinja_opts *o = r->opts;

    r->context = ml_jdict_new(r, o->n_var);
    r->exported = ml_jdict_new(r, 0);
    for (int64_t i = 0; i < o->n_var; i++)
        ml_jdict_set(r, r->context, ml_jstr_view(r, o->var[i].name),
                     ml_jval_from_json(r, o->var[i].value));
}

static void hand_out(ml_jinja_text *out, ml_arena *a, const ml_jrun *r) {
    ml_jinja_span *span = ML_NEW(a, ml_jinja_span, r->spans.n);

    if (r->spans.n)
        memcpy(span, r->spans.span, (size_t)r->spans.n * sizeof *span);
    out->text = (ml_str){ ml_arena_str(a, r->root.ptr, r->root.len), r->root.len };
    out->span = span;
    out->n_span = r->spans.n;
}

ml_status ml_jinja_render(ml_jinja_text *out, ml_arena *a, const ml_jinja *t,
                          const ml_jinja_opts *opts, ml_jinja_fault *fault, ml_err *err) {
    ml_jrun r = { .t = t, .opts = opts };
    ml_status st;

    *out = (ml_jinja_text){ 0 };
    r.max_steps = opts->max_steps ? opts->max_steps : ML_JINJA_STEPS;
    r.max_bytes = opts->max_bytes ? opts->max_bytes : ML_JINJA_BYTES;
    r.max_depth = opts->max_depth ? opts->max_depth : ML_JINJA_DEPTH;
    ml_arena_init(&r.arena, "the rendering of a chat template");
    r.trap.arena = &r.arena;
    if (setjmp(r.trap.door) == 0) {
        set_context(&r);
        ml_jexec_root(&r);
        hand_out(out, a, &r);
        ml_arena_release(&r.arena);
        return ML_OK;
    }
    st = report(&r.trap, t->src, fault, err);
    ml_arena_release(&r.arena);
    return st;
}
