#include "model/moves.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/checksum.h"
#include "base/oom.h"

/* --- parameters as rows ------------------------------------------------------------- */

/* A member of a packed parameter; elements of vectors are rows. */
typedef struct rows {
    int64_t n, stored, cols;
    ml_layout layout;
} rows;

static rows rows_of(const ml_param *p, ml_layout linear) {
    rows r = { .n = p->shape[0],
               .cols = p->n_dim == 2 ? p->shape[1] : 1,
               .layout = p->n_dim == 2 && p->layout != ML_ROWS ? linear : ML_ROWS };

    r.stored = r.layout == ML_PANELS ? (r.n + ML_LANES - 1) / ML_LANES * ML_LANES : r.n;
    return r;
}

static ml_tensor matrix(void *data, ml_dtype dtype, ml_layout layout, int64_t n,
                        int64_t cols) {
    return (ml_tensor){
        .data = data, .dtype = dtype, .layout = layout, .n_dim = 2, .shape = { n, cols }
    };
}

/* Where an element of the whole packed parameter i is in a set that may have a part. */
static void *address_of(const ml_weights *w, int32_t i, int64_t element) {
    int64_t at = element - (w->range ? w->range[i].begin : 0);
    return (unsigned char *)w->t[i].data + at * (int64_t)ml_dtype_bytes(w->t[i].dtype);
}

/* Member e of parameter i of a set. */
static ml_tensor member_of(const ml_weights *w, int32_t i, const ml_param *p,
                           ml_layout linear, int32_t e) {
    rows r = rows_of(p, linear);

    return matrix(address_of(w, i, e * r.stored * r.cols), w->t[i].dtype, r.layout, r.n,
                  r.cols);
}

int32_t ml_cut_source(const ml_spec *whole, const ml_spec *cut, int32_t i) {
    int32_t member = 0, found = i;

    if (i >= whole->n_param) /* the head of a tied model */
        found = ml_spec_find(whole, ml_str_of(cut->param[i].name), &member);
    ML_BUG_IF(found == ML_NONE || member);
    return found;
}

/* --- copying rows ------------------------------------------------------------------- */

static void copy_row(const ml_tensor *to, int64_t to_row, const ml_tensor *from,
                     int64_t from_row) {
    ml_row_walk out = ml_tensor_row(to, to_row), in = ml_tensor_row(from, from_row);
    int64_t cols = to->shape[1];

    if (to->dtype == ML_BF16) {
        uint16_t *o = to->data;
        const uint16_t *x = from->data;
        for (int64_t k = 0; k < cols; k++)
            o[ml_row_at(out, k)] = x[ml_row_at(in, k)];
    } else {
        uint32_t *o = to->data;
        const uint32_t *x = from->data;
        for (int64_t k = 0; k < cols; k++)
            o[ml_row_at(out, k)] = x[ml_row_at(in, k)];
    }
}

static void *row_address(const ml_tensor *t, int64_t row) {
    return (unsigned char *)t->data +
           (size_t)(row * t->shape[1]) * ml_dtype_bytes(t->dtype);
}

/* In host memory.  Whole panels, and rows of row-major matrices, are copied as blocks. */
static void copy_rows(const ml_tensor *to, int64_t to_row, const ml_tensor *from,
                      int64_t from_row, int64_t n) {
    size_t row_bytes = (size_t)to->shape[1] * ml_dtype_bytes(to->dtype);
    int64_t block = 0;

    if (to->layout == ML_ROWS && from->layout == ML_ROWS)
        block = n;
    else if (to->layout == from->layout && to_row % ML_LANES == 0 &&
             from_row % ML_LANES == 0)
        block = n / ML_LANES * ML_LANES;
    if (block)
        memcpy(row_address(to, to_row), row_address(from, from_row),
               (size_t)block * row_bytes);
    for (int64_t i = block; i < n; i++)
        copy_row(to, to_row + i, from, from_row + i);
}

static bool on_device(const ml_weights *w) {
    return w->be && !w->be->dev->host;
}

