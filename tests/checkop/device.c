/* device.c - one call of an op on a device with its own memory.
 *
 * All memory of the call is one image, built here and copied as a whole: tensors in the
 * backend's dtypes and layouts, canaries between them, poison in the outputs.  The
 * results are converted back to the dtypes and layouts of the case, so that they compare
 * as on the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/checkop/checkop.h"

#include "tensor/codes.h"

enum { ALIGN = 256, GUARD = 256, CANARY = 0xa5, POISON = 0xff };

/* A tensor in the form of the case and in that of the device. */
typedef struct twin {
    ml_tensor ours, theirs;
    size_t at; /* offset in the image */
} twin;

typedef struct device_run {
    ck_env *e;
    const ck_case *c;
    ck_mode m;
    ml_backend *be;
    unsigned char *image;
    size_t used, cap;
    size_t end_of[64]; /* ends of tensors: canaries follow */
    int n_end;
    ml_buf buf;
    twin in[ML_OP_IN], out[ML_OP_OUT], w[ML_OP_W], given;
    twin din[ML_OP_IN], dout[ML_OP_OUT], dw[ML_OP_W];
    ml_rows rows;
    struct {
        size_t id, drawn, pos, seq_start, page_start, page, slot, loss_row, loss_id;
        size_t adapter, by_adapter, key, order;
        struct {
            size_t pos, seq_start, page_start, page, seq;
        } context;
    } row_at;
    ml_context_rows context;
    ml_op_args args;
} device_run;

/* Inputs and outputs that are f32 on every backend. */
static bool is_exact(ml_op_id op, bool out, int i) {
    switch (op) {
    case ML_OP_ROPE_TABLE: return out;
    case ML_OP_ROPE: return !out && i == 1;
    case ML_OP_ATTN: return out && i == 1;
    case ML_OP_MOE_ROUTE: return out ? i == 0 : i == 1;
    case ML_OP_MOE_COMBINE: return !out && i == 1;
    case ML_OP_MOE_WEIGH: return !out && i == 1;
    case ML_OP_MOE_SCALE: return true;
    case ML_OP_LMHEAD: return out;
    case ML_OP_CONV: return out && i == 1;
    case ML_OP_DECAY: return out;
    case ML_OP_LINEAR_RNN: return i == 1;
    case ML_OP_COMPRESS: return out && i == 1;
    default: return false;
    }
}

/* ---- the image ---- */

static size_t reserve(device_run *r, size_t bytes) {
    size_t at = (r->used + GUARD + ALIGN - 1) / ALIGN * ALIGN;

    if (at + bytes + GUARD > r->cap) {
        size_t cap = 2 * (at + bytes + GUARD);
        r->image = realloc(r->image, cap);
        if (!r->image) {
            fprintf(stderr, "checkop: no memory for an image of %zu bytes\n", cap);
            exit(1);
        }
        memset(r->image + r->cap, CANARY, cap - r->cap);
        r->cap = cap;
    }
    r->used = at + bytes;
    r->end_of[r->n_end++] = r->used;
    return at;
}

static int32_t as_int(const ml_tensor *t, int64_t i) {
    return ((const int32_t *)t->data)[i];
}

/* Copies elements of the case's tensor into the image; below, back out of it. */
static void convert_in(device_run *r, const twin *t) {
    int64_t n = ml_tensor_count(&t->ours);
    const double *v =
        t->ours.dtype == ML_I32 ? NULL : ck_values(r->c->arena, &t->ours); /* row-major */
    unsigned char *to = r->image + t->at;

    for (int64_t i = 0; i < n; i++) {
        if (!v)
            ((int32_t *)(void *)to)[i] = as_int(&t->ours, i);
        else if (t->theirs.dtype == ML_BF16)
            ((uint16_t *)(void *)to)[i] = ml_f32_to_bf16((float)v[i]);
        else
            ((float *)(void *)to)[i] = (float)v[i];
    }
}

