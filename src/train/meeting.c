/* meeting.c - ranks that exchange rows or weights in the ops of a plan run as many
 * micro-batches as the one with most of them. */
#include "train/trainer_priv.h"

bool ml_trainer_meets(const ml_trainer *t) {
    return t->opts.mesh && t->opts.mesh->sizes.ep > 1;
}

static ml_batch_caps need_of(const ml_train_sample *s, const ml_bins *bins) {
    ml_batch_caps need = { 0 };

    for (int32_t k = 0; k < bins->n; k++)
        need = ml_micro_max(need, ml_micro_need(s, &bins->bin[k]));
    return need;
}

/* Twice what a rank's experts get of even routing, from ranks with so many tokens. */
static int32_t rows_of_experts(const ml_spec *s, int64_t n_token) {
    int64_t n = 2 * n_token * s->route[ML_ROUTING_EXPERTS].top_k;

    return (int32_t)(n < INT32_MAX / 4 ? n : INT32_MAX / 4);
}

ml_status ml_trainer_meet(ml_trainer *t, const ml_train_sample *s, const ml_bins *bins,
                          ml_meeting *out, ml_err *err) {
    ml_ranks *ranks = ml_trainer_ranks(t);
    ml_meeting *all;
    int32_t n_token;
    ml_status st;
    ml_arena a;

    *out = (ml_meeting){ .n_micro = bins->n, .need = need_of(s, bins) };
    if (!ml_trainer_meets(t))
        return ML_OK;
    out->need = ml_micro_max(out->need, (ml_batch_caps){ 1, 1, 1, 1 });
    n_token = out->need.n_token;
    ml_arena_init(&a, "a meeting of ranks");
    all = ML_NEW(&a, ml_meeting, ranks->comm->size);
    st = ml_ranks_collect(ranks, all, out, sizeof *out, err);
    for (int32_t r = 0; r < ranks->comm->size && st == ML_OK; r++) {
        if (all[r].n_micro > out->n_micro)
            out->n_micro = all[r].n_micro;
        if (all[r].need.n_token > n_token)
            n_token = all[r].need.n_token;
    }
    out->expert_rows = rows_of_experts(t->spec, n_token);
    ml_arena_release(&a);
    return st;
}

ml_bin ml_trainer_bin(const ml_bins *bins, int32_t k) {
    return k < bins->n ? bins->bin[k] : (ml_bin){ 0 };
}
