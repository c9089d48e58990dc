/* opts.h - the options of a run.  Flags write into them, and into the options of the
 * modules that they contain: the flag that points at a field defines its meaning.
 *
 * thread: immutable after parsing; a run has its own copy. */
#ifndef ML_RUN_OPTS_H
#define ML_RUN_OPTS_H

#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "engine/engine.h"
#include "gen/supervisor.h"
#include "io/delta_writer.h"
#include "rl/data/data_source.h"
#include "rl/env/turns.h"
#include "rl/eval/eval_queue.h"
#include "rl/hooks.h"
#include "rl/learn/advantage/opd.h"
#include "rl/loop/invariants.h"
#include "rl/recipe.h"
#include "rl/record/run_log.h"
#include "rl/reward/rewards.h"
#include "run/extensions.h"
#include "run/run_dash.h"
#include "run/run_ranks.h"
#include "run/trackers.h"
#include "serve/router.h"
#include "train/snapshot.h"
#include "train/trainer.h"

/* The values of a flag that takes several. */
typedef struct ml_string_list {
    const char *const *word; /* [n] */
    int n;
} ml_string_list;

/* How weights are transferred to engines in other processes. */
typedef enum ml_transfer {
    ML_TRANSFER_BROADCAST, /* over TCP */
    ML_TRANSFER_DISK_DELTA,
    ML_TRANSFER_P2P,
    ML_TRANSFER_DISK,
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

/* The architecture in launch scripts; 0 and NaN: not given. */
typedef struct ml_arch_flags {
    int64_t n_layer, hidden, ffn, n_head, n_kv_head, head_dim, vocab;
    int64_t n_expert, top_k, moe_ffn, n_group, top_group;
    int64_t q_rank, kv_rank, qk_nope, qk_rope, v_dim;
    int64_t padded_vocab;
    const char *model_name;
    ml_string_list spec; /* module and function of Miles' layers; none: not given */
    double rope_base, norm_eps;
} ml_arch_flags;

/* Speculative decoding, in SGLang's flags. */
typedef struct ml_speculative_opts {
    const char *algorithm;         /* NULL: plain decoding */
    const char *draft_path;        /* NULL: not given */
    int64_t n_step, topk, n_token; /* 0: not given */
} ml_speculative_opts;

/* Multi-token prediction layers. */
typedef struct ml_mtp_opts {
    int64_t n_layer; /* 0: not given */
    bool train;
    double factor; /* of their loss */
    bool head;     /* train the EAGLE-3 head of ml_speculative_opts.draft_path */
} ml_mtp_opts;

/* The engine's drafts; dir is the model's directory.  Drafts of a network need an engine of
 * one rank: several ranks look tokens up instead, and a warning says so. */
ml_status ml_speculative_resolve(ml_draft_opts *out, const ml_speculative_opts *o,
                                 const char *dir, ml_weight_dtype dtype, bool several,
                                 ml_err *err);

typedef struct ml_rollout_opts {
    /* sampling; top_k -1: all */
    double temperature, top_p;
    int64_t top_k, max_response, max_context, max_prompt; /* 0: no limit */
    ml_string_list stop, stop_ids;
    bool skip_special;
    int64_t over_sampling;
    bool partial, mask_old;
    bool routing_replay, rollout_routing_replay, indexer_replay, rollout_indexer_replay;
    /* the engine */
    double mem_fraction;
    int64_t max_total; /* tokens of the KV cache; 0: not given */
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
} ml_rollout_opts;

/* The adapter that is trained instead of the weights. */
typedef struct ml_lora_flags {
    int64_t rank; /* 0: none, unless there is a path */
    double alpha, dropout;
    int type; /* 0: fused projections share A; 1: canonical */
    const char *target, *exclude;
    const char *path; /* the initial adapter; NULL: a new one */
    bool rslora, shared_outer;
    bool train_only; /* rollouts use the model without the adapter */
} ml_lora_flags;

/* Several adapters that are trained at once, each registered while the service runs. */
typedef struct ml_multi_lora_opts {
    int64_t n_slot;          /* 0: the run trains one adapter, or none */
    ml_string_list adapters; /* registered at the start: NAME PATH NAME PATH */
    int64_t port;            /* of the API; 0: any */
    bool no_service;         /* end when no adapter is left */
    int64_t max_batch;       /* samples of an adapter's step; 0: not given */
} ml_multi_lora_opts;

typedef struct ml_mode_opts {
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
    const char *router_ip; /* of a router that runs already; NULL: none */
    const char *engine_key, *engine_key_file; /* of external engines; NULL: none */
    int64_t n_engine; /* generating processes started by the run; 0: it generates itself */
    double request_s; /* time limit of a request; 0: none */
    ml_transfer transfer;
} ml_mode_opts;

typedef struct ml_extension_opts {
    ml_extension_paths path;
    const char *generate, *execute_tool, *plugin; /* NULL: none */
} ml_extension_opts;

/* Sessions of agents; NULL: not given. */
typedef struct ml_session_flags {
    int kind; /* 1 + ml_session_kind; 0: none */
    const char *matcher;
    const char *ip, *tito, *picker, *postprocessor, *agent;
    ml_string_list ports;
    int64_t max_tokens; /* 0: no limit */
} ml_session_flags;

typedef struct ml_debug_opts {
    bool determinism, checksum, weight_sync, check_sync, no_update, env_report;
    bool prefill, skip_sync;
    ml_string_list sync_skip;
    int64_t print_every, exit_after;                     /* 0: not given */
    const char *sentinel, *dump, *trajectory, *env_vars; /* NULL: not given */
    double subsample, peak_tflops;                       /* NaN; 0: not given */
    bool ci_no_sync;
    const char *faults; /* JSON; NULL: none */
} ml_debug_opts;

/* Weights on disk, for engines of other processes. */
typedef struct ml_publish_opts {
    const char *dir;     /* of the versions; NULL: next to the saved snapshots */
    bool delta;          /* write changes instead of full weights */
    ml_delta_opts write; /* of deltas; its source is dir */
    const char *copy; /* directory where an engine keeps the version that deltas change */
    int64_t shard_bytes; /* of a file of full weights, or of a request over TCP */
    const char *address; /* under which engines reach this process; NULL: found out */
} ml_publish_opts;

typedef struct ml_dump_opts {
    bool enable;
    const char *dir;
    ml_string_list inference, score, train; /* options of each */
} ml_dump_opts;

/* Diagnostics that a run records; NULL: not given. */
typedef struct ml_record_opts {
    const char *train, *events, *memory_dir, *inject;
    bool analyse, coverage, memory, masters;
    int64_t coverage_rows, memory_rollouts, inject_from;
    int recorder; /* ml_memory_view */
    double inject_least;
} ml_record_opts;

/* Zeros mean defaults.  Strings must outlive the run. */
typedef struct ml_run_opts {
    const char *hf_checkpoint;
    ml_weight_dtype dtype;
    /* AUTO: none.  Engines have a quantized copy of the weights, with other log-probs (STORED:
     * if hf_checkpoint has FP8 weights); or
     * engines and trainer read one, and the weights are trained through it. */
    ml_weight_dtype rollout_dtype, qat;
    struct {
        bool ends;            /* the first and last decoder layers are not quantized: */
        int64_t first, last;  /* this many */
        ml_string_list names; /* nor are tensors whose names contain one of these */
        ml_string_list megatron_names;
    } high_precision;
    ml_dtype kv_dtype; /* of the KV cache, in training, too; ML_F32: that of the weights */
    ml_backend_opts backend;
    const char *chat_template; /* NULL: the checkpoint's own */
    ml_arch_flags arch;
    /* Checkpoint of the reference, and of the actor if there is no snapshot; NULL:
     * hf_checkpoint. */
    const char *ref_load;
    int64_t ref_step;         /* the snapshot in ref_load; ML_NONE: the newest */
    int64_t ref_interval;     /* rollouts after which the actor is copied to it; 0: never */
    const char *teacher_load; /* NULL: no teacher in memory */
    int64_t teacher_step;
    ml_string_list teacher_urls; /* teachers served over HTTP: URL or NAME=URL */
    const char *teacher_key, *teacher_key_file; /* their API key; NULL: none */
    const char *opd_type;
    struct {
        int64_t top_k; /* 0: the tokens of the answer are compared */
        ml_opd_set set;
        ml_opd_weight weight;
        bool per_position;       /* servers of teachers score ids per position */
        const char *key;         /* member of the metadata that names a sample's teacher */
        const char *context_key; /* that with the teacher's prompt; NULL: the student's */
        double sibling_reward;   /* as in ml_teacher_prompt */
    } opd;
    struct {
        int64_t overlong_buffer;
        double overlong_factor, length_coef;
        ml_string_list keys, weights;
    } shaping;            /* as in ml_reward_shaping */
    ml_dataset_opts data; /* path NULL: none; its text functions are filled in here */
    ml_string_list data_weights;
    ml_data_source_opts source;
    int64_t rollout_batch_size;     /* prompts per rollout */
    int64_t num_rollout, num_epoch; /* rollouts; 0: by epochs of the data */
    int64_t num_steps_per_rollout;  /* 0: by the batch size */
    bool no_trim; /* do not truncate a rollout to a multiple of the batch */
    /* The length of the learning-rate schedule is filled in here. */
    ml_trainer_opts trainer;
    double weight_decay; /* if it does not change */
    bool recompute_loss, offload_states;
    ml_string_list recompute_modules;
    ml_algo_opts algo;
    bool per_token;                /* the loss of sft */
    ml_preference_opts preference; /* of miles dpo, and the pairs of miles reward-model */
    bool reward_labels;            /* of miles reward-model: labels instead of pairs */
    bool keep_old_actor, reset_optimizer, on_policy, entropy; /* as in ml_learner */
    /* The critic of a recipe that has a loss for one; NULL: as below. */
    const char *critic_load; /* <load>_critic if the actor continues, else hf_checkpoint */
    const char *critic_save; /* <save>_critic */
    double critic_lr;        /* NaN: the actor's */
    int64_t critic_warmup_iters, n_critic_only;
    int64_t critic_seed;              /* of the head, if the checkpoint has none */
    const char *save, *load;          /* NULL: nothing is saved; the run starts at 0 */
    ml_saver_opts saver;              /* its directories are filled in here */
    int64_t save_interval;            /* 0: at the end */
    int64_t ckpt_step, start_rollout; /* ML_NONE: the newest; after the snapshot */
    bool save_optim, load_optim;
    bool finetune;       /* take only the weights of a snapshot, not its position */
    bool overwrite;      /* remove a run that is in `save` */
    bool dry_run;        /* plan the memory only */
    ml_run_log_opts log; /* its directory is `save`; with a profile, its ops are given */
    bool store;          /* the run store of the log */
    ml_string_list profile_targets; /* none: all */
    int64_t memory_margin;          /* to leave free */
    ml_lora_flags lora;
    ml_multi_lora_opts multi_lora;
    ml_rollout_opts rollout;
    ml_mode_opts mode;
    ml_place_opts place;
    ml_extension_opts extensions;
    ml_session_flags sessions;
    ml_turns_opts turns;
    ml_reward_opts reward;
    const char *custom_rm_path, *eval_reward_key; /* NULL: not given */
    ml_engine_opts engine;
    ml_speculative_opts speculative;
    ml_mtp_opts mtp;
    ml_supervisor_opts supervisor;
    ml_publish_opts publish;
    ml_router_opts router; /* of the run; its host, port, policy and limits are options */
    bool no_router_health, no_router_retries;
    int64_t eval_gpus, eval_gpus_per_engine; /* 0: evaluations wait for the rollout */
    ml_eval_queue_opts eval_queue;
    ml_invariants_opts invariants;
    ml_debug_opts debug;
    ml_dump_opts dump;
    ml_record_opts record;
    ml_tracker_opts trackers;
    ml_run_dash_opts dash;
    ml_run_prometheus_opts prometheus;

    /* The ranks of the job; the command sets them. */
    ml_run_ranks ranks;

    /* The rest follows from the options above: see ml_run_opts_complete. */
    ml_recipe recipe;
    bool needs_template;               /* fail if the checkpoint has no chat template */
    bool needs_tokenizer;              /* even if there is no data */
    bool learns_nothing;               /* weights but no trainer; nothing is saved */
    bool trains_reward;                /* the model is a reward model (ml_spec.reward) */
    bool wants_ref;                    /* there is a reference */
    bool replay_rollout[ML_N_ROUTING]; /* replay the rollout's routing record */
    ml_hooks *hooks;                   /* NULL: none */
    bool second_set; /* generation has its own weights, for the memory plan */
    /* For the memory plan: the bytes generation needs besides the KV cache, for the KV
     * cache, and for models of rewards; whether generation and training, or the KV cache and
     * activations, use the memory alternately. */
    size_t engine_bytes, kv_bytes, reward_bytes;
    bool in_turns, act_in_turns;
    ml_str config; /* options that a resumed run must share, a JSON object */
} ml_run_opts;

/* Whether a flag of a critic is given. */
static inline bool ml_run_names_critic(const ml_run_opts *o) {
    return o->critic_load || o->critic_save || o->n_critic_only || o->critic_warmup_iters ||
           !isnan(o->critic_lr);
}

/* The name by which engines of other processes know the adapter; Miles' functions send it. */
#define ML_TRAINED_ADAPTER "miles_lora"

/* Whether an adapter is trained. */
static inline bool ml_run_has_lora(const ml_run_opts *o) {
    return o->lora.rank > 0 || o->lora.path;
}

/* Whether engines that run already do, behind a router or not. */
static inline bool ml_run_external(const ml_run_opts *o) {
    return o->mode.external || o->mode.router_ip;
}

/* Whether other processes generate the samples. */
static inline bool ml_run_elsewhere(const ml_run_opts *o) {
    return ml_run_external(o) || o->mode.n_engine > 0;
}

/* Samples per prompt; sft has one, pairs two. */
static inline int32_t ml_run_per_prompt(const ml_run_opts *o) {
    if (o->preference.on)
        return 2;
    return o->source.n_samples_per_prompt ? o->source.n_samples_per_prompt : 1;
}

/* The address in a word of teacher_urls; what precedes its = is the teacher's name. */
static inline const char *ml_teacher_url(const char *word) {
    const char *equals = strchr(word, '='), *scheme = strstr(word, "://");
    return equals && (!scheme || equals < scheme) ? equals + 1 : word;
}

/* Whether rollouts draw from a part of the vocabulary, which samples then carry. */
bool ml_run_draws_part(const ml_rollout_opts *o);
/* Samples per train step. */
int64_t ml_run_batch_size(const ml_run_opts *o);

/* Derives the options that follow from others.  ML_EUSAGE: the architecture is not that of
 * the model. */
ml_status ml_run_opts_complete(ml_run_opts *o, ml_err *err);
/* That, and the recipe of miles sft, or that of miles train with its extensions.  Text
 * goes to the arena. */
ml_status ml_run_opts_sft(ml_run_opts *o, ml_arena *a, ml_err *err);
ml_status ml_run_opts_dpo(ml_run_opts *o, ml_arena *a, ml_err *err);
ml_status ml_run_opts_reward_model(ml_run_opts *o, ml_arena *a, ml_err *err);
ml_status ml_run_opts_train(ml_run_opts *o, ml_arena *a, ml_loop_extensions *e,
                            ml_err *err);
/* The same with extensions that were found already. */
ml_status ml_run_opts_train_with(ml_run_opts *o, ml_arena *a, ml_loop_extensions *e,
                                 ml_err *err);

#endif
