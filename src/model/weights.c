#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/pool.h"
#include "model/source.h"
#include "model/weights_codes.h"
#include "tensor/codes.h"

#define VALUE_HEAD_STD 0.02

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

/* Members of a stack may differ on disk; if one is
 * f32, all are widened. */
ml_dtype ml_weights_param_dtype(const ml_param *p, const ml_checkpoint *c,
                                ml_weight_dtype want) {
    ml_dtype codes = ml_weights_code_dtype(p, c, want);

    if (codes != ML_F32)
        return codes;
    if (p->n_dim == 1 || p->keep_f32 || want == ML_WEIGHT_F32 || ml_param_is_value_head(p))
        return ML_F32;
    if (want == ML_WEIGHT_BF16 || !c)
        return ML_BF16;
    for (int32_t e = 0; e < p->n_stack; e++) {
        ml_source s = ml_source_of(c, p, e);
        if (s.t && s.t->dtype != ML_ST_BF16)
            return ML_F32;
    }
    return ML_BF16;
}

const char *ml_weight_dtype_name(ml_weight_dtype t) {
    static const char *const names[] = {
        [ML_WEIGHT_AUTO] = "auto",
        [ML_WEIGHT_F32] = "f32",
        [ML_WEIGHT_BF16] = "bf16",
        [ML_WEIGHT_STORED] = "checkpoint",
        [ML_WEIGHT_FP8] = "fp8",
        [ML_WEIGHT_INT8] = "int8",
        [ML_WEIGHT_INT4] = "int4",
        [ML_WEIGHT_INT4_G128] = "int4-g128",
        [ML_WEIGHT_NF4] = "nf4",
        [ML_WEIGHT_FP8_BLOCKWISE] = "fp8-blockwise",
        [ML_WEIGHT_QAT] = "int4",
        [ML_WEIGHT_QAT_G128] = "int4-g128",
        [ML_WEIGHT_QAT_F32_SCALE] = "int4-f32-scale",
        [ML_WEIGHT_QAT_G128_F32_SCALE] = "int4-g128-f32-scale",
        [ML_WEIGHT_MXFP8] = "mxfp8",
    };
    return names[t];
}

ml_weight_dtype ml_weights_dtype(const ml_backend *be, ml_weight_dtype dtype) {
    if (be->dev->host || dtype != ML_WEIGHT_AUTO)
        return dtype;
    return be->act == ML_BF16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32;
}

ml_tensor ml_weights_tensor(const ml_param *p, ml_dtype dtype, ml_layout linear) {
    ml_tensor t = { .dtype = dtype,
                    .layout = ml_dtype_codes(dtype)  ? ml_codes_layout(dtype, linear)
                              : p->layout == ML_ROWS ? ML_ROWS
                                                     : linear };

    if (p->name_after) {
        t.n_dim = p->n_dim + 1;
        t.shape[0] = p->n_stack;
        t.shape[1] = p->shape[0];
        t.shape[2] = p->n_dim == 2 ? p->shape[1] : 0;
    } else {
        t.n_dim = p->n_dim;
        t.shape[0] = p->shape[0];
        t.shape[1] = p->n_dim == 2 ? p->shape[1] : 0;
    }
    return t;
}

/* Whole members, or rows. */
ml_tensor ml_weights_part(const ml_param *p, ml_dtype dtype, ml_layout linear,
                          ml_shard_range r) {
    ml_tensor t = ml_weights_tensor(p, dtype, linear);
    int64_t member = ml_shard_range_whole(&t).n / p->n_stack;

    if (r.n == 0 || r.begin % member || r.n % member)
        return ml_shard_view(&t, r);
    if (p->name_after)
        t.shape[0] = r.n / member;
    return t;
}

/* Parts of parameters are not quantized. */
static ml_weight_dtype dtype_of_parts(ml_weight_dtype dtype, const ml_shard_range *range) {
    return range && dtype >= ML_WEIGHT_STORED ? ML_WEIGHT_AUTO : dtype;
}

size_t ml_weights_part_bytes(const ml_spec *s, const ml_checkpoint *c,
                             ml_weight_dtype dtype, const ml_shard_range *range) {
    size_t bytes = 0;

    dtype = dtype_of_parts(dtype, range);
    for (int32_t i = 0; i < s->n_param; i++) {
        /* Panels are padded: no other layout takes more. */
        ml_tensor t = ml_weights_tensor(
            &s->param[i], ml_weights_param_dtype(&s->param[i], c, dtype), ML_PANELS);
        bytes += align64(range ? (size_t)range[i].n * ml_dtype_bytes(t.dtype)
                               : ml_tensor_bytes(&t));
    }
    return bytes;
}

size_t ml_weights_bytes(const ml_spec *s, const ml_checkpoint *c, ml_weight_dtype dtype) {
    return ml_weights_part_bytes(s, c, dtype, NULL);
}

