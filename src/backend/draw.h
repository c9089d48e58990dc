/* draw.h - sampling a token from a row of logits, with its log-probability.
 *
 * The order for one row is: the model's logits; penalties and bias; the tokens that a
 * grammar allows; division by the temperature; top-k, top-p and min-p, each computed on the distribution before any of
 * the three; the draw.  With temperature 0 the draw is the largest logit, ties to the
 * lowest id.
 *
 * The random number generator is counter-based: the random number is a function of (seed,
 * sample, position), not the next value of a stream.  A sample therefore does not depend
 * on the other requests, on timing or on the number of threads. */
#ifndef ML_BACKEND_DRAW_H
#define ML_BACKEND_DRAW_H

#include <stdint.h>

#include "backend/support.h"
#include "tensor/device.h"

/* Which distribution a log-probability refers to. */
typedef enum ml_dist {
    ML_DIST_RAW,   /* logits / temperature: the distribution that a trainer computes */
    ML_DIST_MODEL, /* the model's logits */
    ML_DIST_DRAWN, /* the sampling distribution: penalties, bias, masks and filters included */
} ml_dist;

typedef struct ml_bias {
    int32_t id;
    float add;
} ml_bias;

/* Sampling parameters of a request. */
typedef struct ml_draw_opts {
    float temperature;         /* 0: greedy; log-probs are then of temperature 1 */
    int32_t top_k;             /* 0: all */
    float top_p;               /* 1: all */
    float min_p;               /* 0: all */
    float repetition;          /* 1: none; over prompt and answer */
    float frequency, presence; /* 0: none; over the answer */
    const ml_bias *bias;
    int32_t n_bias;
    uint64_t seed, sample;
    ml_dist dist;
} ml_draw_opts;

typedef struct ml_draw {
    const float *logits; /* [n_vocab] one row of LMHEAD's output */
    const ml_draw_opts *opts;
    const int32_t *history; /* [n_history] prompt, then answer: for penalties; */
    int32_t n_history;      /* also the position of the drawn token */
    int32_t n_prompt;
    const int32_t *ban; /* [n_ban] never drawn: end tokens before the minimum length */
    int32_t n_ban;
    const uint32_t
        *allowed;        /* bit i % 32 of word i / 32: token i may be drawn; NULL: all */
    int32_t given;       /* a token to score instead of a draw, or -1 */
    int32_t n_top;       /* number of most probable tokens to return, at most n_vocab */
    const int32_t *also; /* [n_also] further tokens whose log-probability is returned; -1:
                            none, NaN */
    int32_t n_also;
    uint8_t *support; /* [ml_support_max()] where its support is written; NULL: nowhere */
    /* results */
    int32_t id;
    float logprob, entropy; /* of dist */
    int32_t *top_id;        /* [n_top] by descending probability, ties to the lower id */
    float *top_logprob;     /* [n_top] */
    float *also_logprob;    /* [n_also] */
    /* With `support`: its bytes (support.h), and the log-probability of id with which the
     * model's logits / temperature, normalised over the support, draw it. */
    int32_t n_support;
    float support_logprob;
} ml_draw;

/* Scratch bytes for draws on this stream. */
size_t ml_cpu_sample_scratch(const ml_stream *s, int64_t n_vocab);
/* Draws n tokens, divided among the stream's threads.  Each result is a function of its
 * draw alone, with the same bits at every level and number of threads.  For dist RAW and
 * MODEL, log-prob and entropy have the bits that LMHEAD computes for the same logits and
 * temperature; so has the log-prob over a support. */
void ml_cpu_sample(ml_stream *s, ml_draw *draw, int64_t n, int64_t n_vocab, void *scratch,
                   int32_t *drawn);
void ml_cpu_sampled(ml_stream *s, ml_draw *draw, int64_t n); /* returns at once */

#endif
