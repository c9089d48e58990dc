/* automaton.c - rules to a pushdown automaton over bytes (Thompson's construction). */
#include <string.h>

#include "base/utf8.h"
#include "text/grammar/grammar_priv.h"

enum {
    MAX_STATES = 200000,
    MAX_EDGES = 1000000,
    FLAT = 1024,         /* repetitions of a character that are unrolled, ... */
    FLAT_STATES = 60000, /* ... as long as there are fewer states than this */
    SMALL = 48,          /* nodes of an expression that stands for one character */
    BLOCK = 32, /* other repetitions that are; more become calls of a rule of this many */
};

typedef struct new_edge {
    int32_t from;
    ml_gedge edge;
} new_edge;

typedef struct builder {
    ml_arena *arena;
    ml_grules *rules;
    new_edge *edge;
    int32_t n_edge, cap_edge;
    int32_t n_state;
    bool over; /* a limit was exceeded */
    int32_t *start, *end;
    int32_t cap_rule;
} builder;

/* --- construction ----------------------------------------------------------- */

static int32_t new_state(builder *b) {
    if (b->n_state >= MAX_STATES)
        b->over = true;
    return b->over ? 0 : b->n_state++;
}

static void add_edge(builder *b, int32_t from, ml_gedge e) {
    if (b->n_edge >= MAX_EDGES)
        b->over = true;
    if (b->over)
        return;
    if (b->n_edge == b->cap_edge) {
        int32_t cap = b->cap_edge ? 2 * b->cap_edge : 1024;
        new_edge *grown = ML_NEW(b->arena, new_edge, cap);
        if (b->n_edge)
            memcpy(grown, b->edge, (size_t)b->n_edge * sizeof *grown);
        b->edge = grown;
        b->cap_edge = cap;
    }
    b->edge[b->n_edge++] = (new_edge){ from, e };
}

static void add_empty(builder *b, int32_t from, int32_t to) {
    if (from != to)
        add_edge(b, from, (ml_gedge){ .kind = ML_GEDGE_EMPTY, .to = to });
}

static void add_bytes(builder *b, int32_t from, int32_t to, uint32_t lo, uint32_t hi) {
    add_edge(b, from,
             (ml_gedge){ .kind = ML_GEDGE_BYTES,
                         .lo = (unsigned char)lo,
                         .hi = (unsigned char)hi,
                         .to = to });
}

/* Code points lo .. hi, whose UTF-8 has n bytes: splits them until every byte but the first
 * that differs has its whole range (as in RE2's compiler). */
static void add_utf8(builder *b, int32_t from, int32_t to, uint32_t lo, uint32_t hi,
                     int n) {
    char first[4], last[4];
    int32_t at = from;

    for (int i = 1; i < n; i++) {
        uint32_t m = (1u << 6 * i) - 1;
        if ((lo & ~m) == (hi & ~m))
            continue;
        if (lo & m) {
            add_utf8(b, from, to, lo, lo | m, n);
            add_utf8(b, from, to, (lo | m) + 1, hi, n);
            return;
        }
        if ((hi & m) != m) {
            add_utf8(b, from, to, lo, (hi & ~m) - 1, n);
            add_utf8(b, from, to, hi & ~m, hi, n);
            return;
        }
    }
    ml_utf8_put(first, lo);
    ml_utf8_put(last, hi);
    for (int i = 0; i < n; i++) {
        int32_t next = i == n - 1 ? to : new_state(b);
        add_bytes(b, at, next, (unsigned char)first[i], (unsigned char)last[i]);
        at = next;
    }
}

/* Surrogates have no UTF-8. */
static void add_range(builder *b, int32_t from, int32_t to, ml_grange r) {
    static const ml_grange part[] = { { 0, 0x7f },
                                      { 0x80, 0x7ff },
                                      { 0x800, 0xd7ff },
                                      { 0xe000, 0xffff },
                                      { 0x10000, 0x10ffff } };
    static const int bytes[] = { 1, 2, 3, 3, 4 };

    for (int i = 0; i < 5; i++) {
        uint32_t lo = r.lo > part[i].lo ? r.lo : part[i].lo;
        uint32_t hi = r.hi < part[i].hi ? r.hi : part[i].hi;
        if (lo <= hi)
            add_utf8(b, from, to, lo, hi, bytes[i]);
    }
}

