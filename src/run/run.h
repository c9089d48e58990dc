/* run.h - a training run: a model and its trainer, prompts, and the files it writes.
 *
 * This is the common part of supervised fine-tuning and reinforcement learning: opening
 * the inputs, continuing from a snapshot, saving. train_loop.h has the loop.
 *
 * thread: one owner, on the trainer's thread. */
#ifndef ML_RUN_RUN_H
#define ML_RUN_RUN_H

#include "base/secret.h"
#include "rl/learn/critic.h"
#include "rl/data/data_source.h"
#include "rl/learn/learner.h"
#include "rl/observer.h"
#include "rl/data/prompt_encoder.h"
#include "rl/record/run_dir.h"
#include "rl/record/run_log.h"
#include "run/memory_plan.h"
#include "run/opts.h"
#include "train/snapshot.h"

enum { ML_WEIGHT_SETS = 8 };

typedef struct ml_train_run ml_train_run;
struct ml_train_run {
    ml_run_opts opts;
    /* The run whose model, tokenizer and backend it uses, to train an adapter of its own;
     * NULL: none. */
    ml_train_run *host;
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *from; /* hf_checkpoint */
    ml_backend be;
    ml_tokenizer *tokenizer;         /* NULL: no text is encoded or decoded */
    ml_chat_template *chat_template; /* NULL: the checkpoint has none */
    ml_prompt_encoder prompter;
    ml_dataset dataset;
    ml_dataset rows;        /* of --prompt-data, which a data source in Python reads */
    ml_data_source *source; /* NULL: no prompts */
    ml_weights weights, ref, teacher;
    ml_weights quantized,
        quantized_ref; /* copies that are read instead (--fake-quantization) */
    ml_lora lora;      /* the adapter on top of the weights; zeros: none */
    ml_lora_table lora_table;
    const ml_lora_site *lora_site;
    ml_mtp_trainer mtp; /* zeros: its layers are not trained */
    ml_trainer *trainer;
    ml_critic critic;
    const char *teacher_dir; /* the checkpoint of --opd-teacher-load; NULL: none */
    bool teacher_engine;     /* an engine of its own scores with it (teachers.h) */
    ml_secret teacher_key;
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
    size_t free_bytes; /* this rank's part of a GPU's free memory, before any of them */
    size_t held_bytes; /* of it in use by buffers of this process then */
    ml_str saved;      /* saved state: the position in the data and other members */
};

/* Opens and checks all inputs; does not allocate memory for the model yet. */
ml_status ml_train_run_open(ml_train_run *out, const ml_run_opts *opts, ml_err *err);
/* The same for a run that trains an adapter on the model of another one, which has started
 * and outlives it.  Opens data and directories; uses no backend. */
ml_status ml_train_run_open_on(ml_train_run *out, const ml_run_opts *opts,
                               ml_train_run *host, ml_err *err);
void ml_train_run_close(ml_train_run *r); /* also after a failed open; zeros are allowed */

/* Makes the adapter of a run on a host's model, before it starts. */
ml_status ml_train_run_adapt(ml_train_run *r, ml_err *err);

/* The part of each parameter that this rank trains; NULL: all of them. */
const ml_shard_range *ml_train_run_parts(ml_train_run *r, const ml_spec *s);

/* A checkpoint, given as its directory or as a directory of snapshots; step ML_NONE: the
 * newest. */
ml_status ml_train_run_find(ml_train_run *r, const char *dir, int64_t step,
                            const char **out, ml_err *err);

/* Computes the memory that the run will need. */
void ml_train_run_memory(ml_train_run *r, ml_memory_request *out);

/* Finds out this rank's part of its GPU's memory, which other ranks may share.  All ranks call it
 * when their backends are open, and before they allocate or time anything. */
ml_status ml_train_run_measure(ml_train_run *r, ml_err *err);

/* Bytes that this rank may allocate for the plan: the ranks of a host share its memory. */
size_t ml_train_run_free_bytes(const ml_train_run *r, const ml_backend *be);

/* The most memory that this rank has used, with its part of the device's own overhead. */
size_t ml_train_run_peak(const ml_train_run *r);

/* Its prompts, once it is open. */
ml_prompt_feed ml_train_run_feed(const ml_train_run *r);

/* The timeline for ops in phases of this kind; NULL: no profile shows them. */
ml_timeline *ml_train_run_ops(const ml_train_run *r, ml_span_kind kind);

/* ML_EUSAGE if the directories it saves to have another run in them.  Changes nothing. */
ml_status ml_train_run_check_dirs(ml_train_run *r, ml_err *err);

/* ML_ENOMEM if the machine has too little memory for the plan. */
ml_status ml_train_run_check_memory(ml_train_run *r, ml_err *err);

/* ML_EIO if the disk has too little space for the saves. */
ml_status ml_train_run_check_disk(ml_train_run *r, ml_err *err);

/* Marks the parameters that the trainer or the engines read quantized, for plans; `from` for the
 * codes of a checkpoint. */
void ml_train_run_mark_codes(ml_train_run *r, const ml_checkpoint *from);
/* The weights that forward passes of the trainer and of engines here read. */
ml_weights *ml_train_run_read(ml_train_run *r);

/* Loads the weights, continues from a snapshot if there is one, and opens the output
 * files. */
ml_status ml_train_run_start(ml_train_run *r, ml_err *err);

/* Where the started run comes from, in a sentence, if it continues from a snapshot or found
 * none in `load`; otherwise "".  In the run's arena. */
const char *ml_train_run_origin(ml_train_run *r);

/* --dry-run: reports the memory plan of the run, and fails if the machine does not have
 * enough. */
ml_status ml_train_show_memory(ml_train_run *r, void (*say)(const char *), ml_err *err);

/* Starts the run, whose memory and disk space suffice; c: the options as given.  See
 * inputs.h for its save directory and its record. */
ml_status ml_train_start(ml_train_run *r, const ml_run_opts *c, void (*say)(const char *),
                         ml_err *err);

/* Saves the rollout that was just trained; `more`: further members of the state, or
 * empty. */
ml_status ml_train_run_save(ml_train_run *r, ml_str more, ml_err *err);

#endif
