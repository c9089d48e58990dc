#include "train/prefix.h"

#include <string.h>

/* Whole pages before the row that predicts the first response token. */
static int32_t length_of(const ml_train_sample *x) {
    int32_t first = x->n_token - x->n_response - (x->target ? 0 : 1);

    return first / ML_PAGE * ML_PAGE;
}

static bool same(const ml_train_sample *a, const ml_train_sample *b) {
    int32_t n = length_of(a);

    return n > 0 && n == length_of(b) &&
           memcmp(a->token, b->token, (size_t)n * sizeof *a->token) == 0;
}

static void group_bin(const ml_train_sample *s, const ml_bin *bin) {
    int32_t *item = bin->item;

    for (int32_t i = 0, end; i < bin->n; i = end) {
        end = i + 1;
        for (int32_t k = end; k < bin->n; k++) {
            int32_t found = item[k];
            if (!same(&s[item[i]], &s[found]))
                continue;
            memmove(item + end + 1, item + end, (size_t)(k - end) * sizeof *item);
            item[end++] = found;
        }
    }
}

void ml_prefix_group(const ml_train_sample *s, ml_bins *bins) {
    for (int32_t i = 0; i < bins->n; i++)
        group_bin(s, &bins->bin[i]);
}

ml_prefix_run ml_prefix_run_at(const ml_train_sample *s, const ml_bin *bin, int32_t i) {
    const ml_train_sample *x = &s[bin->item[i]];
    int32_t end = i + 1;

    while (end < bin->n && same(x, &s[bin->item[end]]))
        end++;
    return (ml_prefix_run){ end - i > 1 ? length_of(x) : 0, end - i };
}

/* What a row reads of the rows before it, other than by ATTN from KV pages. */
static const char *other_reader(const ml_node *n) {
    switch (n->op) {
    case ML_OP_ATTN: return n->attr.attn.chunk ? "attention in chunks" : NULL;
    case ML_OP_CONV:
    case ML_OP_LINEAR_RNN: return "recurrent layers";
    case ML_OP_INDEX:
    case ML_OP_ATTN_CHOSEN:
    case ML_OP_COMPRESS: return "sparse attention";
    default: return NULL;
    }
}

ml_status ml_prefix_supports(const ml_spec *s, ml_err *err) {
    for (int32_t i = 0; i < s->n_node; i++) {
        const char *what = other_reader(&s->node[i]);
        if (what)
            return ml_fail(
                err, ML_EUNSUP,
                "--use-prefix-sharing: the model has %s, whose rows cannot share a "
                "prefix; remove the flag",
                what);
    }
    return ML_OK;
}
