#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"
#include "tinker/sample_job.h"

/* --- samplers ---------------------------------------------------------------------------- */

static char *copy_of(const char *s) {
    size_t n = s ? strlen(s) + 1 : 0;
    return s ? memcpy(ml_memory_grow(NULL, n, "a sampling client"), s, n) : NULL;
}

ml_sampler *ml_tinker_add_sampler(ml_tinker *t, ml_session_client *s, int64_t number,
                                  const char *path, const char *dir) {
    ml_sampler *x;
    char id[120];

    snprintf(id, sizeof id, "%s:sample:%lld", s->id, (long long)number);
    x = ml_tinker_sampler(t, ml_str_of(id));
    if (x)
        return x;
    x = ml_memory_grow(NULL, sizeof *x, "a sampling client");
    *x = (ml_sampler){ .next = t->samplers,
                       .id = copy_of(id),
                       .session = s,
                       .number = number,
                       .path = copy_of(path),
                       .dir = copy_of(dir) };
    t->samplers = x;
    return x;
}

static void reply_sampler(ml_tinker *t, ml_http_call *c, const ml_sampler *s) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "sampling_session_id", s->id);
    ml_json_put_word(&o, "sampler_id", s->id);
    ml_json_put_word(&o, "base_model", t->opts.model);
    ml_json_put_word(&o, "model_path", s->path);
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

void ml_tinker_get_sampler(ml_tinker *t, ml_http_call *c, ml_str id) {
    const ml_sampler *s = ml_tinker_sampler(t, id);

    if (s)
        reply_sampler(t, c, s);
    else
        ml_tinker_refuse(c, 404, "The sampling client is not known, or has ended.");
}

void ml_tinker_create_sampler(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    ml_session_client *s = ml_tinker_session(t, ml_tinker_text(body, "session_id"));
    ml_str path = ml_tinker_text(body, "model_path");
    ml_str base = ml_tinker_text(body, "base_model");
    int64_t number = ml_tinker_number(body, "sampling_session_seq_id", 0);
    ml_store_path p = { 0 };
    ml_err err = { 0 };
    ml_status st = ML_OK;
    ml_arena a;

    ml_arena_init(&a, "a sampling client");
    if (path.len)
        st = ml_store_parse(&p, &a, t->opts.dir, path, &err);
    if (st == ML_OK && path.len && !ml_store_exists(&p))
        st = ml_fail(&err, ML_EUSAGE, "%s does not exist on this server", p.uri);
    if (st == ML_OK && path.len && p.kind == ML_STORE_STATE)
        st = ml_fail(&err, ML_EUSAGE,
                     "%s is a training state: sample from weights that "
                     "save_weights_for_sampler saved",
                     p.uri);
    if (st == ML_OK && !path.len && !ml_str_is(base, t->opts.model))
        st = ml_fail(&err, ML_EUSAGE, "base_model is %.*s, but this server has %s",
                     (int)(base.len < 200 ? base.len : 200), base.ptr, t->opts.model);
    if (!s)
        ml_tinker_refuse(c, 410, "The session has ended.");
    else if (st != ML_OK)
        ml_tinker_refuse(c, 400, err.msg);
    else
        reply_sampler(t, c, ml_tinker_add_sampler(t, s, number, p.uri, p.dir));
    ml_arena_release(&a);
}

int32_t ml_sample_choice_top(const ml_sample_job *j, ml_choice_kind kind) {
    switch (kind) {
    case ML_CHOICE_SCORE: return j->k_prompt;
    case ML_CHOICE_SAMPLE: return j->k_answer;
    case ML_CHOICE_BOTH: return j->k_prompt > j->k_answer ? j->k_prompt : j->k_answer;
    case ML_CHOICE_TARGET: return 0;
    }
    return 0;
}

/* --- results, on the generator's thread ---------------------------------------------------- */

static void add_floats(ml_text *to, const float *v, int64_t n) {
    if (n)
        ml_text_add(to, (const char *)v, (size_t)n * sizeof *v);
}

static void add_ids(ml_text *to, const int32_t *v, int64_t n) {
    if (n)
        ml_text_add(to, (const char *)v, (size_t)n * sizeof *v);
}

static void on_done(void *ud);

static void end_choices(ml_sample_job *j, int n) {
    if (atomic_fetch_sub(&j->n_open, n) == n)
        ml_loop_post(j->t->loop, on_done, j);
}

