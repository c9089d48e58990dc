#include "model/ranks.h"

#include <string.h>

#include "comm/self/self.h"

/* Bytes of the stage, and of the part of one rank in it, at most.  More ranks have smaller
 * parts and more rounds; sums are by element, so that bits do not depend on it. */
#define STAGE_BYTES ((size_t)256 << 20)
#define PART_BYTES ((size_t)8 << 20)

static size_t part_bytes(int32_t n_rank) {
    size_t fair = STAGE_BYTES / (size_t)n_rank / 64 * 64; /* whole numbers of any dtype */

    return fair < PART_BYTES ? fair : PART_BYTES;
}

static const ml_reduce tree = { ML_REDUCE_SUM, ML_REDUCE_TREE };

void ml_ranks_open(ml_ranks *out, ml_comm *comm, ml_backend *be) {
    *out = (ml_ranks){ .comm = comm ? comm : ml_comm_self(), .be = be };
}

void ml_ranks_close(ml_ranks *r) {
    if (r->stage.dev)
        r->stage.dev->free(&r->stage);
    *r = (ml_ranks){ 0 };
}

size_t ml_ranks_stage_bytes(int32_t n_rank) {
    return n_rank > 1 ? (size_t)n_rank * part_bytes(n_rank) : 0;
}

ml_rank_spans ml_ranks_spans(const ml_ranks *r, ml_arena *a, int32_t n, bool host) {
    return (ml_rank_spans){ ML_NEW(a, ml_rank_span, (int64_t)n * r->comm->size + 1), n,
                            host };
}

static ml_tensor floats_at(void *data, size_t bytes) {
    return (ml_tensor){ .data = data,
                        .dtype = ML_F32,
                        .n_dim = 1,
                        .shape = { (int64_t)(bytes / sizeof(float)) } };
}

/* --- one row ---------------------------------------------------------------- */

static const ml_rank_span *row_of(const ml_ranks *r, const ml_rank_spans *s, int32_t i) {
    return s->span + (int64_t)i * r->comm->size;
}

/* Whether the spans of a row are one array of equal parts, which needs no stage. */
static bool is_even(const ml_ranks *r, const ml_rank_spans *s, int32_t i) {
    const ml_rank_span *row = row_of(r, s, i);

    for (int32_t k = 1; k < r->comm->size; k++)
        if (row[k].bytes != row->bytes ||
            row[k].data != (char *)row->data + (size_t)k * row->bytes)
            return false;
    return row->bytes > 0;
}

/* The parts of all ranks begin at `all`; reduced or gathered in place. */
static ml_status exchange(ml_ranks *r, void *all, size_t bytes, bool reduce, bool host,
                          ml_err *err) {
    ml_comm *c = r->comm;
    ml_stream *stream = host ? NULL : r->be->stream;
    char *mine = (char *)all + (size_t)c->rank * bytes;
    ml_tensor part = reduce ? floats_at(mine, bytes) : ml_comm_bytes(mine, bytes);
    ml_tensor whole = part;

    whole.data = all;
    whole.shape[0] *= c->size;
    return reduce ? c->reduce_scatter(c, stream, &part, &whole, tree, err)
                  : c->allgather(c, stream, &whole, &part, err);
}

/* --- rows that need the stage ----------------------------------------------- */

/* A position in the concatenated spans of one rank. */
typedef struct cursor {
    int32_t row;
    size_t at;
} cursor;

static size_t uneven_bytes(const ml_ranks *r, const ml_rank_spans *s, int32_t rank) {
    size_t bytes = 0;
    for (int32_t i = 0; i < s->n; i++)
        if (!is_even(r, s, i))
            bytes += row_of(r, s, i)[rank].bytes;
    return bytes;
}

/* Copies up to `bytes` of a rank's spans to its part of the stage, or back. */
static void copy_part(const ml_ranks *r, const ml_rank_spans *s, int32_t rank, cursor *c,
                      char *part, size_t bytes, bool back) {
    ml_device *dev = r->be->dev;

    while (bytes && c->row < s->n) {
        const ml_rank_span *x = &row_of(r, s, c->row)[rank];
        size_t n = is_even(r, s, c->row) ? 0 : x->bytes - c->at;
        n = n < bytes ? n : bytes;
        if (n) {
            char *at = (char *)x->data + c->at;
            if (s->host)
                memcpy(back ? at : part, back ? part : at, n);
            else
                dev->copy(r->be->stream, back ? at : part, back ? part : at, n);
        }
        part += n;
        bytes -= n;
        c->at += n;
        if (is_even(r, s, c->row) || c->at == x->bytes)
            *c = (cursor){ .row = c->row + 1 };
    }
}

static ml_status grow_stage(ml_ranks *r, size_t bytes, ml_err *err) {
    ml_device *dev = r->be->dev;

    if (r->stage.bytes >= bytes)
        return ML_OK;
    if (r->stage.dev)
        dev->free(&r->stage);
    return dev->alloc(dev, &r->stage, bytes, ML_MEM_SCRATCH, err);
}