static ml_tensor convert_out(device_run *r, const twin *t) {
    ml_tensor o = t->ours;
    int64_t n = ml_tensor_count(&o), cols = o.n_dim ? o.shape[o.n_dim - 1] : 1;
    int64_t rows = o.n_dim > 1 ? o.shape[o.n_dim - 2] : 1;
    const unsigned char *from = r->image + t->at;

    o.data = ml_arena_take(r->c->arena, ml_tensor_bytes(&o) + 1, 1);
    memset(o.data, 0, ml_tensor_bytes(&o));
    for (int64_t i = 0; i < n; i++) {
        int64_t e = i / (rows * cols), row = i / cols % rows, col = i % cols;
        int64_t at = o.n_dim > 1 ? ck_offset(&o, e, row, col) : i;
        if (o.dtype == ML_I32)
            ((int32_t *)o.data)[at] = ((const int32_t *)(const void *)from)[i];
        else if (t->theirs.dtype == ML_BF16)
            ((float *)o.data)[at] =
                ml_bf16_to_f32(((const uint16_t *)(const void *)from)[i]);
        else
            ((float *)o.data)[at] = ((const float *)(const void *)from)[i];
    }
    return o;
}

/* Where byte i of KV pages of codes is on the device: scales are behind the codes of all heads
 * there; a key's codes are a row and, where its size is a multiple of 16, in the order of an mma
 * operand (attn_codes.cuh). */
static int64_t page_byte(const device_run *r, const twin *t, int64_t i) {
    int64_t n_kv = t->ours.shape[1], head = i / t->ours.shape[2] % n_kv;
    int64_t width = t->ours.shape[2] / ML_PAGE - ML_KV_SCALE_BYTES;
    int64_t at = i % t->ours.shape[2], e = at / ML_PAGE, slot = at % ML_PAGE;
    int64_t codes = width * ML_PAGE, page = i - at - head * t->ours.shape[2];

    if (at >= codes)
        return page + n_kv * codes + head * ML_PAGE * ML_KV_SCALE_BYTES + at - codes;
    if (t != &r->out[2]) /* values */
        return page + head * codes + at;
    if (width % 16 == 0)
        e = (e & ~(int64_t)15) | (e & 6) << 1 | (e & 8) >> 2 | (e & 1);
    return page + head * codes + slot * width + e;
}

static void place_codes(device_run *r, twin *t) {
    const unsigned char *from = t->ours.data;

    t->at = reserve(r, ml_tensor_bytes(&t->ours));
    for (int64_t i = 0; i < (int64_t)ml_tensor_bytes(&t->ours); i++)
        r->image[t->at + (size_t)page_byte(r, t, i)] = from[i];
}

static ml_tensor fetch_codes(device_run *r, const twin *t) {
    ml_tensor o = t->ours;
    unsigned char *to = ml_arena_take(r->c->arena, ml_tensor_bytes(&o) + 1, 1);

    for (int64_t i = 0; i < (int64_t)ml_tensor_bytes(&o); i++)
        to[i] = r->image[t->at + (size_t)page_byte(r, t, i)];
    o.data = to;
    return o;
}

/* Codes of rows on the device, where panels have them here; poison in what pads them. */
static void place_code_rows(device_run *r, twin *t) {
    const int64_t rows = t->ours.shape[t->ours.n_dim - 2];
    const int64_t members = t->ours.n_dim == 3 ? t->ours.shape[0] : 1;
    ml_tensor m = { .dtype = t->ours.dtype,
                    .layout = ML_ROWS,
                    .n_dim = 2,
                    .shape = { rows, t->ours.shape[t->ours.n_dim - 1] } };

    t->theirs.layout = ML_ROWS;
    t->at = reserve(r, ml_tensor_bytes(&t->theirs));
    memset(r->image + t->at, POISON, ml_tensor_bytes(&t->theirs));
    for (int64_t i = 0; i < members * rows; i++) {
        const ck_fp8_row row = ck_fp8_weight(r->c->arena, &t->ours, i / rows, i % rows);
        m.data = r->image + t->at + (size_t)(i / rows) * ml_tensor_bytes(&m);
        ml_codes_put(&m, i % rows, 0, m.shape[1], row.code);
        ml_codes_put_scales(&m, i % rows, row.scale);
    }
}

