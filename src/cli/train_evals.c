#include "cli/train_evals.h"

#include <math.h>

#include "cli/reward_check.h"

static const char *either(const char *own, const char *other) {
    return own ? own : other;
}

/* --- which sets --------------------------------------------------------------- */

static ml_status named_sets(ml_eval_spec **out, int32_t *n, ml_arena *a,
                            const ml_string_list *w, ml_err *err) {
    ml_eval_spec *spec = ML_NEW(a, ml_eval_spec, w->n + 1);

    *out = spec;
    *n = w->n == 1 ? 1 : w->n / 2;
    for (int32_t i = 0; i < *n; i++)
        spec[i] = ml_eval_spec_empty();
    if (w->n == 1) {
        spec->name = "aime";
        spec->path = w->word[0];
        return ML_OK;
    }
    if (w->n % 2)
        return ml_fail(err, ML_EUSAGE,
                       "--eval-prompt-data takes a name and a file for each set; \"%s\" "
                       "stands alone",
                       w->word[w->n - 1]);
    for (int32_t i = 0; i < *n; i++) {
        spec[i].name = w->word[2 * i];
        spec[i].path = w->word[2 * i + 1];
    }
    return ML_OK;
}

/* --- one set ------------------------------------------------------------------ */

static void stops_of(ml_sampling *how, ml_arena *a, const ml_eval_spec *s) {
    if (s->stop) {
        ml_str *stop = ML_NEW(a, ml_str, s->stop->n + 1);
        how->stop = stop;
        how->n_stop = s->stop->n;
        for (const ml_json *v = s->stop->child; v; v = v->next)
            *stop++ = v->text;
    }
    if (s->stop_ids) {
        int32_t *id = ML_NEW(a, int32_t, s->stop_ids->n + 1);
        how->stop_id = id;
        how->n_stop_id = s->stop_ids->n;
        for (const ml_json *v = s->stop_ids->child; v; v = v->next) {
            int64_t x = 0;
            ml_json_i64(v, &x);
            *id++ = (int32_t)x;
        }
    }
}

/* The set's settings override the flags of evaluations, which override those of the run. */
static ml_sampling sampling_of(const ml_train_gen *t, const ml_config *c,
                               const ml_eval_spec *s) {
    ml_sampling how = t->rollout.how;
    double temperature =
        isnan(s->temperature) ? c->rollout.eval_temperature : s->temperature;
    double top_p = isnan(s->top_p) ? c->rollout.eval_top_p : s->top_p;
    int64_t top_k = s->top_k ? s->top_k : c->rollout.eval_top_k;
    int64_t max_new = s->max_response ? s->max_response : c->rollout.eval_max_response;

    if (!isnan(temperature))
        how.temperature = (float)temperature;
    if (!isnan(top_p))
        how.top_p = (float)top_p;
    if (top_k)
        how.top_k = top_k < 0 ? 0 : (int32_t)top_k;
    if (max_new)
        how.max_new = (int32_t)max_new;
    how.min_new = (int32_t)(s->min_new ? s->min_new : c->rollout.eval_min_new);
    return how;
}

static ml_status open_data(ml_train_gen *t, const ml_config *c, const ml_eval_spec *s,
                           ml_dataset *out, ml_err *err) {
    ml_dataset_opts o = t->run->opts.data;

    o.path = s->path;
    o.input_key = either(s->input_key, either(c->rollout.eval_input_key, o.input_key));
    o.label_key = either(s->label_key, either(c->rollout.eval_label_key, o.label_key));
    o.tool_key = either(s->tool_key, either(c->rollout.eval_tool_key, o.tool_key));
    o.metadata_key = either(s->metadata_key, o.metadata_key);
    o.metadata_more = s->metadata_more;
    o.max_prompt_len = c->rollout.eval_max_prompt;
    if (!o.max_prompt_len && t->eval_context)
        o.max_prompt_len = t->eval_context - 1;
    o.text = ml_prompt_encoder_text(&t->run->prompter);
    return ml_dataset_open(out, &o, err);
}

ml_config ml_train_evals_config(const ml_config *c, const ml_eval_spec *s) {
    ml_config own = *c;

    own.reward.reward_key = either(c->reward.eval_reward_key, c->reward.reward_key);
    own.reward.custom_rm_path = either(s->custom_rm_path, c->reward.custom_rm_path);
    own.reward.rm_type = either(s->rm_type, c->reward.rm_type);
    own.extensions.generate = either(s->custom_generate_path, c->extensions.generate);
    return own;
}

/* Opens the rewards and environment of a set with its own. */
static ml_status open_extensions(ml_train_gen *t, const ml_config *c, const ml_eval_spec *s,
                                 ml_eval_set *set, ml_err *err) {
    ml_config own = ml_train_evals_config(c, s);
    bool grades = s->custom_rm_path || s->rm_type || s->custom_generate_path ||
                  c->reward.eval_reward_key;
    ml_status st = ml_reward_check(&own, &set->dataset, err);

    if (st == ML_OK && grades)
        st = ml_train_rewards_open(&set->rewards, &t->arena, &own, err);
    if (st == ML_OK && s->custom_generate_path)
        st = ml_train_turns_open(&set->turns, t, &own, err);
    return st;
}

static ml_status open_set(ml_train_gen *t, const ml_config *c, const ml_eval_spec *s,
                          ml_err *err) {
    ml_eval_set *set = &t->evals.set[t->evals.n++];
    ml_status st;

    set->name = s->name;
    set->how = sampling_of(t, c, s);
    stops_of(&set->how, &t->arena, s);
    set->n_per_prompt = (int32_t)(s->n_samples > 0 ? s->n_samples : c->rollout.eval_n);
    st = open_data(t, c, s, &set->dataset, err);
    if (st == ML_OK)
        st = open_extensions(t, c, s, set, err);
    if (st != ML_OK)
        ml_err_prefix(err, "the evaluation '%s'", s->name);
    return st;
}

ml_status ml_train_evals_specs(ml_eval_spec **out, int32_t *n, ml_arena *a,
                               const ml_config *c, ml_err *err) {
    return c->rollout.eval_config
               ? ml_eval_config_read(out, n, a, c->rollout.eval_config, err)
               : named_sets(out, n, a, &c->rollout.eval_data, err);
}

ml_status ml_train_evals_open(ml_train_gen *t, const ml_config *c, ml_err *err) {
    ml_eval_spec *spec = NULL;
    int32_t n = 0;
    ml_status st = ml_train_evals_specs(&spec, &n, &t->arena, c, err);

    t->evals.pass_rates = c->rollout.log_passrate;
    t->evals.set = ML_NEW(&t->arena, ml_eval_set, n + 1);
    for (int32_t i = 0; i < n && st == ML_OK; i++)
        st = open_set(t, c, &spec[i], err);
    return st;
}

void ml_train_evals_close(ml_train_gen *t) {
    for (int32_t i = 0; i < t->evals.n; i++) {
        ml_turns_close(t->evals.set[i].turns);
        ml_rewards_close(t->evals.set[i].rewards);
        ml_dataset_close(&t->evals.set[i].dataset);
    }
}
