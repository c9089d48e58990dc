/* run.c - one call of an op on guarded memory.
 *
 * Every tensor has its own mapping between two unreadable pages.  Bytes around the tensor
 * hold CANARY and must be unchanged afterwards; outputs, scratch and all tensors that
 * backward must not read hold POISON, which reads as NaN or as id -1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/checkop/checkop.h"

enum { PAGE = 4096, CANARY = 0xa5, POISON = 0xff };

/* Every tensor of ml_op_args, and the scratch of forward and of backward. */
enum { MAX_GUARDS = 2 * (ML_OP_IN + ML_OP_OUT + ML_OP_W) + 3 };

typedef struct guard {
    unsigned char *map, *data;
    size_t map_bytes, bytes;
} guard;

typedef struct run {
    ck_env *e;
    const ck_case *c;
    ck_mode m;
    guard guards[MAX_GUARDS];
    int n_guard;
    ml_op_args args;
} run;

static void *guarded(run *r, size_t bytes, size_t align) {
    guard *g = &r->guards[r->n_guard++];
    size_t body = (bytes + 128 + PAGE - 1) / PAGE * PAGE;

    g->bytes = bytes;
    g->map_bytes = body + 2 * PAGE;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    if (g->map == MAP_FAILED) {
        fprintf(stderr, "checkop: no memory for a tensor of %zu bytes\n", bytes);
        exit(1);
    }
    mprotect(g->map, PAGE, PROT_NONE);
    mprotect(g->map + PAGE + body, PAGE, PROT_NONE);
    memset(g->map + PAGE, CANARY, body);
    g->data =
        r->m.end ? g->map + PAGE + (body - bytes) / align * align : g->map + PAGE + 64;
    memset(g->data, POISON, bytes);
    return g->data;
}

static bool is_canary(const unsigned char *from, const unsigned char *to) {
    while (from < to)
        if (*from++ != CANARY)
            return false;
    return true;
}

static void check_and_unmap(run *r) {
    for (int i = 0; i < r->n_guard; i++) {
        guard *g = &r->guards[i];
        if (!is_canary(g->map + PAGE, g->data) ||
            !is_canary(g->data + g->bytes, g->map + g->map_bytes - PAGE))
            ck_fail(r->e, "memory around a tensor of %zu bytes was written to", g->bytes);
        munmap(g->map, g->map_bytes);
    }
    r->n_guard = 0;
}

/* A guarded tensor like t, with t's contents or poison. */
static ml_tensor place(run *r, const ml_tensor *t, bool contents) {
    ml_tensor p = *t;
    if (t->n_dim == 0)
        return p;
    p.data = guarded(r, ml_tensor_bytes(t), 4);
    if (contents && t->data)
        memcpy(p.data, t->data, ml_tensor_bytes(t));
    return p;
}

static ml_tensor copy_out(run *r, const ml_tensor *t) {
    ml_tensor p = *t;
    size_t bytes = ml_tensor_bytes(t);
    if (!t->data)
        return p;
    p.data = ml_arena_take(r->c->arena, bytes ? bytes : 1, 1);
    memcpy(p.data, t->data, bytes);
    return p;
}

static void check_written(run *r, const char *what, int index, const ml_tensor *t) {
    const unsigned char *p = t->data;
    size_t size = ml_dtype_bytes(t->dtype);
    int64_t n = p ? (int64_t)(ml_tensor_bytes(t) / size) : 0;
    for (int64_t i = 0; i < n; i++) {
        size_t bad = 0;
        while (bad < size && p[(size_t)i * size + bad] == POISON)
            bad++;
        if (bad == size) {
            ck_fail(r->e,
                    "%s[%d] is poison at element %lld: not written, or made of what was "
                    "not there",
                    what, index, (long long)i);
            return;
        }
    }
}

static void give_scratch(run *r, bool backward) {
    const ml_backend *b = &r->e->backend[r->m.backend];
    size_t bytes = b->ops->scratch(b->stream, r->c->suite->op, &r->args, backward);
    r->args.scratch = bytes ? guarded(r, bytes, 64) : NULL;
}

