#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/oom.h"
#include "tinker/losses.h"
#include "tinker/tinker_priv.h"

/* Module names that train_mlp and train_attn exclude, of all families. */
static const char mlp_names[] = "gate_proj,up_proj,down_proj,gate_up_proj,w1,w2,w3,experts";
static const char attn_names[] =
    "q_proj,k_proj,v_proj,o_proj,qkv_proj,q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,"
    "in_proj,in_proj_qkvz,in_proj_ba,in_proj_qkv,in_proj_z,in_proj_a,in_proj_b,out_proj";

/* --- the order of a model's requests ------------------------------------------------- */

static void post_next(ml_model_client *m) {
    while (m->waiting && m->waiting->seq == m->next_seq) {
        ml_tinker_work *w = m->waiting;
        m->waiting = w->next;
        m->next_seq++;
        ml_tinker_work_post(w);
    }
}

/* Accepts a request of a model, or finds that it was accepted before; answers the call. */
static void accept_work(ml_http_call *c, ml_model_client *m, ml_tinker_work *w) {
    ml_tinker *t = w->t;
    const char *id = ml_arena_printf(&w->arena, "%s:%lld", m->id, (long long)w->seq);
    ml_future *f = ml_future_find(t, id);
    ml_tinker_work **at = &m->waiting;

    if (f || w->seq < m->next_seq) {
        if (f)
            ml_tinker_reply_future(c, f, m->id);
        else
            ml_tinker_refuse(c, 410, "The request was answered long ago.");
        ml_tinker_work_free(w);
        return;
    }
    w->model = m;
    w->needs_slot = true;
    w->future = ml_future_new(t, id);
    ml_tinker_reply_future(c, w->future, m->id);
    while (*at && (*at)->seq < w->seq)
        at = &(*at)->next;
    w->next = *at;
    *at = w;
    post_next(m);
}

static void refuse_model(ml_http_call *c, ml_str id) {
    char why[300];

    snprintf(why, sizeof why,
             "No training client %.*s: its session has ended, or the server was started "
             "again.  Create a new one from a saved state.",
             (int)(id.len < 100 ? id.len : 100), id.ptr);
    ml_tinker_refuse(c, 404, why);
}

/* --- create, info, close --------------------------------------------------------------- */

static void remove_model(ml_tinker *t, ml_model_client *m) {
    ml_model_client **at = &t->models;

    while (*at && *at != m)
        at = &(*at)->next;
    if (*at)
        *at = m->next;
}

static void free_model(ml_model_client *m) {
    free(m->id);
    free(m);
}

static void open_slot(ml_tinker_work *w) {
    const ml_json *lora = ml_json_get(w->body, "lora_config");
    ml_model_client *m = w->model;
    int64_t number = ml_tinker_number(w->body, "model_seq_id", 0);
    ml_lora_opts o = { .rank = m->rank,
                       .alpha = w->t->opts.alpha,
                       .target = "all-linear",
                       .exclude = m->attn && m->mlp ? NULL
                                  : m->attn         ? mlp_names
                                                    : attn_names,
                       .seed = (uint64_t)ml_tinker_number(
                           lora, "seed", (int64_t)w->t->opts.seed + number) };

    w->st = ml_lora_slot_open(&m->slot, w->t->slots, &o, &w->err);
    if (w->st == ML_OK)
        w->st = ml_store_add_run(w->t, m, ml_json_get(w->body, "user_metadata"), &w->err);
}

static void run_create(ml_tinker_work *w) {
    ml_json_out out = { .to = &w->reply };

    open_slot(w);
    ml_json_begin(&out, '{');
    ml_json_put_word(&out, "model_id", w->model->id);
    ml_json_put_word(&out, "type", "create_model");
    ml_json_end(&out, '}');
}

static void run_create_loaded(ml_tinker_work *w) {
    open_slot(w);
    if (w->st == ML_OK)
        ml_tinker_run_load(w);
}

