#include "text/tokenizer/detok.h"

#include "text/tokenizer/tok_priv.h"

/* The state of a decoder between tokens. */
typedef struct stage {
    ml_text held;       /* incomplete characters; Strip: those that may be dropped */
    int64_t n_token;    /* tokens seen */
    int64_t n_stripped; /* characters dropped at the beginning so far */
    bool begun;         /* Strip: a character that is not dropped has arrived */
} stage;

struct ml_detok {
    ml_arena arena;
    const ml_tokenizer *tok;
    bool skip_special;
    bool raw; /* bytes of one token in the middle of a text, also invalid UTF-8 */
    ml_text *out;
    stage stage[ML_TOK_STAGES];
};

static void feed(ml_detok *d, int k, ml_str token);

/* --- bytes to characters ---------------------------------------------------- */

static void feed_unknown(ml_detok *d, int k) {
    feed(d, k, (ml_str){ "\xef\xbf\xbd", 3 });
}

/* Passes on the characters in the held bytes; an incomplete character at the end is
 * kept. */
static void spell_out(ml_detok *d, int k) {
    ml_text *held = &d->stage[k].held;
    size_t at = 0;

    if (d->raw) {
        feed(d, k + 1, (ml_str){ held->ptr, held->len });
        held->len = 0;
    }
    while (at < held->len) {
        size_t valid = ml_utf8_valid((ml_str){ held->ptr + at, held->len - at });
        int next;
        if (valid)
            feed(d, k + 1, (ml_str){ held->ptr + at, valid });
        at += valid;
        if (at == held->len)
            break;
        next = ml_utf8_look(held->ptr + at, held->len - at);
        if (next == 0)
            break;
        feed_unknown(d, k + 1);
        at += (size_t)-next;
    }
    memmove(held->ptr, held->ptr + at, held->len - at);
    held->len -= at;
}

/* Decodes a token spelled in byte-level characters; a token with any other character is
 * passed on unchanged. */
static void feed_byte_level(ml_detok *d, int k, ml_str token) {
    ml_text *held = &d->stage[k].held;
    size_t before = held->len, n = 0;
    char bytes[128];

    for (const char *p = token.ptr; p < token.ptr + token.len;) {
        int byte = ml_byte_of_char(ml_utf8_next(&p));
        if (byte < 0) {
            held->len = before;
            n = 0;
            ml_text_add(held, token.ptr, token.len);
            break;
        }
        bytes[n++] = (char)byte;
        if (n == sizeof bytes) {
            ml_text_add(held, bytes, n);
            n = 0;
        }
    }
    ml_text_add(held, bytes, n);
    spell_out(d, k);
}

/* --- ByteFallback ----------------------------------------------------------- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Returns the byte of "<0xHH>", or -1.  As in the reference, the number may have a plus
 * sign. */