/* From a set to host memory that starts with the row.  Devices have row-major matrices. */
static void read_rows(const ml_tensor *out, const ml_weights *w, const ml_tensor *from,
                      int64_t row, int64_t n) {
    if (!on_device(w)) {
        copy_rows(out, 0, from, row, n);
        return;
    }
    ML_BUG_IF(from->layout != ML_ROWS || out->layout != ML_ROWS);
    w->be->dev->copy_out(w->be->stream, out->data, row_address(from, row),
                         (size_t)(n * from->shape[1]) * ml_dtype_bytes(from->dtype));
}

static void write_rows(const ml_weights *w, const ml_tensor *to, int64_t row, int64_t n,
                       const ml_tensor *in) {
    if (!on_device(w)) {
        copy_rows(to, row, in, 0, n);
        return;
    }
    ML_BUG_IF(to->layout != ML_ROWS || in->layout != ML_ROWS);
    w->be->dev->copy_in(w->be->stream, row_address(to, row), in->data,
                        (size_t)(n * to->shape[1]) * ml_dtype_bytes(to->dtype));
}

/* --- what is in place ---------------------------------------------------------------- */

enum { ALIGN = 64 }; /* of a parameter's first byte */

/* The element of the whole packed parameter at which the receiver's part begins; ML_NONE:
 * it is not one aligned piece, or `have` does not cover it. */
static int64_t place_of(const ml_moves_opts *o, const ml_spec *cut, int32_t i,
                        ml_shard_range have) {
    int32_t source = ml_cut_source(o->whole, cut, i);
    const ml_param *p = &cut->param[i], *w = &o->whole->param[source];
    rows in = rows_of(w, o->linear), out = rows_of(p, o->linear);
    int64_t first = p->cut ? p->cut->first : 0, row = p->cut ? p->cut->run[0].at : 0, at;

    if ((p->cut && p->cut->n_run > 1) || in.layout != out.layout)
        return ML_NONE;
    if (out.n != in.n && (p->n_stack > 1 || p->n_dim == 1))
        return ML_NONE; /* rows of every member */
    if (in.layout == ML_PANELS && out.n != in.n &&
        (row % ML_LANES || (out.n % ML_LANES && row + out.n != in.n)))
        return ML_NONE;
    at = (first * in.stored + row) * in.cols;
    if (at % (int64_t)(ALIGN / ml_dtype_bytes(o->dtype[source])) != 0 || at < have.begin ||
        at + p->n_stack * out.stored * in.cols > have.begin + have.n)
        return ML_NONE;
    return at;
}

/* What a rank has of a parameter. */
static ml_shard_range had(const ml_moves_opts *o, int32_t param, int32_t rank) {
    return o->from[rank] ? o->from[rank][param] : (ml_shard_range){ 0 };
}

/* The same for the receiver's parameter i; ML_NONE: its rows are moved. */
static int64_t shared_place(const ml_moves_opts *o, int32_t rank, int32_t i) {
    int32_t source = ml_cut_source(o->whole, o->to[rank], i);

    return o->in_place ? place_of(o, o->to[rank], i, had(o, source, rank)) : ML_NONE;
}

/* --- the plan ------------------------------------------------------------------------ */

typedef struct planner {
    ml_moves *m;
    const ml_moves_opts *o;
    int64_t cap;
    size_t *load;       /* [n_rank] sent so far */
    size_t *sent, *got; /* [n_rank] in this bucket */
} planner;

/* The rows of a move in transit: panels, if they are whole panels on both sides. */
static ml_tensor transit(const ml_moves *m, const ml_move *v, void *data) {
    const ml_moves_opts *o = &m->opts;
    rows in = rows_of(&o->whole->param[v->param], o->linear);
    rows out = rows_of(&o->to[v->to]->param[v->into], o->linear);
    bool panels = in.layout == ML_PANELS && out.layout == ML_PANELS &&
                  v->row % ML_LANES == 0 && v->into_row % ML_LANES == 0;

    return matrix(data, o->dtype[v->param], panels ? ML_PANELS : ML_ROWS, v->n, in.cols);
}

static size_t bytes_of(const ml_moves *m, const ml_move *v) {
    ml_tensor t = transit(m, v, NULL);
    return ml_tensor_bytes(&t);
}

