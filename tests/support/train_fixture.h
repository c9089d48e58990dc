/* train_fixture.h - a small model, a trainer on it, and samples to train on, for tests. */
#ifndef ML_TESTS_SUPPORT_TRAIN_FIXTURE_H
#define ML_TESTS_SUPPORT_TRAIN_FIXTURE_H

#include "model/stage.h"
#include "train/trainer.h"

enum { ML_TRAIN_FIXTURE_SAMPLES = 16 };

typedef struct ml_train_fixture {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_backend be;
    ml_weights weights;
    ml_lora lora; /* zeros: none */
    const ml_lora_site *site;
    ml_lora_table table;
    ml_mtp_trainer mtp; /* zeros: none */
    ml_st_file *golden;
    ml_train_sample sample[ML_TRAIN_FIXTURE_SAMPLES];
    int32_t n_sample;
    ml_trainer *trainer;
} ml_train_fixture;

typedef struct ml_train_fixture_opts {
    const char *dir; /* NULL: tests/golden/data/qwen3 */
    ml_weight_dtype dtype;
    int n_thread; /* 0: 1 */
    const char *level;
    bool critic;
    bool whole; /* every token but the first is response, without a mask */
    /* NULL, or a new adapter, which is trained; its B has values, too. */
    const ml_lora_opts *lora;
    double dropout;
    bool mtp;             /* its multi-token prediction module is trained, too */
    const char *head;     /* with mtp: NULL, or the EAGLE-3 head that is trained instead */
    ml_stage_opts stages; /* of a pipeline; n_stage below 2: trainer.stage */
    ml_trainer_opts trainer;
} ml_train_fixture_opts;

/* The samples are the sequences of golden.safetensors with at least 4 tokens; unless
 * `whole`, the second half is response, and the mask excludes every third token.
 * Failures end the test. */
void ml_train_fixture_open(ml_train_fixture *t, const ml_train_fixture_opts *o);
void ml_train_fixture_close(ml_train_fixture *t);

/* Gives the matrices B of a new adapter values of the size of A's. */
void ml_fill_lora(ml_lora *l);

/* AdamW at 1e-3, with decay and clipping, as in tools/gen_training_golden.py. */
ml_trainer_opts ml_train_fixture_defaults(void);

/* All samples in one step, in order, cut into micro-batches of at most max_tokens. */
ml_bins ml_train_fixture_bins(ml_train_fixture *t, int64_t max_tokens);

/* -log-prob, averaged over the sample's unmasked tokens. */
ml_status ml_train_fixture_nll(void *ud, ml_loss_io *io, int32_t n, ml_err *err);
/* One step on it, over all samples. */
ml_step_result ml_train_fixture_step(ml_train_fixture *t, int64_t max_tokens);

#endif