ml_shard_range ml_weights_range(const ml_weights *w, int32_t i) {
    return w->range ? w->range[i] : ml_shard_range_whole(&w->t[i]);
}

ml_tensor ml_weights_view(const ml_weights *w, int32_t i, ml_shard_range r) {
    ml_shard_range has = ml_weights_range(w, i);

    ML_BUG_IF(r.n && (r.begin < has.begin || r.begin + r.n > has.begin + has.n));
    r.begin -= has.begin;
    return ml_shard_view(&w->t[i], r);
}

ml_dtype ml_weights_kv_dtype(const ml_spec *s, const ml_checkpoint *c,
                             ml_weight_dtype dtype) {
    int64_t n[2] = { 0 }; /* elements in f32, in fewer bits */

    for (int32_t i = 0; i < s->n_param; i++)
        if (s->param[i].n_dim == 2)
            n[ml_weights_param_dtype(&s->param[i], c, dtype) != ML_F32] +=
                ml_param_count(&s->param[i]);
    return n[1] > n[0] ? ML_BF16 : ML_F32;
}

ml_status ml_weights_keep_kv(ml_spec *s, const ml_checkpoint *c, ml_weight_dtype dtype,
                             ml_dtype want, ml_err *err) {
    ml_status st = ml_dtype_is_kv_codes(want) ? ml_spec_check_kv(s, want, err) : ML_OK;

    if (st == ML_OK)
        ml_spec_keep_kv(s, want == ML_F32 ? ml_weights_kv_dtype(s, c, dtype) : want);
    ml_weights_mark_codes(s, c, dtype);
    return st;
}

void ml_weights_mark_codes(ml_spec *s, const ml_checkpoint *c, ml_weight_dtype dtype) {
    for (int32_t i = 0; i < s->n_param; i++)
        s->param[i].codes = ml_weights_code_dtype(&s->param[i], c, dtype);
}

/* --- packing ---------------------------------------------------------------- */

/* Reads n values of a file tensor as f32, from element `at` on, with stride `step`. */
static void read_f32(float *out, const ml_st_tensor *t, int64_t at, int64_t step, int64_t n,
                     bool round_bf16) {
    ml_source_f32(t, at, step, n, out);
    if (round_bf16 && (t->quant || t->dtype != ML_ST_BF16))
        for (int64_t i = 0; i < n; i++)
            out[i] = ml_bf16_to_f32(ml_f32_to_bf16(out[i]));
}

/* Stores n values of a row, from column c on. */
static void store_f32(void *out, ml_dtype dtype, ml_row_walk row, int64_t c,
                      const float *in, int64_t n) {
    if (dtype == ML_F32) {
        float *o = out;
        for (int64_t i = 0; i < n; i++)
            o[ml_row_at(row, c + i)] = in[i];
    } else if (dtype == ML_BF16) {
        uint16_t *o = out;
        for (int64_t i = 0; i < n; i++)
            o[ml_row_at(row, c + i)] = ml_f32_to_bf16(in[i]);
    } else {
        uint16_t *o = out;
        for (int64_t i = 0; i < n; i++)
            o[ml_row_at(row, c + i)] = ml_f32_to_f16(in[i]);
    }
}

/* Contiguous values. */
static const ml_row_walk in_order = { .step = 1 };

/* The threads of a pool pack rows into a staging buffer, which is then copied to the
 * device. */
#define STAGE_BYTES ((size_t)1 << 20)
#define PACK_COLS                                                                          \
    256 /* columns at a time, so that the output of 16 rows stays in the cache */

typedef struct packer {
    ml_backend *be;
    ml_pool *pool;
    unsigned char *stage;
    bool round_bf16; /* except parameters with keep_f32 */
    uint64_t head_seed;
} packer;

/* Packing of a block of panels, or of 16 rows each, into the staging buffer. */
typedef struct pack_job {
    const packer *k;
    const ml_tensor *t;
    const ml_source *src;
    int64_t first, rows, cols; /* row of the buffer's first panel; end of the rows */
    int64_t skip;              /* of a vector, the elements before the part */
    bool round_bf16;
    bool is_vector;          /* packed as one row */
    const ml_param_cut *cut; /* NULL: the whole parameter */
} pack_job;

/* Copies n values of a row that need no conversion, from column c on; pairs are whole. */
static void spread_u16(uint16_t *out, ml_row_walk row, int64_t c, const unsigned char *in,
                       int64_t n) {
    const int64_t width = 1 + row.pair;
    for (int64_t i = 0; i < n; i += width)
        memcpy(&out[ml_row_at(row, c + i)], in + i * 2, row.pair ? 4 : 2);
}

/* The row (of a vector: the element) of the whole parameter that is this rank's i-th, and
 * how many follow it there. */