/* The rank that sends a row, and how many of the n rows from it on it has. */
static int32_t source_of(const planner *x, const ml_move *v, int64_t *n) {
    const ml_moves_opts *o = x->o;
    rows r = rows_of(&o->whole->param[v->param], o->linear);
    int64_t at = (v->member * r.stored + v->row) * r.cols, left = 0;
    int32_t best = ML_NONE;

    for (int32_t k = 0; k < o->n_rank; k++) {
        ml_shard_range have = had(o, v->param, k);
        if (at < have.begin || at >= have.begin + have.n)
            continue;
        if (best != ML_NONE && k != v->to && (best == v->to || x->load[k] >= x->load[best]))
            continue;
        best = k;
        left = (have.begin + have.n - at) / r.cols;
    }
    *n = left < v->n ? left : v->n;
    return best;
}

static void count_bytes(planner *x, ml_move *v) {
    size_t bytes = v->from == v->to ? 0 : bytes_of(x->m, v), most;
    int32_t n_rank = x->o->n_rank;

    if (x->sent[v->from] + bytes > x->o->bucket_bytes ||
        x->got[v->to] + bytes > x->o->bucket_bytes) {
        memset(x->sent, 0, (size_t)n_rank * sizeof *x->sent);
        memset(x->got, 0, (size_t)n_rank * sizeof *x->got);
        x->m->n_bucket++;
    }
    v->bucket = x->m->n_bucket - 1;
    x->load[v->from] += bytes;
    x->sent[v->from] += bytes;
    x->got[v->to] += bytes;
    x->m->total_bytes += bytes;
    most = x->sent[x->o->rank] + x->got[x->o->rank];
    x->m->stage_bytes = most > x->m->stage_bytes ? most : x->m->stage_bytes;
}

static void add_move(planner *x, ml_move v) {
    ml_moves *m = x->m;

    count_bytes(x, &v);
    if (v.from != x->o->rank && v.to != x->o->rank)
        return;
    if (m->n == x->cap) {
        x->cap = x->cap ? 2 * x->cap : 256;
        m->move =
            ml_memory_grow(m->move, (size_t)x->cap * sizeof *m->move, "moves of rows");
    }
    m->move[m->n++] = v;
}

/* Rows of one member that end at a sender's last row, or fill a bucket. */
static void plan_rows(planner *x, ml_move v) {
    size_t row_bytes = (size_t)rows_of(&x->o->whole->param[v.param], x->o->linear).cols *
                       ml_dtype_bytes(x->o->dtype[v.param]);
    int64_t most = (int64_t)(x->o->bucket_bytes / row_bytes) / ML_LANES * ML_LANES;

    most = most < ML_LANES ? ML_LANES : most;
    for (int64_t end = v.row + v.n, n; v.row < end; v.row += n, v.into_row += n) {
        ml_move part = v;
        part.n = end - v.row;
        part.from = source_of(x, &part, &n);
        ML_BUG_IF(part.from == ML_NONE); /* no rank has the row */
        n = part.from != part.to && n > most ? most : n;
        part.n = n;
        add_move(x, part);
    }
}

static void plan_param(planner *x, int32_t to, int32_t i) {
    const ml_param *p = &x->o->to[to]->param[i];
    const ml_param_cut all = { .n_run = 1, .run = { { 0, p->shape[0] } } },
                       *cut = p->cut ? p->cut : &all;

    for (int32_t e = 0; e < p->n_stack; e++) {
        int64_t into = 0;
        for (int32_t k = 0; k < cut->n_run; into += cut->run[k++].n)
            plan_rows(x, (ml_move){ .to = to,
                                    .param = ml_cut_source(x->o->whole, x->o->to[to], i),
                                    .into = i,
                                    .member = cut->first + e,
                                    .into_member = e,
                                    .row = cut->run[k].at,
                                    .into_row = into,
                                    .n = cut->run[k].n });
    }
}

void ml_moves_plan(ml_moves *out, const ml_moves_opts *o) {
    int32_t n_rank = o->n_rank, most = 0;
    size_t *count = ml_memory_grow(NULL, 3 * (size_t)n_rank * sizeof *count, "moves");
    planner x = { .m = out,
                  .o = &out->opts,
                  .load = count,
                  .sent = count + n_rank,
                  .got = count + 2 * n_rank };

    *out = (ml_moves){ .opts = *o, .n_bucket = 1 };
    memset(count, 0, 3 * (size_t)n_rank * sizeof *count);
    for (int32_t r = 0; r < n_rank; r++)
        most = o->to[r] && o->to[r]->n_param > most ? o->to[r]->n_param : most;
    /* Parameter by parameter, so that all ranks are busy in each bucket. */
    for (int32_t i = 0; i < most; i++)
        for (int32_t r = 0; r < n_rank; r++)
            if (o->to[r] && i < o->to[r]->n_param && shared_place(o, r, i) == ML_NONE)
                plan_param(&x, r, i);
    free(count);
}