static void on_update(void *ud, const ml_gen_update *u) {
    ml_sample_choice *c = ud;
    const ml_sample_job *j = c->job;
    int32_t k = ml_sample_choice_top(j, c->kind);

    if (u->prompt.n && c->kind == ML_CHOICE_TARGET)
        add_floats(&c->also, u->prompt.also_logprob, (int64_t)u->prompt.n * j->n_also);
    else if (u->prompt.n) {
        add_floats(&c->prompt, u->prompt.logprob, u->prompt.n);
        add_ids(&c->prompt_id, u->prompt.top_id, (int64_t)u->prompt.n * k);
        add_floats(&c->prompt_top, u->prompt.top_logprob, (int64_t)u->prompt.n * k);
    }
    if (u->answer.n) {
        add_ids(&c->token, u->answer.id, u->answer.n);
        add_floats(&c->logprob, u->answer.logprob, u->answer.n);
        add_ids(&c->top_id, u->answer.top_id, (int64_t)u->answer.n * k);
        add_floats(&c->top, u->answer.top_logprob, (int64_t)u->answer.n * k);
    }
    if (u->finish == ML_FINISH_NOT)
        return;
    c->finish = u->finish;
    c->n_cached = u->n_cached;
    if (u->finish == ML_FINISH_ABORT)
        snprintf(c->message, sizeof c->message, "%.*s",
                 (int)(u->message.len < 190 ? u->message.len : 190), u->message.ptr);
    end_choices(c->job, 1);
}

static void release_job(ml_sample_job *j) {
    for (int32_t i = 0; i < j->n_choice; i++) {
        ml_sample_choice *c = &j->choice[i];
        ml_text *all[] = { &c->prompt, &c->prompt_id, &c->prompt_top, &c->also,
                           &c->token,  &c->logprob,   &c->top_id,     &c->top };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            ml_text_release(all[k]);
    }
    ml_arena_release(&j->arena);
    free(j);
}

static void free_job(ml_sample_job *j) {
    ml_sample_job **at = &j->t->jobs;

    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    release_job(j);
}

static void pump(ml_tinker *t);

/* On the loop's thread, after the last choice. */
static void on_done(void *ud) {
    ml_sample_job *j = ud;
    ml_tinker *t = j->t;
    const ml_sample_choice *bad = NULL;
    ml_text body = { 0 };

    for (int32_t i = 0; i < j->n_choice && !bad; i++)
        if (j->choice[i].finish == ML_FINISH_ABORT)
            bad = &j->choice[i];
    if (bad) {
        ml_future_fail(t, j->future, bad->message[0] ? bad->message : "it was cancelled",
                       !bad->submitted);
    } else {
        ml_sample_job_write(&body, j);
        ml_future_finish(t, j->future, &body, true);
    }
    if (j->adapter)
        j->adapter->n_user--;
    free_job(j);
    pump(t);
}

/* --- adapters in the generator ---------------------------------------------------------------- */

static void free_adapter(ml_tinker *t, ml_sampler_adapter *x) {
    ml_sampler_adapter **at = &t->adapters;

    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    free(x->dir);
    free(x);
}

static void run_adapter(ml_tinker_work *w) {
    const ml_tinker_opts *o = &w->t->opts;
    ml_sampler_adapter *x = w->adapter;

    if (x->victim) {
        o->gen->pause(o->gen);
        o->site[x->slot] = NULL;
        o->gen->resume(o->gen);
        ml_lora_close(&x->victim->lora);
    }
    w->st = ml_lora_load(&x->lora, o->slots.spec, x->dir, o->slots.be, &w->err);
    if (w->st == ML_OK)
        w->st = ml_lora_check(&x->lora, &o->slots.limits, x->dir, &w->err);
    if (w->st != ML_OK)
        return;
    o->gen->pause(o->gen);
    o->site[x->slot] = x->lora.site;
    o->gen->resume(o->gen);
}

/* Fails the jobs that wait for an adapter. */
static void fail_jobs(ml_tinker *t, const ml_sampler_adapter *x, const char *why) {
    for (ml_sample_job *j = t->jobs, *next; j; j = next) {
        next = j->next;
        if (j->adapter == x && !j->started) {
            ml_future_fail(t, j->future, why, true);
            free_job(j);
        }
    }
}