static void create_done(ml_tinker_work *w) {
    ml_tinker *t = w->t;
    ml_model_client *m = w->st == ML_OK ? NULL : w->model;

    ml_tinker_work_answer(w);
    if (m)
        ml_tinker_close_model(t, m);
}

/* What a new model is asked to be. */
typedef struct wanted {
    ml_str base;
    int64_t rank;
    bool attn, mlp;
} wanted;

static wanted wanted_of(const ml_json *body) {
    const ml_json *lora = ml_json_get(body, "lora_config");

    return (wanted){ .base = ml_tinker_text(body, "base_model"),
                     .rank = ml_tinker_number(lora, "rank", 0),
                     .attn = ml_tinker_true(lora, "train_attn", true),
                     .mlp = ml_tinker_true(lora, "train_mlp", true) };
}

/* The same of a model whose first request loads a saved state: its adapter is that of the state. */
static ml_status wanted_of_state(wanted *out, ml_tinker *t, const ml_json *body,
                                 ml_arena *a, ml_err *err) {
    const ml_json *run = NULL;
    ml_text info = { 0 };
    ml_str base = ml_tinker_text(body, "base_model"), text;
    ml_status st = ml_store_info(&info, t, ml_tinker_text(body, "path"), err);

    text = (ml_str){ ml_arena_str(a, info.len ? info.ptr : "", info.len), info.len };
    ml_text_release(&info);
    if (st == ML_OK)
        st = ml_json_parse(&run, a, text, "the description of the state", err);
    if (st != ML_OK)
        return st;
    *out = (wanted){ .base = base.len ? base : ml_tinker_text(run, "base_model"),
                     .rank = ml_tinker_number(run, "lora_rank", 0),
                     .attn = ml_tinker_true(run, "train_attn", true),
                     .mlp = ml_tinker_true(run, "train_mlp", true) };
    return ML_OK;
}

static ml_status check_wanted(const ml_tinker *t, const wanted *m, const ml_json *body,
                              ml_err *err) {
    ml_str optimizer = ml_tinker_text(ml_json_get(body, "optimizer_config"), "type");

    if (!ml_str_is(m->base, t->opts.model))
        return ml_fail(
            err, ML_EUSAGE,
            "base_model is %.*s, but this server trains %s: ask for that one, or "
            "start the server with --model-path and --served-model-name",
            (int)(m->base.len < 200 ? m->base.len : 200), m->base.ptr, t->opts.model);
    if (m->rank < 1 || m->rank > t->opts.slots.limits.max_rank)
        return ml_fail(err, ML_EUSAGE,
                       "lora_config.rank is %lld; this server trains adapters of rank 1 to "
                       "%d (--max-lora-rank)",
                       (long long)m->rank, t->opts.slots.limits.max_rank);
    if (!m->attn && !m->mlp)
        return ml_fail(err, ML_EUNSUP,
                       "lora_config trains the unembedding alone, which adapters of this "
                       "server do not adapt: set train_attn or train_mlp");
    if (optimizer.len && !ml_str_is(optimizer, "adamw"))
        return ml_fail(err, ML_EUNSUP,
                       "optimizer_config.type is %.*s; this server has adamw",
                       (int)(optimizer.len < 80 ? optimizer.len : 80), optimizer.ptr);
    return ML_OK;
}

static ml_model_client *add_model(ml_tinker *t, ml_session_client *s, const char *id,
                                  const wanted *want) {
    ml_model_client *m = ml_memory_grow(NULL, sizeof *m, "a training client");
    size_t n = strlen(id) + 1;

    *m = (ml_model_client){ .next = t->models,
                            .id = ml_memory_grow(NULL, n, "a training client"),
                            .session = s,
                            .rank = (int32_t)want->rank,
                            .attn = want->attn,
                            .mlp = want->mlp,
                            .next_seq = 1 };
    memcpy(m->id, id, n);
    t->models = m;
    return m;
}

