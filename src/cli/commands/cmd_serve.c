/* miles serve: serves a model over HTTP. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/commands/drain.h"
#include "cli/commands/serve_adapters.h"
#include "cli/keys.h"
#include "net/handover.h"
#include "comm/device/device_comm.h"
#include "comm/world.h"
#include "gen/local.h"
#include "io/end_tokens.h"
#include "model/spec_shard.h"
#include "base/json_out.h"
#include "plugin/model_family.h"
#include "plugin/python_matcher.h"
#include "run/heartbeat.h"
#include "serve/sampling_params.h"
#include "serve/server.h"

typedef struct serve_job {
    const ml_config *config;
    const char *dir, *tokenizer_dir;
    ml_comm *world; /* of one rank, or the ranks that share the model */
    ml_comm *job;   /* the same, for host memory */
    ml_heartbeat *heartbeat;
    ml_run_ranks hosts; /* where they are */
    ml_spec spec;       /* of this rank */
    ml_backend be;
    ml_tokenizer *tokenizer;
    ml_chat_template *chat;
    ml_end_tokens eos;
    ml_engine_opts engine;
    ml_grammar_cache *grammars;
    ml_sampling_params defaults; /* for OpenAI requests */
    ml_arena arena;
    ml_serve_adapters adapters;
    size_t weight_bytes;
    ml_gen *gen;
    ml_loop *loop;
    ml_server *server;
    ml_text flags;
    ml_drain drain;
    ml_server_keys keys;
    ml_access_opts access;
} serve_job;

/* --- the model -------------------------------------------------------------- */

/* A wait for another rank in a step that takes longer fails. */
#define STEP_DEADLINE_S 600

static ml_status open_ranks(serve_job *j, ml_err *err) {
    long long tp = j->config->serve.tp;
    ml_status st = ml_comm_world(&j->world, err);

    if (!st)
        st = ml_run_ranks_hosts(&j->hosts, j->world, err);
    if (!st)
        st = ml_heartbeat_open(&j->heartbeat, j->world,
                               &(ml_heartbeat_opts){ .deadline_s = STEP_DEADLINE_S }, err);
    if (st)
        return st;
    j->job = j->world;
    if (j->world->size > 1)
        j->hosts.world = j->world = ml_comm_device(j->world);
    j->world->deadline_s = STEP_DEADLINE_S;
    if (j->world->size == tp || (j->config->serve.dry_run && j->world->size == 1))
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "--tp-size is %lld, and the launcher started %d rank%s: start mpirun -n "
                   "%lld miles serve ..., or set --tp-size %d",
                   tp, j->world->size, j->world->size == 1 ? "" : "s", tp, j->world->size);
}

static ml_status open_backend(serve_job *j, ml_err *err) {
    ml_backend_opts o = j->config->run.backend;
    ml_status st;

    o.n_thread = ml_run_ranks_threads(&j->hosts, o.n_thread);
    o.f32 = j->config->run.dtype == ML_WEIGHT_F32;
    st = ml_backend_open(&j->be, &o, err);
    if (j->world->size > 1)
        st = j->world->agree(j->world, st, err);
    return st || j->world->size == 1 ? st
                                     : ml_comm_device_attach(j->world, j->be.stream, err);
}

/* Checks the checkpoint; the spec becomes that of this rank. */
static ml_status check_weights(serve_job *j, ml_err *err) {
    ml_checkpoint *c = NULL;
    ml_weight_dtype dtype = j->config->run.dtype;
    ml_status st = ML_OK;

    if (j->config->load_format != ML_LOAD_DUMMY)
        st = ml_checkpoint_open(&c, j->dir, err);
    if (!st && c)
        st = ml_weights_check(&j->spec, c, err);
    if (!c && dtype == ML_WEIGHT_AUTO)
        dtype = ML_WEIGHT_BF16;
    if (!st)
        st = ml_weights_keep_kv(&j->spec, c, dtype, j->config->run.kv_dtype, err);
    if (!st) {
        if (j->config->serve.dp_attention)
            j->spec.attn_dp = (int32_t)j->config->serve.dp;
        st = ml_serve_adapters_open(&j->adapters, &j->arena, j->config, &j->spec, &j->be,
                                    err);
    }
    if (!st) /* with the ops of adapters */
        st = ml_spec_shard(&j->spec, (int32_t)j->config->serve.tp, j->world->rank, err);
    if (!st)
        j->weight_bytes = ml_weights_bytes(&j->spec, c, dtype);
    ml_checkpoint_close(c);
    return st;
}