static void place(device_run *r, twin *t, const ml_tensor *ours, ml_dtype dtype,
                  bool contents) {
    t->ours = t->theirs = *ours;
    if (ours->n_dim == 0)
        return;
    if (ml_dtype_codes(ours->dtype) &&
        ml_codes_layout(ours->dtype, r->be->linear) != ours->layout) {
        place_code_rows(r, t);
        return;
    }
    if (ml_dtype_codes(ours->dtype)) { /* the same everywhere */
        t->at = reserve(r, ml_tensor_bytes(ours));
        memcpy(r->image + t->at, ours->data, ml_tensor_bytes(ours));
        return;
    }
    if (ml_dtype_is_kv_codes(ours->dtype)) {
        place_codes(r, t);
        return;
    }
    t->theirs.layout = ML_ROWS;
    t->theirs.dtype = ours->dtype == ML_I32 ? ML_I32 : dtype;
    t->at = reserve(r, ml_tensor_bytes(&t->theirs));
    memset(r->image + t->at, POISON, ml_tensor_bytes(&t->theirs));
    if (contents && ours->data)
        convert_in(r, t);
}

static ml_tensor bound(const device_run *r, const twin *t) {
    ml_tensor b = t->theirs;
    b.data = b.n_dim ? (unsigned char *)r->buf.ptr + t->at : NULL;
    return b;
}

static void stop(const ml_err *err) {
    fprintf(stderr, "checkop: %s\n", err->msg);
    exit(1);
}

static void send(device_run *r) {
    ml_device *dev = r->be->dev;
    ml_err err;

    if (r->buf.bytes < r->cap) {
        if (r->buf.dev)
            dev->free(&r->buf);
        if (dev->alloc(dev, &r->buf, r->cap, ML_MEM_ACT, &err))
            stop(&err);
    }
    dev->copy_in(r->be->stream, r->buf.ptr, r->image, r->used + GUARD);
}

static void fetch(device_run *r) {
    ml_err err;

    r->be->dev->copy_out(r->be->stream, r->image, r->buf.ptr, r->used + GUARD);
    if (r->be->dev->sync(r->be->stream, &err))
        stop(&err);
    for (int i = 0; i < r->n_end; i++)
        for (int k = 0; k < GUARD / 2; k++)
            if (r->image[r->end_of[i] + (size_t)k] != CANARY) {
                ck_fail(r->e, "memory after a tensor was written to");
                return;
            }
}

/* ---- rows ---- */

static size_t reserve_bytes(device_run *r, const void *from, size_t bytes) {
    size_t at;

    if (!from)
        return 0;
    at = reserve(r, bytes);
    memcpy(r->image + at, from, bytes);
    return at;
}

static size_t reserve_ints(device_run *r, const int32_t *from, int64_t n) {
    return reserve_bytes(r, from, (size_t)n * sizeof *from);
}

/* An op has the order of the ranks' rows, or whole sequences. */
static void place_context(device_run *r, const ml_context_rows *x, int32_t n_piece) {
    const ml_rows *w = &x->whole;

    r->row_at.order = reserve_ints(r, x->order, (int64_t)x->n_rank * x->n_share);
    if (!w->seq_start)
        return;
    r->row_at.context.pos = reserve_ints(r, w->pos, w->n_token);
    r->row_at.context.seq_start = reserve_ints(r, w->seq_start, w->n_seq + 1);
    r->row_at.context.page_start = reserve_ints(r, w->page_start, w->n_seq + 1);
    r->row_at.context.page = reserve_ints(r, w->page, w->page_start[w->n_seq]);
    r->row_at.context.seq = reserve_ints(r, x->seq, n_piece);
}