/* Keeps a copy of the request for the thread that trains. */
static void keep_body(ml_tinker_work *w, ml_http_call *c) {
    ml_str body = ml_http_body(c);

    ml_text_add(&w->raw, body.ptr, body.len);
    if (ml_json_parse(&w->body, &w->arena, (ml_str){ w->raw.ptr, w->raw.len }, "request",
                      NULL) != ML_OK)
        w->body = NULL; /* not reached: it was parsed before */
}

static void create_model(ml_tinker *t, ml_http_call *c, const ml_json *body, bool load) {
    ml_session_client *s = ml_tinker_session(t, ml_tinker_text(body, "session_id"));
    ml_tinker_work *w =
        ml_tinker_work_new(t, load ? run_create_loaded : run_create, create_done);
    const char *model, *id;
    wanted want;

    if (!s) {
        ml_tinker_refuse(c, 410, "The session has ended.");
        ml_tinker_work_free(w);
        return;
    }
    model = ml_arena_printf(&w->arena, "%s:train:%lld", s->id,
                            (long long)ml_tinker_number(body, "model_seq_id", 0));
    id = ml_arena_printf(&w->arena, "%s:0", model);
    w->future = ml_future_find(t, id);
    if (w->future) {
        ml_tinker_reply_future(c, w->future, model);
        ml_tinker_work_free(w);
        return;
    }
    w->future = ml_future_new(t, id);
    want = wanted_of(body);
    if (load)
        w->st = wanted_of_state(&want, t, body, &w->arena, &w->err);
    if (w->st == ML_OK)
        w->st = check_wanted(t, &want, body, &w->err);
    if (w->st == ML_OK) {
        keep_body(w, c);
        w->model = add_model(t, s, model, &want);
    }
    ml_tinker_reply_future(c, w->future, model);
    if (w->st == ML_OK)
        ml_tinker_work_post(w);
    else
        ml_tinker_work_answer(w);
}

void ml_tinker_create_model(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    create_model(t, c, body, false);
}

/* Of a model, or the first request of a new one (SDK 0.38 and later). */
void ml_tinker_load_weights(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    if (ml_tinker_text(body, "model_id").len)
        ml_tinker_model_request(t, c, body);
    else
        create_model(t, c, body, true);
}

void ml_tinker_get_info(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    ml_str id = ml_tinker_text(body, "model_id");
    const ml_model_client *m = ml_tinker_model(t, id);
    ml_text out = { 0 };
    ml_json_out o = { .to = &out };

    if (!m) {
        refuse_model(c, id);
        return;
    }
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", "get_info");
    ml_json_put_word(&o, "model_id", m->id);
    ml_json_put_word(&o, "model_name", t->opts.model);
    ml_json_put_bool(&o, "is_lora", true);
    ml_json_put_int(&o, "lora_rank", m->rank);
    ml_json_key(&o, "model_data");
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "arch", t->opts.arch);
    ml_json_put_word(&o, "model_name", t->opts.model);
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &out);
}

static void run_close(ml_tinker_work *w) {
    ml_json_out o = { .to = &w->reply };

    ml_lora_slot_close(w->model->slot);
    w->model->slot = NULL;
    ml_dir_remove(
        ml_arena_printf(&w->arena, "%s/%s/ephemeral", w->t->opts.dir, w->model->id), NULL);
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "model_id", w->model->id);
    ml_json_put_word(&o, "type", "unload_model");
    ml_json_end(&o, '}');
}

static void close_done(ml_tinker_work *w) {
    free_model(w->model);
    if (w->future)
        ml_tinker_work_answer(w);
    else
        ml_tinker_work_free(w);
}

/* future: of the request to close it, or NULL. */
static void close_model(ml_tinker *t, ml_model_client *m, ml_future *future) {
    ml_tinker_work *w;

    remove_model(t, m);
    while (m->waiting) {
        w = m->waiting;
        m->waiting = w->next;
        w->st = ml_fail(&w->err, ML_EUSAGE, "the training client %s was closed", m->id);
        ml_tinker_work_answer(w);
    }
    w = ml_tinker_work_new(t, run_close, close_done);
    w->model = m;
    w->future = future;
    ml_tinker_work_post(w);
}

