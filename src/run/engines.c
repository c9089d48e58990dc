/* Engines in other processes: those that the run starts, and servers that run already. */
#include "run/generator.h"

#include <string.h>

#include "base/bug.h"
#include "base/secret.h"
#include "gen/remote.h"

#define RETRY_S 0.5
#define CONNECT_S 10.0
#define WARN_S 30.0 /* time without a response before a warning */
#define PROGRAM "/proc/self/exe"
#define MOST_QUEUED 1000000 /* the maximum of miles serve; further requests are retried */

/* --- external ----------------------------------------------------------------- */

/* "host:port", or a complete URL. */
static const char *url_of(ml_arena *a, const char *addr) {
    return strstr(addr, "://") ? addr : ml_arena_printf(a, "http://%s", addr);
}

ml_status ml_engines_connect(ml_gen **out, ml_arena *a, const ml_spec *spec,
                             const ml_run_opts *c, ml_err *err) {
    const char **url = ML_NEW(a, const char *, c->mode.addrs.n + 1);
    ml_remote_opts o = { .url = url,
                         .n_url = c->mode.router_ip ? 1 : c->mode.addrs.n,
                         .spec = spec,
                         .adapter = ml_run_has_lora(c) ? ML_TRAINED_ADAPTER : NULL,
                         .retry_s = RETRY_S,
                         .connect_s = CONNECT_S,
                         .request_s = c->mode.request_s,
                         .check_s = c->supervisor.check_s,
                         .check_timeout_s = c->supervisor.timeout_s,
                         .warn_s = WARN_S };
    ml_secret *key = ML_NEW(a, ml_secret, 1);
    ml_status st = ml_secret_find(key, c->mode.engine_key, c->mode.engine_key_file,
                                  "--rollout-external-api-key", err);

    if (st != ML_OK)
        return st;
    o.api_key = ml_secret_text(key);
    for (int i = 0; i < c->mode.addrs.n; i++)
        url[i] = url_of(a, c->mode.addrs.word[i]);
    if (c->mode.router_ip)
        url[0] = ml_arena_printf(a, "http://%s:%d", c->mode.router_ip, c->router.port);
    o.policy = ml_run_router_policy(c);
    st = ml_remote_open(out, &o, err);
    if (st == ML_OK)
        st = ml_remote_check(*out, err);
    if (st != ML_OK)
        ml_err_prefix(err, c->mode.router_ip ? "--sglang-router-ip"
                                             : "--rollout-external-engine-addrs");
    return st;
}

ml_status ml_engines_route(ml_generator *g, const ml_run_opts *c, ml_err *err) {
    const char *dir = c->save ? c->save : g->weight_dir;
    int64_t n = c->mode.n_engine ? c->mode.n_engine : c->mode.addrs.n;
    const char *file = dir ? ml_arena_printf(&g->arena, "%s/router.json", dir) : NULL;
    ml_secret key;
    ml_status st;

    if (c->mode.router_ip || (!g->serves && (!dir || (n < 2 && c->router.port < 0))))
        return ML_OK;
    st = ml_secret_find(&key, c->mode.engine_key, c->mode.engine_key_file,
                        "--rollout-external-api-key", err);
    return st == ML_OK
               ? ml_run_router_open(&g->router, g->gen, c, ml_secret_text(&key), file, err)
               : st;
}

/* --- started by the run ------------------------------------------------------- */

