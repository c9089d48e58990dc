/* Byte-pair encoding: the model that turns a word into tokens. */
#include <stdio.h>

#include "text/tokenizer/tok_priv.h"

#define JOIN_BITS 21

/* --- vocabulary ------------------------------------------------------------- */

void ml_bpe_init(ml_bpe *b, ml_arena *a, int64_t n_token, int32_t n_id) {
    b->n_id = n_id;
    b->token = ML_NEW(a, ml_str, n_id);
    b->n_slot = ml_tok_slots(n_token);
    b->slot = ML_NEW(a, ml_vocab_slot, b->n_slot);
    b->unk = -1;
}

/* Returns the slot of a token, or the free slot where it belongs. */
static ml_vocab_slot *vocab_slot(const ml_bpe *b, ml_str token, uint64_t hash) {
    for (uint64_t i = hash >> 32;; i++) {
        ml_vocab_slot *s = &b->slot[i & (b->n_slot - 1)];
        if (!s->id1 ||
            (s->hash == (uint32_t)hash && ml_str_eq(b->token[s->id1 - 1], token)))
            return s;
    }
}

bool ml_bpe_add(ml_bpe *b, ml_str token, int32_t id) {
    uint64_t hash = ml_tok_hash(token.ptr, token.len);
    ml_vocab_slot *s = vocab_slot(b, token, hash);

    if (s->id1 || b->token[id].ptr)
        return false;
    *s = (ml_vocab_slot){ (uint32_t)hash, id + 1 };
    b->token[id] = token;
    b->n_token++;
    return true;
}

int32_t ml_bpe_find(const ml_bpe *b, ml_str token) {
    return vocab_slot(b, token, ml_tok_hash(token.ptr, token.len))->id1 - 1;
}

/* --- bytes as characters ---------------------------------------------------- */

