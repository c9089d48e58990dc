/* config.h - the validated command line.
 *
 * Filled from the flag tables (flag.h) and read by the commands; the flag that points at
 * a field defines its meaning.  Strings point into argv, the environment or `arena`.
 *
 * thread: immutable after parsing. */
#ifndef ML_CLI_CONFIG_H
#define ML_CLI_CONFIG_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "plugin/loop_edges.h"
#include "base/arena.h"
#include "rl/recipe.h"

/* In the order of the words in the flag tables. */
typedef enum ml_dtype_choice {
    ML_DTYPE_AUTO, /* the checkpoint's dtype */
    ML_DTYPE_F32,
    ML_DTYPE_BF16,
    ML_DTYPE_F16,
} ml_dtype_choice;

typedef enum ml_batching {
    ML_BATCH_PACKED,
    ML_BATCH_SINGLE,
    ML_BATCH_TOKENWISE
} ml_batching;

typedef enum ml_load_format { ML_LOAD_AUTO, ML_LOAD_DUMMY } ml_load_format;

/* The values of a flag that takes several. */
typedef struct ml_string_list {
    const char *const *word; /* [n] */
    int n;
} ml_string_list;

/* How weights are transferred to engines in other processes. */
typedef enum ml_transfer {
    ML_TRANSFER_BROADCAST, /* full weights */
    ML_TRANSFER_DISK_DELTA,
    ML_TRANSFER_P2P, /* known, but not supported */
} ml_transfer;

/* How an engine runs its steps on a GPU. */
typedef struct ml_step_flags {
    bool no_overlap, no_record;
    int64_t record_rows;
} ml_step_flags;

/* As ml_engine_opts.record_rows. */
static inline int32_t ml_record_rows(const ml_step_flags *f) {
    return f->no_record ? -1 : (int32_t)f->record_rows;
}