/* Without a template the chat endpoint is unavailable; that is logged and not an error. */
static ml_status open_text(serve_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_err why = { 0 };
    ml_status st;

    if (c->serve.no_tokenizer)
        return ML_OK;
    j->tokenizer_dir = c->serve.tokenizer_path ? c->serve.tokenizer_path : j->dir;
    st = ml_tokenizer_open(&j->tokenizer, j->tokenizer_dir, &why);
    if (st)
        return ml_fail(err, st, "%s (to use token ids only, add --skip-tokenizer-init)",
                       why.msg);
    ml_end_tokens_add(&j->eos, ml_tokenizer_role(j->tokenizer, ML_TOKEN_EOS));
    j->grammars = ml_grammar_cache_new(&(ml_grammar_opts){
        .tokenizer = j->tokenizer, .n_vocab = (int32_t)j->spec.n_vocab });
    st = ml_chat_template_open(&j->chat, j->tokenizer_dir, c->run.chat_template, &why);
    if (st && c->run.chat_template) {
        *err = why;
        return st;
    }
    if (st)
        ml_log(ML_LOG_WARN, "/v1/chat/completions is not available: %s", why.msg);
    return ML_OK;
}

/* --- memory ----------------------------------------------------------------- */

/* A GPU's free memory before anything is allocated; for the CPU, this rank's share of the
 * machine's memory. */
static size_t device_bytes(const serve_job *j) {
    const ml_device *dev = j->be.dev;

    if (dev->available)
        return ml_run_ranks_bytes(&j->hosts, dev->available(j->be.dev), false);
    return (size_t)sysconf(_SC_PHYS_PAGES) / (size_t)j->world->local_size *
           (size_t)sysconf(_SC_PAGESIZE);
}

/* The model must have the routing that is to be recorded. */
static ml_status check_routes(const serve_job *j, ml_err *err) {
    bool asked[ML_N_ROUTING] = { j->config->serve.routed_experts,
                                 j->config->serve.indexer_topk };

    for (int i = 0; i < ML_N_ROUTING; i++)
        if (asked[i] && !j->spec.route[i].top_k)
            return ml_fail(
                err, ML_EUSAGE,
                "--enable-return-%s: %s, a model of family %s, has no %s; remove the flag",
                i == ML_ROUTING_EXPERTS ? "routed-experts" : "indexer-topk", j->dir,
                j->spec.family, i == ML_ROUTING_EXPERTS ? "experts" : "indexer");
    return ML_OK;
}

/* Size of the KV cache: at most the rest of the machine's share, --max-total-tokens, and
 * the need of all running answers. */
