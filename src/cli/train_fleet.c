#include "cli/train_fleet.h"

#include "base/bug.h"
#include "base/dir.h"
#include "base/secret.h"
#include "cli/train_remote.h"
#include "gen/remote.h"

#define PROGRAM "/proc/self/exe"
#define MOST_QUEUED 1000000 /* the maximum of miles serve; further requests are retried */

/* A command line under construction. */
typedef struct words {
    ml_arena *arena;
    const char *word[56];
    int n;
} words;

static void add(words *w, const char *word) {
    ML_BUG_IF(w->n + 1 >= (int)(sizeof w->word / sizeof *w->word));
    w->word[w->n++] = ml_arena_printf(w->arena, "%s", word);
}

static void add_flag(words *w, const char *flag, const char *value) {
    add(w, flag);
    add(w, value);
}

static void add_number(words *w, const char *flag, int64_t value) {
    add_flag(w, flag, ml_arena_printf(w->arena, "%lld", (long long)value));
}

/* The engine must store its weights with the trainer's dtype. */
static const char *dtype_of(const ml_weights *w) {
    int32_t n_f32 = 0, n_matrix = 0;

    for (int32_t i = 0; i < w->n; i++) {
        n_matrix += w->t[i].n_dim > 1;
        n_f32 += w->t[i].n_dim > 1 && w->t[i].dtype == ML_F32;
    }
    return n_f32 == n_matrix ? "f32" : n_f32 == 0 ? "bf16" : "auto";
}

static int64_t share_of_threads(const ml_train_gen *t, const ml_config *c) {
    int64_t share = ml_train_gen_threads(c, true) / t->n_engine;

    return share > 0 ? share : 1;
}

static void serve_words(words *w, const ml_train_gen *t, const ml_config *c,
                        const char *weight_dir, int64_t n_thread) {
    size_t page = ml_kv_bytes(&t->run->spec, &t->be, 1);

    add(w, "miles");
    add(w, "serve");
    add_flag(w, "--model-path", t->run->opts.hf_checkpoint);
    add_flag(w, "--weight-path-prefix", weight_dir);
    if (t->pull.local)
        add(w, t->pull.local);
    add_flag(w, "--host", "127.0.0.1");
    add_flag(w, "--port", "0"); /* the kernel chooses */
    add_flag(w, "--dtype", dtype_of(&t->run->weights));
    add_flag(w, "--device", t->be.name);
    if (c->run.cpu_level)
        add_flag(w, "--cpu-level", c->run.cpu_level);
    add_number(w, "--threads", n_thread);
    add_number(w, "--context-length", t->engine.context);
    add_number(w, "--max-running-requests", t->engine.max_running);
    add_number(w, "--max-queued-requests", MOST_QUEUED);
    add_number(w, "--chunked-prefill-size", t->engine.chunk);
    add_flag(w, "--mem-fraction-static", "1"); /* the memory is divided here, by
                                                  --max-total-tokens */
    add_number(w, "--max-total-tokens", (int64_t)(t->engine.kv_bytes / page) * ML_PAGE);
    if (t->engine.no_prefix_cache)
        add(w, "--disable-radix-cache");
    if (t->engine.no_overlap)
        add(w, "--disable-overlap-schedule");
    if (t->engine.record_rows < 0)
        add(w, "--disable-cuda-graph");
    else
        add_number(w, "--cuda-graph-max-bs", t->engine.record_rows);
    if (t->engine.routed[ML_ROUTING_EXPERTS])
        add(w, "--enable-return-routed-experts");
    if (t->engine.routed[ML_ROUTING_KEYS])
        add(w, "--enable-return-indexer-topk");
}

/* A random key for the engines.  They get it in their environment, which other users
 * cannot read, instead of keys that are meant for other servers. */
static ml_status make_key(ml_supervisor_opts *o, ml_arena *a, ml_err *err) {
    const char **env = ML_NEW(a, const char *, 3);
    ml_secret *key = ML_NEW(a, ml_secret, 1);
    ml_status st = ml_secret_random(key, err);

    env[0] = ml_arena_printf(a, "MILES_API_KEY=%s", key->text);
    env[1] = ml_arena_printf(a, "MILES_ADMIN_API_KEY=%s", key->text);
    o->env = env;
    o->api_key = key->text;
    return st;
}