/* Printable Latin-1 characters represent themselves, other bytes U+0100 and following. */
static bool is_own_char(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

uint32_t ml_byte_char(uint8_t byte) {
    if (is_own_char(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte == 0xad)
        return 0x143;
    return 0x121u + byte - 0x7f;
}

int ml_byte_of_char(uint32_t c) {
    if (c <= 0xff)
        return is_own_char(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

/* --- made once everything is loaded ----------------------------------------- */

static void find_byte_tokens(ml_bpe *b) {
    for (int i = 0; i < 256; i++) {
        char text[8];
        int n = snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        b->fallback_id[i] = ml_bpe_find(b, (ml_str){ text, (size_t)n });
        text[0] = (char)i;
        n = b->spelled ? ml_utf8_put(text, ml_byte_char((uint8_t)i)) : 1;
        b->byte_id[i] = b->by_bytes ? ml_bpe_find(b, (ml_str){ text, (size_t)n }) : -1;
    }
}

static uint64_t join_bit(uint32_t left, uint32_t right) {
    return ml_tok_mix(((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u) &
           ((1u << JOIN_BITS) - 1);
}

static bool may_join(const ml_bpe *b, uint32_t left, uint32_t right) {
    uint64_t bit = join_bit(left, right);
    return (b->joins[bit >> 6] >> (bit & 63) & 1) != 0;
}

/* If no merge contains a byte token and every byte has a token, characters without a token
 * never join across a cut. */
static bool fallback_is_plain(const ml_bpe *b) {
    bool is_byte = false;

    for (int i = 0; i < 256; i++)
        if (b->fallback_id[i] < 0)
            return false;
    for (uint64_t i = 0; i < b->n_merge_slot && !is_byte; i++) {
        const ml_merge *m = &b->merge[i];
        if (m->pair == UINT64_MAX)
            continue;
        ml_str l = b->token[m->pair >> 32], r = b->token[(uint32_t)m->pair];
        is_byte = (l.len == 6 && memcmp(l.ptr, "<0x", 3) == 0) ||
                  (r.len == 6 && memcmp(r.ptr, "<0x", 3) == 0);
    }
    return !is_byte;
}

/* A merge joins the last character of its left token and the first of its right one.  Two
 * neighbours that no merge joins stay separate in any context. */
static void find_joins(ml_bpe *b, ml_arena *a) {
    b->joins = ML_NEW(a, uint64_t, (1u << JOIN_BITS) / 64);
    for (uint64_t i = 0; i < b->n_merge_slot; i++) {
        const ml_merge *m = &b->merge[i];
        ml_str left, right;
        const char *p;
        uint64_t bit;
        uint32_t last;
        if (m->pair == UINT64_MAX)
            continue;
        left = b->token[m->pair >> 32];
        right = b->token[(uint32_t)m->pair];
        if (!left.len || !right.len)
            continue;
        p = left.ptr + left.len;
        last = ml_utf8_prev(&p);
        p = right.ptr;
        bit = join_bit(last, ml_utf8_next(&p));
        b->joins[bit >> 6] |= (uint64_t)1 << (bit & 63);
    }
}

void ml_bpe_finish(ml_bpe *b, ml_arena *a) {
    find_byte_tokens(b);
    b->cut = !b->by_bytes && b->byte_fallback && !b->ignore_merges && !b->prefix.len &&
             !b->suffix.len && fallback_is_plain(b);
    if (b->cut)
        find_joins(b, a);
}

/* --- a word's first symbols ------------------------------------------------- */

static void push_symbol(ml_encoder *e, int32_t id, size_t len) {
    e->symbol = ml_tok_grow(e->symbol, &e->cap_symbol, e->n_symbol + 1, sizeof *e->symbol);
    e->symbol[e->n_symbol++] = (ml_symbol){ .id = id, .len = (uint32_t)len };
}

/* Characters without a token, which become one "unknown" token together, or one each. */
typedef struct pending {
    size_t len; /* 0: none */
} pending;

static void flush_unknown(ml_encoder *e, pending *p) {
    if (p->len)
        push_symbol(e, e->tok->bpe.unk, p->len);
    p->len = 0;
}

static bool push_fallback(ml_encoder *e, ml_str spelled) {
    const int32_t *id = e->tok->bpe.fallback_id;

    for (size_t i = 0; i < spelled.len; i++)
        if (id[(unsigned char)spelled.ptr[i]] < 0)
            return false;
    for (size_t i = 0; i < spelled.len; i++)
        push_symbol(e, id[(unsigned char)spelled.ptr[i]], 1);
    return true;
}

static void push_unknown(ml_encoder *e, ml_str spelled, size_t len, pending *p) {
    const ml_bpe *b = &e->tok->bpe;

    if (b->byte_fallback && push_fallback(e, spelled))
        return;
    if (b->unk < 0)
        return;
    if (!b->fuse_unk)
        flush_unknown(e, p);
    p->len += len;
}

static void symbols_of_bytes(ml_encoder *e, ml_str word) {
    const ml_bpe *b = &e->tok->bpe;
    pending unknown = { 0 };

    for (size_t i = 0; i < word.len; i++) {
        unsigned char byte = (unsigned char)word.ptr[i];
        char text[4];
        if (b->byte_id[byte] >= 0) {
            flush_unknown(e, &unknown);
            push_symbol(e, b->byte_id[byte], 1);
        } else {
            int n = ml_utf8_put(text, ml_byte_char(byte));
            push_unknown(e, (ml_str){ text, (size_t)n }, 1, &unknown);
        }
    }
    flush_unknown(e, &unknown);
}

/* The character at [at, at+n) in the spelling of the vocabulary at this position of the
 * word. */
static ml_str spell(ml_encoder *e, ml_str word, size_t at, size_t n) {
    const ml_bpe *b = &e->tok->bpe;
    bool has_prefix = at > 0 && b->prefix.len,
         has_suffix = at + n == word.len && b->suffix.len;

    if (!has_prefix && !has_suffix)
        return (ml_str){ word.ptr + at, n };
    e->key.len = 0;
    if (has_prefix)
        ml_text_add(&e->key, b->prefix.ptr, b->prefix.len);
    ml_text_add(&e->key, word.ptr + at, n);
    if (has_suffix)
        ml_text_add(&e->key, b->suffix.ptr, b->suffix.len);
    return (ml_str){ e->key.ptr, e->key.len };
}

static void symbols_of_chars(ml_encoder *e, ml_str word) {
    pending unknown = { 0 };

    for (size_t at = 0, n; at < word.len; at += n) {
        const char *p = word.ptr + at;
        ml_str spelled;
        int32_t id;
        ml_utf8_next(&p);
        n = (size_t)(p - word.ptr) - at;
        spelled = spell(e, word, at, n);
        id = ml_bpe_find(&e->tok->bpe, spelled);
        if (id >= 0) {
            flush_unknown(e, &unknown);
            push_symbol(e, id, n);
        } else {
            push_unknown(e, spelled, n, &unknown);
        }
    }
    flush_unknown(e, &unknown);
}

/* --- words ------------------------------------------------------------------ */

/* A word in the spelling of the vocabulary. */
static ml_str spell_word(ml_encoder *e, ml_str word) {
    if (!e->tok->bpe.spelled)
        return word;
    e->key.len = 0;
    for (size_t i = 0; i < word.len; i++) {
        char text[4];
        int n = ml_utf8_put(text, ml_byte_char((uint8_t)word.ptr[i]));
        ml_text_add(&e->key, text, (size_t)n);
    }
    return (ml_str){ e->key.ptr, e->key.len };
}

static void find_tokens(ml_encoder *e, ml_str word) {
    const ml_bpe *b = &e->tok->bpe;

    e->n_symbol = 0;
    if (b->ignore_merges) {
        int32_t id = ml_bpe_find(b, spell_word(e, word));
        if (id >= 0) {
            push_symbol(e, id, word.len);
            return;
        }
    }
    if (b->by_bytes)
        symbols_of_bytes(e, word);
    else
        symbols_of_chars(e, word);
    ml_bpe_merge(e);
}

static void push_with_spans(ml_encoder *e, ml_view v) {
    size_t at = 0;

    for (size_t i = 0; i < e->n_symbol; i++) {
        size_t end = at + e->symbol[i].len;
        at = at < v.len ? at
                        : v.len - 1; /* a prefix or suffix counts as bytes of the word */
        end = end < v.len ? end : v.len;
        ml_tokens_push(e->out, e->symbol[i].id, true, ml_view_span(v, at, end));
        at = end;
    }
}

static void encode_word(ml_encoder *e, ml_view v) {
    ml_str word = { v.ptr, v.len };
    ml_cached *c = NULL;

    if (v.len <= ML_CACHE_KEY && !e->spans) {
        c = &e->cache[ml_tok_hash(word.ptr, word.len) & (ML_CACHE_SIZE - 1)];
        if (c->n_key == word.len && memcmp(c->key, word.ptr, word.len) == 0) {
            for (int i = 0; i < c->n_id; i++)
                ml_tokens_push(e->out, c->id[i], false, (ml_span){ 0 });
            return;
        }
    }
    find_tokens(e, word);
    if (e->spans) {
        push_with_spans(e, v);
        return;
    }
    for (size_t i = 0; i < e->n_symbol; i++)
        ml_tokens_push(e->out, e->symbol[i].id, false, (ml_span){ 0 });
    if (c && e->n_symbol <= ML_CACHE_IDS) {
        c->n_key = (uint8_t)word.len;
        c->n_id = (uint8_t)e->n_symbol;
        memcpy(c->key, word.ptr, word.len);
        for (size_t i = 0; i < e->n_symbol; i++)
            c->id[i] = e->symbol[i].id;
    }
}

ml_status ml_bpe_run(ml_encoder *e, ml_view v) {
    const ml_bpe *b = &e->tok->bpe;
    const char *p = v.ptr, *end = v.ptr + v.len;
    size_t begin = 0;
    uint32_t before, c;

    if (v.len == 0)
        return ML_OK;
    if (!b->cut) {
        encode_word(e, v);
        return ML_OK;
    }
    before = ml_utf8_next(&p);
    while (p < end) {
        size_t at = (size_t)(p - v.ptr);
        c = ml_utf8_next(&p);
        if (!may_join(b, before, c)) {
            encode_word(e, ml_view_sub(v, begin, at));
            begin = at;
        }
        before = c;
    }
    encode_word(e, ml_view_sub(v, begin, v.len));
    return ML_OK;
}
