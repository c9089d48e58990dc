#include "model/weights_codes.h"

#include "base/bug.h"
#include "io/quant.h"
#include "io/quantize.h"

static ml_quant_rows rows_of(const ml_source *s, int64_t cols) {
    return (ml_quant_rows){ s->at, s->row, s->col, cols };
}

/* The dtype of a quantized tensor's codes, if all members of the parameter have it. */
static ml_dtype stored_dtype(const ml_param *p, const ml_checkpoint *c) {
    ml_dtype all = ML_F32;

    for (int32_t e = 0; e < p->n_stack; e++) {
        const ml_source s = ml_source_of(c, p, e);
        const ml_dtype own = s.t && s.t->quant
                                 ? ml_quant_dtype(s.t->quant, rows_of(&s, p->shape[1]))
                                 : ML_F32;
        if (own == ML_F32 || (e && own != all))
            return ML_F32;
        all = own;
    }
    return all;
}

ml_dtype ml_weights_code_dtype(const ml_param *p, const ml_checkpoint *c,
                               ml_weight_dtype want) {
    static const ml_dtype dtypes[] = {
        [ML_WEIGHT_FP8] = ML_FP8,
        [ML_WEIGHT_INT8] = ML_INT8,
        [ML_WEIGHT_INT4] = ML_INT4,
        [ML_WEIGHT_INT4_G128] = ML_INT4_G128,
        [ML_WEIGHT_NF4] = ML_NF4,
        [ML_WEIGHT_FP8_BLOCKWISE] = ML_FP8_BLOCKWISE,
        [ML_WEIGHT_QAT] = ML_INT4,
        [ML_WEIGHT_QAT_G128] = ML_INT4_G128,
        [ML_WEIGHT_MXFP8] = ML_MXFP8,
        [ML_WEIGHT_QAT_F32_SCALE] = ML_BF16,
        [ML_WEIGHT_QAT_G128_F32_SCALE] = ML_BF16,
    };
    const bool aware = want >= ML_WEIGHT_QAT && want <= ML_WEIGHT_QAT_G128_F32_SCALE;
    const ml_codes *codes;

    if (!p->linear || p->high_precision || p->cut || want < ML_WEIGHT_STORED ||
        (aware && !p->qat))
        return ML_F32;
    if (want == ML_WEIGHT_STORED)
        return c ? stored_dtype(p, c) : ML_F32;
    codes = ml_dtype_codes(dtypes[want]);
    if (aware && codes && p->shape[1] % codes->group)
        return ML_F32; /* files have whole groups */
    return dtypes[want];
}

int64_t ml_weights_fake_group(const ml_param *p, ml_weight_dtype dtype) {
    if (ml_weights_code_dtype(p, NULL, dtype) != ML_BF16)
        return 0;
    return dtype == ML_WEIGHT_QAT_F32_SCALE ? 32 : 128;
}

/* --- filling ---------------------------------------------------------------------- */

typedef struct encoding {
    ml_tensor m;
    int64_t fake_group; /* 0: codes */
    ml_rows_fn *read;   /* NULL: codes of `quant` */
    const void *ud;
    const ml_quant *quant;
    ml_quant_rows rows;
} encoding;

static void put_rows(const encoding *j, int64_t row, int64_t n, const uint8_t *code,
                     const float *scale) {
    const int64_t cols = j->m.shape[1], group = ml_dtype_codes(j->m.dtype)->group;
    const int64_t groups = (cols + group - 1) / group;

    for (int64_t i = 0; i < n; i++) {
        ml_codes_put(&j->m, row + i, 0, cols, code + i * cols);
        ml_codes_put_scales(&j->m, row + i, scale + i * groups);
    }
}

static void put_fake(const encoding *j, int64_t row, int64_t n, const uint16_t *x) {
    const int64_t cols = j->m.shape[1];
    uint16_t *out = j->m.data;

    for (int64_t i = 0; i < n; i++) {
        const ml_row_walk at = ml_tensor_row(&j->m, row + i);
        for (int64_t c = 0; c < cols; c++)
            out[ml_row_at(at, c)] = x[i * cols + c];
    }
}