void ml_moves_close(ml_moves *m) {
    free(m->move);
    *m = (ml_moves){ 0 };
}

/* --- doing it ------------------------------------------------------------------------ */

typedef struct mover {
    const ml_moves *m;
    ml_comm *comm;
    const ml_weights *from, *to;
    unsigned char *stage;
    int64_t *n_send, *n_get; /* [n_rank] bytes of this bucket, in rank order */
    int64_t *at;             /* [n_rank] where the next bytes of a rank are */
} mover;

static ml_tensor sender_of(const mover *x, const ml_move *v) {
    const ml_moves_opts *o = &x->m->opts;
    return member_of(x->from, v->param, &o->whole->param[v->param], o->linear, v->member);
}

static ml_tensor receiver_of(const mover *x, const ml_move *v) {
    const ml_moves_opts *o = &x->m->opts;
    return member_of(x->to, v->into, &o->to[v->to]->param[v->into], o->linear,
                     v->into_member);
}

static void move_here(const mover *x, const ml_move *v) {
    ml_tensor in = sender_of(x, v), out = receiver_of(x, v);
    ml_backend *be = x->to->be;

    if (!on_device(x->to))
        copy_rows(&out, v->into_row, &in, v->row, v->n);
    else
        be->dev->copy(be->stream, row_address(&out, v->into_row), row_address(&in, v->row),
                      (size_t)(v->n * in.shape[1]) * ml_dtype_bytes(in.dtype));
}

static int64_t sum(const int64_t *x, int32_t n) {
    int64_t all = 0;
    for (int32_t i = 0; i < n; i++)
        all += x[i];
    return all;
}

/* The offsets of the ranks' bytes. */
static void place_parts(mover *x, const int64_t *n, int64_t first) {
    for (int32_t r = 0; r < x->comm->size; r++) {
        x->at[r] = first;
        first += n[r];
    }
}

static void count_bucket(mover *x, int64_t first, int64_t end) {
    int32_t me = x->m->opts.rank;

    for (int32_t r = 0; r < x->comm->size; r++)
        x->n_send[r] = x->n_get[r] = 0;
    for (int64_t i = first; i < end; i++) {
        const ml_move *v = &x->m->move[i];
        if (v->from == v->to)
            continue;
        if (v->from == me)
            x->n_send[v->to] += (int64_t)bytes_of(x->m, v);
        else
            x->n_get[v->from] += (int64_t)bytes_of(x->m, v);
    }
}

static void pack_bucket(mover *x, int64_t first, int64_t end) {
    int32_t me = x->m->opts.rank;

    place_parts(x, x->n_send, 0);
    for (int64_t i = first; i < end; i++) {
        const ml_move *v = &x->m->move[i];
        ml_tensor in, out;
        if (v->from != me || v->to == me)
            continue;
        in = sender_of(x, v);
        out = transit(x->m, v, x->stage + x->at[v->to]);
        if (out.layout == ML_PANELS && v->n % ML_LANES)
            memset(out.data, 0, ml_tensor_bytes(&out));
        read_rows(&out, x->from, &in, v->row, v->n);
        x->at[v->to] += (int64_t)ml_tensor_bytes(&out);
    }
}

static void unpack_bucket(mover *x, int64_t first, int64_t end) {
    int32_t me = x->m->opts.rank;

    place_parts(x, x->n_get, sum(x->n_send, x->comm->size));
    for (int64_t i = first; i < end; i++) {
        const ml_move *v = &x->m->move[i];
        ml_tensor in, out;
        if (v->to != me || v->from == me)
            continue;
        in = transit(x->m, v, x->stage + x->at[v->from]);
        out = receiver_of(x, v);
        write_rows(x->to, &out, v->into_row, v->n, &in);
        x->at[v->from] += (int64_t)ml_tensor_bytes(&in);
    }
}

