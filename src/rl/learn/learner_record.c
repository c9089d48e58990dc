/* Writes the training data as the trainer sees it: a line of JSON per sample, in zstd. */
#include "base/json_out.h"
#include "io/zst.h"
#include "rl/learn/learner_priv.h"
#include "rl/record/round_path.h"

static void write_column(ml_json_out *o, const char *key, const double *v, int64_t n) {
    if (!v)
        return;
    ml_json_key(o, key);
    ml_json_begin(o, '[');
    for (int64_t t = 0; t < n; t++)
        ml_json_exact(o, v[t]);
    ml_json_end(o, ']');
}

static void write_columns(ml_json_out *o, const miles_sample *r) {
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

static void write_int(ml_json_out *o, const char *key, int64_t v) {
    ml_json_key(o, key);
    ml_json_int(o, v);
}

static void write_number(ml_json_out *o, const char *key, double v) {
    ml_json_key(o, key);
    ml_json_exact(o, v);
}

static void write_sample(ml_text *to, const ml_sample *in, const ml_train_sample *x,
                         const miles_sample *r) {
    ml_json_out o = { .to = to };

    ml_json_begin(&o, '{');
    write_int(&o, "sample_index", in->index);
    write_int(&o, "group_index", in->group);
    write_number(&o, "raw_reward", in->reward);
    write_number(&o, "reward", r->reward);
    write_int(&o, "truncated", in->status == ML_SAMPLE_TRUNCATED);
    write_int(&o, "response_length", x->n_response);
    ml_json_key(&o, "tokens");
    ml_json_ids(&o, x->token, x->n_token);
    ml_json_key(&o, "loss_mask");
    ml_json_begin(&o, '[');
    for (int32_t t = 0; t < x->n_response; t++)
        ml_json_int(&o, x->mask[t]);
    ml_json_end(&o, ']');
    write_columns(&o, r);
    ml_json_end(&o, '}');
    ml_text_add(to, "\n", 1);
}

ml_status ml_learn_record(const ml_learn_run *s, ml_err *err) {
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