/* n servers, and a generator over them; they do not have the run's weights yet. */
static ml_status open_supervisor(ml_supervisor **supervisor, ml_gen **gen, ml_train_gen *t,
                                 const ml_config *c, ml_supervisor_opts o, int64_t n_thread,
                                 ml_err *err) {
    const char **url = ML_NEW(&t->arena, const char *, o.n);
    words *w = ML_NEW(&t->arena, words, 1);
    ml_remote_opts remote = { .url = url,
                              .n_url = o.n,
                              .spec = &t->run->spec,
                              .retry_s = ML_TRAIN_RETRY_S,
                              .connect_s = ML_TRAIN_CONNECT_S,
                              .request_s = c->mode.request_s,
                              .warn_s = ML_TRAIN_WARN_S };
    ml_status st;

    st = make_key(&o, &t->arena, err);
    if (st != ML_OK)
        return st;
    remote.api_key = o.api_key;
    w->arena = &t->arena;
    serve_words(w, t, c, o.log_dir, n_thread);
    o.program = PROGRAM;
    o.argv = w->word;
    o.check_s = c->mode.check_s;
    o.timeout_s = c->mode.check_timeout_s;
    o.first_check_s = c->mode.first_check_s;
    st = ml_supervisor_open(supervisor, &o, err);
    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < o.n; i++)
        url[i] = ml_supervisor_url(*supervisor, i);
    st = ml_remote_open(gen, &remote, err);
    if (st == ML_OK)
        ml_supervisor_serve(*supervisor, *gen);
    return st;
}

ml_status ml_train_supervisor_open(ml_train_gen *t, const ml_config *c, ml_err *err) {
    ml_supervisor_opts o = { .log_dir = t->weight_dir,
                             .n = t->n_engine,
                             .restart = c->mode.restart };
    ml_status st =
        open_supervisor(&t->supervisor, &t->gen, t, c, o, share_of_threads(t, c), err);

    if (st != ML_OK)
        ml_err_prefix(err, "--rollout-num-engines");
    return st;
}

/* --- evaluations ------------------------------------------------------------------ */

ml_status ml_train_eval_engines_open(ml_train_gen *t, const ml_config *c, ml_err *err) {
    const char *where =
        c->async_eval.dir ? c->async_eval.dir
                          : ml_arena_printf(&t->arena, "%s/eval_snapshots", c->train.save);
    const char *dir = NULL;
    ml_status st = ml_dir_make_whole(&dir, &t->arena, where, err);
    ml_supervisor_opts supervisor = { .log_dir = dir,
                                      .n = (int32_t)(c->async_eval.n_gpu /
                                                     c->async_eval.per_engine),
                                      .restart = c->mode.restart };
    ml_eval_queue_opts queue = { .evals = &t->evals,
                                 .weights = &t->run->weights,
                                 .observers = &t->run->observers,
                                 .spec = &t->run->spec,
                                 .from = t->run->from,
                                 .dir = dir,
                                 .max_in_flight = (int32_t)c->async_eval.max_in_flight,
                                 .skip = c->async_eval.overflow == 1,
                                 .keep = (int32_t)c->async_eval.keep };

    if (st == ML_OK)
        st = open_supervisor(&t->eval_supervisor, &t->evals.gen_ctx.gen, t, c, supervisor,
                             c->async_eval.per_engine, err);
    if (st == ML_OK)
        st = ml_eval_queue_open(&t->eval_queue, &queue, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--eval-num-gpus");
    return st;
}

void ml_train_eval_engines_close(ml_train_gen *t) {
    if (!t->eval_supervisor)
        return;
    ml_eval_queue_close(t->eval_queue);
    ml_supervisor_serve(t->eval_supervisor, NULL);
    if (t->evals.gen_ctx.gen != t->gen)
        t->evals.gen_ctx.gen->close(t->evals.gen_ctx.gen);
    ml_supervisor_close(t->eval_supervisor);
}