void ml_tinker_close_model(ml_tinker *t, ml_model_client *m) {
    if (!t->closing) {
        close_model(t, m, NULL);
        return;
    }
    remove_model(t, m); /* its requests were freed, and no thread trains */
    ml_lora_slot_close(m->slot);
    free_model(m);
}

/* --- passes ---------------------------------------------------------------------------- */

typedef struct pass_run {
    const ml_pass_request *pass;
    ml_pass_loss loss;
    float **logprob; /* [columns] */
    double *term;    /* [columns] */
} pass_run;

static ml_status take_loss(void *ud, ml_loss_io *io, int32_t n_sample, ml_err *err) {
    pass_run *r = ud;

    (void)err;
    for (int32_t i = 0; i < n_sample; i++) {
        const ml_datum_column *c = &r->pass->column[io[i].sample];
        memcpy(r->logprob[io[i].sample], io[i].logprob, (size_t)c->n * sizeof(float));
        io[i].loss = ml_pass_loss_at(&r->loss, c, io[i].logprob, io[i].dlogprob);
        r->term[io[i].sample] = io[i].loss;
    }
    return ML_OK;
}

static ml_status run_samples(ml_tinker_work *w, pass_run *r, ml_err *err) {
    const ml_pass_request *p = r->pass;
    ml_train_sample *s = ML_NEW(&w->arena, ml_train_sample, p->n_column);
    int32_t longest = 0;
    float *unused;
    ml_status st;

    for (int32_t i = 0; i < p->n_column; i++) {
        const ml_datum_column *c = &p->column[i];
        s[i] = (ml_train_sample){ .token = c->token,
                                  .n_token = c->n,
                                  .n_response = c->n,
                                  .target = c->target,
                                  .rollout = i };
        r->logprob[i] = ML_NEW(&w->arena, float, c->n);
        longest = c->n > longest ? c->n : longest;
    }
    if (!p->forward_only)
        return ml_lora_slot_backward(w->model->slot, s, p->n_column, take_loss, r, err);
    st = ml_lora_slot_score(w->model->slot, s, p->n_column, r->logprob, err);
    unused = ML_NEW(&w->arena, float, longest);
    for (int32_t i = 0; i < p->n_column && st == ML_OK; i++)
        r->term[i] = ml_pass_loss_at(&r->loss, &p->column[i], r->logprob[i], unused);
    return st;
}

static void run_pass(ml_tinker_work *w) {
    const ml_tinker_opts *o = &w->t->opts;
    ml_pass_request p;
    pass_run r = { .pass = &p };
    double loss = 0;

    w->st = ml_pass_read(&p, &w->arena, (ml_str){ w->raw.ptr, w->raw.len }, &w->err);
    if (w->st == ML_OK)
        w->st = ml_pass_check(&p, o->slots.spec->n_vocab, o->context, &w->err);
    if (w->st == ML_OK)
        w->st = ml_pass_loss_of(&r.loss, &p, &w->err);
    if (w->st == ML_OK) {
        r.logprob = ML_NEW(&w->arena, float *, p.n_column);
        r.term = ML_NEW(&w->arena, double, p.n_column);
        w->st = run_samples(w, &r, &w->err);
    }
    if (w->st != ML_OK)
        return;
    for (int32_t i = 0; i < p.n_column; i++)
        loss += r.term[i];
    ml_pass_reply(&w->reply, &p, r.logprob, loss);
    w->proto = true;
}

void ml_tinker_forward_backward(ml_tinker *t, ml_http_call *c) {
    ml_tinker_work *w = ml_tinker_work_new(t, run_pass, ml_tinker_work_answer);
    ml_str body = ml_http_body(c), id;
    ml_model_client *m = NULL;
    ml_status st = ml_pass_address(body, &id, &w->seq, &w->err);

    if (st == ML_OK)
        m = ml_tinker_model(t, id);
    if (m) {
        ml_text_add(&w->raw, body.ptr, body.len);
        accept_work(c, m, w);
        return;
    }
    if (st == ML_OK)
        refuse_model(c, id);
    else
        ml_tinker_refuse(c, 400, w->err.msg);
    ml_tinker_work_free(w);
}

