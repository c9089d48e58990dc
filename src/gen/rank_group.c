#include "gen/rank_group.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/oom.h"

/* The beginning of an order travels with its size, in one message: most orders fit. */
enum { FIRST = 512, ALIGN = 8 };
typedef struct first {
    uint64_t size;
    char bytes[FIRST - sizeof(uint64_t)];
} first;

ml_status ml_rank_group_open(ml_rank_group *g, ml_comm *comm, ml_err *err) {
    ml_status st;

    *g = (ml_rank_group){ 0 };
    if (!comm || comm->size == 1)
        return ML_OK;
    st = comm->split(comm, &g->orders, 0, comm->rank, err);
    if (st == ML_OK) {
        g->deadline_s = g->orders->deadline_s;
        g->orders->deadline_s = 0;
        g->orders->group = "engine";
    }
    return st;
}

void ml_rank_group_close(ml_rank_group *g) {
    if (g->orders)
        g->orders->close(g->orders);
    ml_text_release(&g->order);
    *g = (ml_rank_group){ 0 };
}

/* --- orders ----------------------------------------------------------------------- */

void ml_rank_group_put(ml_rank_group *g, const void *item, size_t bytes) {
    static const char zeros[ALIGN];

    if (bytes)
        ml_text_add(&g->order, item, bytes);
    ml_text_add(&g->order, zeros, (ALIGN - bytes % ALIGN) % ALIGN);
}

void ml_rank_group_put_int(ml_rank_group *g, int64_t x) {
    ml_rank_group_put(g, &x, sizeof x);
}

const void *ml_rank_group_get(ml_rank_group *g, size_t bytes) {
    const char *p = g->order.ptr + g->at;

    g->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    ML_BUG_IF(g->at > g->order.len);
    return p;
}

int64_t ml_rank_group_get_int(ml_rank_group *g) {
    int64_t x;
    memcpy(&x, ml_rank_group_get(g, sizeof x), sizeof x);
    return x;
}

static ml_status share(ml_rank_group *g, void *bytes, size_t n, ml_err *err) {
    ml_tensor t = ml_comm_bytes(bytes, n);
    return g->orders->bcast(g->orders, NULL, &t, 0, err);
}

ml_status ml_rank_group_send(ml_rank_group *g, ml_err *err) {
    first head = { .size = g->order.len };
    size_t n = g->order.len < sizeof head.bytes ? g->order.len : sizeof head.bytes;
    ml_status st;

    if (n)
        memcpy(head.bytes, g->order.ptr, n);
    st = share(g, &head, sizeof head, err);
    if (st == ML_OK && g->order.len > n)
        st = share(g, g->order.ptr + n, g->order.len - n, err);
    g->order.len = 0;
    return st;
}

ml_status ml_rank_group_receive(ml_rank_group *g, ml_err *err) {
    first head = { 0 };
    size_t left;
    ml_status st = share(g, &head, sizeof head, err);

    g->order.len = g->at = 0;
    if (st != ML_OK)
        return st;
    left = head.size < sizeof head.bytes ? 0 : head.size - sizeof head.bytes;
    ml_text_add(&g->order, head.bytes, head.size - left);
    if (!left)
        return ML_OK;
    g->order.ptr =
        ml_memory_grow(g->order.ptr, head.size + 1, "an order of the first rank");
    g->order.cap = head.size + 1;
    g->order.len = head.size;
    return share(g, g->order.ptr + sizeof head.bytes, left, err);
}

/* --- requests --------------------------------------------------------------------- */

void ml_rank_group_put_request(ml_rank_group *g, const ml_request *r) {
    const ml_gen_request *p = &r->params;

    ml_rank_group_put_int(g, (int64_t)r->ticket);
    ml_rank_group_put(g, p, sizeof *p); /* its pointers mean nothing to the receiver */
    ml_rank_group_put(g, r->token, (size_t)p->n_prompt * sizeof *r->token);
    ml_rank_group_put(g, r->end_id + r->n_end - p->n_stop_id,
                      (size_t)p->n_stop_id * sizeof *r->end_id);
    ml_rank_group_put(g, p->also, (size_t)p->n_also * sizeof *p->also);
    ml_rank_group_put(g, p->draw.bias, (size_t)p->draw.n_bias * sizeof *p->draw.bias);
    ml_rank_group_put(g, p->grammar.text.ptr, p->grammar.text.len);
    for (int32_t i = 0; i < p->n_stop; i++) {
        ml_rank_group_put_int(g, (int64_t)p->stop[i].len);
        ml_rank_group_put(g, p->stop[i].ptr, p->stop[i].len);
    }
}

ml_status ml_rank_group_get_request(ml_rank_group *g, ml_request **out,
                                    const ml_engine_opts *opts, int64_t n_vocab,
                                    ml_err *err) {
    uint64_t ticket = (uint64_t)ml_rank_group_get_int(g);
    ml_gen_request p;
    ml_str *stop;
    ml_status st;

    memcpy(&p, ml_rank_group_get(g, sizeof p), sizeof p);
    p.prompt = ml_rank_group_get(g, (size_t)p.n_prompt * sizeof *p.prompt);
    p.stop_id = ml_rank_group_get(g, (size_t)p.n_stop_id * sizeof *p.stop_id);
    p.also = ml_rank_group_get(g, (size_t)p.n_also * sizeof *p.also);
    p.draw.bias = ml_rank_group_get(g, (size_t)p.draw.n_bias * sizeof *p.draw.bias);
    p.grammar.text.ptr = ml_rank_group_get(g, p.grammar.text.len);
    stop = ml_memory_grow(NULL, ((size_t)p.n_stop + 1) * sizeof *stop, "stop strings");
    for (int32_t i = 0; i < p.n_stop; i++) {
        stop[i].len = (size_t)ml_rank_group_get_int(g);
        stop[i].ptr = ml_rank_group_get(g, stop[i].len);
    }
    p.stop = stop;
    st = ml_request_new(out, opts, n_vocab, &p, err);
    free(stop);
    if (st == ML_OK)
        (*out)->ticket = (*out)->arrival = ticket;
    return st;
}

/* --- agreement -------------------------------------------------------------------- */

ml_status ml_rank_group_meet(ml_rank_group *g, ml_err *err) {
    ml_status st;

    if (!g->orders)
        return ML_OK;
    g->orders->deadline_s = g->deadline_s;
    st = g->orders->barrier(g->orders, NULL, err);
    g->orders->deadline_s = 0;
    return st;
}

ml_status ml_rank_group_agree(ml_rank_group *g, ml_status mine, ml_err *err) {
    ml_err me = { 0 }, *all;
    ml_tensor in = ml_comm_bytes(&me, sizeof me), out;
    ml_comm *c = g->orders;
    ml_status st;

    if (!c)
        return mine;
    if (mine != ML_OK && err)
        me = *err;
    me.code = mine;
    all = ml_memory_grow(NULL, (size_t)c->size * sizeof *all, "errors of ranks");
    out = ml_comm_bytes(all, (size_t)c->size * sizeof *all);
    st = c->allgather(c, NULL, &out, &in, err);
    if (st == ML_OK && mine != ML_OK)
        st = ml_fail(err, mine, "%s", me.msg);
    for (int32_t r = 0; r < c->size && st == ML_OK; r++)
        if (all[r].code != ML_OK)
            st = ml_fail(err, ML_EPEER, "rank %d: %s", r, all[r].msg);
    free(all);
    return st;
}
