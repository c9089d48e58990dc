/* sample_job.h - requests of sampling clients while they are computed.
 *
 * A job has one choice for each request to the generator: its answers, and the scores of the
 * prompt where no answer has them.
 *
 * thread: the event loop's; a choice's results belong to the generator's thread until its
 * last callback. */
#ifndef ML_TINKER_SAMPLE_JOB_H
#define ML_TINKER_SAMPLE_JOB_H

#include <stdatomic.h>

#include "tinker/tinker_priv.h"

#define ML_MAX_SAMPLES 4096 /* of a request */

/* Saved weights that samplers use, in a slot of the generator or not. */
struct ml_sampler_adapter {
    ml_sampler_adapter *next;
    char *dir;
    int32_t slot, id; /* id: as in ml_gen_request */
    bool loaded, loading;
    bool stale; /* its files were replaced or removed: it gets no new requests */
    int32_t n_user;
    uint64_t last_use;
    ml_lora lora;               /* the training thread's */
    ml_sampler_adapter *victim; /* whose slot it gets while it is loaded */
};

/* What one request to the generator computes. */
typedef enum ml_choice_kind {
    ML_CHOICE_SCORE,  /* log-probs of the prompt */
    ML_CHOICE_TARGET, /* log-probs of given tokens at the prompt's positions */
    ML_CHOICE_SAMPLE, /* an answer */
    ML_CHOICE_BOTH    /* an answer, and the prompt's log-probs */
} ml_choice_kind;

typedef struct ml_sample_choice {
    ml_sample_job *job;
    ml_choice_kind kind;
    int32_t index; /* of the answer */
    uint64_t ticket;
    bool submitted;
    ml_finish finish;
    int32_t n_cached;
    /* written on the generator's thread until finish */
    ml_text prompt, prompt_id, prompt_top, also; /* log-probs, top ids, their log-probs */
    ml_text token, logprob, top_id, top;         /* of the answer */
    char message[200];
} ml_sample_choice;

struct ml_sample_job {
    ml_sample_job *next;
    ml_tinker *t;
    ml_future *future;
    ml_sampler_adapter *adapter; /* NULL: the base */
    bool started;
    atomic_int n_open;
    ml_sample_choice *choice;
    int32_t n_choice;
    ml_gen_request request; /* of answers */
    int32_t n_sample;
    bool wants_prompt;
    int32_t k_prompt, k_answer; /* top-k */
    int32_t score_from;
    int64_t *crow; /* target_prompt_logprobs, in compressed rows: [n_prompt] */
    int32_t *cell; /* [crow's last] the ids */
    int64_t *col;  /* their columns; NULL: the tensor is dense */
    int64_t n_col;
    int32_t n_also, *also; /* [n_prompt - 1][n_also] */
    ml_arena arena;
};

/* sample_request.c: reads a request and makes its choices. */
ml_status ml_sample_job_read(ml_sample_job *j, const ml_sampler *s, const ml_json *body,
                             ml_err *err);
/* sample_reply.c: the results, as tinker_public.proto's SampleResponse. */
void ml_sample_job_write(ml_text *out, const ml_sample_job *j);
/* The top tokens that the generator returns for a choice, as many as its parts need. */
int32_t ml_sample_choice_top(const ml_sample_job *j, ml_choice_kind kind);

#endif
