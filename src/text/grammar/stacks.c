/* stacks.c - sets of stacks of the pushdown automaton, determinized lazily.
 *
 * A stack is a linked list of nodes (state, parent), hash-consed, so that stacks share
 * their lower parts and equal stacks have equal ids.  A config is the sorted set of the
 * stacks that the automaton may have after some bytes; configs are interned, too, and
 * remember their transitions, like the lazy DFA of RE2. */
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"
#include "text/grammar/grammar_priv.h"

enum {
    ROOT,               /* node: the bottom; reached: the text is complete */
    UNKNOWN,            /* node: the bottom of an open config */
    N_BOTTOM,           /* number of these */
    MAX_NODES = 2048,   /* stacks of a config */
    MAX_DEPTH = 1000,   /* states of a stack */
    MAX_WORK = 4000000, /* stacks visited by one operation */
    MAX_CONFIGS = 100000,
    NOT_YET = -2, /* a transition that is not computed yet */
};

typedef struct node {
    int32_t state, parent, depth;
    uint32_t stamp; /* of the closure that visited it last */
} node;

typedef struct config {
    int32_t first, n; /* in s->member */
    int32_t depth;    /* of its deepest stack */
    bool complete, escapes;
} config;

struct ml_stacks {
    const ml_automaton *a;
    node *node;
    config *config;
    int32_t *member; /* node ids of all configs */
    int32_t *next;   /* [n_config][n_class] */
    int32_t n_node, cap_node, n_config, cap_config, n_member, cap_member;
    int32_t *node_slot, *config_slot; /* hash tables; 0: free, otherwise 1 + index */
    int32_t n_node_slot, n_config_slot;
    int32_t *work, n_work, cap_work; /* nodes to visit */
    int32_t *set, n_set;             /* [MAX_NODES] the config being made */
    uint32_t stamp;
    int64_t visited;
    bool full; /* the config being made exceeds a limit */
};

/* --- memory ----------------------------------------------------------------- */

static void *grow(void *p, int32_t *cap, int32_t least, size_t size) {
    int32_t n = *cap ? *cap : 64;
    while (n < least)
        n *= 2;
    *cap = n;
    return ml_memory_grow(p, (size_t)n * size, "a grammar's states");
}

static void forget(ml_stacks *s) {
    memset(s->node_slot, 0, (size_t)s->n_node_slot * sizeof *s->node_slot);
    memset(s->config_slot, 0, (size_t)s->n_config_slot * sizeof *s->config_slot);
    s->n_node = N_BOTTOM;
    s->n_config = s->n_member = 0;
    s->visited = 0;
}

ml_stacks *ml_stacks_new(const ml_automaton *a) {
    ml_stacks *s = ml_memory_grow(NULL, sizeof *s, "a grammar's states");

    *s = (ml_stacks){ .a = a, .n_node_slot = 256, .n_config_slot = 256 };
    s->node_slot = ml_memory_grow(NULL, 256 * sizeof(int32_t), "a grammar's states");
    s->config_slot = ml_memory_grow(NULL, 256 * sizeof(int32_t), "a grammar's states");
    s->set = ml_memory_grow(NULL, MAX_NODES * sizeof(int32_t), "a grammar's states");
    s->node = grow(NULL, &s->cap_node, N_BOTTOM, sizeof *s->node);
    memset(s->node, 0, N_BOTTOM * sizeof *s->node);
    forget(s);
    return s;
}

static void release(ml_stacks *s) {
    free(s->node);
    free(s->config);
    free(s->member);
    free(s->next);
    free(s->node_slot);
    free(s->config_slot);
    free(s->work);
    free(s->set);
}

void ml_stacks_free(ml_stacks *s) {
    if (!s)
        return;
    release(s);
    free(s);
}

void ml_stacks_clear(ml_stacks *s) {
    ml_stacks *fresh = ml_stacks_new(s->a);

    release(s);
    *s = *fresh;
    free(fresh);
}

size_t ml_stacks_bytes(const ml_stacks *s) {
    return (size_t)s->cap_node * sizeof *s->node +
           (size_t)s->cap_config *
               (sizeof *s->config + (size_t)s->a->n_class * sizeof *s->next) +
           (size_t)(s->cap_member + s->n_node_slot + s->n_config_slot + s->cap_work) *
               sizeof(int32_t);
}

bool ml_stacks_overflow(const ml_stacks *s) {
    return s->visited > MAX_WORK || s->n_config >= MAX_CONFIGS;
}

void ml_stacks_restart_work(ml_stacks *s) {
    s->visited = 0;
}

/* --- nodes ------------------------------------------------------------------ */

static uint32_t mix(uint32_t h, uint32_t x) {
    h = (h ^ x) * 0x9e3779b1u;
    return h ^ (h >> 15);
}