static int64_t whole_row(const ml_param_cut *cut, int64_t i, int64_t *n) {
    const int32_t n_run = cut ? cut->n_run : 0;

    for (int32_t k = 0; k < n_run; i -= cut->run[k++].n)
        if (i < cut->run[k].n) {
            *n = cut->run[k].n - i;
            return cut->run[k].at + i;
        }
    *n = INT64_MAX;
    return i;
}

/* Packs n values from column c of row r into that row of the staging buffer. */
static void pack_run(const pack_job *j, int64_t r, int64_t c, int64_t from, int64_t n,
                     ml_row_walk row) {
    const ml_source *s = j->src;
    int64_t at = s->at + r * s->row + from * s->col;
    float piece[PACK_COLS];

    if (j->t->dtype == ML_BF16 && s->t->dtype == ML_ST_BF16 && !s->t->quant &&
        s->col == 1) {
        spread_u16((uint16_t *)(void *)j->k->stage, row, c,
                   (const unsigned char *)s->t->data + at * 2, n);
        return;
    }
    read_f32(piece, s->t, at, s->col, n, j->round_bf16);
    store_f32(j->k->stage, j->t->dtype, row, c, piece, n);
}

static void pack_piece(const pack_job *j, int64_t r, int64_t c, int64_t n,
                       ml_row_walk row) {
    int64_t left, from, end = c + n;

    if (!j->is_vector) {
        pack_run(j, whole_row(j->cut, r, &left), c, c, n, row);
        return;
    }
    for (; c < end; c += n) {
        from = whole_row(j->cut, j->skip + c, &left);
        n = left < end - c ? left : end - c;
        pack_run(j, r, c, from, n, row);
    }
}

/* A matrix with the layout of t. */
static ml_tensor matrix_like(const ml_tensor *t, int64_t rows, int64_t cols) {
    return (ml_tensor){
        .dtype = t->dtype, .layout = t->layout, .n_dim = 2, .shape = { rows, cols }
    };
}

static void pack_panels(void *ud, int64_t begin, int64_t end, int worker) {
    const pack_job *j = ud;
    const ml_tensor stage = matrix_like(j->t, j->rows, j->cols);
    const size_t panel = (size_t)(ML_LANES * j->cols) * ml_dtype_bytes(j->t->dtype);

    (void)worker;
    for (int64_t p = begin; p < end; p++) {
        int64_t r0 = j->first + p * ML_LANES, left = j->rows - r0;
        int64_t n = left < ML_LANES ? left : ML_LANES;
        if (stage.layout == ML_PANELS && n < ML_LANES)
            memset(j->k->stage + (size_t)p * panel, 0, panel);
        for (int64_t c = 0; c < j->cols; c += PACK_COLS) {
            int64_t part = j->cols - c < PACK_COLS ? j->cols - c : PACK_COLS;
            for (int64_t i = 0; i < n; i++)
                pack_piece(j, r0 + i, c, part, ml_tensor_row(&stage, p * ML_LANES + i));
        }
    }
}

/* Releases the mapped pages of rows that were packed, of a tensor with a single
 * parameter. */
static void forget_rows(const ml_source *s, int64_t first, int64_t n, int64_t rows) {
    size_t row_bytes = s->t->bytes / (size_t)rows;
    ml_file_forget(&s->file->file, s->t->offset + (size_t)first * row_bytes,
                   (size_t)n * row_bytes);
}

/* Packs the rows of a strip to `out`. */
static void pack_strip(const packer *k, const ml_tensor *t, unsigned char *out,
                       const ml_source *src, const ml_param *p, const ml_strip *strip) {
    /* A vector is packed as one row, so that its order is kept. */
    bool column = p->n_dim == 1 && !p->name_after;
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
    int64_t cols = p->n_dim == 2 ? p->shape[1] : column ? strip->n : p->shape[0];
    int64_t first = column ? 0 : strip->row, end = column ? 1 : strip->row + strip->n;
    size_t size = ml_dtype_bytes(t->dtype);
    int64_t step = (int64_t)(STAGE_BYTES / ((size_t)cols * ML_LANES * size));
    size_t disk = src->t->dtype == ML_ST_F32 ? 4 : 2; /* of integers: never `own` */
    bool own = p->n_dim == 2 && !p->cut && !src->t->quant &&
               src->t->bytes == (size_t)(rows * cols) * disk;
    pack_job j = { .k = k,
                   .t = t,
                   .src = src,
                   .rows = end,
                   .cols = cols,
                   .skip = column ? strip->row : 0,
                   .is_vector = p->n_dim == 1,
                   .cut = p->cut,
                   .round_bf16 = k->round_bf16 && !p->keep_f32 };

    step = (step < 1 ? 1 : step) * ML_LANES;
    for (j.first = first; j.first < end; j.first += step) {
        int64_t n = end - j.first < step ? end - j.first : step;
        int64_t n_panel = (n + ML_LANES - 1) / ML_LANES;
        int64_t stored = t->layout == ML_PANELS ? n_panel * ML_LANES : n;
        ml_pool_run(k->pool, n_panel, 1, pack_panels, &j);
        k->be->dev->copy_in(k->be->stream, out + (size_t)((j.first - first) * cols) * size,
                            k->stage, (size_t)(stored * cols) * size);
        if (own && src->file)
            forget_rows(src, j.first, n, rows);
    }
    if (src->file)
        ml_st_forget(src->file, src->t);
}

