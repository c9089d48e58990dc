/* train_run.h - a training run: a model and its trainer, prompts, and what is left on disk.
 *
 * Everything that supervised fine-tuning and reinforcement learning have in common is
 * here: what a run opens, where it goes on from, what it saves.  train_loop.h turns its wheel.
 *
 * thread: one owner, on the trainer's thread. */
#ifndef ML_RL_TRAIN_RUN_H
#define ML_RL_TRAIN_RUN_H

#include "rl/critic.h"
#include "rl/data_source.h"
#include "rl/learner.h"
#include "rl/prompt_encoder.h"
#include "rl/run_dir.h"
#include "rl/run_log.h"
#include "train/memory.h"
#include "train/snapshot.h"

/* Zeros mean defaults.  Texts must outlive the run. */
typedef struct ml_train_run_opts {
    const char *hf_checkpoint;
    const char *ref_load; /* what the actor starts from where there is no snapshot, and the
                             reference; NULL: hf_checkpoint */
    int64_t ref_step;     /* the snapshot in it; ML_NONE: the newest */
    bool wants_ref;       /* there is a reference */
    int64_t ref_interval; /* rounds after which it is the actor; 0: never */
    const char *teacher_load; /* NULL: no teacher in memory */
    int64_t teacher_step;
    const char *const *teacher_url; /* [n_teacher_url] a teacher behind HTTP */
    int32_t n_teacher_url;
    const char *teacher_key;  /* that they ask for, or NULL */
    double teacher_request_s; /* that it has for a request; 0: any */
    ml_weight_dtype dtype;
    ml_backend_opts backend;
    const char *chat_template;
    bool needs_template;  /* a checkpoint without a chat template will not do */
    bool learns_nothing;  /* there are weights, but no trainer, and nothing is saved */
    ml_dataset_opts data; /* path NULL: none; what makes text is filled in here */
    bool needs_tokenizer; /* though there is no data */
    ml_data_source_opts source;
    int64_t rollout_batch_size;     /* prompts of a round */
    int64_t num_rollout, num_epoch; /* rounds; 0: by passes over the data */
    bool no_trim;                   /* a round is not cut to a multiple of the batch */
    ml_trainer_opts trainer;        /* the learning rate's length is filled in here */
    ml_recipe recipe;
    bool keep_old_actor, reset_optimizer, on_policy, entropy; /* as ml_learner has them */
    bool replay_rollout[ML_N_ROUTING]; /* choices to replay are the rollout's */
    /* The critic of a recipe that has a loss for one; NULL: as below. */
    const char *critic_load; /* <load>_critic where the actor goes on, else hf_checkpoint */
    const char *critic_save; /* <save>_critic */
    double critic_lr;
    int64_t critic_warmup_iters, n_critic_only;
    uint64_t critic_seed;    /* of the head, where its checkpoint has none */
    const char *save, *load; /* NULL: nothing is saved; the run starts at 0 */
    const char *save_hf;     /* see ml_saver_opts */
    int64_t save_interval, keep_last, retain_interval; /* 0: at the end; all; none */
    int64_t ckpt_step, start_rollout; /* ML_NONE: the newest; after the snapshot */
    bool async_save, no_save_optim, no_load_optim;
    bool finetune;  /* of a snapshot the weights count, not where it stood */
    bool overwrite; /* a run that is in `save` is removed */
    ml_run_log_opts
        log; /* its directory is that of save; where ops are told is made here */
    const ml_hooks *hooks; /* NULL: nobody is told */
    bool second_set;       /* generation has weights of its own, for the memory plan */
    size_t memory_margin;  /* to leave free */
    /* For the memory plan: what generation will take beside keys and values, and for them; whether
     * they and training have their memory in turns. */
    size_t engine_bytes, kv_bytes;
    bool in_turns;
    ml_str config; /* what a resumed run must share, a JSON object */
} ml_train_run_opts;

enum { ML_WEIGHT_SETS = 8 };

typedef struct ml_train_run {
    ml_train_run_opts opts;
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *from; /* hf_checkpoint */
    ml_backend be;
    ml_tokenizer *tokenizer;         /* NULL: nothing is read or written */
    ml_chat_template *chat_template; /* NULL: the checkpoint has none */
    ml_prompt_encoder prompter;
    ml_dataset dataset;
    ml_data_source *source; /* NULL: no prompts */
    ml_weights weights, ref, teacher;
    ml_trainer *trainer;
    ml_critic critic;
    ml_gen *teachers; /* behind HTTP; NULL: none */
    ml_learner learner;
    ml_saver *saver;
    ml_run_log log;
    ml_run_dir dir[2];                    /* the actor's and the critic's */
    int64_t rollout, num_rollout;         /* the next one; how many there are */
    const char *snapshot;                 /* it went on from; NULL: none */
    const char *started;                  /* else: the checkpoint it started from */
    const char *set_name[ML_WEIGHT_SETS]; /* of weight sets, for the memory plan */
    size_t base_bytes;                    /* taken before any of them */
    ml_str saved; /* its position in the data, and what else was saved there */
} ml_train_run;

/* Opens and checks all that is read; takes no memory for the model yet. */
ml_status ml_train_run_open(ml_train_run *out, const ml_train_run_opts *opts, ml_err *err);
void ml_train_run_close(ml_train_run *r); /* after a failed open, too; zeros are fine */

/* What it will take, and ML_ENOMEM when the machine does not have it. */
void ml_train_run_memory(ml_train_run *r, ml_memory_ask *out);

/* Where ops of phases of a kind are told; NULL: no profile shows them. */
ml_timeline *ml_train_run_ops(const ml_train_run *r, ml_span_kind kind);

/* ML_EUSAGE when the directories it saves to hold another run.  Changes nothing. */
ml_status ml_train_run_check_dirs(ml_train_run *r, ml_err *err);

/* ML_EIO when the disk has no room for what it will save. */
ml_status ml_train_run_check_disk(ml_train_run *r, ml_err *err);

/* Loads weights, goes on from a snapshot where there is one, and begins to write. */
ml_status ml_train_run_start(ml_train_run *r, ml_err *err);

/* Saves the round that was just trained; `more`: further members of the state, or empty. */
ml_status ml_train_run_save(ml_train_run *r, ml_str more, ml_err *err);

#endif