static void place_rows(device_run *r) {
    const ml_rows *w = &r->c->rows;

    r->rows = *w;
    r->rows.n_page = w->page_start ? w->page_start[w->n_seq] : 0;
    if (w->page_start && w->seq_start) {
        ml_rows_count_single(&r->rows, w);
        ml_rows_find_separate(&r->rows, w);
    }
    r->row_at.id = reserve_ints(r, w->id, w->n_token);
    r->row_at.drawn = reserve_ints(r, w->drawn, w->n_token);
    r->row_at.pos = reserve_ints(r, w->pos, w->n_token);
    r->row_at.seq_start = reserve_ints(r, w->seq_start, w->n_seq + 1);
    r->row_at.page_start = reserve_ints(r, w->page_start, w->n_seq + 1);
    r->row_at.page = reserve_ints(r, w->page, r->rows.n_page);
    r->row_at.slot = reserve_ints(r, w->slot, w->n_seq);
    r->row_at.loss_row = reserve_ints(r, w->loss_row, w->n_loss);
    r->row_at.loss_id = reserve_ints(r, w->loss_id, w->n_loss);
    r->row_at.adapter = reserve_ints(r, w->adapter, w->n_token);
    if (w->adapter) {
        int32_t n = ML_ADAPTER_LISTS + 1 + w->n_token;
        int32_t *lists = ML_NEW(r->c->arena, int32_t, n);
        if (ml_rows_by_adapter(lists, w->adapter, w->n_token))
            r->row_at.by_adapter = reserve_ints(r, lists, n);
    }
    r->row_at.key =
        reserve_bytes(r, w->dropout_key, (size_t)w->n_token * sizeof *w->dropout_key);
    if (w->context)
        place_context(r, w->context, w->n_seq);
}

static const int32_t *ints_at(const device_run *r, size_t at) {
    return at ? (const int32_t *)(const void *)((const char *)r->buf.ptr + at) : NULL;
}

static void bind_rows(device_run *r) {
    r->rows.id = ints_at(r, r->row_at.id);
    r->rows.drawn = ints_at(r, r->row_at.drawn);
    r->rows.pos = ints_at(r, r->row_at.pos);
    r->rows.seq_start = ints_at(r, r->row_at.seq_start);
    r->rows.page_start = ints_at(r, r->row_at.page_start);
    r->rows.page = ints_at(r, r->row_at.page);
    r->rows.slot = ints_at(r, r->row_at.slot);
    r->rows.loss_row = ints_at(r, r->row_at.loss_row);
    r->rows.loss_id = ints_at(r, r->row_at.loss_id);
    r->rows.adapter = ints_at(r, r->row_at.adapter);
    r->rows.by_adapter = ints_at(r, r->row_at.by_adapter);
    r->rows.dropout_key = (const uint64_t *)(const void *)ints_at(r, r->row_at.key);
    if (r->rows.context) {
        r->context = *r->rows.context;
        r->context.order = ints_at(r, r->row_at.order);
        r->context.seq = ints_at(r, r->row_at.context.seq);
        r->context.whole.pos = ints_at(r, r->row_at.context.pos);
        r->context.whole.seq_start = ints_at(r, r->row_at.context.seq_start);
        r->context.whole.page_start = ints_at(r, r->row_at.context.page_start);
        r->context.whole.page = ints_at(r, r->row_at.context.page);
        r->rows.context = &r->context;
    }
    r->args.rows = &r->rows;
}

/* ---- forward and backward ---- */

static ml_dtype stored(const device_run *r, bool out, int i) {
    bool exact = (r->c->exact && out) || is_exact(r->c->suite->op, out, i);
    return exact ? ML_F32 : r->be->act;
}

/* Gradients of keys of which ranks have pieces are added up in f32. */
static ml_dtype stored_grad(const device_run *r, int i) {
    ml_op_id op = r->c->suite->op;
    bool keys = op == ML_OP_ATTN ? i > 0 : op == ML_OP_ATTN_CHOSEN && i == 1;

    return keys && r->c->rows.context ? ML_F32 : stored(r, false, i);
}

/* Matrices have the backend's dtype, except those of adapters. */
static ml_dtype stored_weight(const device_run *r, int i) {
    if (r->c->suite->op == ML_OP_LORA)
        return ML_F32;
    return i == 0 && r->c->w[i].n_dim > 1 && !r->c->exact ? r->be->act : ML_F32;
}

