#include "train/prefix.h"

#include <string.h>

/* Whole pages that a sample can share.  A row of its own remains; explicit targets and sampling supports belong to one
 * sample, and so do their rows. */
static int32_t most_of(const ml_train_sample *x) {
    int32_t rows = x->target    ? x->n_token - x->n_response
                   : x->support ? x->n_token - x->n_response - 1
                                : x->n_token - 1;

    return rows / ML_PAGE * ML_PAGE;
}

/* Whether two samples can share the page that begins at token `at`; they have the tokens before it in common. */
static bool shares_page(const ml_train_sample *a, const ml_train_sample *b, int32_t at) {
    size_t bytes =
        (ML_PAGE + 1) * sizeof *a->token; /* and the token that its last row predicts */

    if (at + ML_PAGE > most_of(a) || at + ML_PAGE > most_of(b))
        return false;
    if (a->target || b->target) /* it predicts another one, or none */
        bytes -= sizeof *a->token;
    return memcmp(a->token + at, b->token + at, bytes) == 0;
}

int32_t ml_prefix_common(const ml_train_sample *a, const ml_train_sample *b) {
    int32_t n = 0;

    while (shares_page(a, b, n))
        n += ML_PAGE;
    return n;
}

/* Moves the items that share the page at `at` with the first of them behind it; returns their number. */
static int32_t gather(const ml_train_sample *s, int32_t *item, int32_t n, int32_t at) {
    int32_t end = 1;

    for (int32_t k = 1; k < n; k++) {
        int32_t found = item[k];
        if (!shares_page(&s[item[0]], &s[found], at))
            continue;
        memmove(item + end + 1, item + end, (size_t)(k - end) * sizeof *item);
        item[end++] = found;
    }
    return end;
}

/* The length up to which all of these items agree, from `at` on. */
static int32_t agree_until(const ml_train_sample *s, const int32_t *item, int32_t n,
                           int32_t at) {
    for (;; at += ML_PAGE)
        for (int32_t k = 1; k < n; k++)
            if (!shares_page(&s[item[0]], &s[item[k]], at))
                return at;
}

/* Groups items that agree on their first `at` tokens. */
static void group_from(const ml_train_sample *s, int32_t *item, int32_t n, int32_t at) {
    for (int32_t i = 0, same; i < n; i += same) {
        same = gather(s, item + i, n - i, at);
        if (same > 2)
            group_from(s, item + i, same, agree_until(s, item + i, same, at));
    }
}

void ml_prefix_group(const ml_train_sample *s, int32_t *item, int32_t n) {
    group_from(s, item, n, 0);
}

/* The nodes of items k .. k+n-1 below `parent`, which ends at token `at`. */
static int32_t add_nodes(ml_prefix_node *out, int32_t n_out, const ml_train_sample *s,
                         const ml_bin *bin, int32_t k, int32_t n, int32_t parent,
                         int32_t at) {
    for (int32_t end = k + n, same; k < end; k += same) {
        const ml_train_sample *x = &s[bin->item[k]];
        int32_t until;
        for (same = 1; k + same < end && shares_page(x, &s[bin->item[k + same]], at);)
            same++;
        until = same > 1 ? agree_until(s, bin->item + k, same, at) : x->n_token;
        out[n_out] = (ml_prefix_node){ parent, at, until, k, same };
        n_out =
            same > 1 ? add_nodes(out, n_out + 1, s, bin, k, same, n_out, until) : n_out + 1;
    }
    return n_out;
}

int32_t ml_prefix_tree(ml_prefix_node *out, const ml_train_sample *s, const ml_bin *bin) {
    return add_nodes(out, 0, s, bin, 0, bin->n, -1, 0);
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