static ml_status size_engine(serve_job *j, ml_err *err) {
    const ml_config *c = j->config;
    double all = (double)device_bytes(j);
    ml_draft_opts draft;
    ml_status st = ml_speculative_resolve(&draft, &c->run.speculative, c->run.hf_checkpoint,
                                          c->run.dtype, j->world->size > 1, err);
    double slots = (double)ml_engine_slot_bytes(
        &j->spec, &j->be,
        &(ml_engine_opts){ .max_running = (int32_t)c->serve.max_running,
                           .no_prefix_cache = c->serve.no_prefix_cache,
                           .draft = draft });
    double left = c->serve.mem_fraction * all - (double)j->weight_bytes - slots;
    int64_t page = (int64_t)ml_kv_bytes(&j->spec, &j->be, 1);
    int64_t n_page = left > 0 ? (int64_t)(left / (double)page) : 0, most;
    int64_t context = c->serve.context ? c->serve.context : j->spec.max_position;
    int64_t groups = c->serve.dp; /* a rank has the pages of one */

    if (!st)
        st = check_routes(j, err);
    if (st)
        return st;
    st = ml_engine_least(j->world, &n_page, err);
    if (st)
        return st;
    if (c->serve.max_total && n_page > c->serve.max_total / groups / ML_PAGE)
        n_page = c->serve.max_total / groups / ML_PAGE;
    if (n_page < 1)
        return ml_fail(err, ML_ENOMEM,
                       "%g of the machine's %.1f GiB hold the weights (%.1f GiB) but no KV "
                       "cache: increase --mem-fraction-static",
                       c->serve.mem_fraction, all / 0x1p30,
                       (double)j->weight_bytes / 0x1p30);
    if (!c->serve.context && context > n_page * ML_PAGE)
        context = n_page * ML_PAGE;
    most = (c->serve.max_running + groups - 1) / groups * ml_kv_pages_for((int32_t)context);
    n_page = n_page < most ? n_page : most;
    j->engine =
        (ml_engine_opts){ .context = (int32_t)context,
                          .max_running = (int32_t)c->serve.max_running,
                          .max_waiting = (int32_t)c->serve.max_queued,
                          .chunk = (int32_t)c->serve.chunk,
                          .max_adapters =
                              j->adapters.on ? (int32_t)c->serve.lora.per_batch : 0,
                          .max_top = ML_MAX_TOP,
                          .kv_bytes = (size_t)(n_page * page),
                          .no_prefix_cache = c->serve.no_prefix_cache,
                          .no_overlap = c->serve.steps.no_overlap,
                          .record_rows = ml_record_rows(&c->serve.steps),
                          .routed = { c->serve.routed_experts, c->serve.indexer_topk },
                          .draft = draft,
                          .eos = j->eos.id,
                          .n_eos = j->eos.n,
                          .tokenizer = j->tokenizer,
                          .grammars = j->grammars,
                          .comm = j->world->size > 1 ? j->world : NULL };
    return ML_OK;
}

static ml_status print_plan(serve_job *j, ml_err *err) {
    ml_engine_memory m = { 0 };
    ml_status st = ml_engine_measure(&m, &j->spec, &j->be, &j->engine, err);
    struct {
        const char *what;
        size_t bytes;
    } row[] = { { "weights", j->weight_bytes },
                { "KV pages", m.kv },
                { "activations", m.act },
                { "scratch", m.scratch },
                { "routing", m.routing_record },
                { "total", j->weight_bytes + m.kv + m.act + m.scratch + m.routing_record },
                { "requests", m.requests } };

    if (st)
        return st;
    if (j->world->rank > 0)
        return ML_OK;
    printf("memory plan of %s, %lld parameters", j->spec.family,
           (long long)ml_spec_param_count(&j->spec));
    if (j->spec.n_rank)
        printf(", on each of %d ranks", j->spec.n_rank);
    printf(":\n");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].bytes)
            printf("  %-12s %12.3f MiB\n", row[i].what, (double)row[i].bytes / 0x1p20);
    printf("context length %d, KV cache of %d tokens, %d running requests\n",
           (int)j->engine.context, (int)(m.n_page * ML_PAGE), (int)j->engine.max_running);
    return ML_OK;
}

/* --- the server ------------------------------------------------------------- */

static ml_tool_format tool_format(const ml_config *c) {
    if (!c->serve.tool_parser)
        return ML_TOOLS_NONE;
    return ml_tool_format_find(c->serve.tool_parser);
}

/* --sampling-defaults */
static ml_status read_defaults(serve_job *j, ml_err *err) {
    ml_sampling_params_init(&j->defaults);
    if (strcmp(j->config->serve.sampling_defaults, "openai") == 0)
        return ML_OK;
    return ml_sampling_params_defaults(&j->defaults, j->dir, err);
}

static size_t in_flight_bytes(const ml_config *c) {
    if (c->serve.max_in_flight)
        return (size_t)c->serve.max_in_flight;
    return (size_t)sysconf(_SC_PHYS_PAGES) / 4 * (size_t)sysconf(_SC_PAGESIZE);
}

static const char *model_name(const serve_job *j) {
    return j->config->serve.model_name ? j->config->serve.model_name : j->dir;
}