/* Scratch of the op; its size follows from the shapes. */
static size_t place_scratch(device_run *r, bool backward) {
    ml_op_args a = r->args;
    ml_err err;
    size_t bytes;

    a.attr = &r->c->attr;
    a.rows = &r->rows;
    a.grad_format = r->c->grad_format;
    for (int i = 0; i < ML_OP_IN; i++)
        a.in[i] = r->in[i].theirs;
    for (int i = 0; i < ML_OP_OUT; i++)
        a.out[i] = r->out[i].theirs;
    for (int i = 0; i < ML_OP_W; i++)
        a.w[i] = r->w[i].theirs;
    if (r->be->ops->prepare &&
        r->be->ops->prepare(r->be->stream, r->c->suite->op, &a, backward, &err))
        stop(&err);
    bytes = r->be->ops->scratch(r->be->stream, r->c->suite->op, &a, backward);
    return bytes ? reserve(r, bytes) : 0;
}

static void check_written(device_run *r, const char *what, int i, const twin *t) {
    size_t size = ml_dtype_bytes(t->theirs.dtype);
    int64_t n = t->theirs.n_dim ? ml_tensor_count(&t->theirs) : 0;

    for (int64_t k = 0; k < n; k++) {
        size_t bad = 0;
        while (bad < size && r->image[t->at + (size_t)k * size + bad] == POISON)
            bad++;
        if (bad == size) {
            ck_fail(r->e, "%s[%d] is poison at element %lld", what, i, (long long)k);
            return;
        }
    }
}

/* The arguments of a call, for the image's device address. */
static void bind(device_run *r, size_t scratch) {
    bind_rows(r);
    for (int i = 0; i < ML_OP_IN; i++) {
        r->args.in[i] = bound(r, &r->in[i]);
        r->args.din[i] = bound(r, &r->din[i]);
    }
    for (int i = 0; i < ML_OP_W; i++) {
        r->args.w[i] = bound(r, &r->w[i]);
        r->args.dw[i] = bound(r, &r->dw[i]);
    }
    for (int i = 0; i < ML_OP_OUT; i++) {
        r->args.out[i] = bound(r, &r->out[i]);
        r->args.dout[i] = bound(r, &r->dout[i]);
    }
    r->args.given = bound(r, &r->given);
    r->args.attr = &r->c->attr;
    r->args.grad_format = r->c->grad_format;
    r->args.scratch = scratch ? (unsigned char *)r->buf.ptr + scratch : NULL;
    if (r->c->suite->bind)
        r->c->suite->bind(r->c, &r->args);
}

static void forward(device_run *r, ck_result *res) {
    const ck_case *c = r->c;
    size_t scratch;

    for (int i = 0; i < ML_OP_IN; i++)
        if (c->in[i].data)
            place(r, &r->in[i], &c->in[i], stored(r, false, i), true);
    for (int i = 0; i < ML_OP_W; i++)
        if (c->w[i].data)
            place(r, &r->w[i], &c->w[i], stored_weight(r, i), true);
    for (int i = 0; i < ML_OP_OUT; i++)
        place(r, &r->out[i], &c->out[i], stored(r, true, i), true);
    if (c->given.data)
        place(r, &r->given, &c->given, ML_I32, true);
    place_rows(r);
    scratch = place_scratch(r, false);
    if (r->m.in_place != CK_ALL)
        r->out[0].at = r->in[r->m.in_place].at;
    send(r);
    bind(r, scratch);
    r->be->ops->forward[c->suite->op](r->be->stream, &r->args);
    fetch(r);
    for (int i = 0; i < ML_OP_OUT; i++) {
        if (!c->out[i].n_dim)
            continue;
        res->out[i] = ml_dtype_is_kv_codes(c->out[i].dtype) ? fetch_codes(r, &r->out[i])
                                                            : convert_out(r, &r->out[i]);
        if (!r->m.special && !c->out[i].data)
            check_written(r, "out", i, &r->out[i]);
    }
}

