#include "run/evaluator.h"

#include <math.h>

#include "base/dir.h"
#include "run/rollouts.h"

static const char *either(const char *own, const char *other) {
    return own ? own : other;
}

/* --- which sets --------------------------------------------------------------- */

/* A name and a file for each set, or the file of one. */
static ml_eval_spec *named_sets(int32_t *n, ml_arena *a, const ml_string_list *w) {
    ml_eval_spec *spec = ML_NEW(a, ml_eval_spec, w->n + 1);

    *n = w->n == 1 ? 1 : w->n / 2;
    for (int32_t i = 0; i < *n; i++) {
        spec[i] = ml_eval_spec_empty();
        spec[i].name = w->n == 1 ? "aime" : w->word[2 * i];
        spec[i].path = w->n == 1 ? w->word[0] : w->word[2 * i + 1];
    }
    return spec;
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
static ml_sampling sampling_of(const ml_evaluator *e, const ml_run_opts *c,
                               const ml_eval_spec *s) {
    ml_sampling how = e->rollouts->sync.how;
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
    how.support = false;
    how.min_new = (int32_t)(s->min_new ? s->min_new : c->rollout.eval_min_new);
    return how;
}

static ml_status open_data(const ml_evaluator *e, const ml_run_opts *c,
                           const ml_eval_spec *s, ml_dataset *out, ml_err *err) {
    ml_dataset_opts o = e->run->opts.data;

    o.path = s->path;
    o.input_key = either(s->input_key, either(c->rollout.eval_input_key, o.input_key));
    o.label_key = either(s->label_key, either(c->rollout.eval_label_key, o.label_key));
    o.tool_key = either(s->tool_key, either(c->rollout.eval_tool_key, o.tool_key));
    o.metadata_key = either(s->metadata_key, o.metadata_key);
    o.metadata_more = s->metadata_more;
    o.max_prompt_len = c->rollout.eval_max_prompt;
    if (!o.max_prompt_len && e->context)
        o.max_prompt_len = e->context - 1;
    o.text = ml_prompt_encoder_text(&e->run->prompter);
    return ml_dataset_open(out, &o, err);
}

ml_run_opts ml_evaluator_config(const ml_run_opts *c, const ml_eval_spec *s) {
    ml_run_opts own = *c;

    own.reward.reward_key = either(c->eval_reward_key, c->reward.reward_key);
    own.custom_rm_path = either(s->custom_rm_path, c->custom_rm_path);
    own.reward.rm_type = either(s->rm_type, c->reward.rm_type);
    own.extensions.generate = either(s->custom_generate_path, c->extensions.generate);
    return own;
}

/* Opens the rewards and environment of a set with its own. */
static ml_status open_extensions(ml_evaluator *e, const ml_run_opts *c,
                                 const ml_eval_spec *s, ml_eval_set *set, ml_err *err) {
    ml_run_opts own = ml_evaluator_config(c, s);
    bool grades =
        s->custom_rm_path || s->rm_type || s->custom_generate_path || c->eval_reward_key;
    ml_status st = ml_reward_check(&own, &set->dataset, err);

    if (st == ML_OK && grades)
        st = ml_rewards_open_for(&set->rewards, e->arena, &own, err);
    if (st == ML_OK && s->custom_generate_path)
        st = ml_turns_open_for(&set->turns, &set->generate, e->run, e->arena, &own, err);
    return st;
}

static ml_status open_set(ml_evaluator *e, const ml_run_opts *c, const ml_eval_spec *s,
                          ml_err *err) {
    ml_eval_set *set = &e->evals.set[e->evals.n++];
    ml_status st;

    set->name = s->name;
    set->how = sampling_of(e, c, s);
    stops_of(&set->how, e->arena, s);
    set->n_per_prompt = (int32_t)(s->n_samples > 0 ? s->n_samples : c->rollout.eval_n);
    st = open_data(e, c, s, &set->dataset, err);
    if (st == ML_OK)
        st = open_extensions(e, c, s, set, err);
    if (st != ML_OK)
        ml_err_prefix(err, "evaluation set '%s'", s->name);
    return st;
}

ml_status ml_evaluator_specs(ml_eval_spec **out, int32_t *n, ml_arena *a,
                             const ml_run_opts *c, ml_err *err) {
    if (c->rollout.eval_config)
        return ml_eval_config_read(out, n, a, c->rollout.eval_config, err);
    *out = named_sets(n, a, &c->rollout.eval_data);
    return ML_OK;
}

ml_status ml_evaluator_open(ml_evaluator *e, ml_arena *a, const ml_rollouts *rollouts,
                            const ml_loop_extensions *extensions, ml_train_run *run,
                            const ml_run_opts *c, ml_err *err) {
    ml_eval_spec *spec = NULL;
    int32_t n = 0;
    ml_status st = ml_evaluator_specs(&spec, &n, a, c, err);

    *e = (ml_evaluator){ .arena = a, .run = run, .rollouts = rollouts };
    e->context = c->rollout.eval_context ? c->rollout.eval_context : c->rollout.max_context;
    e->evals.metrics = extensions->eval_metrics;
    e->evals.ext = extensions->eval;
    e->evals.pass_rates = c->rollout.log_passrate;
    e->evals.set = ML_NEW(a, ml_eval_set, n + 1);
    for (int32_t i = 0; i < n && st == ML_OK; i++)
        st = open_set(e, c, &spec[i], err);
    return st;
}

/* --- running -------------------------------------------------------------------- */

static ml_status open_queue(ml_evaluator *e, ml_generator *g, const ml_run_opts *c,
                            ml_err *err) {
    const char *where = c->eval_queue.dir
                            ? c->eval_queue.dir
                            : ml_arena_printf(e->arena, "%s/eval_snapshots", c->save);
    const char *dir = NULL;
    ml_status st = ml_dir_make_whole(&dir, e->arena, where, err);
    ml_eval_queue_opts queue = c->eval_queue;

    queue.evals = &e->evals;
    queue.weights = &e->run->weights;
    queue.observers = &e->run->observers;
    queue.spec = &e->run->spec;
    queue.from = e->run->from;
    queue.dir = dir;
    if (st == ML_OK)
        st = ml_engines_start_for_evals(&e->supervisor, &e->own_gen, g, c, dir, err);
    if (e->own_gen)
        e->evals.gen_ctx.gen = e->own_gen;
    if (st == ML_OK)
        st = ml_eval_queue_open(&e->queue, &queue, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--eval-num-gpus");
    return st;
}

ml_status ml_evaluator_start(ml_evaluator *e, ml_generator *g, const ml_gen_ctx *gen_ctx,
                             const ml_run_opts *c, ml_err *err) {
    e->evals.gen_ctx = *gen_ctx;
    e->evals.keep_answers = e->run->log.store != NULL;
    if (e->context && e->context < gen_ctx->context)
        e->evals.gen_ctx.context = (int32_t)e->context;
    return c->eval_gpus && e->evals.n ? open_queue(e, g, c, err) : ML_OK;
}

void ml_evaluator_close(ml_evaluator *e) {
    ml_eval_queue_close(e->queue);
    if (e->supervisor)
        ml_supervisor_serve(e->supervisor, NULL);
    if (e->own_gen)
        e->own_gen->close(e->own_gen);
    ml_supervisor_close(e->supervisor);
    for (int32_t i = 0; i < e->evals.n; i++) {
        ml_turns_close(e->evals.set[i].turns);
        ml_worker_pool_close(e->evals.set[i].generate);
        ml_rewards_close(e->evals.set[i].rewards);
        ml_dataset_close(&e->evals.set[i].dataset);
    }
}