/* Approximately normal (Irwin-Hall: a sum of twelve uniform numbers minus its mean), the
 * same on every machine. */
static float normal_at(uint64_t seed, uint64_t i) {
    double sum = -6.0;
    for (uint64_t k = 0; k < 12; k++)
        sum += ml_philox_uniform(seed, i, k);
    return (float)(VALUE_HEAD_STD * sum);
}

/* The head of a new critic: small random weights, zero bias. */
static void make_value_head(const packer *k, const ml_tensor *t) {
    size_t bytes = ml_tensor_bytes(t);

    memset(k->stage, 0, bytes);
    for (int64_t i = 0; t->n_dim == 2 && i < t->shape[1]; i++)
        ((float *)(void *)k->stage)[t->layout == ML_PANELS ? i * ML_LANES : i] =
            normal_at(k->head_seed, (uint64_t)i);
    k->be->dev->copy_in(k->be->stream, t->data, k->stage, bytes);
}

/* Member e as a matrix. */
static ml_tensor member_of(const ml_tensor *t, int32_t e) {
    int64_t rows = t->n_dim == 1 ? 1 : t->shape[t->n_dim - 2];
    ml_tensor m = matrix_like(t, rows, t->shape[t->n_dim - 1]), one = m;

    if (t->n_dim == 2) /* a stack of vectors has a row for each */
        one.shape[0] = 1;
    m.data = (unsigned char *)t->data + (size_t)e * ml_tensor_bytes(&one);
    return m;
}

/* Memory of the host for the codes of a matrix: its own, or that of a copy on the way to a device. */
static ml_tensor begin_codes(const ml_tensor *m, const ml_backend *be, ml_arena *a) {
    ml_tensor here = *m;

    ml_arena_init(a, "codes of a weight");
    if (!be->dev->host)
        here.data = ml_arena_take(a, ml_tensor_bytes(m), 1);
    return here;
}

static void end_codes(const ml_tensor *m, const ml_tensor *here, const ml_backend *be,
                      ml_arena *a) {
    if (!be->dev->host)
        be->dev->copy_in(be->stream, m->data, here->data, ml_tensor_bytes(m));
    ml_arena_release(a);
}

static void pack_codes(const packer *k, const ml_weights *w, int32_t i, const ml_param *p,
                       const ml_checkpoint *c) {
    for (int32_t e = 0; e < p->n_stack; e++) {
        const ml_source src = ml_source_of(c, p, e);
        const ml_tensor m = member_of(&w->t[i], e);
        ml_arena a;
        const ml_tensor here = begin_codes(&m, k->be, &a);
        ml_weights_encode_source(&here, ml_weights_fake_group(p, w->dtype), &src, k->pool);
        end_codes(&m, &here, k->be, &a);
        if (src.file)
            ml_st_forget(src.file, src.t);
    }
}

static void pack_param(const packer *k, const ml_weights *w, int32_t i, const ml_param *p,
                       const ml_checkpoint *c) {
    ml_tensor rows = ml_weights_view(w, i, ml_weights_range(w, i));
    ml_strip s = { 0 };

    if (ml_dtype_codes(w->t[i].dtype) || ml_weights_fake_group(p, w->dtype)) {
        pack_codes(k, w, i, p, c);
        return;
    }
    while (ml_strip_next(&s, p, k->be->linear, ml_weights_range(w, i))) {
        ml_source src = ml_source_of(c, p, s.member);
        size_t at = (size_t)(s.at * rows.shape[1]) * ml_dtype_bytes(rows.dtype);
        if (src.t)
            pack_strip(k, &w->t[i], (unsigned char *)rows.data + at, &src, p, &s);
        else
            make_value_head(k, &w->t[i]);
    }
}

/* The stage holds at least one panel of the widest parameter. */
static size_t stage_bytes(const ml_spec *s) {
    size_t bytes = STAGE_BYTES;
    for (int32_t i = 0; i < s->n_param; i++) {
        const ml_param *p = &s->param[i];
        size_t n = (size_t)(p->n_dim == 2 ? p->shape[1] : p->shape[0]) * ML_LANES;
        bytes = n * sizeof(float) > bytes ? n * sizeof(float) : bytes;
    }
    return bytes;
}

