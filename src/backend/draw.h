/* draw.h - a token drawn from a row of logits, and its log-probability.
 *
 * One row, in this order: the model's logits; penalties and bias; division by the
 * temperature; top-k, top-p and min-p, each over the distribution before any of the three;
 * the draw.  With temperature 0 the draw is the largest logit, the lowest id of equals.
 *
 * The draw is addressed, not taken from a stream: its random number is a function of
 * (seed, sample, position).  So a sample does not depend on what else ran, when, or on
 * how many threads. */
#ifndef ML_BACKEND_DRAW_H
#define ML_BACKEND_DRAW_H

#include <stdint.h>

#include "tensor/device.h"

/* Which distribution a log-probability is of. */
typedef enum ml_dist {
    ML_DIST_RAW, /* the model's logits divided by the temperature: what a trainer computes */
    ML_DIST_MODEL, /* the model's logits alone */
    ML_DIST_DRAWN, /* what the token was drawn from: penalties, bias and filters included */
} ml_dist;

typedef struct ml_bias {
    int32_t id;
    float add;
} ml_bias;

/* How tokens of a request are drawn. */
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
    const float *logits; /* [n_vocab] a row of LMHEAD's */
    const ml_draw_opts *opts;
    const int32_t *history; /* [n_history] prompt, then answer: for penalties, and the */
    int32_t n_history;      /* drawn token's position is n_history */
    int32_t n_prompt;
    const int32_t *ban; /* [n_ban] never drawn: end tokens before the shortest answer */
    int32_t n_ban;
    int32_t given;       /* a token to score instead of drawing one, or -1 */
    int32_t n_top;       /* the most probable tokens wanted, at most n_vocab */
    const int32_t *also; /* [n_also] further tokens whose log-probability is wanted */
    int32_t n_also;
    /* results */
    int32_t id;
    float logprob, entropy; /* of dist */
    int32_t *top_id;        /* [n_top] descending, the lower id first of equals */
    float *top_logprob;     /* [n_top] */
    float *also_logprob;    /* [n_also] */
} ml_draw;

/* Scratch for draws on this stream. */
size_t ml_cpu_sample_scratch(const ml_stream *s, int64_t n_vocab);
/* n draws, divided among the stream's threads.  Results are functions of each draw alone, with
 * the same bits at every level and number of threads.  For dist RAW and MODEL, log-prob and
 * entropy have the bits that LMHEAD gives for the same logits and temperature. */
void ml_cpu_sample(ml_stream *s, ml_draw *draw, int64_t n, int64_t n_vocab, void *scratch,
                   int32_t *drawn);
void ml_cpu_sampled(ml_stream *s, ml_draw *draw, int64_t n); /* they are there already */

#endif
