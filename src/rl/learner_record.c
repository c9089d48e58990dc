/* What is trained on, as the trainer has it: a line of JSON per sample, in zstd. */
#include <math.h>

#include "io/zst.h"
#include "rl/learner_priv.h"
#include "rl/round_path.h"

static void write_column(ml_text *o, const char *key, const double *v, int64_t n) {
    if (!v)
        return;
    ml_text_printf(o, ",\"%s\":[", key);
    for (int64_t t = 0; t < n; t++)
        if (isfinite(v[t]))
            ml_text_printf(o, "%s%.17g", t ? "," : "", v[t]);
        else
            ml_text_printf(o, "%snull", t ? "," : "");
    ml_text_printf(o, "]");
}

static void write_columns(ml_text *o, const miles_sample *r) {
    write_column(o, "rollout_log_probs", r->rollout_log_prob, r->n);
    write_column(o, "log_probs", r->old_log_prob, r->n);
    write_column(o, "ref_log_probs", r->ref_log_prob, r->n);
    write_column(o, "teacher_log_probs", r->teacher_log_prob, r->n);
    write_column(o, "entropy", r->entropy, r->n);
    write_column(o, "values", r->old_value, r->n);
    write_column(o, "advantages", r->advantage, r->n);
    write_column(o, "returns", r->returns, r->n);
    write_column(o, "opd_reverse_kl", r->opd_reverse_kl, r->n);
}

static void write_sample(ml_text *o, const ml_sample *in, const ml_train_sample *x,
                         const miles_sample *r) {
    ml_text_printf(o, "{\"sample_index\":%lld,\"group_index\":%lld,\"raw_reward\":%.17g",
                   (long long)in->index, (long long)in->group, in->reward);
    ml_text_printf(o, ",\"reward\":%.17g,\"truncated\":%d,\"response_length\":%d",
                   r->reward, in->status == ML_SAMPLE_TRUNCATED, x->n_response);
    ml_text_printf(o, ",\"tokens\":[");
    for (int32_t t = 0; t < x->n_token; t++)
        ml_text_printf(o, "%s%d", t ? "," : "", x->token[t]);
    ml_text_printf(o, "],\"loss_mask\":[");
    for (int32_t t = 0; t < x->n_response; t++)
        ml_text_printf(o, "%s%d", t ? "," : "", x->mask[t]);
    ml_text_printf(o, "]");
    write_columns(o, r);
    ml_text_printf(o, "}\n");
}

ml_status ml_lesson_record(const ml_lesson_run *s, ml_err *err) {
    ml_text all = { 0 };
    char *path;
    ml_status st;

    if (!s->l->record_path)
        return ML_OK;
    st = ml_round_path_make(&path, s->a, s->l->record_path, s->rollout, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++)
        write_sample(&all, s->in[i], &s->train[i], &s->row[i]);
    if (st == ML_OK)
        st = ml_zst_write(path, (ml_str){ all.ptr, all.len }, err);
    ml_text_release(&all);
    return st;
}
