/* train_run.h - a training run: a model and its trainer, prompts, and the files it writes.
 *
 * This is the common part of supervised fine-tuning and reinforcement learning: opening
 * the inputs, continuing from a snapshot, saving. train_loop.h has the loop.
 *
 * thread: one owner, on the trainer's thread. */
#ifndef ML_RL_TRAIN_RUN_H
#define ML_RL_TRAIN_RUN_H

#include "rl/learn/critic.h"
#include "rl/hooks.h"
#include "rl/data/data_source.h"
#include "rl/learn/learner.h"
#include "rl/data/prompt_encoder.h"
#include "rl/record/run_dir.h"
#include "rl/record/run_log.h"
#include "train/memory.h"
#include "train/snapshot.h"

/* Zeros mean defaults.  Strings must outlive the run. */
typedef struct ml_train_run_opts {
    const char *hf_checkpoint;
    /* Checkpoint of the reference, and of the actor if there is no snapshot; NULL:
     * hf_checkpoint. */
    const char *ref_load;
    int64_t ref_step;         /* the snapshot in ref_load; ML_NONE: the newest */
    bool wants_ref;           /* there is a reference */
    int64_t ref_interval;     /* rollouts after which the actor is copied to it; 0: never */
    const char *teacher_load; /* NULL: no teacher in memory */
    int64_t teacher_step;
    const char *const *teacher_url; /* [n_teacher_url] teachers served over HTTP */
    int32_t n_teacher_url;
    const char *teacher_key;  /* their API key, or NULL */
    double teacher_request_s; /* time limit of a request; 0: none */
    ml_weight_dtype dtype;
    ml_backend_opts backend;
    const char *chat_template;
    bool needs_template;  /* fail if the checkpoint has no chat template */
    bool learns_nothing;  /* weights but no trainer; nothing is saved */
    ml_dataset_opts data; /* path NULL: none; its text functions are filled in here */
    bool needs_tokenizer; /* even if there is no data */
    ml_data_source_opts source;
    int64_t rollout_batch_size;     /* prompts per rollout */
    int64_t num_rollout, num_epoch; /* rollouts; 0: by epochs of the data */
    bool no_trim; /* do not truncate a rollout to a multiple of the batch */
    /* The length of the learning-rate schedule is filled in here. */
    ml_trainer_opts trainer;
    ml_recipe recipe;
    bool keep_old_actor, reset_optimizer, on_policy, entropy; /* as in ml_learner */
    bool replay_rollout[ML_N_ROUTING]; /* replay the rollout's routing record */
    /* The critic of a recipe that has a loss for one; NULL: as below. */
    const char *critic_load; /* <load>_critic if the actor continues, else hf_checkpoint */
    const char *critic_save; /* <save>_critic */
    double critic_lr;
    int64_t critic_warmup_iters, n_critic_only;
    uint64_t critic_seed;    /* of the head, if the checkpoint has none */
    const char *save, *load; /* NULL: nothing is saved; the run starts at 0 */
    const char *save_hf;     /* see ml_saver_opts */
    int64_t save_interval, keep_last, retain_interval; /* 0: at the end; all; none */
    int64_t ckpt_step, start_rollout; /* ML_NONE: the newest; after the snapshot */
    bool async_save, no_save_optim, no_load_optim;
    bool finetune;        /* take only the weights of a snapshot, not its position */
    bool overwrite;       /* remove a run that is in `save` */
    ml_run_log_opts log;  /* its directory is `save`; the op timeline is made here */
    ml_hooks *hooks;      /* NULL: none */
    bool second_set;      /* generation has its own weights, for the memory plan */
    size_t memory_margin; /* to leave free */
    /* For the memory plan: the bytes generation needs besides the KV cache, and for the KV
     * cache; whether generation and training use the memory alternately. */
    size_t engine_bytes, kv_bytes;
    bool in_turns;
    ml_str config; /* options that a resumed run must share, a JSON object */
} ml_train_run_opts;

enum { ML_WEIGHT_SETS = 8 };

typedef struct ml_train_run {
    ml_train_run_opts opts;
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *from; /* hf_checkpoint */
    ml_backend be;
    ml_tokenizer *tokenizer;         /* NULL: no text is encoded or decoded */
    ml_chat_template *chat_template; /* NULL: the checkpoint has none */
    ml_prompt_encoder prompter;
    ml_dataset dataset;
    ml_data_source *source; /* NULL: no prompts */
    ml_weights weights, ref, teacher;
    ml_trainer *trainer;
    ml_critic critic;
    ml_gen *teachers;       /* over HTTP; NULL: none */
    ml_observers observers; /* of the loop, the learner and the publisher */
    ml_learner learner;
    ml_saver *saver;
    ml_run_log log;
    ml_run_dir dir[2];                    /* the actor's and the critic's */
    int64_t rollout, num_rollout;         /* the next one; the total number */
    const char *snapshot;                 /* it continued from; NULL: none */
    const char *started;                  /* otherwise: the checkpoint it started from */
    const char *set_name[ML_WEIGHT_SETS]; /* names of weight sets, for the memory plan */
    size_t base_bytes;                    /* allocated before any of them */
    ml_str saved; /* saved state: the position in the data and other members */
} ml_train_run;

/* Opens and checks all inputs; does not allocate memory for the model yet. */
ml_status ml_train_run_open(ml_train_run *out, const ml_train_run_opts *opts, ml_err *err);
void ml_train_run_close(ml_train_run *r); /* also after a failed open; zeros are allowed */

/* Computes the memory that the run will need. */
void ml_train_run_memory(ml_train_run *r, ml_memory_request *out);

/* The timeline for ops in phases of this kind; NULL: no profile shows them. */
ml_timeline *ml_train_run_ops(const ml_train_run *r, ml_span_kind kind);

/* ML_EUSAGE if the directories it saves to have another run in them.  Changes nothing. */
ml_status ml_train_run_check_dirs(ml_train_run *r, ml_err *err);

/* ML_EIO if the disk has too little space for the saves. */
ml_status ml_train_run_check_disk(ml_train_run *r, ml_err *err);

/* Loads the weights, continues from a snapshot if there is one, and opens the output
 * files. */
ml_status ml_train_run_start(ml_train_run *r, ml_err *err);

/* Where the started run comes from, in a sentence, if it continues from a snapshot or found
 * none in `load`; otherwise "".  In the run's arena. */
const char *ml_train_run_origin(ml_train_run *r);

/* Saves the rollout that was just trained; `more`: further members of the state, or
 * empty. */
ml_status ml_train_run_save(ml_train_run *r, ml_str more, ml_err *err);

#endif