static void fake_bands(void *ud, int64_t begin, int64_t end, int worker) {
    const encoding *j = ud;
    const int64_t rows = j->m.shape[0], cols = j->m.shape[1];
    const size_t band = (size_t)(ML_QUANT_BAND * cols);
    ml_arena a;
    float *x;
    uint16_t *fake;

    (void)worker;
    ml_arena_init(&a, "rows to quantize");
    x = ML_NEW(&a, float, band);
    fake = ML_NEW(&a, uint16_t, band);
    for (int64_t b = begin; b < end; b++) {
        const int64_t row = b * ML_QUANT_BAND;
        const int64_t n = rows - row < ML_QUANT_BAND ? rows - row : ML_QUANT_BAND;
        j->read(j->ud, row, n, x);
        ml_quant_fake_int4(x, n, cols, j->fake_group, fake);
        put_fake(j, row, n, fake);
    }
    ml_arena_release(&a);
}

static void encode_bands(void *ud, int64_t begin, int64_t end, int worker) {
    const encoding *j = ud;
    const int64_t rows = j->m.shape[0], cols = j->m.shape[1];
    const size_t band = (size_t)(ML_QUANT_BAND * cols);
    ml_arena a;
    float *x, *scale;
    uint8_t *code;

    (void)worker;
    ml_arena_init(&a, "rows to quantize");
    x = ML_NEW(&a, float, band);
    scale = ML_NEW(&a, float, band);
    code = ML_NEW(&a, uint8_t, band);
    for (int64_t b = begin; b < end; b++) {
        const int64_t row = b * ML_QUANT_BAND;
        const int64_t n = rows - row < ML_QUANT_BAND ? rows - row : ML_QUANT_BAND;
        if (j->read) {
            j->read(j->ud, row, n, x);
            ml_quantize_rows(j->m.dtype, x, n, cols, code, scale);
            put_rows(j, row, n, code, scale);
        }
        for (int64_t i = 0; i < n && !j->read; i++) {
            ml_quant_row(j->quant, j->rows, row + i, code, scale);
            put_rows(j, row + i, 1, code, scale);
        }
    }
    ml_arena_release(&a);
}

static void run(encoding *j, ml_pool *pool) {
    const int64_t bands = (j->m.shape[0] + ML_QUANT_BAND - 1) / ML_QUANT_BAND;

    ML_BUG_IF(!ml_dtype_codes(j->m.dtype) && !(j->fake_group && j->m.dtype == ML_BF16));
    ML_BUG_IF(j->m.n_dim != 2);
    ml_pool_run(pool, bands, 1, j->fake_group ? fake_bands : encode_bands, j);
}

void ml_weights_encode(const ml_tensor *m, int64_t fake_group, ml_rows_fn *read,
                       const void *ud, ml_pool *pool) {
    encoding j = { .m = *m, .fake_group = fake_group, .read = read, .ud = ud };
    run(&j, pool);
}

/* A source whose rows are read as f32. */
typedef struct source_rows {
    const ml_source *src;
    int64_t cols;
} source_rows;

static void read_source(const void *ud, int64_t row, int64_t n, float *out) {
    const source_rows *r = ud;
    const ml_source *s = r->src;

    for (int64_t i = 0; i < n; i++)
        ml_source_f32(s->t, s->at + (row + i) * s->row, s->col, r->cols, out + i * r->cols);
}

void ml_weights_encode_source(const ml_tensor *m, int64_t fake_group, const ml_source *src,
                              ml_pool *pool) {
    const source_rows from = { src, m->shape[1] };
    encoding j = { .m = *m,
                   .fake_group = fake_group,
                   .read = read_source,
                   .ud = &from,
                   .rows = rows_of(src, from.cols) };

    if (src->t->quant && ml_quant_dtype(src->t->quant, j.rows) == m->dtype) {
        j.read = NULL;
        j.quant = src->t->quant;
    }
    run(&j, pool);
}

/* --- a quantized copy of a set ---------------------------------------------------- */

/* bf16 matrices are not multiples of 64 bytes, as panels of codes are. */
static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