static void emit(builder *b, const ml_gnode *n, int32_t from, int32_t to);

static void emit_text(builder *b, ml_str s, int32_t from, int32_t to) {
    for (size_t i = 0; i < s.len && !b->over; i++) {
        int32_t next = i == s.len - 1 ? to : new_state(b);
        unsigned char c = (unsigned char)s.ptr[i];
        add_bytes(b, from, next, c, c);
        from = next;
    }
}

static void emit_seq(builder *b, const ml_gnode *n, int32_t from, int32_t to) {
    if (!n->child)
        add_empty(b, from, to);
    for (const ml_gnode *c = n->child; c && !b->over; c = c->next) {
        int32_t next = c->next ? new_state(b) : to;
        emit(b, c, from, next);
        from = next;
    }
}

/* --- repetition ------------------------------------------------------------- */

/* Nodes of an expression without references; more than SMALL: it has one, or is large. */
static int32_t count_nodes(const ml_gnode *x) {
    int32_t n = x->kind == ML_GNODE_REF ? SMALL + 1 : 1, each = 1;

    if (x->kind == ML_GNODE_REPEAT)
        each = x->max < 0 || x->max > SMALL ? SMALL + 1 : x->max;
    for (const ml_gnode *c = x->child; c && n <= SMALL; c = c->next)
        n += each * count_nodes(c);
    return n <= SMALL ? n : SMALL + 1; /* a product of two such numbers is an int32_t */
}

/* A reference to a small rule stands for its body: tokens within it need no stack then. */
static const ml_gnode *inlined(const builder *b, const ml_gnode *x) {
    const ml_gnode *body = x->kind == ML_GNODE_REF ? b->rules->rule[x->rule].body : x;

    return body && count_nodes(body) <= SMALL ? body : x;
}

/* The states of an unrolled repetition share their sets of tokens (lookahead.c). */
static bool is_flat(const builder *b, const ml_gnode *x, int32_t n) {
    return n <= BLOCK ||
           (n <= FLAT && b->n_state < FLAT_STATES && count_nodes(inlined(b, x)) <= SMALL);
}

static int32_t emit_times(builder *b, const ml_gnode *x, int32_t n, int32_t from) {
    x = inlined(b, x);
    for (; n > 0 && !b->over; n--) {
        int32_t next = new_state(b);
        emit(b, x, from, next);
        from = next;
    }
    return from;
}

/* A reference to a new rule: x, BLOCK times. */
static const ml_gnode *block_of(builder *b, const ml_gnode *x) {
    ml_gnode *body = ml_gnode_new(b->rules, ML_GNODE_REPEAT), *ref;
    ml_gnode *copy = ml_gnode_new(b->rules, x->kind);
    int32_t rule = ml_grule_new(b->rules, "");

    *copy = *x;
    copy->next = NULL;
    body->child = body->last = copy;
    body->min = body->max = BLOCK;
    ml_grule_set(b->rules, rule, body);
    ref = ml_gnode_ref(b->rules, rule);
    return ref;
}

static int32_t emit_exactly(builder *b, const ml_gnode *x, int32_t n, int32_t from) {
    bool flat = is_flat(b, x, n);

    if (!flat)
        from = emit_exactly(b, block_of(b, x), n / BLOCK, from);
    return emit_times(b, x, flat ? n : n % BLOCK, from);
}

/* At most n times.  More than a block: some blocks and less than a block, or all blocks
 * and the rest. */
static void emit_at_most(builder *b, const ml_gnode *x, int32_t n, int32_t from,
                         int32_t to) {
    if (is_flat(b, x, n)) {
        x = inlined(b, x);
        for (; n > 0 && !b->over; n--) {
            int32_t next = new_state(b);
            add_empty(b, from, to);
            emit(b, x, from, next);
            from = next;
        }
        add_empty(b, from, to);
    } else {
        const ml_gnode *block = block_of(b, x);
        int32_t some = new_state(b);
        emit_at_most(b, block, n / BLOCK - 1, from, some);
        emit_at_most(b, x, BLOCK - 1, some, to);
        emit_at_most(b, x, n % BLOCK, emit_exactly(b, block, n / BLOCK, from), to);
    }
}

