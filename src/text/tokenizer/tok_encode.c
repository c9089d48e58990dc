/* The encoding pipeline: passes a text through the components of a tokenizer. */
#include <stdio.h>
#include <stdlib.h>

#include "base/oom.h"
#include "text/tokenizer/tok_priv.h"

/* --- growing things --------------------------------------------------------- */

/* Like ml_text: ends the process if memory runs out. */
void *ml_tok_grow(void *p, size_t *cap, size_t need, size_t size) {
    size_t n = *cap ? *cap : 64;

    if (need <= *cap)
        return p;
    while (n < need)
        n *= 2;
    p = ml_memory_grow(p, n * size, "tokens");
    *cap = n;
    return p;
}

void ml_tokens_push(ml_tokens *t, int32_t id, bool spans, ml_span span) {
    if (t->n == t->cap) {
        size_t cap = (size_t)t->cap, same = cap;
        t->id = ml_tok_grow(t->id, &cap, cap + 1, sizeof *t->id);
        if (t->span || spans)
            t->span = ml_tok_grow(t->span, &same, same + 1, sizeof *t->span);
        t->cap = (int64_t)cap;
    }
    t->id[t->n] = id;
    if (spans)
        t->span[t->n] = span;
    t->n++;
}

void ml_tokens_release(ml_tokens *t) {
    free(t->id);
    free(t->span);
    *t = (ml_tokens){ 0 };
}

/* --- views and edits -------------------------------------------------------- */

ml_view ml_view_sub(ml_view v, size_t begin, size_t end) {
    return (ml_view){ v.ptr + begin, end - begin, v.align ? v.align + begin : NULL,
                      v.origin + begin };
}