static void adapter_done(ml_tinker_work *w) {
    ml_tinker *t = w->t;
    ml_sampler_adapter *x = w->adapter;

    x->loading = false;
    x->loaded = w->st == ML_OK;
    if (x->victim)
        free_adapter(t, x->victim);
    x->victim = NULL;
    if (!x->loaded) {
        fail_jobs(t, x, w->err.msg);
        ml_lora_close(&x->lora);
        free_adapter(t, x);
    }
    ml_tinker_work_free(w);
    pump(t);
}

/* A slot that no adapter has or is to have; or -1. */
static int32_t free_slot(const ml_tinker *t) {
    for (int32_t s = 0; s < t->opts.n_site; s++) {
        const ml_sampler_adapter *x = t->adapters;
        while (x && !((x->loaded || x->loading) && x->slot == s))
            x = x->next;
        if (!x)
            return s;
    }
    return -1;
}

/* The least recently used adapter without requests, or NULL; stale ones first. */
static ml_sampler_adapter *find_victim(const ml_tinker *t) {
    ml_sampler_adapter *found = NULL;

    for (ml_sampler_adapter *x = t->adapters; x; x = x->next)
        if (x->loaded && !x->n_user &&
            (!found || x->stale > found->stale ||
             (x->stale == found->stale && x->last_use < found->last_use)))
            found = x;
    return found;
}

/* Begins to load an adapter, if a slot can be had. */
static void bring_in(ml_tinker *t, ml_sampler_adapter *x) {
    int32_t slot = free_slot(t);
    ml_tinker_work *w;

    if (slot < 0) {
        x->victim = find_victim(t);
        if (!x->victim)
            return;
        slot = x->victim->slot;
        x->victim->loaded = false;
        x->victim->stale = true;
    }
    x->slot = slot;
    x->id = ++t->n_adapter_id;
    x->loading = true;
    w = ml_tinker_work_new(t, run_adapter, adapter_done);
    w->adapter = x;
    ml_tinker_work_post(w);
}

static ml_sampler_adapter *find_adapter(ml_tinker *t, const char *dir) {
    ml_sampler_adapter *x = t->adapters;

    while (x && (x->stale || strcmp(x->dir, dir) != 0))
        x = x->next;
    if (x)
        return x;
    x = ml_memory_grow(NULL, sizeof *x, "an adapter");
    *x = (ml_sampler_adapter){ .next = t->adapters, .dir = copy_of(dir) };
    t->adapters = x;
    return x;
}

void ml_tinker_forget_adapter(ml_tinker *t, const char *dir) {
    for (ml_sampler_adapter *x = t->adapters; x; x = x->next)
        if (strcmp(x->dir, dir) == 0)
            x->stale = true;
}

/* --- submitting -------------------------------------------------------------------------------- */

static ml_gen_request request_of(const ml_sample_job *j, const ml_sample_choice *c) {
    ml_gen_request r = j->request;

    r.score_from = c->kind == ML_CHOICE_SAMPLE ? -1 : j->score_from;
    r.n_top = ml_sample_choice_top(j, c->kind);
    if (c->kind == ML_CHOICE_SCORE || c->kind == ML_CHOICE_TARGET) {
        r.max_new = 0;
        r.draw = (ml_draw_opts){ .temperature = 1, .top_p = 1, .repetition = 1 };
        r.n_stop = r.n_stop_id = 0;
    }
    if (c->kind == ML_CHOICE_TARGET) {
        r.score_from = 1;
        r.also = j->also;
        r.n_also = j->n_also;
        r.also_each = true;
    }
    r.draw.sample += (uint64_t)c->index;
    return r;
}

static void submit(ml_sample_job *j) {
    ml_gen *g = j->t->opts.gen;
    ml_err err = { 0 };
    int32_t i = 0;

    j->started = true;
    if (j->adapter) {
        j->adapter->n_user++;
        j->adapter->last_use = ++j->t->n_use;
        j->request.adapter = 1 + j->adapter->slot;
        j->request.adapter_id = j->adapter->id;
    }
    atomic_store(&j->n_open, j->n_choice);
    for (; i < j->n_choice; i++) {
        ml_sample_choice *c = &j->choice[i];
        ml_gen_request r = request_of(j, c);
        if (g->submit(g, &r, on_update, c, &c->ticket, &err) != ML_OK)
            break;
        c->submitted = true;
    }
    if (i == j->n_choice)
        return;
    j->choice[i].finish = ML_FINISH_ABORT;
    snprintf(j->choice[i].message, sizeof j->choice[i].message, "%.190s",
             err.msg[0] ? err.msg : "the queue of the generator is full");
    for (int32_t k = 0; k < i; k++)
        g->abort(g, j->choice[k].ticket);
    end_choices(j, j->n_choice - i);
}