static void emit_repeat(builder *b, const ml_gnode *n, int32_t from, int32_t to) {
    int32_t loop, at = emit_exactly(b, n->child, n->min, from);

    if (n->max < 0) {
        loop = new_state(b);
        add_empty(b, at, loop);
        emit(b, n->child, loop, loop);
        add_empty(b, loop, to);
    } else {
        emit_at_most(b, n->child, n->max - n->min, at, to);
    }
}

static void emit(builder *b, const ml_gnode *n, int32_t from, int32_t to) {
    switch (n->kind) {
    case ML_GNODE_EMPTY:
    case ML_GNODE_BEGIN:
    case ML_GNODE_END: add_empty(b, from, to); break;
    case ML_GNODE_BYTES: emit_text(b, n->bytes, from, to); break;
    case ML_GNODE_CLASS:
        for (int32_t i = 0; i < n->n_range && !b->over; i++)
            add_range(b, from, to, n->range[i]);
        break;
    case ML_GNODE_BYTE_SET:
        for (int32_t i = 0; i < n->n_range; i++)
            add_bytes(b, from, to, n->range[i].lo, n->range[i].hi);
        break;
    case ML_GNODE_SEQ: emit_seq(b, n, from, to); break;
    case ML_GNODE_ALT:
        for (const ml_gnode *c = n->child; c && !b->over; c = c->next)
            emit(b, c, from, to);
        break;
    case ML_GNODE_REPEAT: emit_repeat(b, n, from, to); break;
    case ML_GNODE_REF:
        add_edge(b, from, (ml_gedge){ .kind = ML_GEDGE_CALL, .to = to, .rule = n->rule });
    }
}

/* Emitting a rule may add rules, which are emitted in turn. */
static void emit_rules(builder *b) {
    for (int32_t i = 0; i < b->rules->n && !b->over; i++) {
        if (i >= b->cap_rule) {
            int32_t cap = 2 * b->rules->n, *start = ML_NEW(b->arena, int32_t, cap),
                    *end = ML_NEW(b->arena, int32_t, cap);
            if (i) {
                memcpy(start, b->start, (size_t)i * sizeof *start);
                memcpy(end, b->end, (size_t)i * sizeof *end);
            }
            b->start = start;
            b->end = end;
            b->cap_rule = cap;
        }
        b->start[i] = new_state(b);
        b->end[i] = new_state(b);
        emit(b, b->rules->rule[i].body, b->start[i], b->end[i]);
    }
}

/* --- dead ends -------------------------------------------------------------- */

/* Edges by the state they lead to, and calls by the rule they wait for. */
typedef struct incoming {
    int32_t *to_first, *to_edge;     /* [n_state + 1], [n_edge] */
    int32_t *rule_first, *rule_edge; /* [n_rule + 1], calls */
} incoming;

static int32_t *group_by(ml_arena *a, int32_t n, const builder *b, bool by_rule,
                         int32_t **order) {
    int32_t *first = ML_NEW(a, int32_t, n + 2);

    *order = ML_NEW(a, int32_t, b->n_edge + 1);
    for (int32_t i = 0; i < b->n_edge; i++)
        if (!by_rule || b->edge[i].edge.kind == ML_GEDGE_CALL)
            first[(by_rule ? b->edge[i].edge.rule : b->edge[i].edge.to) + 2]++;
    for (int32_t i = 0; i < n; i++)
        first[i + 2] += first[i + 1];
    for (int32_t i = 0; i < b->n_edge; i++)
        if (!by_rule || b->edge[i].edge.kind == ML_GEDGE_CALL)
            (*order)[first[(by_rule ? b->edge[i].edge.rule : b->edge[i].edge.to) + 1]++] =
                i;
    return first;
}

typedef struct worklist {
    int32_t *item, n;
    bool *seen;
} worklist;

static void work_add(worklist *w, int32_t state) {
    if (w->seen[state])
        return;
    w->seen[state] = true;
    w->item[w->n++] = state;
}

static bool is_live(const builder *b, const bool *live, const ml_gedge *e) {
    return live[e->to] && (e->kind != ML_GEDGE_CALL || live[b->start[e->rule]]);
}

