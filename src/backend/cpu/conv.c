/* conv.c - CONV, the short causal convolution: blocks of 16 channels, sequence by
 * sequence. */
#include "backend/cpu/cpu_priv.h"

#include <string.h>

static int64_t blocks_of(const ml_op_args *a) {
    return (a->in[0].shape[1] + 15) / 16;
}

/* A block's weights, one vector per tap: [taps][16], and the bias [16]. */
typedef struct conv_weights {
    float w[ML_CONV_TAPS * 16], bias[16];
} conv_weights;

static float element(const ml_tensor *t, int64_t i) {
    return t->dtype == ML_BF16 ? ml_bf16_to_f32(((const uint16_t *)t->data)[i])
                               : ((const float *)t->data)[i];
}

/* The row of the weights that belongs to a channel. */
static int64_t weight_row(const ml_op_attr *attr, int64_t channel) {
    int32_t i = 0;

    if (!attr->conv.n_run)
        return channel;
    for (; channel >= attr->conv.run[i].n; i++)
        channel -= attr->conv.run[i].n;
    return attr->conv.run[i].at + channel;
}

/* Used for weights and, with the same layout, for their gradients. */
static void load_weights(conv_weights *o, const ml_op_attr *attr, const ml_tensor w[2],
                         const ml_conv_block *b, int64_t channel) {
    *o = (conv_weights){ 0 };
    for (int64_t c = 0; c < b->n; c++) {
        int64_t row = weight_row(attr, channel + c);
        for (int64_t j = 0; w[0].data && j < b->taps; j++)
            o->w[j * 16 + c] = element(&w[0], row * b->taps + j);
        if (w[1].data)
            o->bias[c] = element(&w[1], row);
    }
}

static void store_weights(const conv_weights *o, const ml_op_attr *attr,
                          const ml_tensor w[2], const ml_conv_block *b, int64_t channel) {
    for (int64_t c = 0; c < b->n; c++) {
        int64_t row = weight_row(attr, channel + c);
        for (int64_t j = 0; w[0].data && j < b->taps; j++)
            ((float *)w[0].data)[row * b->taps + j] = o->w[j * 16 + c];
        if (w[1].data)
            ((float *)w[1].data)[row] = o->bias[c];
    }
}

static ml_conv_block block_at(const ml_op_args *a, int64_t block, conv_weights *w) {
    int64_t width = a->in[0].shape[1], left = width - block * 16;
    ml_conv_block b = { .w = w->w,
                        .bias = a->w[1].data ? w->bias : NULL,
                        .taps = a->w[0].shape[1],
                        .n = left < 16 ? left : 16,
                        .ld = width };
    load_weights(w, a->attr, a->w, &b, block * 16);
    return b;
}

static void conv_blocks(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_rows *r = a->rows;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        conv_weights w;
        ml_conv_block b = block_at(a, i, &w);
        float *tail = a->out[1].data;
        for (int32_t k = 0; k < r->n_seq; k++) {
            int64_t at = r->seq_start[k] * b.ld + i * 16;
            float *mine = tail ? tail + r->slot[k] * (b.taps - 1) * b.ld + i * 16 : NULL;
            j->s->kern->conv->forward(
                &b, (float *)a->out[0].data + at, (const float *)a->in[0].data + at, mine,
                r->pos[r->seq_start[k]] == 0, r->seq_start[k + 1] - r->seq_start[k]);
        }
    }
}

void ml_cpu_conv_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, blocks_of(a), 64 * a->in[0].shape[0], conv_blocks);
}

static void conv_blocks_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_rows *r = a->rows;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        conv_weights w, dw;
        ml_conv_block b = block_at(a, i, &w);
        load_weights(&dw, a->attr, a->dw, &b, i * 16);
        for (int32_t k = 0; k < r->n_seq; k++) {
            int64_t at = r->seq_start[k] * b.ld + i * 16;
            j->s->kern->conv->backward(
                &b, a->din[0].data ? (float *)a->din[0].data + at : NULL,
                a->dw[0].data ? dw.w : NULL, a->dw[1].data ? dw.bias : NULL,
                (const float *)a->dout[0].data + at, (const float *)a->in[0].data + at,
                r->seq_start[k + 1] - r->seq_start[k], a->din_add[0]);
        }
        store_weights(&dw, a->attr, a->dw, &b, i * 16);
    }
}

void ml_cpu_conv_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, blocks_of(a), 160 * a->in[0].shape[0], conv_blocks_back);
}