static uint32_t hash_node(int32_t state, int32_t parent) {
    return mix(mix(0x811c9dc5u, (uint32_t)state), (uint32_t)parent);
}

static void rehash_nodes(ml_stacks *s) {
    s->n_node_slot *= 2;
    s->node_slot = ml_memory_grow(s->node_slot, (size_t)s->n_node_slot * sizeof(int32_t),
                                  "a grammar's states");
    memset(s->node_slot, 0, (size_t)s->n_node_slot * sizeof(int32_t));
    for (int32_t i = N_BOTTOM; i < s->n_node; i++) {
        uint32_t mask = (uint32_t)s->n_node_slot - 1;
        uint32_t at = hash_node(s->node[i].state, s->node[i].parent) & mask;
        while (s->node_slot[at])
            at = (at + 1) & mask;
        s->node_slot[at] = i + 1;
    }
}

/* The node with this state and parent; -1: the stack is too deep. */
static int32_t intern(ml_stacks *s, int32_t state, int32_t parent) {
    uint32_t mask = (uint32_t)s->n_node_slot - 1, at = hash_node(state, parent) & mask;

    for (; s->node_slot[at]; at = (at + 1) & mask) {
        const node *n = &s->node[s->node_slot[at] - 1];
        if (n->state == state && n->parent == parent)
            return s->node_slot[at] - 1;
    }
    if (s->node[parent].depth >= MAX_DEPTH)
        return -1;
    if (s->n_node == s->cap_node)
        s->node = grow(s->node, &s->cap_node, s->n_node + 1, sizeof *s->node);
    s->node[s->n_node] = (node){ state, parent, s->node[parent].depth + 1, 0 };
    s->node_slot[at] = ++s->n_node;
    if (2 * s->n_node > s->n_node_slot)
        rehash_nodes(s);
    return s->n_node - 1;
}

/* --- closure ---------------------------------------------------------------- */

static void add_work(ml_stacks *s, int32_t id) {
    if (id < 0) {
        s->full = true;
        return;
    }
    if (s->node[id].stamp == s->stamp)
        return;
    s->node[id].stamp = s->stamp;
    if (s->n_work == s->cap_work)
        s->work = grow(s->work, &s->cap_work, s->n_work + 1, sizeof *s->work);
    s->work[s->n_work++] = id;
}

static void add_member(ml_stacks *s, int32_t id) {
    if (s->n_set == MAX_NODES)
        s->full = true;
    else
        s->set[s->n_set++] = id;
}

/* Follows a node's edges that read nothing: empty ones, calls, and the end of its rule,
 * after which the node below is on top. */
static void follow(ml_stacks *s, int32_t id) {
    int32_t parent = s->node[id].parent;
    const ml_gstate *g = &s->a->state[s->node[id].state];

    if (g->reads)
        add_member(s, id);
    if (g->final)
        add_work(s, parent);
    for (int32_t i = 0; i < g->n_edge && !s->full; i++) {
        const ml_gedge *e = &s->a->edge[g->edge + i];
        int32_t below = parent;
        if (e->kind == ML_GEDGE_BYTES)
            continue;
        if (e->kind == ML_GEDGE_EMPTY) {
            add_work(s, intern(s, e->to, parent));
            continue;
        }
        if (!s->a->state[e->to].tail)
            below = intern(s, e->to, parent);
        add_work(s, below < 0 ? -1 : intern(s, s->a->start[e->rule], below));
    }
}

static void close_set(ml_stacks *s) {
    while (s->n_work && !s->full) {
        int32_t id = s->work[--s->n_work];
        s->visited++;
        if (id < N_BOTTOM)
            add_member(s, id);
        else
            follow(s, id);
    }
    s->n_work = 0;
}

static void begin_set(ml_stacks *s) {
    s->n_set = s->n_work = 0;
    s->full = false;
    if (++s->stamp == 0) {
        for (int32_t i = 0; i < s->n_node; i++)
            s->node[i].stamp = 0;
        s->stamp = 1;
    }
}