/* --- optim_step ------------------------------------------------------------------------ */

static ml_status read_step(ml_slot_step *out, const ml_json *body, ml_err *err) {
    const ml_json *p = ml_json_get(body, "adam_params"), *v;
    const struct {
        const char *name;
        double *at, below;
    } row[] = { { "learning_rate", &out->lr, HUGE_VAL },
                { "beta1", &out->beta1, 1 },
                { "beta2", &out->beta2, 1 },
                { "eps", &out->eps, HUGE_VAL },
                { "weight_decay", &out->weight_decay, HUGE_VAL },
                { "grad_clip_norm", &out->clip_grad, HUGE_VAL } };

    *out = (ml_slot_step){
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12, .grad_scale = 1
    };
    if (!p)
        return ml_fail(err, ML_EUNSUP,
                       "optim_step: this server has AdamW; give types.AdamParams");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        v = ml_json_get(p, row[i].name);
        if (v &&
            (!ml_json_f64(v, row[i].at) || *row[i].at < 0 || *row[i].at >= row[i].below))
            return ml_fail(err, ML_EUSAGE,
                           "adam_params.%s must be a number of at least 0%s", row[i].name,
                           row[i].below == 1 ? " and below 1" : "");
    }
    return ML_OK;
}

static void run_optim(ml_tinker_work *w) {
    ml_slot_step step;
    ml_update u;
    ml_json_out o = { .to = &w->reply };

    w->st = read_step(&step, w->body, &w->err);
    if (w->st == ML_OK)
        w->st = ml_lora_slot_step(w->model->slot, &step, &u, &w->err);
    if (w->st != ML_OK)
        return;
    ml_json_begin(&o, '{');
    ml_json_key(&o, "metrics");
    ml_json_begin(&o, '{');
    ml_json_key(&o, "grad_norm");
    ml_json_exact(&o, u.grad_norm);
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
}

/* --- requests -------------------------------------------------------------------------- */

typedef struct kind {
    const char *path;
    void (*run)(ml_tinker_work *w);
    void (*done)(ml_tinker_work *w);
} kind;

static const kind kinds[] = {
    { "optim_step", run_optim, ml_tinker_work_answer },
    { "save_weights", ml_tinker_run_save, ml_tinker_work_answer },
    { "save_weights_for_sampler", ml_tinker_run_save_sampler, ml_tinker_sampler_saved },
    { "save_weights_external", ml_tinker_run_save_external, ml_tinker_work_answer },
    { "load_weights", ml_tinker_run_load, ml_tinker_work_answer },
    { 0 },
};

static void unload(ml_tinker *t, ml_http_call *c, ml_model_client *m) {
    ml_text id = { 0 };
    ml_future *f;

    ml_text_printf(&id, "%s:unload", m->id);
    f = ml_future_new(t, id.ptr);
    ml_text_release(&id);
    ml_tinker_reply_future(c, f, m->id);
    close_model(t, m, f);
}

void ml_tinker_model_request(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    ml_str path = ml_http_path(c), id = ml_tinker_text(body, "model_id");
    ml_model_client *m = ml_tinker_model(t, id);
    const kind *k = kinds;
    ml_tinker_work *w;

    path = (ml_str){ path.ptr + strlen("/api/v1/"), path.len - strlen("/api/v1/") };
    while (k->path && !ml_str_is(path, k->path))
        k++;
    if (!m) {
        refuse_model(c, id);
    } else if (!k->path) {
        unload(t, c, m);
    } else {
        w = ml_tinker_work_new(t, k->run, k->done);
        w->seq = ml_tinker_number(body, "seq_id", m->next_seq);
        keep_body(w, c);
        accept_work(c, m, w);
    }
}