static void forget(device_run *r) {
    const ml_op_info *info = &ml_op_infos[r->c->suite->op];

    for (int i = 0; i < ML_OP_IN; i++)
        if (r->in[i].theirs.n_dim && !(info->save_in & 1u << i))
            memset(r->image + r->in[i].at, POISON, ml_tensor_bytes(&r->in[i].theirs));
    for (int i = 0; i < ML_OP_OUT; i++)
        if (r->out[i].theirs.n_dim && !(info->save_out & 1u << i))
            memset(r->image + r->out[i].at, POISON, ml_tensor_bytes(&r->out[i].theirs));
}

static void place_gradients(device_run *r) {
    const ck_case *c = r->c;
    int only = r->m.only;

    for (int i = 0; i < ML_OP_OUT; i++)
        if (c->dout[i].data)
            place(r, &r->dout[i], &c->dout[i], c->exact_grad ? ML_F32 : stored(r, true, i),
                  true);
    for (int i = 0; i < ML_OP_IN; i++)
        if (c->din[i].data && (only == CK_ALL || only == i)) {
            place(r, &r->din[i], &c->din[i], stored_grad(r, i), r->m.add);
            r->args.din_add[i] = r->m.add;
        }
    for (int i = 0; i < ML_OP_W; i++)
        if (c->dw[i].data && (only == CK_ALL || only == ML_OP_IN + i)) {
            r->args.dw_write[i] = !r->m.add && r->be->ops->writes_dw[c->suite->op] >> i & 1;
            place(r, &r->dw[i], &c->dw[i], ML_F32, !r->args.dw_write[i]);
            if (!r->m.add && !r->args.dw_write[i])
                memset(r->image + r->dw[i].at, 0, ml_tensor_bytes(&r->dw[i].theirs));
        }
}

static void backward(device_run *r, ck_result *res) {
    const ml_backend *be = r->be;
    size_t scratch;

    forget(r);
    place_gradients(r);
    scratch = place_scratch(r, true);
    send(r);
    bind(r, scratch);
    be->ops->backward[r->c->suite->op](be->stream, &r->args);
    fetch(r);
    for (int i = 0; i < ML_OP_IN; i++)
        if (r->din[i].theirs.n_dim) {
            res->din[i] = convert_out(r, &r->din[i]);
            if (!r->m.special)
                check_written(r, "din", i, &r->din[i]);
        }
    for (int i = 0; i < ML_OP_W; i++)
        if (r->dw[i].theirs.n_dim) {
            res->dw[i] = convert_out(r, &r->dw[i]);
            if (r->args.dw_write[i] && !r->m.special)
                check_written(r, "dw", i, &r->dw[i]);
        }
}

bool ck_device_takes(ck_env *e, const ck_case *c, ml_err *err) {
    const ml_backend *be = &e->backend[0];
    ml_op_args a = { .attr = &c->attr, .rows = &c->rows, .given = c->given };

    memcpy(a.in, c->in, sizeof a.in);
    memcpy(a.out, c->out, sizeof a.out);
    memcpy(a.w, c->w, sizeof a.w);
    if (ml_dtype_codes(c->w[0].dtype) && be->act != ML_BF16) {
        ml_fail(err, ML_EUNSUP, "backend %s has no quantized weights for f32 rows",
                be->name);
        return false;
    }
    if (c->grad_format && !be->fp8_grads) {
        ml_fail(err, ML_EUNSUP, "backend %s has no gradients as FP8 products", be->name);
        return false;
    }
    if (ml_dtype_codes(c->w[0].dtype))
        a.in[0].dtype = be->act;
    return !be->ops->prepare ||
           be->ops->prepare(be->stream, c->suite->op, &a, true, err) == ML_OK;
}

void ck_run_device(ck_env *e, const ck_case *c, ck_mode m, ck_result *res) {
    device_run r = { .e = e, .c = c, .m = m, .be = &e->backend[m.backend] };

    forward(&r, res);
    if (m.backward)
        backward(&r, res);
    if (r.buf.dev)
        r.be->dev->free(&r.buf);
    free(r.image);
}