/* --- configs ---------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t hash_set(const int32_t *set, int32_t n) {
    uint32_t h = 0x811c9dc5u;
    for (int32_t i = 0; i < n; i++)
        h = mix(h, (uint32_t)set[i]);
    return h;
}

static void rehash_configs(ml_stacks *s) {
    s->n_config_slot *= 2;
    s->config_slot = ml_memory_grow(
        s->config_slot, (size_t)s->n_config_slot * sizeof(int32_t), "a grammar's states");
    memset(s->config_slot, 0, (size_t)s->n_config_slot * sizeof(int32_t));
    for (int32_t i = 0; i < s->n_config; i++) {
        uint32_t mask = (uint32_t)s->n_config_slot - 1;
        uint32_t at = hash_set(s->member + s->config[i].first, s->config[i].n) & mask;
        while (s->config_slot[at])
            at = (at + 1) & mask;
        s->config_slot[at] = i + 1;
    }
}

static void new_config(ml_stacks *s) {
    config *c;

    if (s->n_config == s->cap_config) {
        s->config = grow(s->config, &s->cap_config, s->n_config + 1, sizeof *s->config);
        s->next = ml_memory_grow(
            s->next, (size_t)s->cap_config * (size_t)s->a->n_class * sizeof *s->next,
            "a grammar's states");
    }
    if (s->n_member + s->n_set > s->cap_member)
        s->member =
            grow(s->member, &s->cap_member, s->n_member + s->n_set, sizeof *s->member);
    c = &s->config[s->n_config];
    *c = (config){ .first = s->n_member, .n = s->n_set };
    memcpy(s->member + s->n_member, s->set, (size_t)s->n_set * sizeof *s->set);
    for (int32_t i = 0; i < s->n_set; i++) {
        int32_t depth = s->node[s->set[i]].depth;
        c->depth = depth > c->depth ? depth : c->depth;
        c->complete = c->complete || s->set[i] == ROOT;
        c->escapes = c->escapes || s->set[i] == UNKNOWN;
    }
    for (int32_t i = 0; i < s->a->n_class; i++)
        s->next[(size_t)s->n_config * (size_t)s->a->n_class + (size_t)i] = NOT_YET;
    s->n_member += s->n_set;
    s->n_config++;
}

/* The config with the members of `set`. */
static int32_t intern_set(ml_stacks *s) {
    uint32_t mask = (uint32_t)s->n_config_slot - 1, at;

    if (!s->n_set || s->full || ml_stacks_overflow(s))
        return ML_NO_CONFIG;
    qsort(s->set, (size_t)s->n_set, sizeof *s->set, ascending);
    at = hash_set(s->set, s->n_set) & mask;
    for (; s->config_slot[at]; at = (at + 1) & mask) {
        const config *c = &s->config[s->config_slot[at] - 1];
        if (c->n == s->n_set &&
            memcmp(s->member + c->first, s->set, (size_t)c->n * sizeof *s->set) == 0)
            return s->config_slot[at] - 1;
    }
    new_config(s);
    s->config_slot[at] = s->n_config;
    if (2 * s->n_config > s->n_config_slot)
        rehash_configs(s);
    return s->n_config - 1;
}

int32_t ml_stacks_root(ml_stacks *s) {
    begin_set(s);
    add_work(s, intern(s, s->a->start[0], ROOT));
    close_set(s);
    return intern_set(s);
}

int32_t ml_stacks_open(ml_stacks *s, int32_t state) {
    begin_set(s);
    add_member(s, intern(s, state, UNKNOWN));
    return intern_set(s);
}

static void read_byte(ml_stacks *s, int32_t id, unsigned char byte) {
    const ml_gstate *g;
    int32_t parent = s->node[id].parent;

    if (id < N_BOTTOM)
        return;
    g = &s->a->state[s->node[id].state];
    for (int32_t i = 0; i < g->n_edge; i++) {
        const ml_gedge *e = &s->a->edge[g->edge + i];
        if (e->kind == ML_GEDGE_BYTES && e->lo <= byte && byte <= e->hi)
            add_work(s, intern(s, e->to, parent));
    }
}

static int32_t compute_step(ml_stacks *s, int32_t c, unsigned char byte) {
    begin_set(s);
    for (int32_t i = 0; i < s->config[c].n; i++)
        read_byte(s, s->member[s->config[c].first + i], byte);
    close_set(s);
    return intern_set(s);
}

int32_t ml_stacks_step(ml_stacks *s, int32_t c, unsigned char byte) {
    int32_t class = s->a->class[byte], to;
    size_t at = (size_t)c * (size_t)s->a->n_class + (size_t) class;

    if (s->next[at] != NOT_YET)
        return s->next[at];
    to = compute_step(s, c, s->a->sample[class]);
    if (!ml_stacks_overflow(s))
        s->next[at] = to;
    return to;
}

bool ml_stacks_complete(const ml_stacks *s, int32_t c) {
    return s->config[c].complete;
}

bool ml_stacks_escapes(const ml_stacks *s, int32_t c) {
    return s->config[c].escapes;
}

int32_t ml_stacks_depth(const ml_stacks *s, int32_t c) {
    return s->config[c].depth;
}

int32_t ml_stacks_tops(const ml_stacks *s, int32_t c) {
    return s->config[c].n;
}

int32_t ml_stacks_top(const ml_stacks *s, int32_t c, int32_t i) {
    int32_t id = s->member[s->config[c].first + i];
    return id < N_BOTTOM ? -1 : s->node[id].state;
}
