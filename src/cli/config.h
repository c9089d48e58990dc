/* config.h - the validated command line.
 *
 * Filled from the flag tables (flag.h) and read by the commands; the flag that points at
 * a field defines its meaning.  Strings point into argv, the environment or `arena`.
 *
 * thread: immutable after parsing. */
#ifndef ML_CLI_CONFIG_H
#define ML_CLI_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/sandbox.h"
#include "dash/dash.h"
#include "run/opts.h"
#include "serve/router.h"
#include "serve/server.h"

/* In the order of the words in the flag tables. */
typedef enum ml_dtype_choice {
    ML_DTYPE_AUTO, /* the checkpoint's dtype */
    ML_DTYPE_F32,
    ML_DTYPE_BF16,
    ML_DTYPE_F16,
    ML_DTYPE_QUANTIZED, /* and from here on: the formats of ml_quant_to, from its first */
    ML_DTYPE_Q8_0 = ML_DTYPE_QUANTIZED + 9, /* of GGUF files */
} ml_dtype_choice;

typedef enum ml_batching {
    ML_BATCH_PACKED,
    ML_BATCH_SINGLE,
    ML_BATCH_TOKENWISE
} ml_batching;

/* --rollout-quantization auto, after `none` and the formats. */
enum { ML_ROLLOUT_AUTO = 6 };

typedef enum ml_load_format { ML_LOAD_AUTO, ML_LOAD_DUMMY } ml_load_format;

typedef struct ml_config {
    const char *config_path; /* more flags, as YAML; NULL: none */
    ml_arena arena;          /* strings created by the parser */
    ml_run_opts run;
    ml_load_format load_format;
    int dtype; /* of --dtype: ml_weight_dtype */
    /* 0: none; others count from ML_WEIGHT_STORED, ML_WEIGHT_FP8 and ML_WEIGHT_QAT. */
    int quantization, rollout_quantization, fake_quantization;
    int kv_cache; /* of --kv-cache-dtype */
    const char *fp8_format, *fp8_recipe;
    bool fp8_backward;
    int log_level; /* ml_log_level */
    bool chat_check;
    int64_t reward_seed;
    const char *loss_type, *qkv_format;
    bool gradient_checkpointing, freeze_gate, precision_aware;
    const char *pause_mode;
    const char *single; /* for flags with only one possible value */
    struct {
        const char *input, *output; /* safetensors files; output NULL only in a dry run */
        bool logits, grads, entropy, mtp, stats, dry_run;
        double temperature;
        ml_batching batching;
        const char *lora_adapter_path; /* one adapter for all sequences */
        ml_string_list lora_paths;     /* NAME=DIR */
    } score;
    struct {
        const char *save_hf, *save_gguf; /* one of them */
        int dtype;                       /* ml_dtype_choice, or a quantization */
        int64_t max_shard_bytes;         /* 0: keep the sharding */
        const char *lora_adapter_path;   /* merged into the weights; NULL: none */
    } convert;
    struct {
        ml_sandbox_opts opts;
        int64_t code_bytes; /* of standard input; 0: all */
    } sandbox;
    struct {
        bool add_special, decode, skip_special;
    } text;
    struct {
        const char *dataset, *output; /* NULL: generated prompts; no file */
        int64_t n_prompt, input_len, output_len, n_warmup, seed;
        double range_ratio;
        /* engine */
        int64_t max_running, chunk, tp;
        double mem_fraction; /* 0: as much as the running requests could use */
        bool no_prefix_cache;
        ml_step_flags steps;
        /* serve */
        const char *base_url, *host;   /* base_url NULL: from host and port */
        int64_t port, max_concurrency; /* max_concurrency 0: no limit */
        double request_rate;           /* 0: all at once */
    } bench;
    struct {
        const char *tokenizer_path, *tool_parser, *reasoning_parser, *model_name,
            *sampling_defaults;
        ml_string_list weight_prefix; /* none: the parent of the model directory */
        struct {
            bool enable;
            ml_string_list paths, targets; /* targets: none: all */
            int64_t max_rank, per_batch, max_loaded;
        } lora;
        int64_t max_in_flight; /* 0: a share of memory */
        int64_t context, max_running, max_queued, chunk, max_total; /* 0: not given */
        int64_t tp, dp; /* ranks; DP groups of attention, if dp_attention */
        bool dp_attention;
        double mem_fraction;
        bool no_tokenizer, no_prefix_cache, dry_run, is_embedding;
        ml_step_flags steps;
        bool routed_experts, indexer_topk;
    } serve;
    ml_server_opts server;
    struct {
        const char *dir, *model_name; /* model_name NULL: the model's path */
        int64_t max_rank, n_loaded, max_tokens, context, max_running, max_total, chunk;
        double alpha, mem_fraction, session_s;
    } tinker;
    struct {
        const char *api_key, *api_key_file; /* NULL: not given, here and below */
        const char *admin_key, *admin_key_file, *worker_key, *worker_key_file;
        ml_string_list hosts, origins;
        bool insecure;
        int64_t limit[ML_N_LIMIT]; /* of each key */
        const char *access_log;    /* NULL: none */
        int64_t access_log_bytes;  /* 0: not rotated */
        const char *tls_cert, *tls_key, *tls_password, *tls_client_ca;
    } access;
    ml_string_list ft_components; /* of --use-fault-tolerance */
    int live_view;                /* ml_live_view */
    ml_router_opts router;        /* max_concurrent -1: no limit */
    ml_string_list worker_urls;
    bool no_health, no_retries;
    ml_dash_opts dash;
    ml_string_list dash_runs;
    struct {
        const char *run;                 /* its directory or run.db */
        int64_t rollout, n_skip, n_most; /* rollout -1: all; n_most 0: all */
        double least, most;              /* NaN: no bound */
        bool truncated, tokens, evals;
        const char *set; /* of evaluations; NULL: all */
    } inspect;
    struct {
        const char *path;       /* of the data: io/table.h */
        ml_string_list columns; /* none: all */
    } data;
    struct {
        ml_string_list command; /* none: only the machine */
    } doctor;
    struct {
        const char *kind;      /* of the GPUs: run/speeds.h */
        int64_t sample_tokens; /* 0: not given */
        int64_t n_result;
        bool search, json;
    } plan;
} ml_config;

#endif