static ml_status move_bucket(mover *x, int64_t first, int64_t end, ml_err *err) {
    ml_tensor out, in;
    ml_status st;

    count_bucket(x, first, end);
    pack_bucket(x, first, end);
    in = ml_comm_bytes(x->stage, (size_t)sum(x->n_send, x->comm->size));
    out = ml_comm_bytes(x->stage + in.shape[0], (size_t)sum(x->n_get, x->comm->size));
    st = x->comm->alltoallv(x->comm, NULL, &out, x->n_get, &in, x->n_send, err);
    if (st == ML_OK)
        unpack_bucket(x, first, end);
    return st;
}

static ml_status move_all(mover *x, ml_err *err) {
    const ml_moves *m = x->m;
    ml_status st = ML_OK;

    for (int64_t i = 0; i < m->n; i++)
        if (m->move[i].from == m->move[i].to)
            move_here(x, &m->move[i]);
    if (!x->comm || x->comm->size == 1 || !m->total_bytes)
        return ML_OK;
    ml_comm_doing(x->comm, "publish weights", -1);
    for (int32_t b = 0; b < m->n_bucket && st == ML_OK; b++) {
        int64_t first = 0, end;
        while (first < m->n && m->move[first].bucket < b)
            first++;
        for (end = first; end < m->n && m->move[end].bucket == b;)
            end++;
        st = move_bucket(x, first, end, err);
    }
    ml_comm_doing(x->comm, NULL, -1);
    return st;
}

ml_status ml_moves_run(const ml_moves *m, ml_comm *comm, const ml_weights *from,
                       const ml_weights *to, ml_err *err) {
    size_t n_rank = (size_t)m->opts.n_rank;
    int64_t *counts = calloc(3 * n_rank, sizeof *counts);
    unsigned char *stage = malloc(m->stage_bytes + 1);
    mover x = { .m = m, .comm = comm, .from = from, .to = to, .stage = stage };
    ml_status st;

    if (!counts || !stage) {
        st = ml_fail(err, ML_ENOMEM,
                     "out of memory for %zu bytes of weights in transit: lower "
                     "--update-weight-buffer-size",
                     m->stage_bytes);
    } else {
        x.n_send = counts;
        x.n_get = counts + n_rank;
        x.at = counts + 2 * n_rank;
        st = move_all(&x, err);
    }
    free(counts);
    free(stage);
    return st == ML_OK && to && on_device(to) ? to->be->dev->sync(to->be->stream, err) : st;
}

/* --- checking it --------------------------------------------------------------------- */

void ml_moves_spoil(const ml_moves *m, const ml_weights *to) {
    mover x = { .m = m, .to = to };

    for (int64_t i = 0; i < m->n; i++) {
        const ml_move *v = &m->move[i];
        ml_tensor out, bad;
        if (v->to != m->opts.rank)
            continue;
        out = receiver_of(&x, v);
        bad = matrix(NULL, out.dtype, ML_ROWS, v->n, out.shape[1]);
        bad.data = ml_memory_grow(NULL, ml_tensor_bytes(&bad), "rows to overwrite");
        memset(bad.data, 0xa5, ml_tensor_bytes(&bad));
        write_rows(to, &out, v->into_row, v->n, &bad);
        free(bad.data);
    }
}

static uint64_t crc_of(const ml_weights *w, const ml_tensor *t, int64_t row, int64_t n) {
    ml_tensor copy = matrix(NULL, t->dtype, ML_ROWS, n, t->shape[1]);
    uint64_t crc;

    copy.data = ml_memory_grow(NULL, ml_tensor_bytes(&copy), "rows to compare");
    read_rows(&copy, w, t, row, n);
    crc = ml_crc64(0, copy.data, ml_tensor_bytes(&copy));
    free(copy.data);
    return crc;
}