typedef struct ml_config {
    const char *config_path;   /* more flags, as YAML; NULL: none */
    ml_arena arena;            /* strings created by the parser */
    const char *hf_checkpoint; /* the model's directory */
    ml_dtype_choice dtype;
    ml_load_format load_format;
    struct {
        int64_t n_thread;      /* never 0 after parsing */
        const char *cpu_level; /* NULL: the best */
        const char *device;    /* NULL: a GPU if there is one */
        int log_level;         /* ml_log_level */
    } run;
    ml_algo_opts algo;
    struct {
        const char *input, *output; /* safetensors files; output NULL only in a dry run */
        bool logits, grads, entropy, stats, dry_run;
        double temperature;
        ml_batching batching;
    } score;
    struct {
        const char *save_hf;
        int64_t max_shard_bytes; /* 0: keep the sharding */
    } convert;
    struct {
        bool add_special, decode, skip_special;
    } text;
    struct {
        const char *chat_template; /* NULL: the checkpoint's own */
        bool check;
    } chat;
    struct {
        const char *dataset, *output; /* NULL: generated prompts; no file */
        int64_t n_prompt, input_len, output_len, n_warmup, seed;
        double range_ratio;
        /* engine */
        int64_t max_running, chunk;
        double mem_fraction; /* 0: as much as the running requests could use */
        bool no_prefix_cache;
        ml_step_flags steps;
        /* serve */
        const char *base_url, *host;   /* base_url NULL: from host and port */
        int64_t port, max_concurrency; /* max_concurrency 0: no limit */
        double request_rate;           /* 0: all at once */
    } bench;
    struct {
        const char *tokenizer_path, *tool_parser, *weight_version, *model_name;
        const char *host, *sampling_defaults;
        ml_string_list weight_prefix; /* none: the parent of the model directory */
        const char *single;           /* for flags with only one possible value */
        int64_t port, max_body, max_connections, seed;
        int64_t max_in_flight; /* 0: a share of memory */
        int64_t context, max_running, max_queued, chunk, max_total; /* 0: not given */
        double drain_s, mem_fraction;
        bool no_tokenizer, incremental, log_requests, no_prefix_cache, dry_run;
        ml_step_flags steps;
        bool routed_experts, indexer_topk;
    } serve;
    struct {
        const char *api_key, *api_key_file; /* NULL: not given, here and below */
        const char *admin_key, *admin_key_file, *worker_key, *worker_key_file;
        ml_string_list hosts, origins;
        bool insecure;
    } access;
    struct {
        const char *host, *health_path;
        ml_string_list worker_urls;
        int policy; /* ml_route_kind */
        int64_t port, balance_abs, tree_bytes, failure_threshold, success_threshold;
        int64_t max_retries, max_concurrent, max_body; /* max_concurrent -1: no limit */
        double cache_threshold, balance_rel, health_interval_s, health_timeout_s;
        double request_timeout_s, connect_timeout_s;
        bool no_health, no_retries;
    } router;
    struct {
        /* data */
        const char *prompt_data, *input_key, *tool_key, *template_kwargs;
        bool shuffle;
        int64_t rollout_seed;
        /* batches; 0: not given */
        int64_t num_rollout, num_epoch, rollout_batch_size, global_batch_size;
        int64_t max_tokens, micro_batch_size, score_max_tokens;
        bool dynamic, balance, allow_partial, per_token;
        bool dynamic_batch, by_flops, no_trim;
        const char *loss_type, *qkv_format;
        /* optimizer; the enumerations of train/lr.h and train/optimizer.h */
        int optimizer, lr_style, lr_wsd_style, weight_decay_style;
        double lr, min_lr, lr_warmup_init, lr_warmup_fraction;
        int64_t lr_decay_iters, lr_warmup_iters, lr_wsd_decay_iters;
        double weight_decay, start_weight_decay, end_weight_decay;
        double adam_beta1, adam_beta2, adam_eps, sgd_momentum, clip_grad;
        const char *freeze, *offload_dir;
        bool offload_host, offload_states;
        bool check_nan;
        /* memory */
        int granularity, recompute_method; /* ml_granularity; 0 uniform, 1 block */
        int64_t recompute_layers;
        ml_string_list recompute_modules;
        int64_t loss_rows; /* -1: the backend's choice */
        bool recompute_loss, dry_run;
        /* saving; keep_last 0: all, ckpt_step -1: the newest */
        const char *save, *load;
        const char *save_hf;
        int64_t save_interval, keep_last, retain_interval, ckpt_step, start_rollout;
        bool async_save, save_optim, load_optim, finetune, overwrite;
        const char *single; /* for flags with only one possible value */
    } train;
    struct {
        /* architecture in launch scripts; 0 and NaN: not given */
        int64_t n_layer, hidden, ffn, n_head, n_kv_head, head_dim, vocab;
        int64_t n_expert, top_k, moe_ffn, n_group, top_group;
        int64_t q_rank, kv_rank, qk_nope, qk_rope, v_dim;
        int64_t padded_vocab;
        const char *model_name;
        double rope_base, norm_eps;
    } arch;
    struct {
        /* data; 0 and NULL: not given */
        const char *label_key, *metadata_key;
        bool apply_chat_template;
        int64_t n_samples_per_prompt, num_steps_per_rollout;
        /* sampling; top_k -1: all */
        double temperature, top_p;
        int64_t top_k, max_response, max_context, max_prompt;
        ml_string_list stop, stop_ids;
        bool skip_special;
        int64_t over_sampling;
        bool partial, mask_old;
        bool routing_replay, rollout_routing_replay, indexer_replay, rollout_indexer_replay;
        /* the engine */
        int64_t max_running, chunk;
        double mem_fraction;
        bool no_prefix_cache;
        ml_step_flags steps;
        /* evaluation; NaN and 0: as when sampling */
        ml_string_list eval_data;
        const char *eval_config;
        const char *eval_input_key, *eval_label_key, *eval_tool_key;
        int64_t eval_interval, eval_n, eval_top_k, eval_max_response, eval_max_prompt,
            eval_min_new, eval_context;
        double eval_temperature, eval_top_p;
        bool skip_first_eval, log_passrate;
        /* debugging */
        const char *save_debug, *load_debug;
        bool rollout_only, train_only;
    } rollout;
    struct {
        bool async; /* the command is train-async */
        bool fully, colocate;
        bool offload, offload_train, offload_rollout;
        int64_t rollout_threads; /* 0: not given */
        int64_t update_interval;
        int64_t max_stale, max_samples; /* -1: any; 0: those of a rollout */
        double capacity;
        int unused; /* 0: drop, 1: retry */
        bool external;
        ml_string_list addrs;
        const char *engine_key, *engine_key_file; /* of external engines; NULL: none */
        const char *weight_dir;                   /* NULL: next to the saved snapshots */
        int64_t n_engine; /* generating processes started by the run; 0: it generates
                             itself */
        bool restart;
        double check_s, check_timeout_s, first_check_s, request_s;
        int64_t shard_bytes; /* of a file of published weights */
        int transfer;        /* ml_transfer */
        const char *local_dir;
        int delta_encoding, delta_checksum; /* ml_delta_encoding, ml_checksum */
    } mode;
    struct {
        ml_extension_paths path;
        const char *generate, *execute_tool, *plugin; /* NULL: none */
        int64_t max_turns;
        int tool_parser; /* ml_tool_format */
    } extensions;
    struct {
        const char *run;                 /* its directory or run.db */
        int64_t rollout, n_skip, n_most; /* rollout -1: all; n_most 0: all */
        double least, most;              /* NaN: no bound */
        bool truncated, tokens, evals;
        const char *set; /* of evaluations; NULL: all */
    } inspect;
    struct {
        ml_string_list command; /* none: only the machine */
    } doctor;
    struct {
        bool determinism, checksum, weight_sync, check_sync, no_update, env_report;
        bool on_policy, prefill, skip_sync;
        ml_string_list sync_skip;
        int64_t print_every, exit_after, margin;             /* 0: not given */
        const char *sentinel, *dump, *trajectory, *env_vars; /* NULL: not given */
        double subsample, peak_tflops;                       /* NaN; 0: not given */
        bool ci_test, ci_no_kl, ci_no_logprobs, ci_no_sync;
        const char *faults; /* JSON; NULL: none */
        const char *metric, *save_norm, *load_norm, *save_hash, *check_hash;
        double threshold;
    } debug;
    struct {
        /* asynchronous evaluations */
        int64_t n_gpu, per_engine, max_in_flight, keep;
        const char *dir; /* NULL: next to the saved snapshots */
        int overflow;    /* 0: wait, 1: skip */
    } async_eval;
    struct {
        bool enable;
        const char *dir;
        ml_string_list inference, score, train; /* options of each */
    } dump;
    struct {
        /* diagnostics that a run records; NULL: not given */
        const char *train, *events, *memory_dir, *inject;
        bool analyse, coverage, memory, masters;
        int64_t coverage_rows, memory_rollouts, inject_from;
        int recorder; /* ml_memory_view */
        double inject_least;
    } record;
    struct {
        const char *tensorboard, *project, *experiment; /* NULL: not given */
        bool store, profile;
        ml_string_list targets; /* of the profile; none: all */
    } log;
    struct {
        /* models besides the actor; steps -1: the newest, critic_lr NaN: as the actor */
        const char *ref_load, *teacher_load, *critic_load, *critic_save, *opd_type;
        ml_string_list teacher_urls;
        const char *teacher_key, *teacher_key_file; /* NULL: none */
        int64_t ref_step, ref_interval, teacher_step, critic_warmup, critic_only;
        double critic_lr;
        bool keep_old_actor, reset_optimizer, entropy;
        int64_t seed;
    } models;
    struct {
        const char *rm_type, *custom_rm_path, *rm_url, *reward_key,
            *eval_reward_key; /* NULL: not given */
        bool group;
        int64_t n_worker, n_retry, memory_bytes, seed;
        double timeout_s;
    } reward;
} ml_config;

/* The backend that the run computes on. */
static inline ml_backend_opts ml_config_backend(const ml_config *c) {
    return (ml_backend_opts){ .device = c->run.device,
                              .cpu_level = c->run.cpu_level,
                              .n_thread = (int)c->run.n_thread,
                              .f32 = c->dtype == ML_DTYPE_F32 };
}

/* Whether a flag of a critic is given. */
static inline bool ml_config_names_critic(const ml_config *c) {
    return c->models.critic_load || c->models.critic_save || c->models.critic_only ||
           c->models.critic_warmup || !isnan(c->models.critic_lr);
}

/* Whether other processes generate the samples. */
static inline bool ml_config_elsewhere(const ml_config *c) {
    return c->mode.external || c->mode.n_engine > 0;
}

#endif
