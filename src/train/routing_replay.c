#include "train/routing_replay.h"

#include <string.h>

#include "train/micro.h"

void ml_routing_replay_init(ml_routing_replay *c, ml_arena *a, const ml_spec *s,
                            const bool *routes, int32_t n_token) {
    *c = (ml_routing_replay){ 0 };
    for (int i = 0; i < ML_N_ROUTING; i++) {
        int64_t n = n_token * ml_spec_routing_width(s, (ml_routing_kind)i);
        if (!routes[i] || !n)
            continue;
        c->of[i].n_layer = s->route[i].n_layer;
        c->of[i].top_k = s->route[i].top_k;
        c->of[i].given = ML_NEW(a, int32_t, n);
        c->of[i].chosen = ML_NEW(a, int32_t, n);
    }
}

size_t ml_routing_replay_bytes(const ml_spec *s, const bool *routes, int64_t n_token) {
    int64_t n = 0;
    for (int i = 0; i < ML_N_ROUTING; i++)
        n += routes[i] ? ml_spec_routing_width(s, (ml_routing_kind)i) : 0;
    return (size_t)(2 * n * n_token) * sizeof(int32_t);
}

/* Copies the routing of token t of a sample to row `row` of n in the batch. */
static void give_token(ml_routing_replay *c, int route, const ml_token_routing *x,
                       int32_t t, int64_t row, int64_t n) {
    int64_t k = c->of[route].top_k, n_layer = c->of[route].n_layer;

    for (int64_t layer = 0; layer < n_layer; layer++) {
        int32_t *to = c->of[route].given + (layer * n + row) * k;
        if (t < x->n_given)
            memcpy(to, x->given + (t * n_layer + layer) * k, (size_t)k * sizeof *to);
        else
            to[0] = -1;
    }
}

void ml_routing_replay_load(ml_micro *m, ml_run *run, const ml_train_sample *s,
                            const ml_bin *bin) {
    ml_routing_replay *c = &m->routing_replay;

    for (int r = 0; r < ML_N_ROUTING; r++) {
        int64_t row = 0;
        for (int32_t i = 0; c->of[r].given && i < m->n_piece; i++) {
            ml_piece p = m->piece[i];
            const ml_train_sample *x = &s[bin->item[p.seq]];
            for (int32_t t = p.first; t < p.first + p.n; t++)
                give_token(c, r, &x->routed[r], t, row++, run->rows->n_token);
        }
        run->given[r] = c->of[r].given;
    }
}

static bool records(const ml_train_sample *s, const ml_bin *bin, int route) {
    return bin->n && s[bin->item[0]].routed[route].record;
}

void ml_routing_replay_bind(ml_routing_replay *c, ml_run *run, const ml_train_sample *s,
                            const ml_bin *bin) {
    for (int r = 0; r < ML_N_ROUTING; r++)
        if (c->of[r].chosen && records(s, bin, r)) {
            int64_t width = (int64_t)c->of[r].n_layer * c->of[r].top_k;
            run->chosen[r] = c->of[r].chosen;
            memset(c->of[r].chosen, 0, /* layers without routing write nothing */
                   (size_t)(width * run->rows->n_token) * sizeof(int32_t));
        }
}

/* Layers that were not computed have zeros. */
static void put_layer(int32_t *to, const int32_t *chosen, int64_t k, bool add) {
    for (int64_t i = 0; i < k; i++)
        to[i] = add ? to[i] | chosen[i] : chosen[i];
}

static void clear_records(const ml_routing_replay *c, int route, const ml_train_sample *s,
                          const ml_bin *bin) {
    int64_t width = (int64_t)c->of[route].n_layer * c->of[route].top_k;

    for (int32_t i = 0; i < bin->n; i++) {
        const ml_train_sample *x = &s[bin->item[i]];
        memset(x->routed[route].record, 0, (size_t)(width * x->n_token) * sizeof(int32_t));
    }
}

void ml_routing_replay_record(const ml_micro *m, const ml_run *run,
                              const ml_train_sample *s, const ml_bin *bin, bool add) {
    const ml_routing_replay *c = &m->routing_replay;

    for (int r = 0; r < ML_N_ROUTING; r++) {
        int64_t row = 0, k = c->of[r].top_k, n_layer = c->of[r].n_layer;
        if (run->chosen[r] && m->context.n_rank > 1 && !add)
            clear_records(c, r, s, bin);
        for (int32_t i = 0; run->chosen[r] && i < m->n_piece; i++) {
            ml_piece p = m->piece[i];
            const ml_train_sample *x = &s[bin->item[p.seq]];
            for (int32_t t = p.first; t < p.first + p.n; t++, row++)
                for (int64_t layer = 0; layer < n_layer; layer++)
                    put_layer(x->routed[r].record + (t * n_layer + layer) * k,
                              c->of[r].chosen + (layer * run->rows->n_token + row) * k, k,
                              add);
        }
    }
}

/* --- validation of recorded routing ----------------------------------------- */

/* Whether the k numbers are distinct and below n. */
static bool is_choice(const int32_t *pick, int32_t k, int32_t n) {
    for (int32_t i = 0; i < k; i++) {
        if (pick[i] < 0 || pick[i] >= n)
            return false;
        for (int32_t other = 0; other < i; other++)
            if (pick[other] == pick[i])
                return false;
    }
    return true;
}

/* Checks the routing of a layer: distinct experts below n_expert, or indexer keys up to
 * the token's own position, then -1. */
static ml_status check_layer(const ml_node *node, const int32_t *row, int32_t n,
                             int64_t width, ml_err *err) {
    bool keys = node->op == ML_OP_INDEX;
    int32_t k = keys ? node->attr.index.top_k : node->attr.moe.top_k;

    for (int32_t t = 0; t < n; t++) {
        const int32_t *pick = row + t * width + (int64_t)node->route_layer * k;
        int32_t ratio = node->attr.index.ratio ? node->attr.index.ratio : 1;
        int32_t of = keys ? (t + 1) / ratio : node->attr.moe.n_expert, given = k;
        while (keys && given > 1 && pick[given - 1] == -1)
            given--;
        if (pick[0] != -1 && !is_choice(pick, given, of))
            return ml_fail(err, ML_EFORMAT,
                           "the recorded %s of token %d in layer %d are not %d different "
                           "ones of %d: were they recorded with another model?",
                           keys ? "keys" : "experts", t, node->layer, given, of);
    }
    return ML_OK;
}

static bool makes(const ml_node *n, ml_routing_kind route) {
    return n->op == (route == ML_ROUTING_KEYS ? ML_OP_INDEX : ML_OP_MOE_ROUTE);
}

ml_status ml_routing_replay_check(const ml_spec *s, ml_routing_kind route,
                                  const int32_t *row, int32_t n, int64_t width,
                                  ml_err *err) {
    ml_status st = ML_OK;

    if (width != ml_spec_routing_width(s, route))
        return ml_fail(err, ML_EFORMAT,
                       "%lld selections were recorded per token; this model needs %d in "
                       "each of %d layers",
                       (long long)width, s->route[route].top_k, s->route[route].n_layer);
    for (int32_t i = 0; i < s->n_node && st == ML_OK; i++)
        if (makes(&s->node[i], route))
            st = check_layer(&s->node[i], row, n, width, err);
    return st;
}
