/* local_orders.c - orders between the ranks of an engine (gen/rank_group.h). */
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"
#include "gen/local_priv.h"

static void put_commands(ml_rank_group *g, const ml_command *first) {
    int64_t n = 0;

    for (const ml_command *c = first; c; c = c->next)
        n += c->kind != ML_DO_SET_STEP_END;
    ml_rank_group_put_int(g, n);
    for (const ml_command *c = first; c; c = c->next) {
        size_t len = c->dir ? strlen(c->dir) + 1 : 0;
        if (c->kind == ML_DO_SET_STEP_END)
            continue;
        ml_rank_group_put(g, c, sizeof *c); /* its pointers mean nothing to the receiver */
        ml_rank_group_put_int(g, (int64_t)len);
        ml_rank_group_put(g, c->dir, len);
    }
}

static ml_command *get_commands(ml_rank_group *g) {
    ml_command *first = NULL, **tail = &first;

    for (int64_t n = ml_rank_group_get_int(g); n > 0; n--) {
        ml_command sent, *c = ml_memory_grow(NULL, sizeof *c, "a command");
        size_t len;
        memcpy(&sent, ml_rank_group_get(g, sizeof sent), sizeof sent);
        *c = (ml_command){ .kind = sent.kind,
                           .received = true,
                           .version = sent.version,
                           .how = sent.how,
                           .op = sent.op,
                           .slot = sent.slot,
                           .crc64 = sent.crc64,
                           .flag = { sent.flag[0], sent.flag[1] } };
        len = (size_t)ml_rank_group_get_int(g);
        if (len)
            c->dir =
                memcpy(ml_memory_grow(NULL, len, "a path"), ml_rank_group_get(g, len), len);
        *tail = c;
        tail = &c->next;
    }
    return first;
}

ml_status ml_order_send(ml_local *l, const ml_order *o, ml_err *err) {
    ml_rank_group *g = &l->group;

    ml_rank_group_put_int(g, (int64_t)ml_engine_hash(l->engine));
    ml_rank_group_put_int(g, o->stop);
    ml_rank_group_put_int(g, o->requests.n);
    for (const ml_request *r = o->requests.first; r; r = r->next)
        ml_rank_group_put_request(g, r);
    ml_rank_group_put_int(g, o->n_abort);
    ml_rank_group_put(g, o->abort, (size_t)o->n_abort * sizeof *o->abort);
    put_commands(g, o->first);
    return ml_rank_group_send(g, err);
}

static void nobody_listens(void *ud, const ml_gen_update *u) {
    (void)ud, (void)u;
}

ml_status ml_order_receive(ml_local *l, ml_order *o, ml_err *err) {
    ml_rank_group *g = &l->group;
    ml_status st = ml_rank_group_receive(g, err);
    size_t bytes;

    *o = (ml_order){ 0 };
    if (st != ML_OK)
        return st;
    if ((uint64_t)ml_rank_group_get_int(g) != ml_engine_hash(l->engine))
        return ml_fail(err, ML_EPEER,
                       "rank %d of the engine has other requests, pages or tokens than "
                       "rank 0; its host may compute differently (miles doctor)",
                       g->orders->rank);
    o->stop = ml_rank_group_get_int(g);
    for (int64_t n = ml_rank_group_get_int(g); n > 0 && st == ML_OK; n--) {
        ml_request *r;
        st = ml_rank_group_get_request(g, &r, &l->opts.engine, l->opts.spec->n_vocab, err);
        if (st == ML_OK) {
            r->fn = nobody_listens;
            ml_list_insert(&o->requests, r);
        }
    }
    if (st != ML_OK)
        return st;
    o->n_abort = (int32_t)ml_rank_group_get_int(g);
    bytes = (size_t)o->n_abort * sizeof *o->abort;
    o->abort = ml_memory_grow(NULL, bytes + 1, "tickets");
    memcpy(o->abort, ml_rank_group_get(g, bytes), bytes);
    o->first = get_commands(g);
    return ML_OK;
}