/* The states from which the end of their rule can be reached; empty: without reading. */
static bool *find_live(ml_arena *a, const builder *b, bool empty) {
    int32_t n_rule = b->rules->n, *rule_of = ML_NEW(a, int32_t, b->n_state);
    incoming in;
    worklist w = { .item = ML_NEW(a, int32_t, b->n_state + 1),
                   .seen = ML_NEW(a, bool, b->n_state + 1) };

    in.to_first = group_by(a, b->n_state, b, false, &in.to_edge);
    in.rule_first = group_by(a, n_rule, b, true, &in.rule_edge);
    memset(rule_of, 0xff, (size_t)b->n_state * sizeof *rule_of);
    for (int32_t r = 0; r < n_rule; r++) {
        rule_of[b->start[r]] = r;
        work_add(&w, b->end[r]);
    }
    while (w.n) {
        int32_t s = w.item[--w.n], r = rule_of[s];
        for (int32_t i = in.to_first[s]; i < in.to_first[s + 1]; i++) {
            const new_edge *e = &b->edge[in.to_edge[i]];
            if (is_live(b, w.seen, &e->edge) && !(empty && e->edge.kind == ML_GEDGE_BYTES))
                work_add(&w, e->from);
        }
        for (int32_t i = r < 0 ? 0 : in.rule_first[r]; r >= 0 && i < in.rule_first[r + 1];
             i++) {
            const new_edge *e = &b->edge[in.rule_edge[i]];
            if (is_live(b, w.seen, &e->edge))
                work_add(&w, e->from);
        }
    }
    return w.seen;
}

/* --- the result ------------------------------------------------------------- */

static void sort_edges(ml_automaton *out, ml_arena *a, const builder *b, const bool *live) {
    int32_t n = 0;

    out->n_state = b->n_state;
    out->state = ML_NEW(a, ml_gstate, b->n_state + 1);
    out->edge = ML_NEW(a, ml_gedge, b->n_edge + 1);
    for (int32_t i = 0; i < b->n_edge; i++)
        if (is_live(b, live, &b->edge[i].edge))
            out->state[b->edge[i].from].n_edge++;
    for (int32_t s = 0; s < b->n_state; s++) {
        out->state[s].edge = n;
        n += out->state[s].n_edge;
        out->state[s].n_edge = 0;
    }
    out->n_edge = n;
    for (int32_t i = 0; i < b->n_edge; i++) {
        const new_edge *e = &b->edge[i];
        ml_gstate *s = &out->state[e->from];
        if (!is_live(b, live, &e->edge))
            continue;
        out->edge[s->edge + s->n_edge++] = e->edge;
        s->reads = s->reads || e->edge.kind == ML_GEDGE_BYTES;
    }
    out->n_rule = b->rules->n;
    out->start = ML_NEW(a, int32_t, out->n_rule);
    memcpy(out->start, b->start, (size_t)out->n_rule * sizeof *out->start);
    for (int32_t r = 0; r < out->n_rule; r++)
        out->state[b->end[r]].final = out->state[b->end[r]].tail = true;
}

/* A state is a tail if its only edge is empty and leads to a tail.  A chain of k empty
 * edges needs k sweeps; missing one costs stack space, nothing else. */
static void find_tails(ml_automaton *a) {
    for (int sweep = 0; sweep < 4; sweep++)
        for (int32_t i = a->n_state - 1; i >= 0; i--) {
            ml_gstate *s = &a->state[i];
            const ml_gedge *e = &a->edge[s->edge];
            if (s->n_edge == 1 && e->kind == ML_GEDGE_EMPTY && a->state[e->to].tail)
                s->tail = true;
        }
}

static void find_classes(ml_automaton *a) {
    bool begins[257] = { [0] = true };

    for (int32_t i = 0; i < a->n_edge; i++)
        if (a->edge[i].kind == ML_GEDGE_BYTES)
            begins[a->edge[i].lo] = begins[a->edge[i].hi + 1] = true;
    for (int i = 0; i < 256; i++) {
        if (begins[i])
            a->sample[a->n_class++] = (unsigned char)i;
        a->class[i] = (unsigned char)(a->n_class - 1);
    }
}