/* A command line under construction. */
typedef struct words {
    ml_arena *arena;
    const char *word[58];
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

static void add_speculative(words *w, const ml_speculative_opts *o) {
    add_flag(w, "--speculative-algorithm", o->algorithm);
    if (o->draft_path)
        add_flag(w, "--speculative-draft-model-path", o->draft_path);
    if (o->n_step)
        add_number(w, "--speculative-num-steps", o->n_step);
    if (o->topk)
        add_number(w, "--speculative-eagle-topk", o->topk);
    if (o->n_token)
        add_number(w, "--speculative-num-draft-tokens", o->n_token);
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

static int64_t share_of_threads(const ml_generator *g, const ml_run_opts *c) {
    int64_t share = ml_generator_threads(c, true) / g->n_engine;

    return share > 0 ? share : 1;
}

static void serve_words(words *w, const ml_generator *g, const ml_run_opts *c,
                        const char *weight_dir, int64_t n_thread) {
    size_t page = ml_kv_bytes(&g->run->spec, &g->be, 1);

    add(w, "miles");
    add(w, "serve");
    add_flag(w, "--model-path", g->run->opts.hf_checkpoint);
    for (int i = 0; i < c->arch.spec.n; i++) {
        if (i == 0)
            add(w, "--spec");
        add(w, c->arch.spec.word[i]);
    }
    add_flag(w, "--weight-path-prefix", weight_dir);
    if (g->copy_dir)
        add(w, g->copy_dir);
    add_flag(w, "--host", "127.0.0.1");
    add_flag(w, "--port", "0"); /* the kernel chooses */
    if (g->run->opts.dtype >= ML_WEIGHT_STORED)
        add_flag(w, "--quantization", ml_weight_dtype_name(g->run->opts.dtype));
    else
        add_flag(w, "--dtype", dtype_of(&g->run->weights));
    if (g->run->opts.kv_dtype != ML_F32)
        add_flag(w, "--kv-cache-dtype", ml_dtype_name(g->run->opts.kv_dtype));
    add_flag(w, "--device", g->be.name);
    if (c->backend.cpu_level)
        add_flag(w, "--cpu-level", c->backend.cpu_level);
    add_number(w, "--threads", n_thread);
    add_number(w, "--context-length", g->engine.context);
    add_number(w, "--max-running-requests", g->engine.max_running);
    add_number(w, "--max-queued-requests", MOST_QUEUED);
    add_number(w, "--chunked-prefill-size", g->engine.chunk);
    add_flag(w, "--mem-fraction-static", "1"); /* the memory is divided here, by
                                                  --max-total-tokens */
    add_number(w, "--max-total-tokens", (int64_t)(g->engine.kv_bytes / page) * ML_PAGE);
    if (c->speculative.algorithm)
        add_speculative(w, &c->speculative);
    if (g->engine.no_prefix_cache)
        add(w, "--disable-radix-cache");
    if (g->engine.no_overlap)
        add(w, "--disable-overlap-schedule");
    if (g->engine.record_rows < 0)
        add(w, "--disable-cuda-graph");
    else
        add_number(w, "--cuda-graph-max-bs", g->engine.record_rows);
    if (ml_run_has_lora(c)) {
        add(w, "--enable-lora");
        add_number(w, "--max-lora-rank", g->run->lora.max_rank);
    }
    if (g->engine.routed[ML_ROUTING_EXPERTS])
        add(w, "--enable-return-routed-experts");
    if (g->engine.routed[ML_ROUTING_KEYS])
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
static ml_status start_engines(ml_supervisor **supervisor, ml_gen **gen, ml_generator *g,
                               const ml_run_opts *c, ml_supervisor_opts o, int64_t n_thread,
                               ml_err *err) {
    const char **url = ML_NEW(&g->arena, const char *, o.n);
    words *w = ML_NEW(&g->arena, words, 1);
    ml_remote_opts remote = { .url = url,
                              .n_url = o.n,
                              .spec = &g->run->spec,
                              .adapter = ml_run_has_lora(c) ? ML_TRAINED_ADAPTER : NULL,
                              .retry_s = RETRY_S,
                              .connect_s = CONNECT_S,
                              .request_s = c->mode.request_s,
                              .warn_s = WARN_S };
    ml_status st;

    st = make_key(&o, &g->arena, err);
    if (st != ML_OK)
        return st;
    remote.api_key = o.api_key;
    w->arena = &g->arena;
    serve_words(w, g, c, o.log_dir, n_thread);
    o.program = PROGRAM;
    o.argv = w->word;
    st = ml_supervisor_open(supervisor, &o, err);
    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < o.n; i++)
        url[i] = ml_supervisor_url(*supervisor, i);
    remote.policy = ml_run_router_policy(c);
    st = ml_remote_open(gen, &remote, err);
    if (st == ML_OK)
        ml_supervisor_serve(*supervisor, *gen);
    return st;
}

ml_status ml_engines_start(ml_generator *g, const ml_run_opts *c, ml_err *err) {
    ml_supervisor_opts o = c->supervisor;
    ml_status st;

    o.log_dir = g->weight_dir;
    o.n = g->n_engine;
    st = start_engines(&g->supervisor, &g->gen, g, c, o, share_of_threads(g, c), err);
    if (st != ML_OK)
        ml_err_prefix(err, "--rollout-num-engines");
    return st;
}

ml_status ml_engines_start_for_evals(ml_supervisor **supervisor, ml_gen **gen,
                                     ml_generator *g, const ml_run_opts *c, const char *dir,
                                     ml_err *err) {
    ml_supervisor_opts o = c->supervisor;

    o.log_dir = dir;
    o.n = (int32_t)(c->eval_gpus / c->eval_gpus_per_engine);
    return start_engines(supervisor, gen, g, c, o, c->eval_gpus_per_engine, err);
}
