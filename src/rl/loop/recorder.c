#include "rl/loop/recorder.h"

#include "base/json_out.h"
#include "io/zst.h"
#include "rl/loop/iteration.h"
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

static void write_number(ml_json_out *o, const char *key, double v) {
    ml_json_key(o, key);
    ml_json_exact(o, v);
}

static void write_sample(ml_text *to, const ml_sample *in, const miles_sample *r) {
    ml_json_out o = { .to = to };

    ml_json_begin(&o, '{');
    ml_json_put_int(&o, "sample_index", in->index);
    ml_json_put_int(&o, "group_index", in->group);
    write_number(&o, "raw_reward", in->reward);
    write_number(&o, "reward", r->reward);
    ml_json_put_int(&o, "truncated", in->status == ML_SAMPLE_TRUNCATED);
    ml_json_put_int(&o, "response_length", r->n);
    ml_json_key(&o, "tokens");
    ml_json_ids(&o, in->token, in->n_token);
    ml_json_key(&o, "loss_mask");
    ml_json_begin(&o, '[');
    for (int64_t t = 0; t < r->n; t++)
        ml_json_int(&o, r->mask[t]);
    ml_json_end(&o, ']');
    write_columns(&o, r);
    ml_json_end(&o, '}');
    ml_text_add(to, "\n", 1);
}

static ml_status write_train(const char *template, const ml_loop_event *e, ml_err *err) {
    ml_text all = { 0 };
    ml_arena a;
    char *path;
    ml_status st;

    ml_arena_init(&a, "a recording");
    st = ml_round_path_make(&path, &a, template, e->rollout, err);
    for (int64_t i = 0; i < e->n_sample && st == ML_OK; i++)
        write_sample(&all, e->sample[i], e->batch->sample[i]);
    if (st == ML_OK)
        st = ml_zst_write(path, (ml_str){ all.ptr, all.len }, err);
    ml_text_release(&all);
    ml_arena_release(&a);
    return st;
}

ml_status ml_recorder_on(void *recorder, const ml_loop_event *e, ml_err *err) {
    const ml_recorder *r = recorder;
    ml_status st = ML_OK;

    if (e->kind == ML_ON_BATCH && r->rollout)
        st = ml_rollout_record(r->rollout, e->rollout, &e->iteration->batch, err);
    if (st == ML_OK && e->kind == ML_ON_BATCH && r->trajectory)
        st = ml_rollout_record_text(r->trajectory, e->rollout, &e->iteration->batch, err);
    if (e->kind == ML_ON_DATA_READY && r->train)
        st = write_train(r->train, e, err);
    return st;
}