static ml_status open_packer(packer *k, ml_backend *be, const ml_spec *s, bool round_bf16,
                             ml_err *err) {
    ml_status st;

    *k = (packer){ .be = be, .round_bf16 = round_bf16, .head_seed = s->head_seed };
    st = ml_pool_new(&k->pool, be->n_thread, err);
    if (st != ML_OK)
        return st;
    k->stage = malloc(stage_bytes(s));
    if (k->stage)
        return ML_OK;
    ml_pool_free(k->pool);
    return ml_fail(err, ML_ENOMEM, "out of memory for packing weights");
}

static ml_status close_packer(packer *k, ml_err *err) {
    free(k->stage);
    ml_pool_free(k->pool);
    return k->be->dev->sync(k->be->stream, err);
}

static ml_status pack_all(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                          ml_weight_dtype dtype, ml_backend *be, ml_err *err) {
    packer k;
    ml_status st = open_packer(&k, be, s, dtype == ML_WEIGHT_BF16, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < s->n_param; i++)
        pack_param(&k, w, i, &s->param[i], c);
    return close_packer(&k, err);
}

/* --- tensors that arrive one by one --------------------------------------------- */

struct ml_packer {
    packer k;
    const ml_weights *w;
    const ml_spec *spec;
};

ml_status ml_packer_open(ml_packer **out, const ml_weights *w, const ml_spec *s,
                         bool round_bf16, ml_err *err) {
    ml_packer *p = calloc(1, sizeof *p);
    ml_status st;

    if (!p)
        return ml_fail(err, ML_ENOMEM, "out of memory for packing weights");
    p->w = w;
    p->spec = s;
    st = open_packer(&p->k, w->be, s, round_bf16, err);
    if (st == ML_OK)
        *out = p;
    else
        free(p);
    return st;
}

void ml_packer_put(ml_packer *k, int32_t i, int32_t e, const ml_st_tensor *t, bool part) {
    ml_shard_range all = ml_weights_range(k->w, i);
    ml_tensor rows = ml_weights_view(k->w, i, all);
    const ml_param *p = &k->spec->param[i];
    ml_strip s = { 0 };

    while (ml_strip_next(&s, p, k->k.be->linear, all)) {
        ml_source src = ml_source_in(t, part, p, s.member);
        size_t at = (size_t)(s.at * rows.shape[1]) * ml_dtype_bytes(rows.dtype);
        if (e == ML_NONE || e == s.member)
            pack_strip(&k->k, &k->w->t[i], (unsigned char *)rows.data + at, &src, p, &s);
    }
}

ml_status ml_packer_close(ml_packer *k, ml_err *err) {
    ml_status st = close_packer(&k->k, err);

    free(k);
    return st;
}

/* --- sets ------------------------------------------------------------------------ */

/* Divides one buffer into the tensors of the spec. */
/* Of a parameter of a set: a GPU has bf16 beside quantized matrices, whatever the checkpoint has. */
static ml_dtype dtype_on(const ml_backend *be, const ml_param *p, const ml_checkpoint *c,
                         ml_weight_dtype want) {
    const ml_dtype d = ml_weights_param_dtype(p, c, want);

    if (be->dev->host || want < ML_WEIGHT_STORED || ml_dtype_codes(d))
        return d;
    return ml_weights_param_dtype(p, c, ML_WEIGHT_BF16);
}

static ml_status carve(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                       ml_weight_dtype dtype, const ml_shard_range *range, ml_mem_kind kind,
                       ml_backend *be, ml_arena *a, ml_err *err) {
    size_t at = 0;
    ml_status st;

    dtype = dtype_of_parts(dtype, range);
    *w = (ml_weights){ .n = s->n_param,
                       .t = ML_NEW(a, ml_tensor, s->n_param),
                       .be = be,
                       .dtype = dtype < ML_WEIGHT_STORED ? ML_WEIGHT_AUTO : dtype,
                       .range = range };
    st = be->dev->alloc(be->dev, &w->buf, ml_weights_part_bytes(s, c, dtype, range), kind,
                        err);
    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < s->n_param; i++) {
        ml_dtype d = dtype_on(be, &s->param[i], c, dtype);
        w->t[i] = range ? ml_weights_part(&s->param[i], d, be->linear, range[i])
                        : ml_weights_tensor(&s->param[i], d, be->linear);
        if (ml_tensor_bytes(&w->t[i]))
            w->t[i].data = (unsigned char *)w->buf.ptr + at;
        at += align64(ml_tensor_bytes(&w->t[i]));
    }
    return ML_OK;
}

