/* lookahead.c - classes of states that allow the same bytes up to some depth.
 *
 * The states of a bounded repetition differ in how often it may go on; up to the length of a
 * token, all but the last of them allow the same.  They share one set of tokens then.  This is
 * the refinement of Moore's algorithm, ended after `depth` rounds, on an automaton with empty
 * edges and calls: within a round, those are followed until the partition is stable. */
#include <string.h>

#include "text/grammar/grammar_priv.h"

enum { MAX_WORK = 24000000 }; /* edges that all rounds follow */

typedef struct refinement {
    const ml_automaton *a;
    uint64_t *hash, *next;  /* [n_state] of this round */
    int32_t *class, *other; /* [n_state] of the last round, of this one */
    int32_t *slot;          /* [n_slot] a hash table: 0, or 1 + state */
    int32_t n_slot;
    bool *empty; /* [n_state] the end of the rule may follow without a byte */
    int64_t work;
} refinement;

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t mix2(uint64_t x, uint64_t y) {
    return mix(x * 0x9e3779b97f4a7c15u + mix(y));
}

/* Numbers equal hashes alike; returns the number of classes. */
static int32_t number(refinement *r, const uint64_t *hash, int32_t *class) {
    int32_t n = 0;

    memset(r->slot, 0, (size_t)r->n_slot * sizeof *r->slot);
    for (int32_t s = 0; s < r->a->n_state; s++) {
        uint32_t at = (uint32_t)hash[s] & (uint32_t)(r->n_slot - 1);
        while (r->slot[at] && hash[r->slot[at] - 1] != hash[s])
            at = (at + 1) & (uint32_t)(r->n_slot - 1);
        if (!r->slot[at]) {
            r->slot[at] = s + 1;
            class[s] = n++;
        } else {
            class[s] = class[r->slot[at] - 1];
        }
    }
    return n;
}

/* The end of a rule, and the bytes that a state reads; sums do not depend on the order of
 * edges. */
static void begin_round(refinement *r, bool reads) {
    for (int32_t s = 0; s < r->a->n_state; s++) {
        const ml_gstate *x = &r->a->state[s];
        uint64_t sum = x->final ? 7 : 3;
        for (int32_t i = 0; reads && i < x->n_edge; i++) {
            const ml_gedge *e = &r->a->edge[x->edge + i];
            if (e->kind == ML_GEDGE_BYTES)
                sum += mix2(((uint64_t)e->lo << 8 | e->hi) + 1, (uint64_t)r->class[e->to]);
        }
        r->hash[s] = mix(sum);
    }
    r->work += r->a->n_edge;
}

/* What follows a call follows at least one byte, unless its rule may be empty. */
static uint64_t after_call(const refinement *r, const ml_gedge *e) {
    return r->empty[r->a->start[e->rule]] ? r->hash[e->to] : (uint64_t)r->class[e->to];
}

static void follow_empty(refinement *r) {
    for (int32_t s = 0; s < r->a->n_state; s++) {
        const ml_gstate *x = &r->a->state[s];
        uint64_t sum = r->hash[s];
        for (int32_t i = 0; i < x->n_edge; i++) {
            const ml_gedge *e = &r->a->edge[x->edge + i];
            if (e->kind == ML_GEDGE_EMPTY)
                sum += mix2(11, r->hash[e->to]);
            else if (e->kind == ML_GEDGE_CALL)
                sum += mix2(r->hash[r->a->start[e->rule]] ^ 13, after_call(r, e));
        }
        r->next[s] = mix(sum);
    }
    r->work += r->a->n_edge;
}

/* False: there is too much to do. */
static bool refine(refinement *r, bool reads) {
    int32_t n, before;

    begin_round(r, reads);
    n = number(r, r->hash, r->other);
    do {
        uint64_t *last = r->hash;
        before = n;
        follow_empty(r);
        r->hash = r->next;
        r->next = last;
        n = number(r, r->hash, r->other);
    } while (n > before && r->work < MAX_WORK);
    memcpy(r->class, r->other, (size_t)r->a->n_state * sizeof *r->class);
    return n == before;
}

static bool is_empty(const refinement *r, const ml_gedge *e) {
    bool passes = e->kind == ML_GEDGE_EMPTY ||
                  (e->kind == ML_GEDGE_CALL && r->empty[r->a->start[e->rule]]);
    return passes && r->empty[e->to];
}

static void find_empty(refinement *r) {
    bool more = true;

    for (int32_t s = 0; s < r->a->n_state; s++)
        r->empty[s] = r->a->state[s].final;
    while (more && r->work < MAX_WORK) {
        more = false;
        for (int32_t s = r->a->n_state - 1; s >= 0; s--) {
            const ml_gstate *x = &r->a->state[s];
            for (int32_t i = 0; i < x->n_edge && !r->empty[s]; i++)
                more |= r->empty[s] = is_empty(r, &r->a->edge[x->edge + i]);
        }
        r->work += r->a->n_edge;
    }
}

int32_t ml_lookahead_classes(ml_automaton *a, ml_arena *arena, int32_t depth) {
    int32_t n = a->n_state, n_slot = 16, n_class = 0;
    refinement r = { .a = a };
    ml_arena scratch;
    bool done;

    while (n_slot < 2 * n)
        n_slot *= 2;
    ml_arena_init(&scratch, "states of a grammar");
    r.hash = ML_NEW(&scratch, uint64_t, n);
    r.next = ML_NEW(&scratch, uint64_t, n);
    r.class = ML_NEW(&scratch, int32_t, n);
    r.other = ML_NEW(&scratch, int32_t, n);
    r.empty = ML_NEW(&scratch, bool, n);
    r.slot = ML_NEW(&scratch, int32_t, n_slot);
    r.n_slot = n_slot;
    find_empty(&r);
    done = r.work < MAX_WORK && refine(&r, false);
    for (int32_t d = 0; d < depth && done; d++)
        done = refine(&r, true);
    a->alike = ML_NEW(arena, int32_t, n + 1);
    for (int32_t s = 0; s < n; s++) {
        a->alike[s] = done ? r.class[s] : s;
        n_class = a->alike[s] >= n_class ? a->alike[s] + 1 : n_class;
    }
    ml_arena_release(&scratch);
    return n_class;
}
