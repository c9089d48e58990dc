/* Added tokens: strings that are tokens wherever they occur in a text. */
#include <stdlib.h>

#include "base/bug.h"
#include "text/tokenizer/tok_priv.h"

/* --- the trie --------------------------------------------------------------- */

void ml_trie_init(ml_trie *t, ml_arena *a, size_t n_bytes) {
    *t = (ml_trie){ .n_slot = 16, .cap_node = (int32_t)n_bytes + 1, .n_node = 1 };
    while (t->n_slot < 2 * (int64_t)n_bytes)
        t->n_slot *= 2;
    t->key = ML_NEW(a, uint64_t, t->n_slot);
    t->child = ML_NEW(a, int32_t, t->n_slot);
    t->value = ML_NEW(a, int32_t, t->cap_node);
    for (int64_t i = 0; i < t->n_slot; i++)
        t->key[i] = UINT64_MAX;
    t->value[0] = -1;
}

static int64_t slot_of(const ml_trie *t, int32_t node, char byte) {
    uint64_t key = (uint64_t)node << 8 | (unsigned char)byte;
    uint64_t mask = (uint64_t)t->n_slot - 1, i = ml_tok_mix(key) & mask;

    while (t->key[i] != key && t->key[i] != UINT64_MAX)
        i = (i + 1) & mask;
    return (int64_t)i;
}

void ml_trie_add(ml_trie *t, ml_str s, int32_t value) {
    int32_t node = 0;

    if (!s.len)
        return;
    t->first[(unsigned char)s.ptr[0]] = true;
    for (size_t i = 0; i < s.len; i++) {
        int64_t at = slot_of(t, node, s.ptr[i]);
        if (t->key[at] == UINT64_MAX) {
            ML_BUG_IF(t->n_node == t->cap_node);
            t->key[at] = (uint64_t)node << 8 | (unsigned char)s.ptr[i];
            t->child[at] = t->n_node;
            t->value[t->n_node++] = -1;
        }
        node = t->child[at];
    }
    if (t->value[node] < 0)
        t->value[node] = value;
}

/* Returns the longest string that begins at text[at]; *end is its end. */
static int32_t longest(const ml_trie *t, ml_str text, size_t at, size_t *end) {
    int32_t node = 0, best = -1;

    for (size_t i = at; i < text.len; i++) {
        int64_t slot = slot_of(t, node, text.ptr[i]);
        if (t->key[slot] == UINT64_MAX)
            break;
        node = t->child[slot];
        if (t->value[node] >= 0) {
            best = t->value[node];
            *end = i + 1;
        }
    }
    return best;
}

int32_t ml_trie_find(const ml_trie *t, ml_str text, size_t from, size_t *begin,
                     size_t *end) {
    for (size_t at = from; at < text.len; at++) {
        int32_t hit;
        while (at < text.len && !t->first[(unsigned char)text.ptr[at]])
            at++;
        if (at == text.len)
            break;
        hit = longest(t, text, at, end);
        if (hit >= 0) {
            *begin = at;
            return hit;
        }
    }
    return -1;
}

/* --- loading ---------------------------------------------------------------- */

/* A token of the vocabulary keeps its id; others are numbered after the vocabulary. */
static int32_t next_id(const ml_tokenizer *t) {
    int32_t size = (int32_t)t->bpe.n_token;

    return t->max_added >= size ? t->max_added + 1 : size;
}

int32_t ml_added_add(ml_tokenizer *t, const ml_added *token) {
    ml_added *grown, *own;
    int64_t known;
    int32_t id;

    if (!token->content.len)
        return -1;
    known = ml_map_get(&t->added_at, token->content, -1);
    if (known >= 0) {
        t->added[known].special = t->added[known].special || token->special;
        return t->added[known].id;
    }
    if (t->n_added == t->cap_added) {
        t->cap_added = t->cap_added ? 2 * t->cap_added : 64;
        grown = ML_NEW(&t->arena, ml_added, t->cap_added);
        if (t->n_added)
            memcpy(grown, t->added, (size_t)t->n_added * sizeof *grown);
        t->added = grown;
    }
    id = ml_bpe_find(&t->bpe, token->content);
    own = &t->added[t->n_added];
    *own = *token;
    own->content.ptr = ml_arena_str(&t->arena, token->content.ptr, token->content.len);
    own->id = id >= 0 ? id : next_id(t);
    t->max_added = own->id > t->max_added ? own->id : t->max_added;
    ml_map_add(&t->added_at, own->content, t->n_added++);
    return own->id;
}

