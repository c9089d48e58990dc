/* miles tinker: a training service for the Tinker SDK. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/commands/drain.h"
#include "cli/keys.h"
#include "engine/engine.h"
#include "gen/local.h"
#include "io/end_tokens.h"
#include "plugin/model_family.h"
#include "tinker/tinker.h"

#define MAX_WAITING (1 << 20) /* clients queue whole batches */

typedef struct tinker_job {
    const ml_config *config;
    const char *dir;
    ml_spec spec;
    ml_checkpoint *from;
    ml_backend train, engine; /* one for each thread that computes */
    ml_tokenizer *tokenizer;
    ml_end_tokens eos;
    ml_lora_limits limits;
    ml_weights base, view; /* view: the same memory, with the adapters of the generator */
    const ml_lora_site **site;
    ml_lora_table table;
    ml_engine_opts opts;
    ml_gen *gen;
    ml_loop *loop;
    ml_tinker *tinker;
    ml_drain drain;
    ml_server_keys keys;
    ml_access_opts access;
    ml_arena arena;
} tinker_job;

static const char *model_name(const tinker_job *j) {
    return j->config->tinker.model_name ? j->config->tinker.model_name : j->dir;
}

/* --- the model -------------------------------------------------------------- */

static ml_status open_backends(tinker_job *j, ml_err *err) {
    ml_backend_opts o = j->config->run.backend;
    ml_status st;

    o.f32 = j->config->run.dtype == ML_WEIGHT_F32;
    st = ml_backend_open(&j->train, &o, err);
    if (!st)
        st = ml_backend_open(&j->engine, &o, err);
    if (!st && !j->train.ops->forward[ML_OP_LORA])
        st = ml_fail(err, ML_EUNSUP,
                     "miles tinker: the backend %s does not compute adapters yet; use "
                     "--device cpu",
                     j->train.name);
    return st;
}

/* Every linear layer may be adapted, by adapters of any rank up to the limit. */
static ml_status open_adapters(tinker_job *j, ml_err *err) {
    int32_t n_site, n = (int32_t)j->config->tinker.n_loaded;
    bool *wanted;
    ml_status st;

    ml_spec_lora_layers(&j->spec, &j->arena, &n_site);
    wanted = ML_NEW(&j->arena, bool, n_site + 1);
    st = ml_lora_targets(&j->spec, "all-linear", "target-modules", wanted, err);
    if (st)
        return st;
    j->limits = (ml_lora_limits){ .wanted = wanted,
                                  .max_rank = (int32_t)j->config->tinker.max_rank };
    ml_spec_lora_insert(&j->spec, wanted, j->limits.max_rank);
    j->site = ML_NEW(&j->arena, const ml_lora_site *, n);
    j->table = (ml_lora_table){ .adapter = j->site, .n_adapter = n };
    return ML_OK;
}

static ml_status open_model(tinker_job *j, ml_err *err) {
    ml_weight_dtype dtype = j->config->run.dtype;
    ml_status st = ml_model_open(&j->spec, j->dir, j->config->run.arch.spec.word,
                                 j->config->run.arch.spec.n, err);

    if (!st)
        st = ml_checkpoint_open(&j->from, j->dir, err);
    if (!st)
        st = ml_weights_check(&j->spec, j->from, err);
    if (!st)
        st = ml_weights_keep_kv(&j->spec, j->from, dtype, j->config->run.kv_dtype, err);
    if (!st)
        st = ml_end_tokens_read(&j->eos, j->dir, err);
    if (!st)
        st = ml_tokenizer_open(&j->tokenizer, j->dir, err);
    if (!st)
        st = open_backends(j, err);
    if (!st)
        st = open_adapters(j, err);
    if (!st)
        st = ml_weights_load(&j->base, &j->spec, j->from, dtype, &j->train, &j->arena, err);
    if (st)
        return st;
    ml_end_tokens_add(&j->eos, ml_tokenizer_role(j->tokenizer, ML_TOKEN_EOS));
    j->view = j->base;
    j->view.lora = &j->table;
    return ML_OK;
}

/* --- the generator ---------------------------------------------------------- */