ml_status ml_weights_load_part(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                               ml_weight_dtype dtype, const ml_shard_range *range,
                               ml_backend *be, ml_arena *a, ml_err *err) {
    ml_status st = ml_weights_check(s, c, err);
    int64_t n_tower;

    *w = (ml_weights){ 0 };
    dtype = ml_weights_dtype(be, dtype);
    n_tower = st == ML_OK ? ml_weights_tower_count(s, c) : 0;
    if (n_tower)
        ml_log(ML_LOG_WARN,
               "%s: a %s model: its text model is used; %lld tensors of other towers are "
               "copied unchanged when the model is saved",
               c->dir, s->inside, (long long)n_tower);
    if (st == ML_OK)
        st = carve(w, s, c, dtype, range, ML_MEM_WEIGHT, be, a, err);
    if (st == ML_OK)
        st = pack_all(w, s, c, dtype, be, err);
    if (st != ML_OK)
        ml_weights_close(w);
    return st;
}

ml_status ml_weights_load(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                          ml_weight_dtype dtype, ml_backend *be, ml_arena *a, ml_err *err) {
    return ml_weights_load_part(w, s, c, dtype, NULL, be, a, err);
}

ml_status ml_weights_new(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                         ml_weight_dtype dtype, ml_backend *be, ml_arena *a, ml_err *err) {
    return carve(w, s, c, ml_weights_dtype(be, dtype), NULL, ML_MEM_WEIGHT, be, a, err);
}

/* n values around 0, of this magnitude; vectors (mostly norms) are 1. */
static void make_up(float *out, int64_t n, float size, uint64_t *state) {
    for (int64_t i = 0; i < n; i++) {
        *state = *state * 0x5851f42d4c957f2du + 0x14057b7ef767814fu;
        out[i] = size * ((float)(*state >> 40) * 0x1p-23f - 1.0f);
    }
}

static void make_up_rows(const void *ud, int64_t row, int64_t n, float *out) {
    const ml_tensor *m = ud;
    uint64_t state = (uint64_t)row + 1;

    make_up(out, n * m->shape[1], 1.0f / sqrtf((float)m->shape[1]), &state);
}

enum { DUMMY_SHAPES = 32 };

/* Made-up matrices of one shape have the same values: they are encoded once, in host memory. */
typedef struct dummy_codes {
    ml_tensor of[DUMMY_SHAPES];
    int n;
    ml_arena *arena;
    ml_pool *pool;
} dummy_codes;

static const ml_tensor *codes_like(dummy_codes *d, const ml_tensor *m) {
    ml_tensor *t;

    for (int i = 0; i < d->n; i++)
        if (d->of[i].dtype == m->dtype && d->of[i].layout == m->layout &&
            d->of[i].shape[0] == m->shape[0] && d->of[i].shape[1] == m->shape[1])
            return &d->of[i];
    t = &d->of[d->n < DUMMY_SHAPES ? d->n++ : DUMMY_SHAPES - 1];
    *t = *m;
    t->data = ml_arena_take(d->arena, ml_tensor_bytes(m), 1);
    ml_weights_encode(t, 0, make_up_rows, t, d->pool);
    return t;
}

static void make_up_codes(const ml_tensor *t, dummy_codes *d, const ml_backend *be) {
    for (int32_t e = 0; e < (t->n_dim == 3 ? t->shape[0] : 1); e++) {
        const ml_tensor m = member_of(t, e);
        be->dev->copy_in(be->stream, m.data, codes_like(d, &m)->data, ml_tensor_bytes(&m));
    }
}

enum { DUMMY_PIECE = 65536, DUMMY_PIECES = 64 };

/* A range of a tensor's values, which the threads of a pool make up piece by piece. */
typedef struct dummy_job {
    const ml_tensor *t;
    int64_t at, n, below; /* below: values are 0 .. below - 1; 0: random */
    uint64_t seed;        /* of the tensor */
    float scale;
    float *f32;
    uint16_t *bf16;
} dummy_job;

static void make_up_piece(void *ud, int64_t begin, int64_t end, int worker) {
    const dummy_job *j = ud;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i * DUMMY_PIECE, at = j->at + first;
        int64_t n = j->n - first < DUMMY_PIECE ? j->n - first : DUMMY_PIECE;
        uint64_t state = j->seed + (uint64_t)at / DUMMY_PIECE * 0x9e3779b97f4a7c15u;
        float *out = j->f32 + first;
        make_up(out, n, j->scale, &state);
        for (int64_t k = 0; j->t->n_dim == 1 && k < n; k++)
            out[k] = 1.0f;
        for (int64_t k = 0; j->below && k < n; k++)
            out[k] = (float)((at + k) % j->below);
        store_f32(j->bf16 + first, ML_BF16, in_order, 0, out, n);
    }
}

