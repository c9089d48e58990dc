/* build_linear_rnn.c - spec rows of recurrent layers and the ops around them. */
#include <stdio.h>

#include "base/bug.h"
#include "model/build.h"

static int32_t vector(ml_builder *b, const char *name, int64_t n, bool keep_f32) {
    return ml_build_param(b, (ml_param){ .name = ml_build_name(b, name, ""),
                                         .n_stack = 1,
                                         .n_dim = 1,
                                         .shape = { n, 1 },
                                         .layout = ML_ROWS,
                                         .keep_f32 = keep_f32 });
}

int32_t ml_build_slice(ml_builder *b, int32_t x, ml_slice_opts o) {
    ml_node *n = ml_build_node(b, ML_OP_SLICE);
    int64_t width = 0;
    int32_t out;

    n->in[0] = x;
    n->attr.slice.n_group = o.n_group ? o.n_group : 1;
    n->attr.slice.group = ml_build_width(b, x) / n->attr.slice.n_group;
    for (int i = 0; i < ML_SLICE_PARTS && o.part[i].width; i++) {
        ML_BUG_IF(o.part[i].at + o.part[i].width > n->attr.slice.group);
        n->attr.slice.part[n->attr.slice.n_part].at = o.part[i].at;
        n->attr.slice.part[n->attr.slice.n_part++].width = o.part[i].width;
        width += o.part[i].width * n->attr.slice.n_group;
    }
    out = ml_build_rows(b, 1, width);
    b->spec->value[out].exact = b->spec->value[x].exact;
    n->out[0] = out;
    return out;
}

int32_t ml_build_row_gate(ml_builder *b, int32_t gate, int32_t x) {
    ml_node *n = ml_build_node(b, ML_OP_ROW_GATE);
    int32_t out = ml_build_rows(b, 1, ml_build_width(b, x));
    n->in[0] = gate;
    n->in[1] = x;
    n->out[0] = out;
    return out;
}

/* Checkpoints store the weight as [channels, 1, taps]. */
static int32_t conv_weight(ml_builder *b, const char *name, int64_t width, int64_t taps) {
    ml_part *part = ML_NEW(&b->spec->arena, ml_part, 1);
    *part = (ml_part){ .name = ml_build_name(b, name, ".weight"),
                       .n_dim = 3,
                       .shape = { width, 1, taps },
                       .row = taps,
                       .col = 1 };
    return ml_build_param(b, (ml_param){ .name = ml_build_name(b, name, ""),
                                         .n_stack = 1,
                                         .n_dim = 2,
                                         .shape = { width, taps },
                                         .layout = ML_ROWS,
                                         .part = part });
}

int32_t ml_build_conv(ml_builder *b, int32_t x, const char *name, int32_t taps, bool bias) {
    int64_t width = ml_build_width(b, x);
    ml_node *n = ml_build_node(b, ML_OP_CONV);
    int32_t out = ml_build_rows(b, 1, width);
    char bias_name[256];

    n->in[0] = x;
    n->out[0] = out;
    n->out[1] = ml_build_exact(b, ML_PER_SLOT, (taps - 1) * width);
    n->w[0] = conv_weight(b, name, width, taps);
    if (bias) {
        snprintf(bias_name, sizeof bias_name, "%s.bias", name);
        n->w[1] = vector(b, bias_name, width, false);
    }
    return out;
}

int32_t ml_build_decay(ml_builder *b, int32_t a, int32_t gate, ml_decay_opts o) {
    int64_t n_head = ml_build_width(b, a);
    ml_node *n = ml_build_node(b, ML_OP_DECAY);
    int32_t out = ml_build_exact(b, ML_PER_TOKEN, 2 * n_head);

    n->in[0] = a;
    n->in[1] = gate;
    n->out[0] = out;
    n->w[0] = vector(b, o.log_speed, n_head, true);
    n->w[1] = vector(b, o.bias, n_head, true);
    n->attr.min_step = o.min_step;
    return out;
}

int32_t ml_build_linear_rnn(ml_builder *b, int32_t qkv, int32_t decay,
                            ml_linear_rnn_opts o) {
    int64_t key = (int64_t)o.n_key * o.key_dim, value = (int64_t)o.n_head * o.value_dim;
    int64_t padded = (o.value_dim + ML_LANES - 1) / ML_LANES * ML_LANES;
    ml_node *n = ml_build_node(b, ML_OP_LINEAR_RNN);
    int32_t out = ml_build_rows(b, 1, value);

    ML_BUG_IF(ml_build_width(b, qkv) != 2 * key + value);
    n->in[0] = qkv;
    n->in[1] = decay;
    n->out[0] = out;
    n->out[1] = ml_build_exact(b, ML_PER_SLOT, (int64_t)o.n_head * o.key_dim * padded);
    n->attr.linear_rnn.n_key = o.n_key;
    n->attr.linear_rnn.n_head = o.n_head;
    n->attr.linear_rnn.key_dim = o.key_dim;
    n->attr.linear_rnn.value_dim = o.value_dim;
    n->attr.linear_rnn.delta = !o.skip;
    n->attr.linear_rnn.norm_eps = 1e-6f;
    n->attr.linear_rnn.q_at = o.skip ? value + key : 0; /* v, k, q, or q, k, v */
    n->attr.linear_rnn.k_at = o.skip ? value : key;
    n->attr.linear_rnn.v_at = o.skip ? 0 : 2 * key;
    if (o.skip)
        n->w[0] = vector(b, o.skip, o.n_head, true);
    return out;
}

int32_t ml_build_group_norm(ml_builder *b, int32_t x, const char *name, float eps,
                            int32_t width) {
    ml_node *n = ml_build_node(b, ML_OP_RMSNORM);
    int32_t out = ml_build_rows(b, 1, ml_build_width(b, x));

    n->in[0] = x;
    n->out[0] = out;
    n->w[0] = vector(b, name, ml_build_width(b, x), false);
    n->attr.norm.eps = eps;
    n->attr.norm.width = width;
    return out;
}