/* Rounds of one part per rank, until the longest rank is through. */
static ml_status exchange_staged(ml_ranks *r, const ml_rank_spans *s, bool reduce,
                                 ml_arena *a, ml_err *err) {
    int32_t n_rank = r->comm->size, mine = r->comm->rank;
    cursor *from = ML_NEW(a, cursor, n_rank), *to = ML_NEW(a, cursor, n_rank);
    size_t most = 0, part;
    char *stage = NULL;
    ml_status st = ML_OK;

    for (int32_t k = 0; k < n_rank; k++) {
        size_t bytes = uneven_bytes(r, s, k);
        most = bytes > most ? bytes : most;
    }
    part = most < part_bytes(n_rank) ? most : part_bytes(n_rank);
    if (s->host)
        stage = ml_arena_take(a, (size_t)n_rank, part + 1);
    else if (part)
        st = grow_stage(r, (size_t)n_rank * part, err);
    if (!s->host)
        stage = r->stage.ptr;
    for (size_t done = 0; done < most && st == ML_OK; done += part) {
        size_t bytes = most - done < part ? most - done : part;
        for (int32_t k = 0; k < n_rank; k++)
            if (reduce || k == mine)
                copy_part(r, s, k, &from[k], stage + (size_t)k * bytes, bytes, false);
        st = exchange(r, stage, bytes, reduce, s->host, err);
        for (int32_t k = 0; k < n_rank && st == ML_OK; k++)
            if (reduce ? k == mine : k != mine)
                copy_part(r, s, k, &to[k], stage + (size_t)k * bytes, bytes, true);
    }
    return st;
}

static ml_status exchange_all(ml_ranks *r, const ml_rank_spans *s, bool reduce,
                              ml_err *err) {
    ml_status st = ML_OK;
    ml_arena a;

    if (r->comm->size == 1)
        return ML_OK;
    for (int32_t i = 0; i < s->n && st == ML_OK; i++)
        if (is_even(r, s, i))
            st = exchange(r, row_of(r, s, i)->data, row_of(r, s, i)->bytes, reduce, s->host,
                          err);
    ml_arena_init(&a, "an exchange of ranks");
    if (st == ML_OK)
        st = exchange_staged(r, s, reduce, &a, err);
    ml_arena_release(&a);
    return st;
}

ml_status ml_ranks_reduce(ml_ranks *r, const ml_rank_spans *s, ml_err *err) {
    return exchange_all(r, s, true, err);
}

ml_status ml_ranks_gather(ml_ranks *r, const ml_rank_spans *s, ml_err *err) {
    return exchange_all(r, s, false, err);
}

ml_status ml_ranks_gather_set(ml_ranks *r, const ml_shard_map *map, const ml_weights *whole,
                              const ml_weights *part, ml_err *err) {
    ml_rank_spans s;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "parts of all ranks");
    s = ml_ranks_spans(r, &a, whole->n, false);
    for (int32_t i = 0; i < whole->n; i++)
        for (int32_t k = 0; k < r->comm->size; k++) {
            ml_shard_range x = ml_shard_owned(map, i, k);
            ml_tensor to = ml_weights_view(whole, i, x);
            s.span[(int64_t)i * r->comm->size + k] =
                (ml_rank_span){ to.data, ml_tensor_bytes(&to) };
            if (k == r->comm->rank && x.n)
                r->be->dev->copy(r->be->stream, to.data, ml_weights_view(part, i, x).data,
                                 ml_tensor_bytes(&to));
        }
    st = ml_ranks_gather(r, &s, err);
    ml_arena_release(&a);
    return st == ML_OK ? r->be->dev->sync(r->be->stream, err) : st;
}

/* --- small values ------------------------------------------------------------ */

ml_status ml_ranks_collect(ml_ranks *r, void *out, const void *in, size_t bytes,
                           ml_err *err) {
    ml_tensor part = ml_comm_bytes(in, bytes);
    ml_tensor all = ml_comm_bytes(out, (size_t)r->comm->size * bytes);

    return r->comm->allgather(r->comm, NULL, &all, &part, err);
}

ml_status ml_ranks_merge(ml_ranks *r, void *data, size_t bytes, ml_err *err) {
    unsigned char *all, *to = data;
    ml_status st;
    ml_arena a;

    if (r->comm->size == 1)
        return ML_OK;
    ml_arena_init(&a, "values of all ranks");
    all = ml_arena_take(&a, (size_t)r->comm->size, bytes + 1);
    st = ml_ranks_collect(r, all, data, bytes, err);
    for (int32_t k = 0; k < r->comm->size && st == ML_OK; k++)
        for (size_t i = 0; k != r->comm->rank && i < bytes; i++)
            to[i] |= all[(size_t)k * bytes + i];
    ml_arena_release(&a);
    return st;
}

ml_status ml_ranks_agree(ml_ranks *r, ml_status mine, ml_err *err) {
    return r->comm->agree(r->comm, mine, err);
}