/* The flags in /server_info, by SGLang's names. */
static void write_flags(serve_job *j) {
    const ml_config *c = j->config;
    ml_json_out o = { .to = &j->flags };

    ml_json_put_word(&o, "model_path", j->dir);
    ml_json_put_word(&o, "tokenizer_path", j->tokenizer_dir);
    ml_json_put_word(&o, "served_model_name", model_name(j));
    ml_json_put_word(&o, "host", c->server.host);
    ml_json_put_int(&o, "port", c->server.port);
    ml_json_put_word(&o, "dtype",
                     c->quantization ? "auto" : ml_weight_dtype_name(c->run.dtype));
    ml_json_put_word(&o, "quantization",
                     c->quantization ? ml_weight_dtype_name(c->run.dtype) : NULL);
    ml_json_put_word(&o, "load_format", c->load_format == ML_LOAD_DUMMY ? "dummy" : "auto");
    ml_json_put_word(&o, "tool_call_parser", c->serve.tool_parser);
    ml_json_put_word(&o, "reasoning_parser", c->serve.reasoning_parser);
    ml_json_put_word(&o, "weight_version", c->server.weight_version);
    ml_json_put_word(&o, "sampling_defaults", c->serve.sampling_defaults);
    ml_json_put_bool(&o, "skip_tokenizer_init", c->serve.no_tokenizer);
    ml_json_put_bool(&o, "disable_radix_cache", c->serve.no_prefix_cache);
    ml_json_put_bool(&o, "disable_overlap_schedule", c->serve.steps.no_overlap);
    ml_json_put_bool(&o, "disable_cuda_graph", c->serve.steps.no_record);
    ml_json_put_int(&o, "cuda_graph_max_bs", c->serve.steps.record_rows);
    ml_json_put_bool(&o, "enable_return_routed_experts", c->serve.routed_experts);
    ml_json_put_bool(&o, "enable_return_indexer_topk", c->serve.indexer_topk);
    ml_json_put_bool(&o, "enable_deterministic_inference", true);
    ml_json_put_bool(&o, "enable_lora", j->adapters.on);
    ml_json_put_int(&o, "max_lora_rank", j->adapters.limits.max_rank);
    ml_json_put_int(&o, "max_loras_per_batch", c->serve.lora.per_batch);
    ml_json_put_int(&o, "max_loaded_loras", c->serve.lora.max_loaded);
    ml_json_put_int(&o, "context_length", j->engine.context);
    ml_json_put_int(&o, "max_running_requests", j->engine.max_running);
    ml_json_put_int(&o, "max_queued_requests", j->engine.max_waiting);
    ml_json_put_int(&o, "chunked_prefill_size", j->engine.chunk);
    ml_json_put_int(&o, "random_seed", (int64_t)c->server.seed);
    ml_json_put_int(&o, "page_size", ML_PAGE);
    ml_json_put_int(&o, "tp_size", c->serve.tp);
    ml_json_put_int(&o, "dp_size", c->serve.dp);
    ml_json_put_bool(&o, "enable_dp_attention", c->serve.dp_attention);
    ml_json_put_int(&o, "pp_size", 1);
    ml_json_put_int(&o, "ep_size", 1);
    ml_json_put_int(&o, "nnodes", 1);
    ml_json_put_word(&o, "device", j->be.name);
    ml_json_put_word(&o, "cpu_level", j->be.level);
    ml_json_put_int(&o, "threads", j->be.n_thread);
    ml_json_key(&o, "mem_fraction_static");
    ml_json_double(&o, c->serve.mem_fraction);
}

/* The longest input of an embedding: a forward pass has memory for it. */
static int32_t embed_tokens(const serve_job *j) {
    enum { MOST = 8192 };

    if (!j->config->serve.is_embedding)
        return 0;
    return j->engine.context < MOST ? j->engine.context : MOST;
}

static bool is_true(const ml_json *doc, const char *key) {
    const ml_json *v = ml_json_get(doc, key);
    return v && v->type == ML_JSON_TRUE;
}