static void make_up_tensor(dummy_job *j, ml_pool *pool, ml_backend *be) {
    const ml_tensor *t = j->t;
    size_t size = ml_dtype_bytes(t->dtype);
    int64_t all = (int64_t)(ml_tensor_bytes(t) / size);

    for (j->at = 0; j->at < all; j->at += j->n) {
        const int64_t most = (int64_t)DUMMY_PIECE * DUMMY_PIECES;
        j->n = all - j->at < most ? all - j->at : most;
        ml_pool_run(pool, (j->n + DUMMY_PIECE - 1) / DUMMY_PIECE, 1, make_up_piece, j);
        be->dev->copy_in(be->stream, (unsigned char *)t->data + (size_t)j->at * size,
                         t->dtype == ML_F32 ? (void *)j->f32 : (void *)j->bf16,
                         (size_t)j->n * size);
    }
}

ml_status ml_weights_dummy(ml_weights *w, const ml_spec *s, ml_weight_dtype dtype,
                           uint64_t seed, ml_backend *be, ml_arena *a, ml_err *err) {
    ml_pool *pool = NULL;
    ml_arena stage;
    dummy_codes codes = { .arena = &stage };
    dummy_job j = { 0 };
    ml_status st;

    dtype = ml_weights_dtype(be, dtype);
    if (dtype == ML_WEIGHT_AUTO)
        dtype = ML_WEIGHT_BF16;
    ml_arena_init(&stage, "dummy weights");
    j.f32 = ML_NEW(&stage, float, (int64_t)DUMMY_PIECE *DUMMY_PIECES);
    j.bf16 = ML_NEW(&stage, uint16_t, (int64_t)DUMMY_PIECE * DUMMY_PIECES);
    st = carve(w, s, NULL, dtype, NULL, ML_MEM_WEIGHT, be, a, err);
    if (st == ML_OK)
        st = ml_pool_new(&pool, be->n_thread, err);
    codes.pool = pool;
    for (int32_t i = 0; st == ML_OK && i < w->n; i++) {
        j.t = &w->t[i];
        j.below = s->param[i].below;
        j.seed = seed + (uint64_t)i * 0xd1342543de82ef95u;
        j.scale = 1.0f / sqrtf((float)j.t->shape[j.t->n_dim - 1]);
        if (ml_dtype_codes(j.t->dtype))
            make_up_codes(j.t, &codes, be);
        else
            make_up_tensor(&j, pool, be);
    }
    ml_pool_free(pool);
    ml_arena_release(&stage);
    return st == ML_OK ? be->dev->sync(be->stream, err) : st;
}

ml_status ml_weights_zeros_part(ml_weights *w, const ml_spec *s,
                                const ml_shard_range *range, ml_backend *be, ml_arena *a,
                                ml_err *err) {
    return carve(w, s, NULL, ML_WEIGHT_F32, range, ML_MEM_GRAD, be, a, err);
}

ml_status ml_weights_zeros(ml_weights *w, const ml_spec *s, ml_backend *be, ml_arena *a,
                           ml_err *err) {
    return ml_weights_zeros_part(w, s, NULL, be, a, err);
}

void ml_weights_close(ml_weights *w) {
    if (w->buf.dev)
        w->buf.dev->free(&w->buf);
    *w = (ml_weights){ 0 };
}

bool ml_weights_alike(const ml_weights *a, const ml_weights *b) {
    for (int32_t i = 0; i < a->n && a->n == b->n; i++) {
        ml_shard_range x = ml_weights_range(a, i), y = ml_weights_range(b, i);
        if (a->t[i].dtype != b->t[i].dtype || x.begin != y.begin || x.n != y.n)
            return false;
    }
    return a->n == b->n && a->buf.bytes == b->buf.bytes;
}

ml_status ml_weights_copy(ml_weights *to, const ml_weights *from, ml_backend *be,
                          ml_err *err) {
    ML_BUG_IF(!ml_weights_alike(to, from));
    be->dev->copy(be->stream, to->buf.ptr, from->buf.ptr, from->buf.bytes);
    to->version = from->version;
    return be->dev->sync(be->stream, err);
}

ml_status ml_weights_clone(ml_weights *out, const ml_weights *from, ml_backend *be,
                           ml_arena *a, ml_err *err) {
    const unsigned char *old = from->buf.ptr;
    ml_status st;

    *out = (ml_weights){ .n = from->n,
                         .t = ML_NEW(a, ml_tensor, from->n),
                         .be = be,
                         .dtype = from->dtype,
                         .range = from->range };
    st = be->dev->alloc(be->dev, &out->buf, from->buf.bytes, from->buf.kind, err);
    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < from->n; i++) {
        const unsigned char *data = from->t[i].data;
        out->t[i] = from->t[i];
        if (data)
            out->t[i].data = (unsigned char *)out->buf.ptr + (data - old);
    }
    return ml_weights_copy(out, from, be, err);
}

/* --- unpacking -------------------------------------------------------------- */

