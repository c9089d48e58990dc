#include "train/flops.h"

/* Inner width of an MLP (between its two matrices); gates of attention are not an MLP. */
static int64_t inner_width(const ml_spec *s, const ml_node *n) {
    const ml_value *v = &s->value[n->out[0]];

    if (n->op != ML_OP_GLU || n->attr.glu.act == ML_ACT_SIGMOID)
        return 0;
    return v->width * v->mul;
}

ml_flops_shape ml_flops_shape_of(const ml_spec *s) {
    ml_flops_shape f = { .hidden = s->n_hidden,
                         .vocab = s->n_vocab,
                         .n_layer = s->n_layer };

    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        f.ffn += inner_width(s, n);
        if (n->op != ML_OP_ATTN && n->op != ML_OP_ATTN_CHOSEN)
            continue;
        f.n_head = n->attr.attn.n_head;
        f.n_group = n->attr.attn.n_kv;
        f.head_dim = n->attr.attn.head_dim;
    }
    return f;
}

static double queries(const ml_flops_shape *f) {
    if (f->q_rank)
        return 2.0 *
               (double)(f->q_rank * (f->hidden + f->n_head * (f->qk_dim + f->qk_rope_dim)));
    return 2.0 * (double)(f->hidden * f->n_head * f->head_dim);
}

static double keys_and_values(const ml_flops_shape *f) {
    if (f->kv_rank)
        return 2.0 *
               (double)(f->kv_rank * (f->hidden + f->n_head * (f->qk_dim + f->v_dim)) +
                        f->hidden * f->qk_rope_dim);
    return 4.0 * (double)(f->hidden * f->n_group * f->head_dim);
}

double ml_flops_forward(const ml_flops_shape *f, int64_t n_token) {
    int64_t key = f->qk_rope_dim ? f->qk_dim + f->qk_rope_dim : f->head_dim;
    int64_t value = f->v_dim ? f->v_dim : f->head_dim;
    double s = (double)n_token, h = (double)f->hidden;
    double layer = s * (queries(f) + keys_and_values(f) + 2.0 * h * h) +
                   (double)f->n_head * s * s * (double)(key + value);

    return (double)f->n_layer * layer + 6.0 * s * h * (double)f->ffn +
           2.0 * s * h * (double)f->vocab;
}