/* --- left recursion --------------------------------------------------------- */

enum { UNSEEN, OPEN, DONE };

/* The rules that each rule calls before it reads a byte. */
typedef struct left_calls {
    int32_t *first, *callee; /* [n_rule + 1], [n_edge] */
} left_calls;

/* Every state belongs to one rule, so that each edge is visited once. */
static left_calls find_left_calls(ml_arena *a, const ml_automaton *m, const builder *b,
                                  const bool *empty) {
    left_calls l = { ML_NEW(a, int32_t, m->n_rule + 1), ML_NEW(a, int32_t, m->n_edge + 1) };
    worklist w = { .item = ML_NEW(a, int32_t, m->n_state + 1),
                   .seen = ML_NEW(a, bool, m->n_state) };
    int32_t n = 0;

    for (int32_t r = 0; r < m->n_rule; r++) {
        l.first[r] = n;
        work_add(&w, m->start[r]);
        while (w.n) {
            const ml_gstate *s = &m->state[w.item[--w.n]];
            for (int32_t i = 0; i < s->n_edge; i++) {
                const ml_gedge *e = &m->edge[s->edge + i];
                if (e->kind == ML_GEDGE_CALL)
                    l.callee[n++] = e->rule;
                if (e->kind == ML_GEDGE_EMPTY ||
                    (e->kind == ML_GEDGE_CALL && empty[b->start[e->rule]]))
                    work_add(&w, e->to);
            }
        }
    }
    l.first[m->n_rule] = n;
    return l;
}

/* Depth-first search; a rule that is met again while it is open calls itself. */
static int32_t find_left_recursion(ml_arena *a, const left_calls *l, int32_t n_rule) {
    int32_t *path = ML_NEW(a, int32_t, n_rule + 1), *next = ML_NEW(a, int32_t, n_rule), n;
    unsigned char *color = ML_NEW(a, unsigned char, n_rule);

    for (int32_t r = 0; r < n_rule; r++)
        next[r] = l->first[r];
    for (int32_t r = 0; r < n_rule; r++) {
        n = 0;
        if (color[r] == UNSEEN)
            path[n++] = r;
        while (n) {
            int32_t at = path[n - 1], callee;
            color[at] = OPEN;
            if (next[at] == l->first[at + 1]) {
                color[path[--n]] = DONE;
                continue;
            }
            callee = l->callee[next[at]++];
            if (color[callee] == OPEN)
                return callee;
            if (color[callee] == UNSEEN)
                path[n++] = callee;
        }
    }
    return -1;
}

static ml_status check_left_recursion(const ml_automaton *m, const builder *b, ml_arena *a,
                                      ml_err *err) {
    left_calls l = find_left_calls(a, m, b, find_live(a, b, true));
    int32_t rule = find_left_recursion(a, &l, m->n_rule);
    ml_str name;

    if (rule < 0)
        return ML_OK;
    name = b->rules->rule[rule].name;
    return ml_fail(err, ML_EUSAGE,
                   "the rule \"%.*s\" begins with itself (left recursion): write it as a "
                   "repetition",
                   (int)name.len, name.ptr);
}

ml_status ml_automaton_build(ml_automaton *out, ml_arena *a, ml_grules *g, ml_err *err) {
    ml_arena scratch;
    builder b = { .arena = &scratch, .rules = g };
    ml_status st = ML_OK;
    const bool *live;

    *out = (ml_automaton){ 0 };
    ml_arena_init(&scratch, "a grammar");
    emit_rules(&b);
    if (b.over) {
        ml_arena_release(&scratch);
        return ml_fail(err, ML_EUSAGE,
                       "the grammar has more than %d states: use fewer or smaller "
                       "repetitions",
                       MAX_STATES);
    }
    live = find_live(&scratch, &b, false);
    if (!live[b.start[0]])
        st = ml_fail(err, ML_EUSAGE, "no text matches the grammar");
    if (st == ML_OK) {
        sort_edges(out, a, &b, live);
        find_tails(out);
        find_classes(out);
        st = check_left_recursion(out, &b, &scratch, err);
    }
    ml_arena_release(&scratch);
    return st;
}