static double memory_bytes(const tinker_job *j) {
    const ml_device *dev = j->engine.dev;

    if (dev->available) /* the weights are loaded: they count, too */
        return (double)dev->available(j->engine.dev) + (double)j->base.buf.bytes;
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

/* The KV cache: what the share of memory leaves, or all that running samples could use. */
static ml_status size_engine(tinker_job *j, ml_err *err) {
    const ml_config *c = j->config;
    double all = memory_bytes(j);
    double left = c->tinker.mem_fraction * all - (double)j->base.buf.bytes;
    int64_t page = (int64_t)ml_kv_bytes(&j->spec, &j->engine, 1);
    int64_t n = left > 0 ? (int64_t)(left / (double)page) : 0, most;
    int64_t context = c->tinker.context ? c->tinker.context : j->spec.max_position;

    if (c->tinker.max_total && n > c->tinker.max_total / ML_PAGE)
        n = c->tinker.max_total / ML_PAGE;
    if (n < 1)
        return ml_fail(err, ML_ENOMEM,
                       "%g of the machine's %.1f GiB hold the weights (%.1f GiB) but no KV "
                       "cache: increase --mem-fraction-static",
                       c->tinker.mem_fraction, all / 0x1p30,
                       (double)j->base.buf.bytes / 0x1p30);
    if (context > n * ML_PAGE)
        context = n * ML_PAGE;
    most = c->tinker.max_running * ml_kv_pages_for((int32_t)context);
    j->opts = (ml_engine_opts){ .context = (int32_t)context,
                                .max_running = (int32_t)c->tinker.max_running,
                                .max_waiting = MAX_WAITING,
                                .chunk = (int32_t)c->tinker.chunk,
                                .max_top = ML_MAX_TOP,
                                .kv_bytes = (size_t)((n < most ? n : most) * page),
                                .eos = j->eos.id,
                                .n_eos = j->eos.n,
                                .tokenizer = j->tokenizer };
    return ML_OK;
}

static ml_status open_gen(tinker_job *j, ml_err *err) {
    ml_status st = size_engine(j, err);

    return st ? st
              : ml_local_open(&j->gen,
                              &(ml_local_opts){ .engine = j->opts,
                                                .spec = &j->spec,
                                                .be = &j->engine,
                                                .weights = &j->view },
                              err);
}

/* --- the server ------------------------------------------------------------- */

static ml_status open_server(tinker_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_tinker_opts o = { .host = c->server.host,
                         .port = c->server.port,
                         .access = j->access,
                         .max_body = c->server.max_body,
                         .max_connections = c->server.max_connections,
                         .dir = c->tinker.dir,
                         .model = model_name(j),
                         .arch = j->spec.family,
                         .slots = { .spec = &j->spec,
                                    .limits = j->limits,
                                    .base = &j->base,
                                    .from = j->from,
                                    .be = &j->train,
                                    .max_tokens = c->tinker.max_tokens },
                         .alpha = c->tinker.alpha,
                         .context = j->opts.context,
                         .gen = j->gen,
                         .site = j->site,
                         .n_site = j->table.n_adapter,
                         .seed = c->server.seed,
                         .session_s = c->tinker.session_s };

    j->gen = NULL; /* the server closes it */
    return ml_tinker_open(&j->tinker, j->loop, &o, err);
}

static void drain(void *ud) {
    tinker_job *j = ud;
    ml_tinker_drain(j->tinker);
}

static ml_status run(tinker_job *j, ml_err *err) {
    ml_access probe;
    ml_status st = ml_access_of(&j->access, &j->keys, j->config,
                                (const bool[ML_N_LIMIT]){ false }, err);

    if (!st)
        st = ml_access_init(&probe, j->config->server.host, &j->access, err);
    if (!st)
        st = open_model(j, err);
    if (!st)
        st = ml_loop_new(&j->loop, err);
    if (!st)
        st = open_gen(j, err);
    if (!st)
        st = open_server(j, err);
    if (!st)
        st = ml_drain_on_signals(&j->drain, j->loop, drain, j, err);
    if (st)
        return st;
    printf("training %s at %s://%s:%d\n", model_name(j), ml_server_scheme(&j->keys),
           j->config->server.host, ml_tinker_port(j->tinker));
    fflush(stdout);
    ml_loop_run(j->loop);
    return ML_OK;
}

ml_status ml_cmd_tinker(const ml_config *c, ml_err *err) {
    tinker_job j = { .config = c, .dir = c->run.hf_checkpoint };
    ml_status st;

    ml_arena_init(&j.arena, "miles tinker");
    st = run(&j, err);
    ml_tinker_close(j.tinker);
    if (j.gen)
        j.gen->close(j.gen);
    if (j.loop)
        ml_loop_free(j.loop);
    ml_server_keys_release(&j.keys);
    ml_weights_close(&j.base);
    ml_tokenizer_close(j.tokenizer);
    ml_checkpoint_close(j.from);
    if (j.engine.name)
        ml_backend_close(&j.engine);
    if (j.train.name)
        ml_backend_close(&j.train);
    ml_spec_close(&j.spec);
    ml_arena_release(&j.arena);
    return st;
}
