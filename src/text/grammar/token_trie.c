/* token_trie.c - the vocabulary's bytes as a trie. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_priv.h"
#include "text/tokenizer/detok.h"

typedef struct entry {
    const char *bytes;
    uint32_t len;
    int32_t id;
} entry;

static int by_bytes(const void *x, const void *y) {
    const entry *a = x, *b = y;
    uint32_t n = a->len < b->len ? a->len : b->len;
    int order = memcmp(a->bytes, b->bytes, n);

    if (order)
        return order;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* The bytes of all tokens, one after the other; special tokens have none. */
static void read_tokens(ml_token_trie *t, const ml_tokenizer *tok) {
    int32_t n = ml_tokenizer_size(tok);
    ml_text all = { 0 };

    t->at = ML_NEW(&t->arena, uint32_t, t->n_vocab + 1);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        t->at[id] = (uint32_t)all.len;
        if (id < n && !ml_tokenizer_is_special(tok, id))
            ml_token_bytes(tok, id, &all);
    }
    t->at[t->n_vocab] = (uint32_t)all.len;
    t->bytes = ml_arena_str(&t->arena, all.ptr ? all.ptr : "", all.len);
    ml_text_release(&all);
}

static uint32_t common(const entry *a, const entry *b) {
    uint32_t n = 0;
    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Nodes of the sorted entries: each adds those below the prefix that it shares with the
 * one before it, and ends at the last of them; one without new nodes repeats the bytes of
 * the one before.  path: the nodes of the current entry, by level. */
static void add_nodes(ml_token_trie *t, const entry *e, int32_t n_entry, int32_t *path) {
    uint32_t level = 0;

    for (int32_t i = 0; i < n_entry; i++) {
        uint32_t shared = i ? common(&e[i - 1], &e[i]) : 0;
        for (; level > shared; level--)
            t->skip[path[level]] = t->n;
        for (; level < e[i].len; t->n++) {
            t->byte[t->n] = (unsigned char)e[i].bytes[level++];
            t->parent[t->n] = level > 1 ? path[level - 1] : -1;
            t->level[t->n] = (uint16_t)level;
            t->first[t->n] = i;
            path[level] = t->n;
        }
        t->token[i] = e[i].id;
        t->depth = (int32_t)level > t->depth ? (int32_t)level : t->depth;
    }
    for (; level > 0; level--)
        t->skip[path[level]] = t->n;
    t->first[t->n] = n_entry;
}

/* Most tokens are short.  The others, of spaces and dashes, are looked at one by one. */
static void find_long(ml_token_trie *t) {
    enum { USUAL = 24 };

    t->usual = t->depth < USUAL ? t->depth : USUAL;
    if (t->depth <= USUAL)
        return;
    t->is_long = ML_NEW(&t->arena, uint32_t, (t->n_vocab + 31) / 32 + 1);
    t->leads = ML_NEW(&t->arena, bool, t->n + 1);
    for (int32_t i = 0; i < t->n; i++) {
        if (t->level[i] <= USUAL || t->first[i] == t->first[i + 1])
            continue;
        for (int32_t k = t->first[i]; k < t->first[i + 1]; k++)
            t->is_long[t->token[k] / 32] |= 1u << (t->token[k] % 32);
        for (int32_t at = i; at >= 0 && !t->leads[at]; at = t->parent[at])
            t->leads[at] = true;
    }
}

ml_token_trie *ml_token_trie_new(const ml_tokenizer *tok, int32_t n_vocab) {
    ml_arena a, scratch;
    ml_token_trie *t;
    entry *e;
    int32_t n = 0;
    uint32_t longest = 0;

    ml_arena_init(&a, "a trie of tokens");
    ml_arena_init(&scratch, "tokens");
    t = ML_NEW(&a, ml_token_trie, 1);
    t->arena = a;
    t->n_vocab = n_vocab;
    read_tokens(t, tok);
    e = ML_NEW(&scratch, entry, n_vocab + 1);
    for (int32_t id = 0; id < n_vocab; id++) {
        uint32_t len = t->at[id + 1] - t->at[id];
        if (len && len < UINT16_MAX)
            e[n++] = (entry){ t->bytes + t->at[id], len, id };
        longest = len > longest ? len : longest;
    }
    qsort(e, (size_t)n, sizeof *e, by_bytes);
    t->byte = ML_NEW(&t->arena, unsigned char, t->at[n_vocab] + 1);
    t->skip = ML_NEW(&t->arena, int32_t, t->at[n_vocab] + 1);
    t->parent = ML_NEW(&t->arena, int32_t, t->at[n_vocab] + 1);
    t->level = ML_NEW(&t->arena, uint16_t, t->at[n_vocab] + 1);
    t->first = ML_NEW(&t->arena, int32_t, t->at[n_vocab] + 2);
    t->token = ML_NEW(&t->arena, int32_t, n + 1);
    add_nodes(t, e, n, ML_NEW(&scratch, int32_t, longest + 2));
    find_long(t);
    ml_arena_release(&scratch);
    return t;
}

void ml_token_trie_free(ml_token_trie *t) {
    ml_arena a;

    if (!t)
        return;
    a = t->arena;
    ml_arena_release(&a);
}
