/* Samples that a user's Python function generates, with requests to the run's engine.
 *
 * To the generator's thread, the end of the function is a reply of an environment. */
#include <stdio.h>
#include <string.h>

#include "base/json_out.h"
#include "rl/rollout/gen_task_priv.h"

/* A different number for each sample. */
static uint64_t seed_of(const ml_gen_task *x) {
    uint64_t z = x->group->set->how->seed + (x->draw + 1) * 0x9E3779B97F4A7C15U;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U; /* SplitMix64 */
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return (z ^ (z >> 31)) >> 1;
}

static void write_sampling(ml_text *t, const ml_sampling *how) {
    ml_json_out o = { t, false };

    ml_json_begin(&o, '{');
    ml_json_put_float(&o, "temperature", how->temperature);
    ml_json_put_float(&o, "top_p", how->top_p);
    ml_json_put_int(&o, "top_k", how->top_k > 0 ? how->top_k : -1);
    ml_json_put_int(&o, "max_new_tokens", how->max_new);
    ml_json_key(&o, "stop");
    if (how->n_stop) {
        ml_json_begin(&o, '[');
        for (int32_t i = 0; i < how->n_stop; i++)
            ml_json_str(&o, how->stop[i]);
        ml_json_end(&o, ']');
    } else {
        ml_json_null(&o);
    }
    ml_json_key(&o, "stop_token_ids");
    if (how->n_stop_id)
        ml_json_ids(&o, how->stop_id, how->n_stop_id);
    else
        ml_json_null(&o);
    ml_json_put_bool(&o, "skip_special_tokens", how->skip_special);
    ml_json_put_bool(&o, "no_stop_trim", true);
    ml_json_put_bool(&o, "spaces_between_special_tokens", false);
    ml_json_end(&o, '}');
}

/* On the pool's thread. */
static void on_answer(void *ud, ml_worker_end end, ml_str text) {
    ml_gen_task *x = ud;

    ml_text_add(&x->made, text.ptr, text.len);
    x->made_end = end;
    ml_group_set_replied(x->group->set, x);
}

void ml_gen_task_call(ml_gen_task *x) {
    const ml_group_set *set = x->group->set;
    ml_text call = { 0 };

    ml_text_printf(&call, "{\"f\": \"custom-generate-function-path\", \"evaluation\": %s, ",
                   set->ctx->evaluates ? "true" : "false");
    ml_text_printf(&call,
                   "\"seed\": %llu, \"sampling_params\": ", (unsigned long long)seed_of(x));
    write_sampling(&call, set->how);
    if (x->messages.len) {
        ml_text_printf(&call, ", \"messages\": ");
        ml_text_add(&call, x->messages.ptr, x->messages.len);
    }
    ml_text_printf(&call, ", \"sample\": ");
    ml_sample_write(&call, &x->sample);
    ml_text_printf(&call, "}");
    ml_group_set_await_reply(x->group->set, x);
    ml_worker_pool_call(set->ctx->generate, (ml_str){ call.ptr, call.len },
                        ML_GENERATE_LIMIT_S, on_answer, x);
    ml_text_release(&call);
}

/* The tokens, reward and text of a sample of the function; its place in the run stays. */
static void take_over(ml_gen_task *x, ml_sample *s, const ml_sample *was) {
    s->index = was->index;
    s->group = was->group;
    s->rollout = was->rollout;
    s->row = was->row;
    s->label = s->label.len ? s->label : was->label;
    s->prompt = s->prompt.len ? s->prompt : was->prompt;
    for (int32_t t = 0; t < s->n_response; t++)
        x->group->n_drawn += !s->mask || s->mask[t];
}

/* Parts of a rollout have one reward: samples with other rewards are rollouts of their own. */
static void take_all(ml_gen_task *x, ml_sample *made, int32_t n) {
    ml_sample was = x->sample;

    for (int32_t i = 0; i < n; i++) {
        take_over(x, &made[i], &was);
        if (made[i].reward != made[0].reward)
            made[i].rollout += (int64_t)i << 40;
    }
    x->sample = made[0];
    x->more = made + 1;
    x->n_more = n - 1;
    x->wide = ML_NEW(x->group->arena, int64_t, x->sample.n_token + 1);
}

static ml_status read_one(const ml_gen_ctx *ctx, ml_arena *a, ml_sample *out,
                          const ml_json *doc, ml_str text, bool alone, ml_err *err) {
    const char *name = "the generate function";
    ml_status st = ml_sample_read(out, a, doc, text, "the sample", err);

    if (st == ML_OK && ctx->context > 0 && out->n_token > ctx->context)
        st = ml_fail(err, ML_EFORMAT, "the sample has %d tokens; the context has %d",
                     out->n_token, ctx->context);
    if (st == ML_OK && !alone && !out->has_reward)
        st = ml_fail(err, ML_EFORMAT, "%s returned several samples, one without a reward",
                     name);
    return st == ML_OK ? ml_sample_check(out, ctx->n_vocab, name, err) : st;
}

static ml_status read_made(ml_gen_task *x, ml_sample **out, int32_t *n, ml_err *err) {
    ml_arena *a = x->group->arena;
    ml_str text = { ml_arena_str(a, x->made.ptr, x->made.len), x->made.len };
    const ml_json *doc = NULL, *error, *list;
    ml_status st = ml_json_parse(&doc, a, text, "the sample", err);

    if (st != ML_OK)
        return st;
    error = ml_json_get(doc, "error");
    if (error && error->type == ML_JSON_STRING)
        return ml_fail(err, ML_EFORMAT, "%.*s", (int)error->text.len, error->text.ptr);
    list = ml_json_get(doc, "samples");
    if (!list || list->n < 1)
        return ml_fail(err, ML_EFORMAT, "the generate function returned no sample");
    *out = ML_NEW(a, ml_sample, list->n);
    for (const ml_json *v = list->child; v && st == ML_OK; v = v->next)
        st = read_one(x->group->set->ctx, a, &(*out)[(*n)++], v, text, list->n == 1, err);
    return st;
}

void ml_gen_task_take_made(ml_gen_task *x) {
    ml_sample *made = NULL;
    ml_err err = { 0 };
    ml_status st = ML_OK;
    int32_t n = 0;

    if (x->made_end != ML_WORKER_ANSWERED)
        ml_str_copy(x->why, sizeof x->why, (ml_str){ x->made.ptr, x->made.len });
    else
        st = read_made(x, &made, &n, &err);
    if (st != ML_OK)
        ml_str_copy(x->why, sizeof x->why, ml_str_of(err.msg));
    ml_text_release(&x->made);
    x->made = (ml_text){ 0 };
    if (x->aborted) {
        ml_gen_task_complete(x, ML_SAMPLE_ABORTED);
    } else if (x->made_end != ML_WORKER_ANSWERED || st != ML_OK) {
        x->outcome = x->made_end == ML_WORKER_LATE   ? ML_REWARD_TIMEOUT
                     : x->made_end == ML_WORKER_DIED ? ML_REWARD_CRASH
                                                     : ML_REWARD_INVALID;
        ml_gen_task_complete(x, ML_SAMPLE_FAILED);
    } else {
        take_all(x, made, n);
        ml_gen_task_complete(x, x->sample.status);
    }
}