/* As sentence-transformers saves it; without the file, the last token. */
static ml_status read_pooling(const serve_job *j, ml_pooling *out, ml_err *err) {
    const char *path;
    const ml_json *doc = NULL;
    ml_file file = { 0 };
    ml_status st = ML_OK;
    ml_arena a;

    *out = ML_POOL_LAST;
    if (j->config->serve.is_embedding && j->config->serve.tp > 1)
        return ml_fail(err, ML_EUNSUP,
                       "--is-embedding needs --tp-size 1: embeddings are computed by one "
                       "rank");
    ml_arena_init(&a, "pooling");
    path = ml_arena_printf(&a, "%s/1_Pooling/config.json", j->dir);
    if (j->config->serve.is_embedding && access(path, F_OK) == 0) {
        st = ml_file_map(&file, path, err);
        if (st == ML_OK)
            st = ml_json_parse(&doc, &a, file.bytes, path, err);
        if (st == ML_OK && is_true(doc, "pooling_mode_mean_tokens"))
            *out = ML_POOL_MEAN;
        else if (st == ML_OK && !is_true(doc, "pooling_mode_lasttoken"))
            st = ml_fail(err, ML_EUNSUP,
                         "%s selects another pooling than pooling_mode_lasttoken or "
                         "pooling_mode_mean_tokens: this model's embeddings are not "
                         "supported",
                         path);
        ml_file_unmap(&file);
    }
    ml_arena_release(&a);
    return st;
}

/* A numeric --weight-version is the version itself; other texts start at version 0. */
static ml_status open_gen(serve_job *j, ml_err *err) {
    ml_local_opts o = { .engine = j->engine,
                        .spec = &j->spec,
                        .be = &j->be,
                        .dir = j->config->load_format == ML_LOAD_DUMMY ? NULL : j->dir,
                        .dtype = j->config->run.dtype,
                        .seed = j->config->server.seed,
                        .lora = j->adapters.on ? &j->adapters.limits : NULL,
                        .embed_tokens = embed_tokens(j) };
    ml_status st = ml_weight_version_read(&o.version,
                                          ml_str_of(j->config->server.weight_version), err);

    if (st)
        return st;
    return j->world->rank ? ml_local_follow(&o, err) : ml_local_open(&j->gen, &o, err);
}

/* The other ranks work until the first one closes its generator: signals concern it. */
static ml_status follow(serve_job *j, ml_err *err) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    return open_gen(j, err);
}

static ml_status open_server(serve_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_server_opts o = c->server;
    ml_status st;

    o.access = j->access;
    o.gen = j->gen;
    o.memory.release = ml_local_release;
    o.memory.take = ml_local_take;
    o.group = ml_local_group_do;
    if (j->adapters.on)
        o.lora = (ml_server_lora){ .set = ml_local_set_adapter,
                                   .adapter = j->adapters.list,
                                   .n = j->adapters.n,
                                   .max_loaded = (int32_t)c->serve.lora.max_loaded };
    o.tokenizer = j->tokenizer;
    o.grammars = j->grammars;
    o.chat = j->chat;
    o.tools = tool_format(c);
    o.reasoning =
        c->serve.reasoning_parser ? ml_reasoning_find(c->serve.reasoning_parser) : NULL;
    st = ml_session_opts_make(&o.sessions, &j->arena, c->run.sessions.kind,
                              c->run.sessions.matcher, ml_python_matcher_run,
                              c->run.sessions.tito, NULL, err);
    if (st == ML_OK && o.sessions.on && o.sessions.matcher == ML_MATCH_FUNCTION)
        st = ml_python_matcher_open(c->run.sessions.matcher, c->run.reward.args, err);
    if (st != ML_OK)
        return st;
    st = read_pooling(j, &o.pooling, err);
    if (st != ML_OK)
        return st;
    o.embed = c->serve.is_embedding ? ml_local_embed : NULL;
    o.embed_tokens = embed_tokens(j);
    o.n_hidden = (int32_t)j->spec.n_hidden;
    o.n_vocab = (int32_t)j->spec.n_vocab;
    o.context = j->engine.context;
    o.model_path = j->dir;
    o.tokenizer_path = j->tokenizer_dir;
    o.model_name = model_name(j);
    o.model_type = j->spec.family;
    o.load_format = c->load_format == ML_LOAD_DUMMY ? "dummy" : "auto";
    o.weight_root = c->serve.weight_prefix.word;
    o.n_weight_root = c->serve.weight_prefix.n;
    o.version = ML_VERSION;
    o.defaults = &j->defaults;
    o.max_in_flight = in_flight_bytes(c);
    write_flags(j);
    o.flags = (ml_str){ j->flags.ptr, j->flags.len };
    return ml_server_open(&j->server, j->loop, &o, err);
}

