#include "train/passes.h"

#include "train/prefix.h"

/* Experts among which the rows are divided, for one that a row has. */
static int64_t experts_of(const ml_spec *s) {
    int64_t most = 1;

    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_MOE_ROUTE) {
            int64_t n = s->node[i].attr.moe.n_expert / s->node[i].attr.moe.top_k;
            most = n > most ? n : most;
        }
    return most;
}

int64_t ml_passes_rows(const ml_spec *s, const ml_backend *be, const ml_mesh *mesh) {
    return mesh ? 0 : be->pass_rows * experts_of(s);
}

/* The samples from item i on that must share a pass: those of a tree. */
static int32_t together(const ml_train_sample *s, const ml_bin *bin, int32_t i,
                        const ml_context_opts *context) {
    int32_t n = 1;

    while (context->share && i + n < bin->n &&
           ml_prefix_common(&s[bin->item[i]], &s[bin->item[i + n]]))
        n++;
    return n;
}

static void split_bin(ml_bins *out, const ml_bin *bin, const ml_train_sample *s,
                      const ml_context_opts *context, int64_t n_row) {
    int64_t rows = 0; /* of the open pass; 0: none is open */

    for (int32_t i = 0, n; i < bin->n; i += n) {
        ml_bin next = { .item = bin->item + i, .n = together(s, bin, i, context) };
        int64_t more = ml_micro_need(s, &next, context).n_token;
        n = next.n;
        if (rows && rows + more <= n_row) {
            out->bin[out->n - 1].n += n;
            rows += more;
        } else {
            out->bin[out->n++] = next;
            rows = more;
        }
    }
}

ml_bins ml_passes_split(ml_arena *a, const ml_bins *micro, const ml_train_sample *s,
                        const ml_context_opts *context, int64_t n_row) {
    ml_bins out = { 0 };
    int32_t n = 0;

    for (int32_t k = 0; k < micro->n; k++)
        n += micro->bin[k].n;
    out.bin = ML_NEW(a, ml_bin, n + 1);
    for (int32_t k = 0; k < micro->n; k++)
        split_bin(&out, &micro->bin[k], s, context, n_row);
    return out;
}
