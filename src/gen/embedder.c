#include "gen/embedder.h"

#include <math.h>
#include <string.h>

#include "base/bug.h"
#include "model/batch.h"

#define MAX_SEQ 256 /* inputs of a batch */

struct ml_embedder {
    ml_arena arena; /* this struct is allocated in it */
    const ml_spec *spec;
    ml_backend *be;
    ml_plan *plan;
    ml_batch batch;
    ml_batch_caps caps;
    char *row;   /* a hidden row as the device has it */
    double *sum; /* [n_hidden] */
};

ml_status ml_embedder_new(ml_embedder **out, const ml_spec *s, ml_backend *be,
                          int32_t max_tokens, ml_err *err) {
    ml_batch_caps caps = { .n_token = max_tokens,
                           .n_seq = MAX_SEQ,
                           .n_loss = 1,
                           .n_page = ml_kv_pages_for(max_tokens) + MAX_SEQ };
    ml_embedder *e;
    ml_arena arena;
    ml_status st;

    ml_arena_init(&arena, "embeddings");
    e = ML_NEW(&arena, ml_embedder, 1);
    *e = (ml_embedder){ .arena = arena, .spec = s, .be = be, .caps = caps };
    e->row = ML_NEW(&e->arena, char, s->n_hidden *(int64_t)sizeof(float));
    e->sum = ML_NEW(&e->arena, double, s->n_hidden);
    ml_batch_init(&e->batch, &e->arena, caps);
    st = ml_plan_new(&e->plan, s, be, (ml_plan_opts){ .caps = caps, .hidden = true }, err);
    if (st == ML_OK)
        st = ml_plan_alloc(e->plan, err);
    if (st != ML_OK) {
        ml_embedder_free(e);
        e = NULL;
    }
    *out = e;
    return st;
}

void ml_embedder_free(ml_embedder *e) {
    ml_arena arena;

    if (!e)
        return;
    ml_plan_free(e->plan);
    arena = e->arena;
    ml_arena_release(&arena);
}

/* Adds the hidden row to the sum. */
static ml_status add_row(ml_embedder *e, const ml_tensor *hidden, int32_t at, ml_err *err) {
    size_t size = ml_dtype_bytes(hidden->dtype), bytes = (size_t)e->spec->n_hidden * size;
    ml_status st;

    ML_BUG_IF(hidden->dtype != ML_F32 && hidden->dtype != ML_BF16);
    e->be->dev->copy_out(e->be->stream, e->row,
                         (const char *)hidden->data + (size_t)at * bytes, bytes);
    st = e->be->dev->sync(e->be->stream, err);
    for (int64_t i = 0; i < e->spec->n_hidden && st == ML_OK; i++) {
        float x;
        uint16_t half;
        if (hidden->dtype == ML_F32) {
            memcpy(&x, e->row + i * (int64_t)sizeof x, sizeof x);
        } else {
            memcpy(&half, e->row + i * (int64_t)sizeof half, sizeof half);
            x = ml_bf16_to_f32(half);
        }
        e->sum[i] += (double)x;
    }
    return st;
}

/* A vector of zeros stays one. */
static void normalise(const double *sum, int32_t width, float *out) {
    double square = 0;

    for (int32_t i = 0; i < width; i++)
        square += sum[i] * sum[i];
    for (int32_t i = 0; i < width; i++)
        out[i] = square > 0 ? (float)(sum[i] / sqrt(square)) : 0;
}

/* Runs the inputs that the batch has; the first of them is in[0]. */
static ml_status run_batch(ml_embedder *e, const ml_weights *w, const ml_embed_input *in,
                           int32_t n, ml_pooling pooling, int32_t width, float *out,
                           ml_err *err) {
    ml_tensor hidden;
    int32_t end = 0;
    ml_status st;

    ml_plan_forward(e->plan, &(ml_run){ .weights = w, .rows = &e->batch.rows });
    st = ml_plan_check(e->plan, err);
    hidden = ml_plan_hidden(e->plan, &e->batch.rows);
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        int32_t at = pooling == ML_POOL_LAST ? end + in[i].n - 1 : end;
        end += in[i].n;
        memset(e->sum, 0, (size_t)e->spec->n_hidden * sizeof *e->sum);
        for (; at < end && st == ML_OK; at++)
            st = add_row(e, &hidden, at, err);
        normalise(e->sum, width, out + (int64_t)i * width);
    }
    return st;
}

ml_status ml_embedder_run(ml_embedder *e, const ml_weights *w, const ml_embed_input *in,
                          int32_t n, ml_pooling pooling, int32_t width, float *out,
                          ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0, k; i < n && st == ML_OK; i += k) {
        ml_batch_clear(&e->batch);
        e->batch.rows.temperature = 1;
        for (k = 0; i + k < n && k < MAX_SEQ &&
                    e->batch.rows.n_token + in[i + k].n <= e->caps.n_token;
             k++)
            ml_batch_add(&e->batch, in[i + k].id, NULL, in[i + k].n, 0, NULL);
        ML_BUG_IF(k == 0);
        st = run_batch(e, w, in + i, k, pooling, width, out + (int64_t)i * width, err);
    }
    return st;
}