static void forward(run *r, ck_result *res) {
    const ml_backend *b = &r->e->backend[r->m.backend];
    ml_op_args *a = &r->args;

    for (int i = 0; i < ML_OP_IN; i++)
        if (r->c->in[i].data)
            a->in[i] = place(r, &r->c->in[i], true);
    for (int i = 0; i < ML_OP_W; i++)
        if (r->c->w[i].data)
            a->w[i] = place(r, &r->c->w[i], true);
    for (int i = 0; i < ML_OP_OUT; i++)
        a->out[i] = place(r, &r->c->out[i], true);
    if (r->c->given.data)
        a->given = place(r, &r->c->given, true);
    if (r->m.in_place != CK_ALL)
        a->out[0].data = a->in[r->m.in_place].data;
    if (r->c->suite->bind)
        r->c->suite->bind(r->c, a);
    give_scratch(r, false);
    b->ops->forward[r->c->suite->op](b->stream, a);
    for (int i = 0; i < ML_OP_OUT; i++) {
        res->out[i] = copy_out(r, &a->out[i]);
        if (!r->m.special && !r->c->out[i].data)
            check_written(r, "out", i, &a->out[i]);
    }
}

/* Poisons everything that ml_op_infos does not declare as saved for backward. */
static void forget(run *r) {
    const ml_op_info *info = &ml_op_infos[r->c->suite->op];
    for (int i = 0; i < ML_OP_IN; i++)
        if (r->args.in[i].data && !(info->save_in & 1u << i))
            memset(r->args.in[i].data, POISON, ml_tensor_bytes(&r->args.in[i]));
    for (int i = 0; i < ML_OP_OUT; i++)
        if (r->args.out[i].data && !(info->save_out & 1u << i))
            memset(r->args.out[i].data, POISON, ml_tensor_bytes(&r->args.out[i]));
}

static void backward(run *r, ck_result *res) {
    const ml_backend *b = &r->e->backend[r->m.backend];
    ml_op_args *a = &r->args;

    forget(r);
    for (int i = 0; i < ML_OP_OUT; i++)
        if (r->c->dout[i].data)
            a->dout[i] = place(r, &r->c->dout[i], true);
    for (int i = 0; i < ML_OP_IN; i++)
        if (r->c->din[i].data && (r->m.only == CK_ALL || r->m.only == i)) {
            a->din[i] = place(r, &r->c->din[i], r->m.add);
            a->din_add[i] = r->m.add;
        }
    for (int i = 0; i < ML_OP_W; i++)
        if (r->c->dw[i].data && (r->m.only == CK_ALL || r->m.only == ML_OP_IN + i)) {
            a->dw[i] = place(r, &r->c->dw[i], true);
            a->dw_write[i] = !r->m.add && b->ops->writes_dw[r->c->suite->op] >> i & 1;
            if (!r->m.add && !a->dw_write[i])
                memset(a->dw[i].data, 0, ml_tensor_bytes(&a->dw[i]));
        }
    if (r->c->suite->bind)
        r->c->suite->bind(r->c, a);
    give_scratch(r, true);
    b->ops->backward[r->c->suite->op](b->stream, a);
    for (int i = 0; i < ML_OP_IN; i++) {
        res->din[i] = copy_out(r, &a->din[i]);
        if (!r->m.special)
            check_written(r, "din", i, &a->din[i]);
    }
    for (int i = 0; i < ML_OP_W; i++)
        res->dw[i] = copy_out(r, &a->dw[i]);
}

void ck_run(ck_env *e, const ck_case *c, ck_mode m, ck_result *res) {
    run r = { .e = e, .c = c, .m = m };

    r.args.attr = &c->attr;
    r.args.rows = &c->rows;
    e->now = c;
    e->now_backend = m.backend;
    *res = (ck_result){ 0 };
    if (!e->backend[m.backend].dev->host) {
        ck_run_device(e, c, m, res);
        return;
    }
    forward(&r, res);
    if (m.backward)
        backward(&r, res);
    check_and_unmap(&r);
}
