#include "train/pipeline.h"

#include "base/bug.h"

static int32_t chunks_of(const ml_pipeline_opts *o) {
    return o->n_chunk ? o->n_chunk : 1;
}

/* --- the passes of a rank --------------------------------------------------- */

/* Pass number k of one direction: groups of n_stage micro-batches go through all chunks,
 * backward from the last chunk to the first. */
static ml_pass pass_at(const ml_pipeline_opts *o, int32_t k, bool backward) {
    int32_t n_chunk = chunks_of(o), chunk = k / o->n_stage % n_chunk;

    return (ml_pass){ .micro = k / (o->n_stage * n_chunk) * o->n_stage + k % o->n_stage,
                      .chunk = backward ? n_chunk - 1 - chunk : chunk,
                      .backward = backward };
}

/* Forward passes before the first backward pass. */
static int32_t warm_up(const ml_pipeline_opts *o, int32_t rank) {
    int32_t after = o->n_stage - rank - 1;

    return chunks_of(o) == 1 ? after : 2 * after + (chunks_of(o) - 1) * o->n_stage;
}

/* The last group may have fewer micro-batches: the passes of those that do not exist are
 * left out, on all ranks. */
int32_t ml_pipeline_passes(ml_pass **out, ml_arena *a, const ml_pipeline_opts *o,
                           int32_t rank) {
    int32_t groups = (o->n_micro + o->n_stage - 1) / o->n_stage;
    int32_t all = groups * o->n_stage * chunks_of(o), warm = warm_up(o, rank), n = 0;
    int32_t steps = o->backward ? all + (warm < all ? warm : all) : all;

    if (!o->backward || warm > all)
        warm = all;
    *out = ML_NEW(a, ml_pass, 2 * all + 1);
    for (int32_t k = 0; k < steps; k++) { /* a forward pass, then a backward one */
        ml_pass forward = pass_at(o, k, false), back = pass_at(o, k - warm, true);
        if (k < all && forward.micro < o->n_micro)
            (*out)[n++] = forward;
        if (k >= warm && back.micro < o->n_micro)
            (*out)[n++] = back;
    }
    return n;
}

/* --- ticks ------------------------------------------------------------------ */

/* The passes of all ranks, and the tick that each has been given, by stage of the model. */
typedef struct layout {
    const ml_pipeline_opts *o;
    ml_pass **pass; /* [n_stage] */
    int32_t *n, *next;
    int32_t *done[2]; /* [forward, backward][stages * n_micro]; -1: not yet */
} layout;

static int32_t stage_of(const layout *l, int32_t rank, const ml_pass *p) {
    return p->chunk * l->o->n_stage + rank;
}

static int32_t *done_at(const layout *l, int32_t stage, const ml_pass *p) {
    return &l->done[p->backward][(int64_t)stage * l->o->n_micro + p->micro];
}

/* The stage whose result a pass needs; -1: none, or this stage's own forward pass, which
 * stands before it in the list. */
static int32_t source_of(const layout *l, int32_t rank, const ml_pass *p) {
    int32_t stage = stage_of(l, rank, p), n = l->o->n_stage * chunks_of(l->o);

    if (!p->backward)
        return stage - 1;
    return stage + 1 < n ? stage + 1 : -1;
}

static bool is_ready(const layout *l, int32_t rank, const ml_pass *p, int32_t tick) {
    int32_t source = source_of(l, rank, p), at;

    if (source < 0)
        return true;
    at = *done_at(l, source, p);
    return at >= 0 && at < tick;
}

static void add_move(ml_pipeline_tick *t, const ml_pass *p, int32_t chunk, int32_t peer,
                     bool send) {
    ML_BUG_IF(t->n_move == ML_PIPELINE_MOVES);
    t->move[t->n_move++] = (ml_pipeline_move){ .of = { p->micro, chunk, p->backward },
                                               .peer = peer,
                                               .send = send };
}

/* Gives a pass of a rank this tick; `mine` records what rank `me` has to do with it. */
static void run_pass(layout *l, int32_t rank, int32_t tick, int32_t me,
                     ml_pipeline_tick *mine) {
    const ml_pass *p = &l->pass[rank][l->next[rank]++];
    int32_t source = source_of(l, rank, p), from = source % l->o->n_stage;

    *done_at(l, stage_of(l, rank, p), p) = tick;
    ML_BUG_IF(source >= 0 && from == rank); /* a pipeline of one rank has one chunk */
    if (rank == me) {
        mine->runs = true;
        mine->pass = *p;
    }
    if (source >= 0 && rank == me)
        add_move(mine, p, p->chunk, from, false);
    if (source >= 0 && from == me)
        add_move(mine, p, source / l->o->n_stage, rank, true);
}

/* One tick of all ranks; false: nothing is left. */
static bool run_tick(layout *l, bool *ready, int32_t tick, int32_t me,
                     ml_pipeline_tick *mine) {
    bool any = false, left = false;

    for (int32_t r = 0; r < l->o->n_stage; r++) {
        left |= l->next[r] < l->n[r];
        ready[r] = l->next[r] < l->n[r] && is_ready(l, r, &l->pass[r][l->next[r]], tick);
        any |= ready[r];
    }
    ML_BUG_IF(left && !any); /* a deadlock */
    for (int32_t r = 0; r < l->o->n_stage; r++)
        if (ready[r])
            run_pass(l, r, tick, me, mine);
    return left;
}

static layout layout_of(ml_arena *a, const ml_pipeline_opts *o) {
    int32_t n = o->n_stage * chunks_of(o) * o->n_micro;
    layout l = { .o = o,
                 .pass = ML_NEW(a, ml_pass *, o->n_stage),
                 .n = ML_NEW(a, int32_t, o->n_stage),
                 .next = ML_NEW(a, int32_t, o->n_stage),
                 .done = { ML_NEW(a, int32_t, n + 1), ML_NEW(a, int32_t, n + 1) } };

    for (int32_t i = 0; i < n; i++)
        l.done[0][i] = l.done[1][i] = -1;
    for (int32_t r = 0; r < o->n_stage; r++)
        l.n[r] = ml_pipeline_passes(&l.pass[r], a, o, r);
    return l;
}

static void count_sets(ml_pipeline *p, const ml_pipeline_opts *o) {
    int32_t flying[64] = { 0 };

    ML_BUG_IF(chunks_of(o) > 64);
    for (int32_t c = 0; c < chunks_of(o); c++)
        p->n_set[c] = 1;
    for (int32_t t = 0; t < p->n_tick && o->backward; t++) {
        const ml_pass *x = &p->tick[t].pass;
        if (!p->tick[t].runs)
            continue;
        flying[x->chunk] += x->backward ? -1 : 1;
        if (flying[x->chunk] > p->n_set[x->chunk])
            p->n_set[x->chunk] = flying[x->chunk];
    }
}

void ml_pipeline_schedule(ml_pipeline *out, ml_arena *a, const ml_pipeline_opts *o,
                          int32_t rank) {
    layout l = layout_of(a, o);
    bool *ready = ML_NEW(a, bool, o->n_stage);
    int32_t most = 0;

    for (int32_t r = 0; r < o->n_stage; r++)
        most += l.n[r];
    *out = (ml_pipeline){ .tick = ML_NEW(a, ml_pipeline_tick, most + 1),
                          .n_set = ML_NEW(a, int32_t, chunks_of(o)) };
    while (run_tick(&l, ready, out->n_tick, rank, &out->tick[out->n_tick]))
        out->n_tick++;
    count_sets(out, o);
}