size_t ml_weights_code_bytes(const ml_spec *s, ml_weight_dtype dtype) {
    size_t bytes = 0;

    for (int32_t i = 0; i < s->n_param; i++) {
        const ml_dtype d = ml_weights_code_dtype(&s->param[i], NULL, dtype);
        const ml_tensor t = ml_weights_tensor(&s->param[i], d, ML_PANELS);
        bytes += d == ML_F32 ? 0 : align64(ml_tensor_bytes(&t));
    }
    return bytes;
}

ml_status ml_weights_quantize(ml_weights *out, const ml_weights *from, const ml_spec *s,
                              ml_weight_dtype dtype, ml_backend *be, ml_arena *a,
                              ml_err *err) {
    ml_status st;
    size_t at = 0;

    ML_BUG_IF(from->range || dtype < ML_WEIGHT_FP8);
    if (!be->dev->host && be->act != ML_BF16)
        return ml_fail(err, ML_EUNSUP,
                       "quantized copies of weights on a GPU are made from bf16: remove "
                       "--dtype f32, or use --device cpu");
    *out = (ml_weights){
        .n = from->n, .t = ML_NEW(a, ml_tensor, from->n), .be = be, .dtype = dtype
    };
    st = be->dev->alloc(be->dev, &out->buf, ml_weights_code_bytes(s, dtype), ML_MEM_WEIGHT,
                        err);
    for (int32_t i = 0; i < from->n && st == ML_OK; i++) {
        const ml_dtype d = ml_weights_code_dtype(&s->param[i], NULL, dtype);
        out->t[i] = from->t[i];
        if (d == ML_F32)
            continue;
        out->t[i] = ml_weights_tensor(&s->param[i], d, be->linear);
        out->t[i].data = (unsigned char *)out->buf.ptr + at;
        at += align64(ml_tensor_bytes(&out->t[i]));
    }
    return st;
}

/* A member of a parameter of a set. */
typedef struct member_rows {
    const ml_weights *w;
    int32_t param, member;
} member_rows;

static void read_member(const void *ud, int64_t row, int64_t n, float *out) {
    const member_rows *m = ud;
    ml_weights_unpack(m->w, m->param, m->member, row, n, ML_F32, out);
}

static void encode_param(const ml_weights *to, const ml_weights *from, int32_t i,
                         const ml_param *p, ml_pool *pool) {
    const ml_optim_ops *device = to->be->optim;
    const int64_t fake_group = ml_weights_fake_group(p, to->dtype);
    const ml_tensor *t = &to->t[i];
    ml_tensor m = { .dtype = t->dtype, .layout = t->layout, .n_dim = 2 };

    if (device->encode && fake_group) {
        device->fake_int4(to->be->stream, t, &from->t[i], fake_group);
        return;
    }
    if (device->encode) {
        device->encode(to->be->stream, t, &from->t[i]);
        return;
    }
    m.shape[0] = t->shape[t->n_dim - 2];
    m.shape[1] = t->shape[t->n_dim - 1];
    for (int32_t e = 0; e < p->n_stack; e++) {
        const member_rows rows = { from, i, e };
        m.data = (unsigned char *)t->data + (size_t)e * ml_tensor_bytes(&m);
        ml_weights_encode(&m, fake_group, read_member, &rows, pool);
    }
}

ml_status ml_weights_requantize(ml_weights *to, const ml_weights *from, const ml_spec *s,
                                int32_t n_thread, ml_err *err) {
    ml_pool *pool;
    ml_status st = ml_pool_new(&pool, n_thread, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < to->n; i++) {
        if (ml_weights_code_dtype(&s->param[i], NULL, to->dtype) != ML_F32)
            encode_param(to, from, i, &s->param[i], pool);
        else if (to->t[i].data != from->t[i].data)
            to->be->dev->copy(to->be->stream, to->t[i].data, from->t[i].data,
                              ml_tensor_bytes(&from->t[i]));
    }
    ml_pool_free(pool);
    to->version = from->version;
    return to->be->dev->sync(to->be->stream, err);
}
