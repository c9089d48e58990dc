/* build_streams.c - spec rows of residual streams, and of the ops around them. */
#include <string.h>

#include "base/bug.h"
#include "model/build.h"

static int32_t unary(ml_builder *b, ml_op_id op, int32_t x) {
    ml_node *n = ml_build_node(b, op);
    int32_t out = ml_build_rows(b, b->spec->value[x].mul, ml_build_width(b, x));

    n->in[0] = x;
    n->out[0] = out;
    return out;
}

static ml_node *last_node(ml_builder *b) {
    return &b->spec->node[b->spec->n_node - 1];
}

int32_t ml_build_col_scale(ml_builder *b, int32_t x, const char *name) {
    int32_t out = unary(b, ML_OP_COL_SCALE, x);

    last_node(b)->w[0] = ml_build_param(b, (ml_param){ .name = ml_build_name(b, name, ""),
                                                       .n_stack = 1,
                                                       .n_dim = 1,
                                                       .shape = { ml_build_width(b, x), 1 },
                                                       .layout = ML_ROWS });
    return out;
}

int32_t ml_build_tanh(ml_builder *b, int32_t x) {
    return unary(b, ML_OP_TANH, x);
}

int32_t ml_build_cutoff(ml_builder *b, int32_t x, float z) {
    int32_t out = unary(b, ML_OP_CUTOFF, x);

    last_node(b)->attr.cutoff = z;
    return out;
}

int32_t ml_build_match_rms(ml_builder *b, int32_t x, int32_t like, float eps) {
    int32_t out = unary(b, ML_OP_MATCH_RMS, x);

    ML_BUG_IF(ml_build_width(b, x) != ml_build_width(b, like));
    last_node(b)->in[1] = like;
    last_node(b)->attr.match_eps = eps;
    return out;
}

int32_t ml_build_mix(ml_builder *b, int32_t x, int32_t y, int32_t coef, ml_mix_opts o) {
    int64_t width = ml_build_width(b, x) / o.n_in;
    int32_t n = o.n_out * (o.n_in + 1), out;
    float *base = ML_NEW(&b->spec->arena, float, n);
    ml_node *node = ml_build_node(b, ML_OP_STREAM_MIX);

    ML_BUG_IF(o.n_in < 1 || o.n_in > ML_STREAMS || o.n_out < 1 || o.n_out > ML_STREAMS);
    ML_BUG_IF(y != ML_NONE && ml_build_width(b, y) != width);
    ML_BUG_IF((coef != ML_NONE) != (o.streams || o.extra) || (o.extra && y == ML_NONE));
    ML_BUG_IF(coef != ML_NONE &&
              ml_build_width(b, coef) !=
                  o.n_out * ((o.streams ? o.n_in : 0) + (o.extra ? 1 : 0)));
    memcpy(base, o.base, (size_t)n * sizeof *base);
    out = ml_build_rows(b, 1, o.n_out * width);
    node->in[0] = x;
    node->in[1] = y;
    node->in[2] = coef;
    node->out[0] = out;
    node->attr.mix.n_in = o.n_in;
    node->attr.mix.n_out = o.n_out;
    node->attr.mix.streams = o.streams;
    node->attr.mix.extra = o.extra;
    node->attr.mix.base = base;
    return out;
}

static int32_t vector(ml_builder *b, const char *name, int64_t n) {
    return ml_build_param(b, (ml_param){ .name = ml_build_name(b, name, ""),
                                         .n_stack = 1,
                                         .n_dim = 1,
                                         .shape = { n, 1 },
                                         .layout = ML_ROWS,
                                         .keep_f32 = true });
}

int32_t ml_build_hyper(ml_builder *b, int32_t x, ml_hyper_opts o) {
    int64_t n_in = o.head ? o.n_stream : (int64_t)o.n_stream * (o.n_stream + 2);
    int64_t n_out = o.n_stream + (o.head ? 0 : (int64_t)o.n_stream * (o.n_stream + 1));
    ml_node *n = ml_build_node(b, ML_OP_HYPER_COEF);
    int32_t out = ml_build_exact(b, ML_PER_TOKEN, n_out);

    ML_BUG_IF(ml_build_width(b, x) != n_in || o.n_stream > ML_STREAMS);
    n->in[0] = x;
    n->out[0] = out;
    n->w[0] = vector(b, o.scale, o.head ? 1 : 3);
    n->w[1] = vector(b, o.base, n_in);
    n->attr.hyper.n_stream = o.n_stream;
    n->attr.hyper.n_iter = o.n_iter;
    n->attr.hyper.eps = o.eps;
    n->attr.hyper.head = o.head;
    return out;
}