/* Tokens that are matched in normalized text are normalized themselves. */
static ml_status normalize_contents(ml_tokenizer *t, ml_str *content, ml_err *err) {
    ml_encoder *e = ml_encoder_new(t);
    ml_status st = ML_OK;

    e->err = err;
    for (int32_t i = 0; i < t->n_added && st == ML_OK; i++) {
        ml_view v = { .ptr = t->added[i].content.ptr, .len = t->added[i].content.len };
        content[i] = t->added[i].content;
        if (!t->added[i].normalized)
            continue;
        st = ml_norm_run(e, &v);
        content[i] = (ml_str){ ml_arena_str(&t->arena, v.ptr, v.len), v.len };
    }
    ml_encoder_free(e);
    return st;
}

/* Special tokens first: if two are equal after normalization, the first one is used. */
static void fill_tries(ml_tokenizer *t, const ml_str *content) {
    size_t n_bytes[2] = { 0 };

    for (int32_t i = 0; i < t->n_added; i++)
        n_bytes[t->added[i].normalized] += content[i].len;
    ml_trie_init(&t->raw, &t->arena, n_bytes[false]);
    ml_trie_init(&t->normalized, &t->arena, n_bytes[true]);
    for (int special = 1; special >= 0; special--)
        for (int32_t i = 0; i < t->n_added; i++)
            if (t->added[i].special == (special == 1))
                ml_trie_add(t->added[i].normalized ? &t->normalized : &t->raw, content[i],
                            i);
}

/* An id represents the normalized content, also when decoding; it is special if that
 * content is a special token's. */
static void fill_ids(ml_tokenizer *t, const ml_str *content) {
    t->n_id = t->bpe.n_id;
    if (t->max_added >= t->n_id)
        t->n_id = t->max_added + 1;
    t->special = ML_NEW(&t->arena, uint8_t, t->n_id + 1);
    t->added_token = ML_NEW(&t->arena, ml_str, t->n_id + 1);
    for (int32_t i = 0; i < t->n_added; i++) {
        int64_t same = ml_map_get(&t->added_at, content[i], -1);
        t->added_token[t->added[i].id] = content[i];
        t->special[t->added[i].id] = same >= 0 && t->added[same].special;
    }
}

ml_status ml_added_finish(ml_tokenizer *t, ml_err *err) {
    ml_str *content = ML_NEW(&t->arena, ml_str, t->n_added + 1);
    ml_status st = normalize_contents(t, content, err);

    if (st != ML_OK)
        return st;
    fill_ids(t, content);
    fill_tries(t, content);
    return ML_OK;
}

/* --- encoding --------------------------------------------------------------- */

/* True if there is a letter or digit right before `begin` or at `end`. */
static bool in_a_word(const ml_unicode *u, ml_str text, size_t begin, size_t end) {
    const char *before = text.ptr + begin, *after = text.ptr + end;

    return (begin > 0 && ml_char_is_word(u, ml_utf8_prev(&before))) ||
           (end < text.len && ml_char_is_word(u, ml_utf8_next(&after)));
}

static size_t spaces_begin(ml_str text, size_t end) {
    while (end > 0) {
        const char *p = text.ptr + end;
        if (!ml_char_is_space(ml_utf8_prev(&p)))
            break;
        end = (size_t)(p - text.ptr);
    }
    return end;
}

static size_t spaces_end(ml_str text, size_t begin) {
    while (begin < text.len) {
        const char *p = text.ptr + begin;
        if (!ml_char_is_space(ml_utf8_next(&p)))
            break;
        begin = (size_t)(p - text.ptr);
    }
    return begin;
}

ml_status ml_added_split(ml_encoder *e, const ml_trie *trie, ml_view v,
                         ml_status (*text)(ml_encoder *e, ml_view v)) {
    ml_str s = { v.ptr, v.len };
    size_t done = 0, from = 0, begin, end;
    ml_status st = ML_OK;
    int32_t hit;

    while (st == ML_OK && (hit = ml_trie_find(trie, s, from, &begin, &end)) >= 0) {
        const ml_added *a = &e->tok->added[hit];
        from = end;
        if (a->single_word && in_a_word(&e->tok->unicode, s, begin, end))
            continue;
        if (a->lstrip) {
            begin = spaces_begin(s, begin);
            begin = begin > done ? begin : done;
        }
        if (a->rstrip)
            end = spaces_end(s, end);
        if (done < begin)
            st = text(e, ml_view_sub(v, done, begin));
        if (st == ML_OK && begin < end)
            ml_tokens_push(e->out, a->id, e->spans, ml_view_span(v, begin, end));
        done = end;
    }
    if (st == ML_OK && done < s.len)
        st = text(e, ml_view_sub(v, done, s.len));
    return st;
}