/* Loads n values of a row, from column c on. */
static void load_f32(float *out, const ml_tensor *t, ml_row_walk row, int64_t c,
                     int64_t n) {
    if (t->dtype == ML_F32) {
        const float *in = t->data;
        for (int64_t i = 0; i < n; i++)
            out[i] = in[ml_row_at(row, c + i)];
    } else {
        const uint16_t *in = t->data;
        for (int64_t i = 0; i < n; i++)
            out[i] = ml_bf16_to_f32(in[ml_row_at(row, c + i)]);
    }
}

static void unpack_rows(const ml_tensor *m, int64_t row, int64_t n, ml_dtype to,
                        unsigned char *out) {
    const int64_t cols = m->shape[1];
    const size_t row_bytes = (size_t)cols * ml_dtype_bytes(m->dtype);
    float piece[PACK_COLS];

    if (m->layout == ML_ROWS && m->dtype == to) {
        memcpy(out, (const unsigned char *)m->data + (size_t)row * row_bytes,
               (size_t)n * row_bytes);
        return;
    }
    for (int64_t r = row; r < row + n; r++)
        for (int64_t c = 0; c < cols; c += PACK_COLS) {
            int64_t k = cols - c < PACK_COLS ? cols - c : PACK_COLS;
            if (ml_dtype_codes(m->dtype))
                ml_codes_read(m, r, c, k, piece);
            else
                load_f32(piece, m, ml_tensor_row(m, r), c, k);
            store_f32(out, to, in_order, (r - row) * cols + c, piece, k);
        }
}

static void pack_rows(const ml_tensor *m, int64_t row, int64_t n, const float *in) {
    for (int64_t r = row; r < row + n; r++)
        store_f32(m->data, m->dtype, ml_tensor_row(m, r), 0, in + (r - row) * m->shape[1],
                  m->shape[1]);
}

/* Rows of a set in device memory are copied through host memory.  They are contiguous
 * there, so that the copy is a tensor that starts with the first of them. */
typedef struct passage {
    ml_arena arena;
    ml_tensor here;
    void *there;
    size_t bytes;
} passage;

static bool is_elsewhere(const ml_weights *w) {
    return w->be && !w->be->dev->host;
}

static void begin_passage(passage *p, const ml_tensor *m, int64_t row, int64_t n) {
    size_t row_bytes = (size_t)m->shape[1] * ml_dtype_bytes(m->dtype);

    ML_BUG_IF(m->layout != ML_ROWS);
    ml_arena_init(&p->arena, "rows in transfer");
    p->here = *m;
    p->there = (unsigned char *)m->data + (size_t)row * row_bytes;
    p->bytes = (size_t)n * row_bytes;
    p->here.data = ml_arena_take(&p->arena, p->bytes, 1);
}

/* Copies the panels of these rows. */
static void unpack_codes(const ml_weights *w, const ml_tensor *m, int64_t row, int64_t n,
                         ml_dtype to, void *out) {
    const int64_t first = row / ML_LANES, end = (row + n + ML_LANES - 1) / ML_LANES;
    const size_t panel = ml_tensor_panel_bytes(m);
    ml_tensor here = *m;
    ml_arena a;

    ml_arena_init(&a, "panels in transfer");
    here.data = ml_arena_take(&a, (size_t)(end - first) * panel, 1);
    w->be->dev->copy_out(w->be->stream, here.data,
                         (const unsigned char *)m->data + (size_t)first * panel,
                         (size_t)(end - first) * panel);
    unpack_rows(&here, row - first * ML_LANES, n, to, out);
    ml_arena_release(&a);
}

void ml_weights_unpack(const ml_weights *w, int32_t i, int32_t e, int64_t row, int64_t n,
                       ml_dtype to, void *out) {
    const ml_tensor m = member_of(&w->t[i], e);
    passage p;

    ML_BUG_IF(row < 0 || row + n > m.shape[0]);
    if (!is_elsewhere(w)) {
        unpack_rows(&m, row, n, to, out);
        return;
    }
    if (ml_dtype_codes(m.dtype)) {
        unpack_codes(w, &m, row, n, to, out);
        return;
    }
    begin_passage(&p, &m, row, n);
    w->be->dev->copy_out(w->be->stream, p.here.data, p.there, p.bytes);
    unpack_rows(&p.here, 0, n, to, out);
    ml_arena_release(&p.arena);
}

void ml_weights_pack(const ml_weights *w, int32_t i, int32_t e, int64_t row, int64_t n,
                     const float *in) {
    const ml_tensor m = member_of(&w->t[i], e);
    passage p;

    ML_BUG_IF(row < 0 || row + n > m.shape[0]);
    if (!is_elsewhere(w)) {
        pack_rows(&m, row, n, in);
        return;
    }
    begin_passage(&p, &m, row, n);
    pack_rows(&p.here, 0, n, in);
    w->be->dev->copy_in(w->be->stream, p.there, p.here.data, p.bytes);
    ml_arena_release(&p.arena);
}
