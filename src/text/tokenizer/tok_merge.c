/* The merges of byte-pair encoding, and their application to the symbols of a word.
 *
 * The order of merges is defined: the lowest rank first and, among equal ranks, the
 * leftmost.  Short words search all pairs; long ones use a heap, so that a megabyte without
 * a space takes O(n log n) time instead of O(n^2). */
#include "text/tokenizer/tok_priv.h"

#define SHORT_WORD 32

void ml_bpe_init_merges(ml_bpe *b, ml_arena *a, int64_t n_merge) {
    b->n_merge_slot = ml_tok_slots(n_merge);
    b->merge = ML_NEW(a, ml_merge, b->n_merge_slot);
    for (uint64_t i = 0; i < b->n_merge_slot; i++)
        b->merge[i].pair = UINT64_MAX;
}

static ml_merge *merge_slot(const ml_bpe *b, uint64_t pair) {
    for (uint64_t i = ml_tok_mix(pair * 0x9e3779b97f4a7c15u);; i++) {
        ml_merge *m = &b->merge[i & (b->n_merge_slot - 1)];
        if (m->pair == pair || m->pair == UINT64_MAX)
            return m;
    }
}

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The merge of two tokens; its pair is UINT64_MAX if there is none. */
static const ml_merge *merge_of(const ml_bpe *b, int32_t left, int32_t right) {
    return merge_slot(b, pair_of(left, right));
}

void ml_bpe_add_merge(ml_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id) {
    uint64_t pair = pair_of(left, right);
    *merge_slot(b, pair) = (ml_merge){ pair, rank, id };
}

/* The rank and the result of merging *s with its neighbour. */
static void look(const ml_bpe *b, const ml_symbol *s, int32_t *rank, int32_t *made) {
    const ml_merge *m = merge_of(b, s[0].id, s[1].id);
    *rank = m->pair == UINT64_MAX ? INT32_MAX : m->rank;
    *made = m->id;
}

static void merge_short(ml_encoder *e) {
    const ml_bpe *b = &e->tok->bpe;
    ml_symbol *s = e->symbol;
    int32_t rank[SHORT_WORD], made[SHORT_WORD]; /* of symbols i and i+1 */
    size_t n = e->n_symbol;

    for (size_t i = 0; i + 1 < n; i++)
        look(b, s + i, rank + i, made + i);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == INT32_MAX)
            break;
        s[best].id = made[best];
        s[best].len += s[best + 1].len;
        n--;
        memmove(s + best + 1, s + best + 2, (n - best - 1) * sizeof *s);
        memmove(rank + best, rank + best + 1, (n - best) * sizeof *rank);
        memmove(made + best, made + best + 1, (n - best) * sizeof *made);
        if (best > 0)
            look(b, s + best - 1, rank + best - 1, made + best - 1);
        if (best + 1 < n)
            look(b, s + best, rank + best, made + best);
    }
    e->n_symbol = n;
}

static bool comes_before(const ml_candidate *a, const ml_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void sift_down(ml_candidate *heap, size_t n, size_t at) {
    ml_candidate c = heap[at];

    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_before(&heap[child + 1], &heap[child]))
            child++;
        if (!comes_before(&heap[child], &c))
            break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

static void heap_push(ml_encoder *e, ml_candidate c) {
    size_t at = e->n_heap++;

    e->heap = ml_tok_grow(e->heap, &e->cap_heap, e->n_heap, sizeof *e->heap);
    for (; at && comes_before(&c, &e->heap[(at - 1) / 2]); at = (at - 1) / 2)
        e->heap[at] = e->heap[(at - 1) / 2];
    e->heap[at] = c;
}

/* Finds the merge of the symbol at pos with the next one; false if there is none. */
static bool candidate_at(const ml_encoder *e, int32_t pos, ml_candidate *c) {
    const ml_symbol *left = &e->symbol[pos], *right;
    const ml_merge *m;

    if (left->next < 0)
        return false;
    right = &e->symbol[left->next];
    m = merge_of(&e->tok->bpe, left->id, right->id);
    *c = (ml_candidate){ m->rank, pos, m->id, left->len + right->len };
    return m->pair != UINT64_MAX;
}

static void merge_at(ml_encoder *e, const ml_candidate *c) {
    ml_symbol *left = &e->symbol[c->pos], *right = &e->symbol[left->next];
    ml_candidate more;

    left->id = c->id;
    left->len = c->len;
    left->next = right->next;
    right->len = 0;
    if (left->next >= 0)
        e->symbol[left->next].prev = c->pos;
    if (left->prev >= 0 && candidate_at(e, left->prev, &more))
        heap_push(e, more);
    if (candidate_at(e, c->pos, &more))
        heap_push(e, more);
}

static void merge_long(ml_encoder *e) {
    int32_t n = (int32_t)e->n_symbol;
    size_t kept = 0;
    ml_candidate c;

    e->n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        e->symbol[i].prev = i - 1;
        e->symbol[i].next = i + 1 < n ? i + 1 : -1;
    }
    e->heap = ml_tok_grow(e->heap, &e->cap_heap, e->n_symbol, sizeof *e->heap);
    for (int32_t i = 0; i < n; i++)
        if (candidate_at(e, i, &c))
            e->heap[e->n_heap++] = c;
    for (size_t i = e->n_heap / 2; i-- > 0;)
        sift_down(e->heap, e->n_heap, i);
    while (e->n_heap) {
        const ml_symbol *s;
        c = e->heap[0];
        e->heap[0] = e->heap[--e->n_heap];
        if (e->n_heap)
            sift_down(e->heap, e->n_heap, 0);
        s = &e->symbol[c.pos];
        if (s->len && s->next >= 0 && s->len + e->symbol[s->next].len == c.len)
            merge_at(e, &c);
    }
    for (int32_t i = 0; i < n; i++)
        if (e->symbol[i].len)
            e->symbol[kept++] = e->symbol[i];
    e->n_symbol = kept;
}

void ml_bpe_merge(ml_encoder *e) {
    if (e->n_symbol <= SHORT_WORD)
        merge_short(e);
    else
        merge_long(e);
}
