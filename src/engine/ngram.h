/* ngram.h - draft tokens by prompt lookup: what followed the latest tokens before.
 *
 * The longest match of a request's latest tokens is looked up in its own tokens, in the
 * answers of running requests with the same prompt (the samples of a group), and in answers
 * to the same prompt that ended earlier (RL asks a prompt again and again).  The tokens after
 * the match are the draft; the branches of a tree follow other matches.  Ended answers are kept in a ring buffer of fixed size.
 *
 * thread: the engine's owner; ml_ngram_hash: any. */
#ifndef ML_ENGINE_NGRAM_H
#define ML_ENGINE_NGRAM_H

#include "base/arena.h"
#include "engine/request.h"

typedef struct ml_ngram_answer {
    uint64_t prompt_hash;
    int64_t at; /* its first token, counted since the engine was opened */
    int32_t n;
} ml_ngram_answer;

typedef struct ml_ngram {
    int32_t *token; /* [ML_NGRAM_TOKENS] ring */
    int64_t n_token;
    ml_ngram_answer *answer; /* [ML_NGRAM_ANSWERS] ring */
    int64_t n_answer;
} ml_ngram;

enum { ML_NGRAM_TOKENS = 1 << 18, ML_NGRAM_ANSWERS = 1 << 10 };

void ml_ngram_init(ml_ngram *g, ml_arena *a);
uint64_t ml_ngram_hash(const int32_t *token, int32_t n);

/* Keeps the answer of a request that ends. */
void ml_ngram_keep(ml_ngram *g, const ml_request *r);

/* A place where the latest tokens of a request occur. */
typedef struct ml_ngram_match {
    const int32_t *next; /* [n_next] the tokens after it */
    int32_t n_next;
    int32_t len;  /* of the match */
    bool repeats; /* the request's own tokens, which are taken to repeat */
} ml_ngram_match;

/* The longest matches of r's latest tokens, at most n, with different next tokens; of equally
 * long ones the latest.  Returns how many.  They are valid until requests change. */
int32_t ml_ngram_find(const ml_ngram *g, const ml_request_list *running,
                      const ml_request *r, ml_ngram_match *out, int32_t n);
/* Up to n tokens that may follow those of the request; returns how many. */
int32_t ml_ngram_read(const ml_ngram_match *m, int32_t *out, int32_t n);

#endif
