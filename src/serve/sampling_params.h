/* sampling_params.h - sampling parameters and stop conditions of requests.
 *
 * One struct for all APIs: /generate has an object "sampling_params", OpenAI's requests
 * have the same parameters in the body under other names.  Both read them with field tables
 * (request_fields.h) and copy them to an ml_gen_request. */
#ifndef ML_SERVE_SAMPLING_PARAMS_H
#define ML_SERVE_SAMPLING_PARAMS_H

#include "gen/gen.h"
#include "serve/request_fields.h"

/* Most choices of a request, over all its prompts. */
#define ML_MAX_CHOICES 4096
#define ML_MAX_TOP 100 /* most top log-probabilities per token */
#define ML_MAX_STOPS 64
#define ML_MAX_STOP_IDS 1024
#define ML_MAX_BIASES 4096

typedef struct ml_sampling_params {
    /* as parsed */
    float temperature, top_p, min_p, repetition, frequency, presence;
    int32_t top_k;            /* -1: all */
    int32_t min_new, max_new; /* max_new -1: until the context is full */
    int32_t n;
    bool ignore_eos, skip_special, no_stop_trim;
    const ml_json *stop_json, *stop_id_json, *bias_json, *seed_json, *sample_json;
    const ml_json *dist_json;
    ml_str source[ML_N_GRAMMAR]; /* grammars */
    /* derived from the above */
    const ml_str *stop;
    const int32_t *stop_id;
    const ml_bias *bias;
    int32_t n_stop, n_stop_id, n_bias;
    bool has_seed, has_sample;
    uint64_t seed, sample;
    ml_dist dist;
    ml_grammar_source grammar;
} ml_sampling_params;

void ml_sampling_params_init(ml_sampling_params *p);

/* Sets temperature, top_p, top_k, min_p and repetition_penalty from the checkpoint's
 * generation_config.json, as far as it has them.  Without that file nothing changes. */
ml_status ml_sampling_params_defaults(ml_sampling_params *p, const char *dir, ml_err *err);

/* Reads the object "sampling_params" of /generate; NULL: all defaults. */
ml_status ml_sampling_params_read(ml_sampling_params *p, const ml_json *object,
                                  int32_t n_vocab, ml_arena *a, ml_err *err);
/* Checks the parsed fields and fills in the derived ones. */
ml_status ml_sampling_params_check(ml_sampling_params *p, int32_t n_vocab, ml_arena *a,
                                   ml_err *err);

/* Sets the sampling fields of *r; the caller sets prompt, scores and Philox keys. */
void ml_sampling_params_apply(const ml_sampling_params *p, ml_gen_request *r);

#endif