/* The checksums of rows that this rank sends, by receiver. */
static void checksum_sent(mover *x, uint64_t *out) {
    int32_t me = x->m->opts.rank;

    for (int32_t r = 0; r < x->comm->size; r++)
        x->n_send[r] = x->n_get[r] = 0;
    for (int64_t i = 0; i < x->m->n; i++) {
        const ml_move *v = &x->m->move[i];
        x->n_send[v->to] += v->from == me;
        x->n_get[v->from] += v->to == me;
    }
    place_parts(x, x->n_send, 0);
    for (int64_t i = 0; i < x->m->n; i++) {
        const ml_move *v = &x->m->move[i];
        ml_tensor t;
        if (v->from != me)
            continue;
        t = sender_of(x, v);
        out[x->at[v->to]++] = crc_of(x->from, &t, v->row, v->n);
    }
}

static ml_status compare_received(mover *x, const uint64_t *want, ml_err *err) {
    place_parts(x, x->n_get, 0);
    for (int64_t i = 0; i < x->m->n; i++) {
        const ml_move *v = &x->m->move[i];
        ml_tensor t;
        if (v->to != x->m->opts.rank)
            continue;
        t = receiver_of(x, v);
        if (want[x->at[v->from]++] != crc_of(x->to, &t, v->into_row, v->n))
            return ml_fail(err, ML_EFORMAT,
                           "the published weights differ from the trained ones: %s, rows "
                           "%lld to %lld, from rank %d to rank %d",
                           x->m->opts.whole->param[v->param].name, (long long)v->row,
                           (long long)(v->row + v->n - 1), v->from, v->to);
    }
    return ML_OK;
}

ml_status ml_moves_check(const ml_moves *m, ml_comm *comm, const ml_weights *from,
                         const ml_weights *to, ml_err *err) {
    size_t n_rank = (size_t)m->opts.n_rank, n = (size_t)m->n + 1;
    mover x = { .m = m, .comm = comm, .from = from, .to = to };
    uint64_t *sent = ml_memory_grow(NULL, 2 * n * sizeof *sent, "checksums of weights");
    ml_tensor in, out;
    ml_status st;

    x.n_send = ml_memory_grow(NULL, 3 * n_rank * sizeof *x.n_send, "checksums of weights");
    x.n_get = x.n_send + n_rank;
    x.at = x.n_get + n_rank;
    checksum_sent(&x, sent);
    in = matrix(sent, ML_I32, ML_ROWS, sum(x.n_send, comm->size), 2);
    out = matrix(sent + n, ML_I32, ML_ROWS, sum(x.n_get, comm->size), 2);
    st = comm->alltoallv(comm, NULL, &out, x.n_get, &in, x.n_send, err);
    if (st == ML_OK)
        st = compare_received(&x, sent + n, err);
    free(x.n_send);
    free(sent);
    return st;
}

/* --- the receiver's set --------------------------------------------------------------- */

static size_t aligned(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static ml_tensor tensor_of(const ml_moves_opts *o, int32_t i) {
    const ml_spec *cut = o->to[o->rank];

    return ml_weights_tensor(&cut->param[i], o->dtype[ml_cut_source(o->whole, cut, i)],
                             o->linear);
}

size_t ml_moves_receiver_bytes(const ml_moves_opts *o) {
    size_t bytes = ALIGN;

    for (int32_t i = 0; i < o->to[o->rank]->n_param; i++) {
        ml_tensor t = tensor_of(o, i);
        if (shared_place(o, o->rank, i) == ML_NONE)
            bytes += aligned(ml_tensor_bytes(&t));
    }
    return bytes;
}

ml_status ml_moves_receiver(ml_weights *out, const ml_moves_opts *o, const ml_weights *have,
                            ml_backend *be, ml_arena *a, ml_err *err) {
    int32_t n = o->to[o->rank]->n_param;
    size_t at = 0;
    ml_status st;

    *out = (ml_weights){ .n = n, .t = ML_NEW(a, ml_tensor, n), .be = be };
    st = be->dev->alloc(be->dev, &out->buf, ml_moves_receiver_bytes(o), ML_MEM_WEIGHT, err);
    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < n; i++) {
        int64_t first = shared_place(o, o->rank, i);
        out->t[i] = tensor_of(o, i);
        if (first != ML_NONE) {
            out->t[i].data =
                address_of(have, ml_cut_source(o->whole, o->to[o->rank], i), first);
        } else {
            out->t[i].data = (unsigned char *)out->buf.ptr + at;
            at += aligned(ml_tensor_bytes(&out->t[i]));
        }
    }
    return ML_OK;
}