/* Starts the jobs whose adapter is there, in the order of their arrival. */
static void pump(ml_tinker *t) {
    for (ml_sample_job *j = t->closing ? NULL : t->jobs; j; j = j->next) {
        if (j->started)
            continue;
        if (!j->adapter || j->adapter->loaded)
            submit(j);
        else if (!j->adapter->loading)
            bring_in(t, j->adapter);
    }
}

static void reply_accepted(ml_http_call *c, const ml_future *f, int64_t n) {
    ml_text body = { 0 }, id = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "request_id", f->id);
    ml_json_key(&o, "sample_sequence_ids");
    ml_json_begin(&o, '[');
    for (int64_t i = 0; i < n && i < ML_MAX_SAMPLES; i++) {
        id.len = 0;
        ml_text_printf(&id, "%s:%lld", f->id, (long long)i);
        ml_json_word(&o, id.ptr);
    }
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    ml_text_release(&id);
    ml_tinker_reply(c, 200, &body);
}

static ml_sample_job *new_job(ml_tinker *t, ml_future *f, int64_t n) {
    ml_sample_job *j = ml_memory_grow(NULL, sizeof *j, "a request"), **at = &t->jobs;

    memset(j, 0, sizeof *j);
    j->t = t;
    j->future = f;
    j->n_sample = (int32_t)(n < 0 || n > ML_MAX_SAMPLES ? 0 : n);
    ml_arena_init(&j->arena, "a request");
    while (*at)
        at = &(*at)->next;
    *at = j;
    return j;
}

void ml_tinker_sample(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    const ml_sampler *s = ml_tinker_sampler(t, ml_tinker_text(body, "sampling_session_id"));
    int64_t n = ml_tinker_number(body, "num_samples", 1);
    ml_sample_job *j;
    ml_future *f;
    ml_err err = { 0 };
    char id[160];

    if (!s) {
        ml_tinker_refuse(c, 404,
                         "The sampling client is not known: its session has ended, or the "
                         "server was started again.");
        return;
    }
    snprintf(id, sizeof id, "%s:%lld", s->id,
             (long long)ml_tinker_number(body, "seq_id", 0));
    f = ml_future_find(t, id);
    if (f) {
        reply_accepted(c, f, n);
        return;
    }
    f = ml_future_new(t, id);
    j = new_job(t, f, n);
    reply_accepted(c, f, n);
    if (ml_sample_job_read(j, s, body, &err) != ML_OK) {
        ml_future_fail(t, f, err.msg, true);
        free_job(j);
        return;
    }
    f->job = j;
    j->adapter = s->dir ? find_adapter(t, s->dir) : NULL;
    pump(t);
}

void ml_tinker_cancel(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    ml_str id = ml_tinker_text(body, "request_id");
    ml_future *f;
    ml_sample_job *j;
    ml_arena a;

    ml_arena_init(&a, "a request");
    f = ml_future_find(t, ml_arena_str(&a, id.ptr, id.len));
    j = f && !f->done ? f->job : NULL;
    if (j && !j->started) {
        ml_future_fail(t, f, "it was cancelled", true);
        free_job(j);
    } else if (j) {
        for (int32_t i = 0; i < j->n_choice; i++)
            if (j->choice[i].submitted)
                t->opts.gen->abort(t->opts.gen, j->choice[i].ticket);
    }
    ml_arena_release(&a);
    ml_http_reply(c, 200, "application/json", ml_str_of("{}"));
}

void ml_tinker_samples_close(ml_tinker *t) {
    if (t->opts.gen)
        t->opts.gen->close(t->opts.gen);
    for (ml_sample_job *j = t->jobs, *next; j; j = next) {
        next = j->next;
        release_job(j);
    }
    for (ml_sampler_adapter *x = t->adapters, *next; x; x = next) {
        next = x->next;
        ml_lora_close(&x->lora);
        free(x->dir);
        free(x);
    }
}