static bool is_tail(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* The origin of part of a character is the whole character.  Views begin and end between
 * characters. */
ml_span ml_view_span(ml_view v, size_t begin, size_t end) {
    if (v.align)
        return (ml_span){ v.align[begin].begin, v.align[end - 1].end };
    while (begin > 0 && is_tail(v.ptr[begin]))
        begin--;
    while (end < v.len && is_tail(v.ptr[end]))
        end++;
    return (ml_span){ (uint32_t)(v.origin + begin), (uint32_t)(v.origin + end) };
}

void ml_edit_release(ml_edit *e) {
    ml_text_release(&e->text);
    free(e->align);
    *e = (ml_edit){ 0 };
}

void ml_edit_put(ml_edit *e, const char *p, size_t n, ml_span from) {
    if (e->track) {
        e->align = ml_tok_grow(e->align, &e->cap, e->text.len + n, sizeof *e->align);
        for (size_t i = 0; i < n; i++)
            e->align[e->text.len + i] = from;
    }
    ml_text_add(&e->text, p, n);
}

void ml_edit_put_char(ml_edit *e, uint32_t c, ml_span from) {
    char text[4];
    ml_edit_put(e, text, (size_t)ml_utf8_put(text, c), from);
}

void ml_edit_copy(ml_edit *e, ml_view v, size_t begin, size_t end) {
    size_t at = e->text.len;

    ml_text_add(&e->text, v.ptr + begin, end - begin);
    if (!e->track)
        return;
    e->align = ml_tok_grow(e->align, &e->cap, e->text.len, sizeof *e->align);
    for (size_t i = begin; i < end; i++)
        e->align[at + i - begin] = ml_view_span(v, i, i + 1);
}

ml_view ml_edit_view(const ml_edit *e) {
    return (ml_view){ e->text.ptr ? e->text.ptr : "", e->text.len,
                      e->track ? e->align : NULL, 0 };
}

/* --- the way ---------------------------------------------------------------- */

static ml_status pre_tokenize(ml_encoder *e, ml_view v) {
    return ml_pre_run(e, 0, v);
}

static ml_status normalize(ml_encoder *e, ml_view v) {
    ml_status st = ml_norm_run(e, &v);
    return st == ML_OK ? ml_added_split(e, &e->tok->normalized, v, pre_tokenize) : st;
}

/* tokenization_kimi.py encodes long texts in pieces of at most this many characters, and
 * divides runs with or without whitespace into pieces of at most the second number. */
#define KIMI_CHARS 400000
#define KIMI_RUN 25000

/* Python's str.isspace. */
static bool is_python_space(uint32_t c) {
    return ml_char_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static ml_status kimi_pieces(ml_encoder *e, ml_view v) {
    const char *p = v.ptr, *end = v.ptr + v.len, *begin = p;
    int64_t run = 0, chars = 0;
    bool space = false;
    ml_status st = ML_OK;

    while (p < end && st == ML_OK) {
        const char *at = p;
        bool is_space = is_python_space(ml_utf8_next(&p));
        bool part = chars == KIMI_CHARS;
        run = part || is_space != space ? 1 : run + 1;
        if (part || run > KIMI_RUN) {
            st = ml_added_split(
                e, &e->tok->raw,
                ml_view_sub(v, (size_t)(begin - v.ptr), (size_t)(at - v.ptr)), normalize);
            begin = at;
            run = 1;
        }
        chars = part ? 1 : chars + 1;
        space = is_space;
    }
    if (st == ML_OK)
        st = ml_added_split(e, &e->tok->raw, ml_view_sub(v, (size_t)(begin - v.ptr), v.len),
                            normalize);
    return st;
}

static bool is_trimmed(uint32_t c) {
    return c == 0x120 ||
           ml_char_is_space(c); /* U+0120 is the byte-level spelling of a space */
}

/* If the post-processor requests it, the span of a token excludes the spaces at its ends:
 * the same number of characters is cut from the span. */
static void trim_span(const ml_tokenizer *t, ml_str text, ml_str token, bool first,
                      ml_span *s) {
    const char *p = token.ptr, *end = token.ptr + token.len;
    int lead = 0, trail = 0;

    for (; p < end && is_trimmed(ml_utf8_next(&p)); lead++)
        continue;
    for (p = end; p > token.ptr && is_trimmed(ml_utf8_prev(&p)); trail++)
        continue;
    if (lead == 1 && (first || s->begin == 0) && t->trim_prefix_space)
        lead = 0;
    p = text.ptr + s->begin;
    for (; lead && p < text.ptr + s->end; lead--)
        ml_utf8_next(&p);
    s->begin = (uint32_t)(p - text.ptr);
    p = text.ptr + s->end;
    for (; trail && p > text.ptr + s->begin; trail--)
        ml_utf8_prev(&p);
    s->end = (uint32_t)(p - text.ptr);
}

static void trim_spans(ml_encoder *e, ml_str text, int64_t from) {
    const ml_tokenizer *t = e->tok;

    for (int64_t i = from; i < e->out->n; i++)
        trim_span(t, text, ml_tokenizer_token(t, e->out->id[i]), i == from,
                  &e->out->span[i]);
}

static ml_status encode_text(ml_encoder *e, ml_str text) {
    ml_view v = { .ptr = text.ptr, .len = text.len };
    int64_t from = e->out->n;
    ml_status st =
        e->tok->kimi ? kimi_pieces(e, v) : ml_added_split(e, &e->tok->raw, v, normalize);

    if (st == ML_OK && e->spans && e->tok->trim_spans)
        trim_spans(e, text, from);
    return st;
}

static ml_status encode_template(ml_encoder *e, ml_str text) {
    const ml_tokenizer *t = e->tok;
    ml_status st = ML_OK;

    for (int i = 0; i < t->n_piece && st == ML_OK; i++) {
        const ml_template_piece *piece = &t->piece[i];
        if (piece->is_text)
            st = encode_text(e, text);
        for (int32_t k = 0; k < piece->n; k++)
            ml_tokens_push(e->out, piece->id[k], e->spans, (ml_span){ 0 });
    }
    return st;
}

ml_status ml_encode(ml_encoder *e, ml_tokens *out, ml_str text, ml_encode_opts opts,
                    ml_err *err) {
    size_t valid = ml_utf8_valid(text);

    out->n = 0;
    if (text.len > ML_TOK_TEXT_MAX)
        return ml_fail(err, ML_EFORMAT, "the text has %zu bytes; the maximum is %zu",
                       text.len, ML_TOK_TEXT_MAX);
    if (valid < text.len)
        return ml_fail(err, ML_EFORMAT, "the text is not valid UTF-8: byte %zu is 0x%02x",
                       valid, (unsigned)(unsigned char)text.ptr[valid]);
    if (opts.spans && !out->span && out->cap) {
        ml_tokens_release(out); /* it was encoded without spans */
    }
    e->out = out;
    e->err = err;
    e->spans = opts.spans;
    e->track = opts.spans || e->tok->always_track;
    if (opts.add_special && e->tok->has_template)
        return encode_template(e, text);
    return encode_text(e, text);
}

/* --- encoders --------------------------------------------------------------- */

ml_encoder *ml_encoder_new(const ml_tokenizer *t) {
    ml_arena a;
    ml_encoder *e;

    ml_arena_init(&a, "encoder");
    e = ML_NEW(&a, ml_encoder, 1);
    e->tok = t;
    e->finder = ml_finder_new();
    e->cache = ML_NEW(&a, ml_cached, ML_CACHE_SIZE);
    e->arena = a;
    return e;
}

void ml_encoder_free(ml_encoder *e) {
    ml_arena a;

    if (!e)
        return;
    a = e->arena; /* also holds e itself */
    ml_finder_free(e->finder);
    for (int i = 0; i < 2; i++)
        ml_edit_release(&e->norm[i]);
    for (int i = 0; i < ML_TOK_STAGES; i++) {
        ml_edit_release(&e->pre[i]);
        free(e->matches[i].at);
    }
    free(e->symbol);
    free(e->heap);
    ml_text_release(&e->key);
    ml_arena_release(&a);
}

/* --- many texts ------------------------------------------------------------- */

typedef struct many {
    const ml_str *text;
    ml_tokens *out;
    ml_encode_opts opts;
    ml_encoder **encoder; /* [workers] */
    ml_err *err;     /* [workers]: error of the first text that failed in this worker */
    int64_t *failed; /* [workers]: its index, or -1 */
} many;

static void encode_some(void *ud, int64_t begin, int64_t end, int worker) {
    many *m = ud;

    for (int64_t i = begin; i < end; i++) {
        ml_err err;
        if (ml_encode(m->encoder[worker], &m->out[i], m->text[i], m->opts, &err) == ML_OK)
            continue;
        if (m->failed[worker] < 0 || i < m->failed[worker]) {
            m->failed[worker] = i;
            m->err[worker] = err;
        }
    }
}

ml_status ml_encode_all(const ml_tokenizer *t, ml_pool *pool, ml_tokens *out,
                        const ml_str *text, int64_t n, ml_encode_opts opts, ml_err *err) {
    int n_worker = ml_pool_size(pool), worst = -1;
    ml_arena a;
    many m = { .text = text, .out = out, .opts = opts };
    ml_status st = ML_OK;

    ml_arena_init(&a, "encode");
    m.encoder = ML_NEW(&a, ml_encoder *, n_worker);
    m.err = ML_NEW(&a, ml_err, n_worker);
    m.failed = ML_NEW(&a, int64_t, n_worker);
    for (int i = 0; i < n_worker; i++) {
        m.encoder[i] = ml_encoder_new(t);
        m.failed[i] = -1;
    }
    ml_pool_run(pool, n, 8, encode_some, &m);
    for (int i = 0; i < n_worker; i++) {
        ml_encoder_free(m.encoder[i]);
        if (m.failed[i] >= 0 && (worst < 0 || m.failed[i] < m.failed[worst]))
            worst = i;
    }
    if (worst >= 0) {
        st = m.err[worst].code;
        if (err) {
            *err = m.err[worst];
            ml_err_prefix(err, "text %lld", (long long)m.failed[worst]);
        }
    }
    ml_arena_release(&a);
    return st;
}