static int fallback_byte(ml_str t) {
    int high, low;

    if (t.len != 6 || memcmp(t.ptr, "<0x", 3) != 0 || t.ptr[5] != '>')
        return -1;
    high = t.ptr[3] == '+' ? 0 : hex_digit(t.ptr[3]);
    low = hex_digit(t.ptr[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* A run of byte tokens is decoded as a whole, or replaced if it is not valid UTF-8. */
static void flush_fallback(ml_detok *d, int k) {
    ml_text *held = &d->stage[k].held;
    ml_str run = { held->ptr, held->len };

    if (run.len && (d->raw || ml_utf8_valid(run) == run.len))
        feed(d, k + 1, run);
    else
        for (size_t i = 0; i < run.len; i++)
            feed_unknown(d, k + 1);
    held->len = 0;
}

static void feed_fallback(ml_detok *d, int k, ml_str token) {
    int byte = fallback_byte(token);

    if (byte >= 0) {
        ml_text_add(&d->stage[k].held, &(char){ (char)byte }, 1);
        return;
    }
    flush_fallback(d, k);
    feed(d, k + 1, token);
}

/* --- the others ------------------------------------------------------------- */

/* Replaces every `from` in the token by `to` and passes the result on. */
static void feed_replaced(ml_detok *d, int k, ml_str token, ml_str from, ml_str to) {
    const char *p = token.ptr, *end = p + token.len, *hit;
    ml_text made = { 0 };

    hit = memmem(p, token.len, from.ptr, from.len);
    if (!hit) {
        feed(d, k + 1, token);
        return;
    }
    for (; hit; hit = memmem(p, (size_t)(end - p), from.ptr, from.len)) {
        ml_text_add(&made, p, (size_t)(hit - p));
        ml_text_add(&made, to.ptr, to.len);
        p = hit + from.len;
    }
    ml_text_add(&made, p, (size_t)(end - p));
    feed(d, k + 1, (ml_str){ made.ptr, made.len });
    ml_text_release(&made);
}

static bool begins_with(ml_str s, ml_str head) {
    return s.len >= head.len && memcmp(s.ptr, head.ptr, head.len) == 0;
}

static bool ends_with(ml_str s, ml_str tail) {
    return s.len >= tail.len && memcmp(s.ptr + s.len - tail.len, tail.ptr, tail.len) == 0;
}

static void feed_stripped_token(ml_detok *d, int k, ml_str t) {
    const ml_dec *s = &d->tok->dec[k];

    for (int64_t i = 0; i < s->start && begins_with(t, s->content); i++) {
        t.ptr += s->content.len;
        t.len -= s->content.len;
    }
    for (int64_t i = 0; i < s->stop && ends_with(t, s->content); i++)
        t.len -= s->content.len;
    feed(d, k + 1, t);
}

/* Strip for streamed text: drops its first characters, and holds back characters that may
 * turn out to be its last ones. */
static void feed_stripped_text(ml_detok *d, int k, ml_str t) {
    const ml_dec *s = &d->tok->dec[k];
    stage *st = &d->stage[k];
    size_t keep = 0, unit = s->content.len;

    while (!st->begun && st->n_stripped < s->start && begins_with(t, s->content)) {
        t.ptr += unit;
        t.len -= unit;
        st->n_stripped++;
    }
    st->begun = st->begun || t.len > 0;
    ml_text_add(&st->held, t.ptr, t.len);
    while (keep < (size_t)s->stop &&
           ends_with((ml_str){ st->held.ptr, st->held.len - keep * unit }, s->content))
        keep++;
    feed(d, k + 1, (ml_str){ st->held.ptr, st->held.len - keep * unit });
    memmove(st->held.ptr, st->held.ptr + st->held.len - keep * unit, keep * unit);
    st->held.len = keep * unit;
}

static void feed(ml_detok *d, int k, ml_str token) {
    const ml_dec *s = &d->tok->dec[k];
    stage *st = &d->stage[k];

    if (k == d->tok->n_dec) {
        ml_text_add(d->out, token.ptr, token.len);
        return;
    }
    st->n_token += d->raw;
    switch (s->type) {
    case ML_DEC_JOIN:
        if (st->n_token)
            feed(d, k + 1, (ml_str){ " ", 1 });
        feed(d, k + 1, token);
        break;
    case ML_DEC_BYTE_LEVEL: feed_byte_level(d, k, token); break;
    case ML_DEC_BYTES:
        ml_text_add(&st->held, token.ptr, token.len);
        spell_out(d, k);
        break;
    case ML_DEC_BYTE_FALLBACK: feed_fallback(d, k, token); break;
    case ML_DEC_FUSE: feed(d, k + 1, token); break;
    case ML_DEC_REPLACE: feed_replaced(d, k, token, s->pattern.literal, s->content); break;
    case ML_DEC_STRIP:
        if (s->whole && d->raw)
            feed(d, k + 1, token);
        else if (s->whole)
            feed_stripped_text(d, k, token);
        else
            feed_stripped_token(d, k, token);
        break;
    case ML_DEC_METASPACE:
        feed_replaced(d, k, token, s->content,
                      (ml_str){ " ", st->n_token == 0 && s->prefix ? 0 : 1 });
    }
    st->n_token++;
}

static void flush(ml_detok *d, int k) {
    switch (d->tok->dec[k].type) {
    case ML_DEC_BYTE_LEVEL:
    case ML_DEC_BYTES:
        if (d->stage[k].held.len)
            feed_unknown(d, k + 1);
        break;
    case ML_DEC_BYTE_FALLBACK: flush_fallback(d, k); break;
    default: break;
    }
    d->stage[k].held.len = 0;
    d->stage[k].n_token = d->stage[k].n_stripped = 0;
    d->stage[k].begun = false;
}

/* --- outside ---------------------------------------------------------------- */

static void release(ml_detok *d) {
    for (int k = 0; k < ML_TOK_STAGES; k++)
        ml_text_release(&d->stage[k].held);
}

ml_detok *ml_detok_new(const ml_tokenizer *t, bool skip_special) {
    ml_arena a;
    ml_detok *d;

    ml_arena_init(&a, "detokenizer");
    d = ML_NEW(&a, ml_detok, 1);
    d->arena = a;
    d->tok = t;
    d->skip_special = skip_special;
    return d;
}

void ml_detok_free(ml_detok *d) {
    ml_arena a;

    if (!d)
        return;
    a = d->arena; /* also holds d itself */
    release(d);
    ml_arena_release(&a);
}

void ml_detok_push(ml_detok *d, int32_t id, ml_text *out) {
    ml_str token = ml_tokenizer_token(d->tok, id);

    if (!token.ptr || (d->skip_special && ml_tokenizer_is_special(d->tok, id)))
        return;
    d->out = out;
    feed(d, 0, token);
}

void ml_detok_finish(ml_detok *d, ml_text *out) {
    d->out = out;
    for (int k = 0; k < d->tok->n_dec; k++)
        flush(d, k);
}

void ml_decode(const ml_tokenizer *t, ml_text *out, const int32_t *id, int64_t n,
               bool skip_special) {
    ml_detok d = { .tok = t, .skip_special = skip_special };

    for (int64_t i = 0; i < n; i++)
        ml_detok_push(&d, id[i], out);
    ml_detok_finish(&d, out);
    release(&d);
}

void ml_token_bytes(const ml_tokenizer *t, int32_t id, ml_text *out) {
    ml_detok d = { .tok = t, .raw = true };

    ml_detok_push(&d, id, out);
    ml_detok_finish(&d, out);
    release(&d);
}

/* --- stop strings ----------------------------------------------------------- */

/* Returns the longest stop string that ends at `end`, or -1. */
static int stop_at(const ml_stops *s, ml_str text, size_t end) {
    int best = -1;

    for (int i = 0; i < s->n; i++)
        if (ends_with((ml_str){ text.ptr, end }, s->stop[i]) &&
            (best < 0 || s->stop[i].len > s->stop[best].len))
            best = i;
    return best;
}

/* The length of the longest suffix of the text that may begin a stop string. */
static size_t undecided(const ml_stops *s, ml_str text) {
    size_t most = 0;

    for (int i = 0; i < s->n; i++) {
        size_t n = s->stop[i].len - 1 < text.len ? s->stop[i].len - 1 : text.len;
        for (; n > most; n--)
            if (memcmp(text.ptr + text.len - n, s->stop[i].ptr, n) == 0)
                most = n;
    }
    return most;
}

int ml_stops_push(ml_stops *s, ml_str text, ml_text *out) {
    size_t seen = s->held.len, keep;
    ml_str all;

    ml_text_add(&s->held, text.ptr, text.len);
    all = (ml_str){ s->held.ptr, s->held.len };
    for (size_t end = seen + 1; end <= all.len; end++) {
        int hit = stop_at(s, all, end);
        if (hit < 0)
            continue;
        ml_text_add(out, all.ptr, end - s->stop[hit].len);
        s->held.len = 0;
        return hit;
    }
    keep = undecided(s, all);
    ml_text_add(out, all.ptr, all.len - keep);
    memmove(s->held.ptr, s->held.ptr + all.len - keep, keep);
    s->held.len = keep;
    return -1;
}

void ml_stops_finish(ml_stops *s, ml_text *out) {
    ml_text_add(out, s->held.ptr, s->held.len);
    s->held.len = 0;
}

void ml_stops_release(ml_stops *s) {
    ml_text_release(&s->held);
}