static void warn_of_few_files(const serve_job *j) {
    int asked = j->config->server.max_connections;
    int accepted = ml_server_max_connections(j->server);

    if (accepted < asked)
        ml_log(ML_LOG_WARN,
               "this process may have too few files open for --max-connections %d: at most "
               "%d connections are accepted; raise the limit (ulimit -n, LimitNOFILE)",
               asked, accepted);
}

static void drain(void *ud) {
    serve_job *j = ud;
    ml_server_drain(j->server);
}

static ml_status run_server(serve_job *j, ml_err *err) {
    ml_status st;

    if (j->world->rank)
        return follow(j, err);
    st = ml_loop_new(&j->loop, err);
    if (!st)
        st = open_gen(j, err);
    if (!st)
        st = open_server(j, err);
    if (!st)
        warn_of_few_files(j);
    if (!st)
        st = ml_drain_on_signals(&j->drain, j->loop, drain, j, err);
    if (!st)
        st = ml_server_keys_on_hangup(&j->keys, j->loop, err);
    if (st)
        return st;
    printf("serving %s at %s://%s:%d\n", model_name(j), ml_server_scheme(&j->keys),
           j->config->server.host, ml_server_port(j->server));
    fflush(stdout);
    ml_loop_run(j->loop);
    return ML_OK;
}

static ml_status open_model(serve_job *j, ml_err *err) {
    ml_status st = ml_model_open(&j->spec, j->dir, j->config->run.arch.spec.word,
                                 j->config->run.arch.spec.n, err);

    if (!st)
        st = ml_end_tokens_read(&j->eos, j->dir, err);
    if (!st)
        st = open_text(j, err);
    if (!st)
        st = read_defaults(j, err);
    if (!st)
        st = open_backend(j, err);
    if (!st)
        st = check_weights(j, err);
    return st ? st : size_engine(j, err);
}

/* Reports errors in keys and addresses before weights are read. */
static ml_status read_access(serve_job *j, ml_err *err) {
    ml_access probe;
    static const bool may[ML_N_LIMIT] = { true, true, true };
    ml_status st = ml_access_of(&j->access, &j->keys, j->config, may, err);

    if (!st && j->config->server.handover)
        st = ml_handover_check(j->config->server.handover, err);
    return st ? st : ml_access_init(&probe, j->config->server.host, &j->access, err);
}

ml_status ml_cmd_serve(const ml_config *c, ml_err *err) {
    serve_job j = { .config = c, .dir = c->run.hf_checkpoint };
    ml_status st = read_access(&j, err);
    bool tells;

    ml_arena_init(&j.arena, "miles serve");
    if (!st)
        st = open_ranks(&j, err);
    if (!st) {
        st = open_model(&j, err);
        st = j.world->agree(j.world, st, err);
    }
    if (!st)
        st = c->serve.dry_run ? print_plan(&j, err) : run_server(&j, err);
    if (st && j.world) /* the others do not wait for this rank */
        (void)j.world->agree(j.world, st, err);
    if (j.gen)
        j.gen->close(j.gen);
    ml_server_close(j.server);
    ml_python_matcher_close();
    if (j.loop)
        ml_loop_free(j.loop);
    ml_server_keys_release(&j.keys);
    ml_text_release(&j.flags);
    ml_chat_template_close(j.chat);
    ml_grammar_cache_free(j.grammars);
    ml_tokenizer_close(j.tokenizer);
    if (j.be.name && j.world->size > 1)
        ml_comm_device_detach(j.world);
    if (j.be.name)
        ml_backend_close(&j.be);
    ml_spec_close(&j.spec);
    ml_arena_release(&j.arena);
    if (!j.world)
        return st;
    ml_heartbeat_close(j.heartbeat);
    tells = j.world->rank == 0 || ml_comm_first_silent(j.job);
    j.world->close(j.world);
    return st == ML_EPEER && !tells ? ML_OK : st; /* another rank says why */
}
